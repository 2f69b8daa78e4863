"""Demand curves: what requests will hold, as a function of future decode steps.

Formula, for a row with prompt ``P``, ``g`` tokens out, cap ``m``, ``c`` copies and class survival ``S``, in interval ``(s, e]``:

    one(x)  = ceil((P - 1 + min(g + x + LEAD_STEPS, m)) / block_size)      blocks of one sequence x steps ahead
    u       = F + c * (one(e) - F),              F = (P - 1) // block_size if c > 1 and prefixes are looked up, else 0
    a       = S(g + s') / S(g)  while g + s' < m, else 0,                  s' = max(0, s - delay)
    mean    = u * a        variance = u^2 * a * (1 - a)        ceiling = u while g + s' < m
    common  = error_ratio * (mean - blocks now), where positive

``- 1`` because the last sampled token is never fed back. ``LEAD_STEPS`` covers the step that asynchronous scheduling has already
allocated. ``delay`` is how many steps a request that is still being prefilled stays behind the others.

Fails: copies of one prompt are taken as ending together, which is conservative; a request that the engine preempted stands still
while its curve goes on.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from proxy.core.grid import FloatArray, Grid
from proxy.core.survival import SurvivalModel

LEAD_STEPS = 1.0


@dataclass(frozen=True, slots=True)
class RowStates:
    """Parallel arrays, one entry per row. Tokens, blocks and steps as floats; ``classes`` are rows of the survival model."""

    prompt_tokens: FloatArray
    output_tokens: FloatArray
    output_tokens_max: FloatArray
    copies: FloatArray
    delay_steps: FloatArray
    error_ratio: FloatArray
    shares_prefix: FloatArray  # 1 where copies share the prompt's full blocks
    classes: NDArray[np.intp]


@dataclass(slots=True)
class Curves:
    """Sums or rows of demand over the grid, in blocks: arrays of shape (G,) or (N, G)."""

    mean: FloatArray
    variance: FloatArray
    ceiling: FloatArray
    common: FloatArray

    @classmethod
    def zero(cls, length: int) -> "Curves":
        """No demand."""
        return cls(*np.zeros((4, length)))

    def __add__(self, other: "Curves") -> "Curves":
        """Demands of independent requests add up."""
        return Curves(*(mine + theirs for mine, theirs in zip(self.arrays(), other.arrays(), strict=True)))

    def arrays(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """The fields in the order of the constructor."""
        return self.mean, self.variance, self.ceiling, self.common

    def total(self) -> "Curves":
        """Sum over rows: (N, G) → (G,)."""
        return Curves(*(curve.sum(axis=0) for curve in self.arrays()))


def blocks_held(rows: RowStates, ahead: FloatArray | float, block_size: int) -> FloatArray:
    """Blocks each row holds ``ahead`` steps from now: shape (N,) for a number, (N, G) for a grid."""
    wide = np.ndim(ahead) > 0

    def column(values: FloatArray) -> FloatArray:
        return values[:, None] if wide else values

    tokens = np.minimum(column(rows.output_tokens) + ahead, column(rows.output_tokens_max))
    prompt = column(rows.prompt_tokens) - 1.0
    one = np.ceil((prompt + np.maximum(tokens, 1.0)) / block_size)
    copies = column(rows.copies)
    common = np.where(copies > 1.0, np.floor(prompt / block_size) * column(rows.shares_prefix), 0.0)
    held: FloatArray = common + copies * (one - common)
    return held


def alive(rows: RowStates, grid: Grid, model: SurvivalModel) -> tuple[FloatArray, FloatArray]:
    """Probability of being alive at each interval's start, and whether the cap allows it at all (1 or 0): two (N, G) arrays."""
    at = rows.output_tokens[:, None] + np.maximum(grid.starts - rows.delay_steps[:, None], 0.0)
    possible = (at < rows.output_tokens_max[:, None]).astype(np.float64)
    now = model.hazard_at(rows.classes, rows.output_tokens)
    later = model.hazard_at(rows.classes[:, None], at)
    return np.exp(now[:, None] - later) * possible, possible


def curves_of(rows: RowStates, grid: Grid, model: SurvivalModel, block_size: int) -> tuple[Curves, FloatArray]:
    """Demand of each row as (N, G) curves, and the (N, G) alive probabilities they were made with."""
    blocks = blocks_held(rows, grid.ends + LEAD_STEPS, block_size)
    living, possible = alive(rows, grid, model)
    mean = blocks * living
    now = blocks_held(rows, LEAD_STEPS, block_size)[:, None]
    common = rows.error_ratio[:, None] * np.maximum(mean - now, 0.0)
    return Curves(mean, blocks * mean * (1.0 - living), blocks * possible, common), living


def cap_ends(rows: RowStates, model: SurvivalModel, block_size: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """When each row reaches its cap in steps from now, the blocks it then frees, and the probability that it gets there."""
    steps = rows.output_tokens_max - rows.output_tokens + rows.delay_steps
    hazard = model.hazard_at(rows.classes, rows.output_tokens_max) - model.hazard_at(rows.classes, rows.output_tokens)
    return steps, blocks_held(rows, np.inf, block_size), np.exp(-hazard)
