"""Demand curves: what requests will hold, as a function of future decode steps.

Formula, for a row with prompt ``P``, ``g`` tokens out, cap ``m``, ``c`` copies and class survival ``S``, in interval ``(s, e]``:

    one(x)  = blocks(P - 1 + min(g + x + LEAD_STEPS, m))          blocks of one sequence x steps ahead, by ``core.kv_shape``
    u       = F + c * (one(e) - F),              F = what the copies share if prefixes are looked up, (P - 1) // block_size at most
    a       = S(g + s') / S(g)  while g + s' < m, else 0,                  s' = max(0, s - delay)
    mean    = u * a        variance = u^2 * a * (1 - a)        ceiling = u while g + s' < m
    common  = mean * sqrt(doubt(g + s') - doubt(g))     how far the class's S itself may be off: all its requests together

``- 1`` because the last sampled token is never fed back. ``LEAD_STEPS`` covers the step that asynchronous scheduling has already
allocated. In the first interval of a request that has no token out, a hybrid's windows hold what its prefill has in flight. ``delay`` is
how many steps a request that is still being prefilled stays behind the others.

Fails: copies of one prompt are taken as ending together, which is conservative; a request that the engine preempted stands still
while its curve goes on.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from proxy.core.grid import FloatArray, Grid
from proxy.core.kv_shape import KvShape
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
    shares_prefix: FloatArray  # 1 where copies share the prompt's full blocks
    classes: NDArray[np.intp]


@dataclass(slots=True)
class Curves:
    """Sums or rows of demand over the grid, in blocks: arrays of shape (G,) or (N, G)."""

    mean: FloatArray
    variance: FloatArray
    ceiling: FloatArray
    common: FloatArray

    def __add__(self, other: "Curves") -> "Curves":
        """Demands of independent requests add up."""
        return Curves(*(mine + theirs for mine, theirs in zip(self.arrays(), other.arrays(), strict=True)))

    def arrays(self) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
        """The fields in the order of the constructor."""
        return self.mean, self.variance, self.ceiling, self.common

    def total(self) -> "Curves":
        """Sum over rows: (N, G) → (G,)."""
        return Curves(*(curve.sum(axis=0) for curve in self.arrays()))


def blocks_held(rows: RowStates, ahead: FloatArray | float, shape: KvShape) -> FloatArray:
    """Blocks each row holds ``ahead`` steps from now: shape (N,) for a number, (N, G) for a grid."""
    wide = np.ndim(ahead) > 0

    def column(values: FloatArray) -> FloatArray:
        return values[:, None] if wide else values

    tokens: FloatArray = column(rows.output_tokens) + ahead
    np.minimum(tokens, column(rows.output_tokens_max), out=tokens)
    np.maximum(tokens, 1.0, out=tokens)
    tokens += column(rows.prompt_tokens - 1.0)
    if (rows.copies <= 1.0).all():  # a free row has no copies and no tokens, and holds nothing
        return shape.blocks(tokens)
    return shape.held(column(rows.prompt_tokens), tokens, column(rows.copies), column(rows.shares_prefix * (rows.copies > 1.0)))


def prefill_blocks(rows: RowStates, shape: KvShape) -> FloatArray:
    """Blocks that each row without a token out holds at most while its prompt is being computed, 0 for others: shape (N,)."""
    held = shape.held(rows.prompt_tokens, rows.prompt_tokens, rows.copies, rows.shares_prefix, prefilling=True)
    waiting: FloatArray = held * (rows.output_tokens < 1.0)
    return waiting


def _exp(values: FloatArray) -> FloatArray:
    """e to the ``values``, to seven digits: in single precision it takes a fifth of the time, and it is most of what a refresh does."""
    singles = values.astype(np.float32)
    return np.exp(singles, out=singles).astype(np.float64)


@dataclass(slots=True)
class LookAhead:
    """What the curves of some rows are made of, looked up in one go: array operations on few rows cost as much as on many."""

    tokens: FloatArray  # how far each has come at each interval's start: (N, G)
    hazards: FloatArray  # the survival model's, at those, now, and at the cap: (N, G + 2)
    doubts: FloatArray  # likewise; nothing where they were not asked for
    blocks: FloatArray  # held at each interval's end, and at the cap: (N, G + 1)


def look_ahead(rows: RowStates, grid: Grid, model: SurvivalModel, shape: KvShape, *, doubts: bool) -> LookAhead:
    """Look ahead for ``rows``."""
    intervals = len(grid)
    tokens = np.empty((len(rows.classes), intervals + 2))
    at = tokens[:, :intervals]
    np.subtract(grid.starts, rows.delay_steps[:, None], out=at)
    np.maximum(at, 0.0, out=at)
    at += rows.output_tokens[:, None]
    tokens[:, intervals], tokens[:, intervals + 1] = rows.output_tokens, rows.output_tokens_max
    blocks = blocks_held(rows, grid.reaches + LEAD_STEPS, shape)
    if not shape.plain:
        np.maximum(blocks[:, 0], prefill_blocks(rows, shape), out=blocks[:, 0])
    return LookAhead(at, *model.cumulative_at(rows.classes, tokens, doubts=doubts), blocks)


def relative_errors(ahead: LookAhead) -> FloatArray:
    """How far each probability of being alive may be off for all of its class: (N, G)."""
    error = ahead.doubts[:, :-2]
    error -= ahead.doubts[:, -2:-1]
    return np.sqrt(np.maximum(error, 0.0, out=error), out=error)


def alive(rows: RowStates, ahead: LookAhead) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Probability of being alive at each interval's start, and whether the cap allows it: two (N, G) arrays."""
    possible = ahead.tokens < rows.output_tokens_max[:, None]
    living = _exp(ahead.hazards[:, -2:-1] - ahead.hazards[:, :-2])
    living *= possible
    return living, possible


def main_curves(rows: RowStates, ahead: LookAhead) -> tuple[FloatArray, ...]:
    """Mean, variance and ceiling of each row, and the probability that it lives at each interval's start: four (N, G) arrays."""
    blocks = ahead.blocks[:, :-1]
    living, possible = alive(rows, ahead)
    mean = blocks * living
    variance = 1.0 - living
    variance *= mean
    variance *= blocks
    return mean, variance, blocks * possible, living


def apart(common: FloatArray, classes: NDArray[np.intp]) -> float:
    """What is left of the common error when it is added up over classes, which err apart: root of the sum of squared shares.

    ``common`` is each row's, shape (N,). Requests of one class err together: 1. Of k equal classes: 1/sqrt(k).
    """
    by_class = np.bincount(classes, weights=common)
    total = by_class.sum()
    return float(np.sqrt((by_class * by_class).sum()) / total) if total > 0.0 else 1.0


def cap_ends(rows: RowStates, ahead: LookAhead) -> tuple[FloatArray, FloatArray, FloatArray]:
    """When each row reaches its cap in steps from now, the blocks it then frees, and the probability that it gets there."""
    steps = rows.output_tokens_max - rows.output_tokens + rows.delay_steps
    hazard = ahead.hazards[:, -1] - ahead.hazards[:, -2]
    return steps, ahead.blocks[:, -1], np.exp(-hazard)
