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
from math import ceil

import numpy as np
from numpy.typing import NDArray

from proxy.core.demand import Demand
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

    held: FloatArray = column(rows.output_tokens) + ahead
    np.minimum(held, column(rows.output_tokens_max), out=held)
    np.maximum(held, 1.0, out=held)
    prompt = rows.prompt_tokens - 1.0
    held += column(prompt)
    held /= block_size
    np.ceil(held, out=held)
    if (rows.copies != 1.0).any():
        common = np.where(rows.copies > 1.0, np.floor(prompt / block_size) * rows.shares_prefix, 0.0)
        held *= column(rows.copies)
        held -= column(common * (rows.copies - 1.0))
    return held


def blocks_of(prompt_tokens: int, copies: int, output_tokens: float, block_size: int, *, shares_prefix: bool) -> float:
    """Blocks that one row holds with ``output_tokens`` out, the same formula for one row."""
    one = ceil((prompt_tokens - 1 + max(output_tokens, 1.0)) / block_size)
    common = (prompt_tokens - 1) // block_size if copies > 1 and shares_prefix else 0
    return float(common + copies * (one - common))


def alive(rows: RowStates, grid: Grid, model: SurvivalModel) -> tuple[FloatArray, NDArray[np.bool_]]:
    """Probability of being alive at each interval's start, and whether the cap allows it at all: two (N, G) arrays."""
    at = np.maximum(grid.starts - rows.delay_steps[:, None], 0.0)
    at += rows.output_tokens[:, None]
    possible = at < rows.output_tokens_max[:, None]
    later = model.hazard_at(rows.classes[:, None], at)
    np.subtract(model.hazard_at(rows.classes, rows.output_tokens)[:, None], later, out=later)
    np.exp(later, out=later)
    later *= possible
    return later, possible


def curves_of(rows: RowStates, grid: Grid, model: SurvivalModel, block_size: int) -> tuple[Curves, FloatArray]:
    """Demand of each row as (N, G) curves, and the (N, G) alive probabilities they were made with."""
    blocks = blocks_held(rows, grid.ends + LEAD_STEPS, block_size)
    living, possible = alive(rows, grid, model)
    mean = blocks * living
    variance = 1.0 - living
    variance *= mean
    variance *= blocks
    blocks *= possible
    common = mean - blocks_held(rows, LEAD_STEPS, block_size)[:, None]
    np.maximum(common, 0.0, out=common)
    common *= rows.error_ratio[:, None]
    return Curves(mean, variance, blocks, common), living


class Newcomers:
    """Curves of requests that are not here yet: those of ``curves_of``, from survival vectors kept for each class.

    All parts of a request have the same class, cap and delay, so one survival vector serves them all.
    """

    def __init__(self, grid: Grid, model: SurvivalModel, block_size: int) -> None:
        self.grid = grid
        self.model = model
        self.block_size = block_size
        self._grown = grid.ends + LEAD_STEPS
        self._survival: dict[tuple[int, float], tuple[FloatArray, FloatArray]] = {}
        self._version = -1

    def __repr__(self) -> str:
        """What is kept, for people and tests."""
        return f"<Newcomers block_size={self.block_size} kept={len(self._survival)}>"

    def rows(self, demand: Demand, output_tokens_max: int, delay_steps: float) -> tuple[FloatArray, FloatArray]:
        """Mean, variance, ceiling and common of each part, (4, parts, G) in blocks, and the probability (G,) that they live.

        ``delay_steps`` is how long after the grid's start they decode their first token; their blocks are taken as growing at once.
        """
        starts, survival = self._vectors(self.model.leaf(demand), delay_steps)
        ends_before = int(np.searchsorted(starts, output_tokens_max, side="left"))
        living = survival.copy()
        living[ends_before:] = 0.0
        spread = 1.0 - living
        error = self.model.error_ratio(demand)
        grown = np.minimum(self._grown, output_tokens_max)
        rows = np.empty((4, len(demand.parts), len(self.grid)))
        for index, part in enumerate(demand.parts):
            blocks = np.ceil((grown + (part.tokens - 1.0)) / self.block_size)
            if demand.copies > 1:
                common = (part.tokens - 1) // self.block_size if demand.shares_prefix else 0
                blocks = common + demand.copies * (blocks - common)
            mean = np.multiply(blocks, living, out=rows[0, index])
            np.multiply(mean, blocks, out=rows[1, index])
            rows[1, index] *= spread
            rows[2, index] = blocks
            rows[2, index, ends_before:] = 0.0
            now = blocks_of(part.tokens, demand.copies, LEAD_STEPS, self.block_size, shares_prefix=demand.shares_prefix)
            np.maximum(mean - now, 0.0, out=rows[3, index])
        rows[3] *= error
        return rows, living

    def _vectors(self, leaf: int, delay_steps: float) -> tuple[FloatArray, FloatArray]:
        """Tokens out at each interval's start, and the probability of getting there, caps aside."""
        if self._version != self.model.version:
            self._version = self.model.version
            self._survival.clear()
        kept = self._survival.get((leaf, delay_steps))
        if kept is None:
            starts = np.maximum(self.grid.starts - delay_steps, 0.0)
            kept = self._survival[leaf, delay_steps] = starts, np.exp(-self.model.hazard_at(np.asarray([leaf]), starts))
        return kept


def cap_ends(rows: RowStates, model: SurvivalModel, block_size: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """When each row reaches its cap in steps from now, the blocks it then frees, and the probability that it gets there."""
    steps = rows.output_tokens_max - rows.output_tokens + rows.delay_steps
    hazard = model.hazard_at(rows.classes, rows.output_tokens_max) - model.hazard_at(rows.classes, rows.output_tokens)
    return steps, blocks_held(rows, np.inf, block_size), np.exp(-hazard)
