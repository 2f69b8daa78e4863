"""The most that a replica's forecast peak can be, without drawing those who came since it was last known.

Formula. With the sums of those drawn, read at a margin z a little above the one in force, bias b and spread s (``core.risk``), and each
undrawn request's bound d_i (``core.newcomers``):

    peak  <=  max over t of min(M + z sqrt(V + K^2), C)  +  sum of d_i  +  (1 + z) s  +  b

since the root of a sum of squares is no more than the sum of the roots. Who ends undrawn is taken off again; who ends drawn is not, until
the next refresh. Found anew when the margin has risen above z, or when somebody came whose bound is not known; the part of those drawn
also when what other proxies have there came to be another.

Fails: spreads that would average out are added up, so it is far too high where many came at once, and the curves are drawn then.
"""

from math import inf

from proxy.core.demand import Demand
from proxy.core.ledger import Ledger
from proxy.core.newcomers import Newcomer, Undrawn
from proxy.core.risk import Risk, peak_of

Z_SPARE = 0.25  # the margin moves with every end: by so much before the sums are read again


class PeakBound:
    """Of one ledger. ``room`` is what a decision asks; the book tells who comes and goes, before the ledger knows of an end."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._blocks, self._z = 0.0, -inf
        self._others_changes = ledger.others_changes

    def __repr__(self) -> str:
        """Reading for people and tests."""
        return f"<PeakBound {self._blocks:.1f} z={self._z:.2f}>"

    def forget(self) -> None:
        """The sums were made anew."""
        self._z = -inf

    def came(self, newcomer: Newcomer | Undrawn | None) -> None:
        """A lease was booked."""
        if isinstance(newcomer, Undrawn):
            self._blocks += newcomer.bound_blocks
        else:
            self._z = -inf

    def went(self, lease_id: str) -> None:
        """A lease is about to end."""
        undrawn = self._ledger.undrawn.get(lease_id)
        if undrawn is not None:
            self._blocks -= undrawn.bound_blocks

    def room(self, demand: Demand, output_tokens_max: int, delay_steps: float, risk: Risk) -> tuple[float, Undrawn] | None:
        """The forecast peak with ``demand`` at most, in blocks, and its bound; None where only drawing tells."""
        ledger = self._ledger
        if self._z < risk.z:
            self._z = risk.z + Z_SPARE
            self._blocks = peak_of(ledger.totals.copy(), Risk(self._z, 0.0, 0.0))
        elif self._others_changes != ledger.others_changes:
            undrawn_blocks = sum(one.bound_blocks for one in ledger.undrawn.values())
            self._blocks = peak_of(ledger.totals_drawn, Risk(self._z, 0.0, 0.0)) + undrawn_blocks
        self._others_changes, z = ledger.others_changes, self._z
        undrawn = ledger.newcomers.undrawn(demand, output_tokens_max, delay_steps, z)
        if undrawn is None:
            return None
        return self._blocks + undrawn.bound_blocks + (1.0 + z) * risk.sigma_blocks + risk.bias_blocks, undrawn
