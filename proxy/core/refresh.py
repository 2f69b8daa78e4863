"""The forecast of everybody on a replica, made anew: what keeps decisions cheap, and most of what the gate takes of a core.

Every refresh draws mean, variance and ceiling of every row (``core.curves``). What moves slowly, and costs as much again, is drawn at
every ``THOROUGH_EVERY``th, and stands in between as any curve does, in absolute steps (``core.ledger``): the common error, which is an
error of an error, and the probability of reaching the cap. Where there are few rows everything is drawn each time.

Fails: a class that has just learned something keeps its old doubt for about a second.
"""

import numpy as np

from proxy.core.curves import apart, cap_ends, look_ahead, main_curves, relative_errors
from proxy.core.grid import FloatArray, Grid
from proxy.core.kv_shape import KvShape
from proxy.core.lease_rows import LeaseRows
from proxy.core.survival import SurvivalModel

ROWS_MANY = 64
THOROUGH_EVERY = 4


def refresh_rows(
    rows: LeaseRows, sums: FloatArray, grid: Grid, model: SurvivalModel, shape: KvShape, *, moved_steps: float, thorough: bool
) -> None:
    """Draw the curves of ``rows`` by their fields, and add them up in ``sums`` (4, G). ``moved_steps``: by which the anchor was moved."""
    every = rows.every()
    states = rows.states(every)
    thorough = thorough or len(rows) < ROWS_MANY
    ahead = look_ahead(states, grid, model, shape, doubts=thorough)
    *main, living = main_curves(states, ahead)
    rows.alive[every] = living
    for plane, curve in enumerate(main):
        rows.curves[plane, every] = curve
        np.add.reduce(curve, axis=0, out=sums[plane])
    if not thorough:
        rows.cap_ends[0, : rows.used] -= moved_steps
        return
    common = relative_errors(ahead)
    common *= main[0]
    common *= apart(common.sum(axis=1), states.classes)
    rows.curves[3, every] = common
    np.add.reduce(common, axis=0, out=sums[3])
    steps, blocks, reach = cap_ends(states, ahead)
    rows.cap_ends[:, every] = steps, blocks * reach
