"""What several rows of one replica share, taken off where their sums would count it more than once.

Formula, for a run of ``B`` blocks with members ``i`` that live with probability ``a_i`` in an interval:

    counted by the rows    B * sum(a_i)          held    B * (1 - prod(1 - a_i))          doubled = the difference

and likewise for the ceiling, where everybody whose cap allows it lives. A candidate's discount is what its sharers hold anyway:
``B * a * (1 - prod(1 - a_i))``. Which blocks are shared is decided by ``core.prefix``.

Fails: as ``core.prefix`` does.
"""

from collections.abc import Iterable

import numpy as np

from proxy.core.curves import Curves
from proxy.core.demand import Demand, PromptPart
from proxy.core.grid import FloatArray
from proxy.core.kv_shape import KvShape
from proxy.core.lease_rows import LeaseRows
from proxy.core.prefix import SharedBlocks


class SharedDemand:
    """Shared blocks of one ledger's rows. ``doubled`` is (4, G): mean, variance, ceiling and common that the sums have too much."""

    def __init__(self, rows: LeaseRows, shape: KvShape, intervals: int) -> None:
        self.doubled = np.zeros((4, intervals))
        self._rows = rows
        self._block_size = shape.block_size
        self._shares_runs = shape.layout.shares_runs
        self._blocks = SharedBlocks()
        self._stale = False

    def __len__(self) -> int:
        """Distinct hashed blocks referenced."""
        return len(self._blocks)

    def __repr__(self) -> str:
        """Counts for people and tests."""
        return f"<SharedDemand blocks={len(self._blocks)}>"

    def _hits_max(self, part: PromptPart) -> int:
        return (part.tokens - 1) // self._block_size

    def add(self, row: int, demand: Demand, part: PromptPart) -> None:
        """Row ``row`` starts to hold the part's prompt blocks."""
        hashes = part.block_hashes if demand.shares_prefix and self._shares_runs else ()
        self._blocks.add(row, hashes, self._hits_max(part))
        self._stale = self._stale or bool(hashes)

    def remove(self, row: int, part: PromptPart) -> None:
        """Row ``row`` ended."""
        self._blocks.remove(row)
        self._stale = self._stale or bool(part.block_hashes)

    def any_held(self, demand: Demand) -> bool:
        """Whether any of the demand's blocks is held here already."""
        blocks = self._blocks
        if demand.shares_prefix:
            for part in demand.parts:
                if part.block_hashes and part.block_hashes[0] in blocks and self._hits_max(part) > 0:
                    return True
        return False

    def discounted(self, added: Curves, living: FloatArray, demand: Demand) -> Curves:
        """The candidate's curves without what its sharers are expected to hold anyway."""
        added = Curves(*(curve.copy() for curve in added.arrays()))
        for part in demand.parts:
            hits = self._blocks.hits(part.block_hashes, self._hits_max(part))
            if hits:
                self._take_off(added, part.block_hashes[:hits], living)
        return added

    def _take_off(self, added: Curves, hashes: Iterable[int], living: FloatArray) -> None:
        for members, blocks in self._blocks.sharers(hashes).items():
            others = 1.0 - np.prod(1.0 - self._rows.alive[list(members)], axis=0)
            added.mean -= blocks * living * others
            added.ceiling -= np.minimum(blocks * (others > 0.0), added.ceiling)

    def recount(self, *, force: bool = False) -> None:
        """Make ``doubled`` anew: after rows with hashes came or went, and (``force``) after curves moved."""
        if not (self._stale or force):
            return
        self._stale = False
        self.doubled[:] = 0.0
        for blocks, members in self._blocks.runs():
            living = self._rows.alive[list(members)]
            any_alive = 1.0 - np.prod(1.0 - living, axis=0)
            possible = (living > 0.0).sum(axis=0)
            self.doubled[0] += blocks * (living.sum(axis=0) - any_alive)
            self.doubled[2] += blocks * np.maximum(possible - 1, 0)

    def now(self, placed: dict[int, bool]) -> tuple[float, float]:
        """Blocks counted more than once at this moment: among the placed rows, among all rows."""
        among_placed = among_all = 0.0
        for blocks, members in self._blocks.runs():
            among_all += blocks * (len(members) - 1)
            among_placed += blocks * max(0, sum(placed[row] for row in members) - 1)
        return among_placed, among_all
