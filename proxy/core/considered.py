"""What was seen of the replicas when a request was first held and when it got its place: kept with it, for whoever asks afterwards why.

Decides nothing. Told from what a decision has worked out anyway, and only by the two that people ask about: a request that waits is looked
at again and again, and none of that is kept. Of many replicas the ``LOOKS_MAX`` with the most headroom are, so that a record stays small.

Fails: where nothing but headroom counts, replicas behind the first that took the request were not looked at, and are not told. Where the
pool was so roomy that no curve was drawn (``core.roomy``), the mean is an upper bound and the headroom a lower one.
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from proxy.core.curves import Curves

if TYPE_CHECKING:
    from proxy.core.saturation import Binding

LOOKS_MAX = 8  # the one that was chosen, and the nearest misses


class ReplicaLook(NamedTuple):
    """One replica as a request saw it. ``headroom_ratio`` is the share of its pool left at the forecast peak with the request, below zero
    where it does not fit; ``score`` the delay it would cause there, in tokens of prefill work, where that was asked.
    """

    replica: str
    binding: "Binding"
    headroom_ratio: float
    usable_blocks: int
    cached_tokens: float
    score: float | None


class Looks(NamedTuple):
    """Replicas looked at in one decision, the chosen one or the nearest miss first. ``others`` were, and are not told."""

    replicas: tuple[ReplicaLook, ...]
    others: int


@dataclass(slots=True)
class Considered:
    """What one request met. Blocks are the peaks of its own forecast: the mean, and the most that it can come to hold."""

    mean_blocks: float | None = None
    ceiling_blocks: float | None = None
    held: Looks | None = None  # when it was first held; None: it was not, or was not looked at because others waited
    placed: Looks | None = None  # when it got its place
    ahead: int | None = None  # requests that waited when it was first held
    held_by: str = ""  # the share of its tenant that kept it from going then

    def forecast(self, curves: Curves) -> None:
        """Take in its forecast."""
        mean, ceiling = curves.mean, curves.ceiling
        self.mean_blocks, self.ceiling_blocks = float(mean[mean.argmax()]), float(ceiling[ceiling.argmax()])

    def bounded(self, mean_blocks: float, ceiling_blocks: float) -> None:
        """As ``forecast``, where no curve was drawn."""
        self.mean_blocks, self.ceiling_blocks = mean_blocks, ceiling_blocks

    def hold(self, ahead: int, held_by: str) -> None:
        """It is held, with so many before it."""
        if self.ahead is None:
            self.ahead, self.held_by = ahead, held_by
