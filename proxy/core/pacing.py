"""Spacing of ends, so that equal requests do not make a wave.

Equal requests admitted together grow together and end together: the pool is full at their end and half empty on average, and everybody
else waits for that end. What hurts is that they *end* together, so that is what is spaced. A candidate with expected token-time ``w``
(block-steps) that will release ``u`` blocks would, if everybody were like it, see the pool turn over at ``usable * u / w`` blocks per
step. It may go while the releases already expected around its own end stay below that rate:

    sum over t of  its release distribution(t) * release density of the others(t)   <=   usable * u / (w * PACE_RATIO)

the density being taken over a window of a few spacings (``w / usable`` steps each). Requests of different or uncertain lengths end apart
by themselves: their density is low and nothing is held. (Greedy admission of a wave took 1.13 x the time of direct vLLM, spacing its
starts 1.08 x: reference prototype.md; but spacing the starts of mixed lengths costs up to a fifth of the throughput.)

It applies only when not everything fits at once: when running plus queued demand exceeds the pools, or when a burst of arrivals is
filling a pool beyond ``BURST_FILL_RATIO`` so fast that it is about to.
"""

import numpy as np

from proxy.core.curves import Curves
from proxy.core.grid import Grid

PACE_RATIO = 0.8  # a little faster than the pool can turn over: the forecast peak stays the limit, not the pace
WINDOW_SPACINGS = 3.0
BURST_FILL_RATIO = 0.5
BURST_WINDOW_S = 0.1


def ends_apart(running: Curves, candidate: Curves, grid: Grid, usable_blocks: int) -> bool:
    """Whether the candidate's end falls where few others end."""
    released = float(candidate.release.sum())
    block_steps = float((candidate.mean * grid.widths).sum())
    if released <= 0.0 or block_steps <= 0.0:
        return True
    window = np.maximum(WINDOW_SPACINGS * block_steps / max(1, usable_blocks), 2.0 * grid.widths)
    middles = (grid.starts + grid.ends) / 2.0
    edges = np.concatenate(([0.0], grid.ends))
    cumulative = np.concatenate(([0.0], np.cumsum(running.release)))
    late, early = middles + window / 2.0, np.maximum(middles - window / 2.0, 0.0)
    density = (np.interp(late, edges, cumulative) - np.interp(early, edges, cumulative)) / (late - early)
    seen = float((candidate.release * density).sum()) / released
    return seen <= usable_blocks * released / (block_steps * PACE_RATIO)
