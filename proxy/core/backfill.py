"""When a head that does not fit will, and what somebody else would take from it: the arithmetic of EASY backfilling.

Formula. A head that starts at an interval's start ``s_k`` adds its curve from there on; the earliest ``k`` at which the quantile of
everybody here and the shifted head stays within the pool is its start, and what is left then is spare for others. All curves count
steps from the anchor of the replica's ledger.

Fails: the start is rounded up to the grid.
"""

from math import inf

import numpy as np

from proxy.core.book import Book
from proxy.core.curves import Curves
from proxy.core.demand import Demand
from proxy.core.ledger import PREFILL_DELAY_STEPS


def earliest_start(book: Book, head: Curves, now_s: float) -> tuple[float, float] | None:
    """Steps of the replica's clock at which ``head`` fits, given who is here, and the blocks spare from then on; None: not within the
    horizon.

    One that would not even fit alone starts when everybody here has ended: an empty replica takes anything.
    """
    usable, anchor, grid, ledger = book.spec.usable_blocks, book.ledger.anchor_steps, book.grid, book.ledger
    if book.quantile(head, now_s).max() > usable:
        empty = np.flatnonzero(ledger.totals[2, 1:] <= 0.0)
        return (anchor + float(grid.starts[empty[0] + 1]), 0.0) if len(empty) else None
    later = grid.later
    shifted = Curves(*(np.concatenate((curve, [0.0]))[later] for curve in head.arrays()))
    taken = np.where(later == len(grid), 0.0, book.quantile(ledger.total + shifted, now_s)).max(axis=1)
    starts = np.flatnonzero(taken[1:] <= usable)
    if not len(starts):
        return None
    index = int(starts[0]) + 1
    return anchor + float(grid.starts[index]), float(usable - taken[index])


def blocks_beside(book: Book, demand: Demand, candidate: Curves, step: float, now_s: float) -> float:
    """Blocks that ``candidate``, admitted now, takes from ``step`` on: 0 if it has ended by then, infinite once ``step`` has come."""
    ahead = step - book.steps_now(now_s)
    if ahead <= 0.0:
        return inf
    if book.output_tokens_max(demand) + PREFILL_DELAY_STEPS <= ahead:
        return 0.0
    first = int(np.searchsorted(book.grid.starts, step - book.ledger.anchor_steps, side="right")) - 1
    risky = candidate.mean + book.feedback.z * np.sqrt(np.maximum(candidate.variance, 0.0) + candidate.common**2)
    return float(np.minimum(risky, candidate.ceiling)[first:].max())
