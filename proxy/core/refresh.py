"""The forecast of everybody on a replica, made anew: what keeps decisions cheap, and most of what the gate takes of a core.

Every refresh draws mean, variance and ceiling of every row (``core.curves``). What moves slowly, and costs as much again, is drawn at
every ``THOROUGH_EVERY``th, and stands in between as any curve does, in absolute steps (``core.ledger``): the common error, which is an
error of an error, and the probability of reaching the cap. Where there are few rows everything is drawn each time.

Fails: a class that has just learned something keeps its old doubt for about a second.
"""

from collections.abc import Iterator

import numpy as np

from proxy.core.curves import apart, cap_ends, look_ahead, main_curves, relative_errors
from proxy.core.grid import FloatArray, Grid
from proxy.core.kv_shape import KvShape
from proxy.core.lease_rows import LeaseRows, Rows
from proxy.core.survival import SurvivalModel

ROWS_MANY = 64
THOROUGH_EVERY = 4
ROWS_AT_ONCE = 256  # with 128 it takes an eighth longer; a thousand at once took arrays of 4 MB, which the process then kept


def refresh_rows(
    rows: LeaseRows, sums: FloatArray, grid: Grid, model: SurvivalModel, shape: KvShape, *, moved_steps: float, thorough: bool
) -> None:
    """Draw the curves of ``rows`` by their fields, and add them up in ``sums`` (4, G). ``moved_steps``: by which the anchor was moved."""
    thorough = thorough or len(rows) < ROWS_MANY
    used, every, doubted = rows.used, rows.every(), np.zeros(rows.used)
    for some in _parts(every):
        _draw(rows, some, grid, model, shape, doubted if thorough else None)
    if thorough:
        rows.curves[3, :used] *= apart(doubted[every], rows.classes[every])
    else:
        rows.cap_ends[0, :used] -= moved_steps
    for plane in range(4 if thorough else 3):  # free rows hold zeros, and the others are added in their order
        np.add.reduce(rows.curves[plane, :used], axis=0, out=sums[plane])


def _parts(every: Rows) -> Iterator[Rows]:
    """The same rows, ``ROWS_AT_ONCE`` at the most in each part."""
    if isinstance(every, slice):
        yield from (slice(start, min(start + ROWS_AT_ONCE, every.stop)) for start in range(0, every.stop, ROWS_AT_ONCE))
    else:
        yield from (every[start : start + ROWS_AT_ONCE] for start in range(0, len(every), ROWS_AT_ONCE))


def _draw(rows: LeaseRows, some: Rows, grid: Grid, model: SurvivalModel, shape: KvShape, doubted: FloatArray | None) -> None:
    """Draw ``some`` of the rows; with their common errors, of which each row's sum goes to ``doubted``, where that is given."""
    states = rows.states(some)
    ahead = look_ahead(states, grid, model, shape, doubts=doubted is not None)
    *main, living = main_curves(states, ahead)
    rows.alive[some] = living
    for plane, curve in enumerate(main):
        rows.curves[plane, some] = curve
    if doubted is None:
        return
    common = relative_errors(ahead)
    common *= main[0]
    doubted[some] = common.sum(axis=1)
    rows.curves[3, some] = common
    steps, blocks, reach = cap_ends(states, ahead)
    rows.cap_ends[:, some] = steps, blocks * reach
