"""What a replica says to one request: whether it fits, and what it would add; and what it says of itself.

Decides nothing; made by ``core.book`` for one replica and by ``core.placement`` for many.
"""

from typing import NamedTuple

from proxy.core.curves import Curves
from proxy.core.newcomers import Newcomer, Undrawn
from proxy.core.saturation import Binding


class Verdict(NamedTuple):
    """Whether a request fits a replica now, what binds if not, and the share of the pool left at the forecast peak."""

    binding: Binding
    headroom_ratio: float
    curves: Curves
    cached_tokens: float = 0.0  # of the prompt, expected in the replica's prefix cache
    newcomer: Newcomer | Undrawn | None = None  # what ``curves`` would be if nothing were shared; undrawn: there are none yet

    @property
    def fits(self) -> bool:
        """No limit binds."""
        return self.binding is Binding.NONE


class Outlook(NamedTuple):
    """The forecast peak in blocks: the expected demand at that moment, what bypasses us, and the rest, the margin."""

    peak_blocks: float
    expected_blocks: float
    bias_blocks: float

    @property
    def margin_blocks(self) -> float:
        """What the peak is above what is expected."""
        return max(0.0, self.peak_blocks - self.expected_blocks - self.bias_blocks)
