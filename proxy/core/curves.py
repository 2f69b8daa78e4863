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

from proxy.core.demand import Demand
from proxy.core.grid import FloatArray, Grid
from proxy.core.kv_shape import KvShape
from proxy.core.survival import SurvivalModel, bin_of

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


def blocks_held(rows: RowStates, ahead: FloatArray | float, shape: KvShape) -> FloatArray:
    """Blocks each row holds ``ahead`` steps from now: shape (N,) for a number, (N, G) for a grid."""
    wide = np.ndim(ahead) > 0

    def column(values: FloatArray) -> FloatArray:
        return values[:, None] if wide else values

    tokens: FloatArray = column(rows.output_tokens) + ahead
    np.minimum(tokens, column(rows.output_tokens_max), out=tokens)
    np.maximum(tokens, 1.0, out=tokens)
    tokens += column(rows.prompt_tokens - 1.0)
    if (rows.copies == 1.0).all():
        return shape.blocks(tokens)
    # a free row has no copies and holds nothing
    return shape.held(column(rows.prompt_tokens), tokens, column(rows.copies), column(rows.shares_prefix * (rows.copies > 1.0)))


def prefill_blocks(rows: RowStates, shape: KvShape) -> FloatArray:
    """Blocks that each row without a token out holds at most while its prompt is being computed, 0 for others: shape (N,)."""
    held = shape.held(rows.prompt_tokens, rows.prompt_tokens, rows.copies, rows.shares_prefix, prefilling=True)
    waiting: FloatArray = held * (rows.output_tokens < 1.0)
    return waiting


def blocks_most(rows: RowStates, ahead: FloatArray | float, shape: KvShape) -> FloatArray:
    """As ``blocks_held``, and no less than a row's prefill may hold while it has no token out: shape (N,)."""
    held = blocks_held(rows, ahead, shape)
    return held if shape.plain else np.maximum(held, prefill_blocks(rows, shape))


def alive(rows: RowStates, grid: Grid, model: SurvivalModel) -> tuple[FloatArray, FloatArray, NDArray[np.bool_]]:
    """Probability of being alive at each interval's start, its relative error, and whether the cap allows it: three (N, G) arrays."""
    at = np.maximum(grid.starts - rows.delay_steps[:, None], 0.0)
    at += rows.output_tokens[:, None]
    possible = at < rows.output_tokens_max[:, None]
    later, error = model.hazard_and_doubt_at(rows.classes[:, None], at)
    now, doubt = model.hazard_and_doubt_at(rows.classes, rows.output_tokens)
    np.subtract(now[:, None], later, out=later)
    np.exp(later, out=later)
    later *= possible
    error -= doubt[:, None]
    np.sqrt(np.maximum(error, 0.0, out=error), out=error)
    return later, error, possible


def curves_of(rows: RowStates, grid: Grid, model: SurvivalModel, shape: KvShape) -> tuple[Curves, FloatArray]:
    """Demand of each row as (N, G) curves, and the (N, G) alive probabilities they were made with."""
    blocks = blocks_held(rows, grid.ends + LEAD_STEPS, shape)
    if not shape.plain:
        np.maximum(blocks[:, 0], prefill_blocks(rows, shape), out=blocks[:, 0])
    living, common, possible = alive(rows, grid, model)
    mean = blocks * living
    variance = 1.0 - living
    variance *= mean
    variance *= blocks
    blocks *= possible
    common *= mean
    return Curves(mean, variance, blocks, common), living


def apart(common: FloatArray, classes: NDArray[np.intp]) -> float:
    """What is left of the common error when it is added up over classes, which err apart: root of the sum of squared shares.

    ``common`` is each row's, shape (N,). Requests of one class err together: 1. Of k equal classes: 1/sqrt(k).
    """
    by_class = np.bincount(classes, weights=common)
    total = by_class.sum()
    return float(np.sqrt((by_class * by_class).sum()) / total) if total > 0.0 else 1.0


class Newcomers:
    """Curves of requests that are not here yet: those of ``curves_of``, from what is kept for each delay.

    All parts of a request have the same class, cap and delay, so one survival vector serves them all.
    """

    def __init__(self, grid: Grid, model: SurvivalModel, shape: KvShape) -> None:
        self.grid = grid
        self.model = model
        self.shape = shape
        self._grown = grid.ends + LEAD_STEPS
        self._starts: dict[float, tuple[FloatArray, NDArray[np.intp]]] = {}  # by delay, whole steps: tokens out, and their bins

    def __repr__(self) -> str:
        """What is kept, for people and tests."""
        return f"<Newcomers {self.shape!r} kept={len(self._starts)}>"

    def rows(self, demand: Demand, output_tokens_max: int, delay_steps: float) -> tuple[FloatArray, FloatArray]:
        """Mean, variance, ceiling and common of each part, (4, parts, G) in blocks, and the probability (G,) that they live.

        ``delay_steps`` is how long after the grid's start they decode their first token; their blocks are taken as growing at once.
        """
        starts, survival, error = self._vectors(self.model.leaf(demand), delay_steps)
        ends_before = int(np.searchsorted(starts, output_tokens_max, side="left"))
        living = survival.copy()
        living[ends_before:] = 0.0
        spread = 1.0 - living
        grown = np.minimum(self._grown, output_tokens_max)
        rows = np.empty((4, len(demand.parts), len(self.grid)))
        for index, part in enumerate(demand.parts):
            prompt = demand.kv_prompt_tokens(part)
            blocks = self._blocks(demand, prompt, grown + (prompt - 1.0))
            mean = np.multiply(blocks, living, out=rows[0, index])
            np.multiply(mean, blocks, out=rows[1, index])
            rows[1, index] *= spread
            rows[2, index] = blocks
            rows[2, index, ends_before:] = 0.0
            np.multiply(mean, error, out=rows[3, index])
        return rows, living

    def _blocks(self, demand: Demand, prompt_tokens: int, tokens: FloatArray) -> FloatArray:
        """Blocks of one part's copies at ``tokens`` token slots each: (G,)."""
        shape = self.shape
        if shape.plain and demand.copies == 1:
            return shape.blocks(tokens)
        prompt, copies, shares = np.array([[float(prompt_tokens)], [float(demand.copies)], [float(demand.shares_prefix)]])
        blocks = shape.held(prompt, tokens, copies, shares)
        if not shape.plain:
            blocks[0] = max(blocks[0], shape.held(prompt, prompt, copies, shares, prefilling=True)[0])
        return blocks

    def _vectors(self, leaf: int, delay_steps: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Tokens out at each interval's start, the probability of getting there, caps aside, and its relative error."""
        kept = self._starts.get(delay_steps)
        if kept is None:
            starts = np.maximum(self.grid.starts - delay_steps, 0.0)
            kept = self._starts[delay_steps] = starts, bin_of(starts)
        hazard, doubt = self.model.lines_in(leaf, *kept)
        survival: FloatArray = np.exp(-np.maximum(hazard, 0.0))
        return kept[0], survival, np.sqrt(np.maximum(doubt, 0.0))


def cap_ends(rows: RowStates, model: SurvivalModel, shape: KvShape) -> tuple[FloatArray, FloatArray, FloatArray]:
    """When each row reaches its cap in steps from now, the blocks it then frees, and the probability that it gets there."""
    steps = rows.output_tokens_max - rows.output_tokens + rows.delay_steps
    hazard = model.hazard_at(rows.classes, rows.output_tokens_max) - model.hazard_at(rows.classes, rows.output_tokens)
    return steps, blocks_held(rows, np.inf, shape), np.exp(-hazard)
