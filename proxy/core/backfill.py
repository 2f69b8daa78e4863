"""When a head that does not fit could start, and what somebody else would take from it then: the arithmetic of EASY backfilling.

Formula. A head that starts at an interval's start ``s_k`` adds its curve from there on. It starts at the first ``k`` from which on the mean
``M`` of everybody here and the head's own quantile stay within the pool; what the quantile of all of them leaves then is spare for others:

    start = min { s_k : max over t >= s_k of M(t) + Q_head(t - s_k) <= usable }        spare = max(0, usable - max over t >= start of Q(t))

Why the mean and not the quantile: a queue in which nobody goes ahead is not told when the head will start but sees it, and by then it
knows who has ended. Who is held to the quantile's late start goes ahead and is still there when the head could have started. So with
known lengths both are one and all that is spare is used; with unknown ones only those go ahead who have ended by the start for certain,
or who fit beside the head however long the others live. All curves count steps from the anchor of the replica's ledger.

Fails: the start is rounded up to the grid, and those who end sooner than the mean says may find somebody there who went ahead. Where no
request has a cap hardly anybody goes ahead, which costs a saturated pool up to 1 % of its tokens.
"""

from math import inf

import numpy as np

from proxy.core.book import Book
from proxy.core.curves import Curves
from proxy.core.demand import Demand
from proxy.core.ledger import PREFILL_DELAY_STEPS
from proxy.core.risk import Risk, quantile_of

ENDED_BLOCKS = 1.0  # expected of all together: then about everybody has ended


def earliest_start(book: Book, head: Curves, now_s: float) -> tuple[float, float] | None:
    """Steps of the replica's clock at which ``head`` fits, given who is here, and the blocks spare from then on; None: not within the
    horizon.

    One that would not even fit alone starts when everybody here has ended: an empty replica takes anything.
    """
    usable, anchor, grid, here = book.spec.usable_blocks, book.ledger.anchor_steps, book.grid, book.ledger.total
    if book.quantile(head, now_s).max() > usable:
        empty = np.flatnonzero(here.mean[1:] < ENDED_BLOCKS)
        return (anchor + float(grid.starts[empty[0] + 1]), 0.0) if len(empty) else None
    shifted = grid.shifted(np.stack(head.arrays()))
    nothing = np.zeros(len(grid))
    likely = book.quantile(Curves(here.mean, nothing, here.mean, nothing) + Curves(*shifted), now_s)
    starts = np.flatnonzero(np.where(grid.past, 0.0, likely).max(axis=1)[1:] <= usable)
    if not len(starts):
        return None
    index = int(starts[0]) + 1
    taken = book.quantile(here + Curves(*shifted[:, index]), now_s)[index:].max()
    return anchor + float(grid.starts[index]), max(0.0, float(usable - taken))


def blocks_beside(book: Book, demand: Demand, candidate: Curves, step: float, now_s: float) -> float:
    """Blocks that ``candidate``, admitted now, takes from ``step`` on: 0 if it has ended by then, infinite once ``step`` has come."""
    ahead = step - book.steps_now(now_s)
    if ahead <= 0.0:
        return inf
    if book.output_tokens_max(demand) + PREFILL_DELAY_STEPS <= ahead:
        return 0.0
    first = int(np.searchsorted(book.grid.starts, step - book.ledger.anchor_steps, side="right")) - 1
    alone = Risk(book.feedback.z, sigma_blocks=0.0, bias_blocks=0.0)
    return float(quantile_of(candidate, alone)[first:].max())
