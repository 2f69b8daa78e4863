"""What the other proxies have on one replica, as its ledger here counts it.

Decides nothing. The others' row (``core.shared``) is told with its anchor in steps of the replica's clock here; the ledger has it read
anew at its own anchor whenever that moves, so that one sum holds everybody. A row told later than that anchor is taken as it is, by less
than the steps between two refreshes, which errs upwards as all that is read late (``core.ledger``).

Formula. What they hold at a step ``s`` lies between two lines, their figures growing while they decode:

    low(s), high(s) = max(0, low + growth * (s - anchor)), max(0, high + growth * (s - anchor))

Fails: figures of a row that nobody renews grow on; the proxies renew theirs several times a second, and the store drops the others'.
"""

from math import nan

import numpy as np

from proxy.core.grid import FloatArray, Grid
from proxy.core.shared import Load, curves_of, load_of, shifted

NOBODY = Load()


class Peers:
    """The others' sum on one replica. Blocks; steps of the replica's clock here."""

    __slots__ = ("_aligned_steps", "_anchor_steps", "_grid", "_row", "curves", "load")

    def __init__(self, grid: Grid) -> None:
        self.load = NOBODY
        self.curves: FloatArray = np.zeros((4, len(grid)))  # from the ledger's anchor on
        self._grid = grid
        self._row: FloatArray | None = None
        self._anchor_steps = 0.0
        self._aligned_steps = nan  # from where ``curves`` were read; no number: from nowhere yet

    def __repr__(self) -> str:
        """Counts for people and tests."""
        return f"<Peers leases={self.load.leases:.0f} sequences={self.load.sequences:.0f}>"

    def told(self, row: FloatArray, anchor_steps: float) -> None:
        """Their sum is ``row`` now, counted from ``anchor_steps``. Whoever keeps the sums has it ``align`` next."""
        self.load = load_of(row)
        self._row, self._anchor_steps, self._aligned_steps = row, anchor_steps, nan

    def align(self, steps: float) -> None:
        """Read the curves from ``steps`` on, where the ledger's anchor is now."""
        if (
            self._row is not None and steps != self._aligned_steps
        ):  # each lease that comes or goes asks, and the anchor moves seldom
            self._aligned_steps = steps
            self.curves = curves_of(shifted(self._row, steps - self._anchor_steps, self._grid))

    def interval(self, steps: float) -> tuple[float, float]:
        """Blocks that they held at ``steps``: certainly, and at most."""
        grown = self.load.growth_blocks_per_step * (steps - self._anchor_steps)
        return max(0.0, self.load.low_blocks + grown), max(0.0, self.load.high_blocks + grown)
