"""Curves of requests that are not here yet: the same as ``core.curves`` draws of rows, for one request and as fast as can be.

A decision draws one, so this is most of what it costs. Grid, lengths and survival bins of a delay are kept; of a request's own
there remain two dozen array operations.

Fails: as ``core.curves`` does.
"""

from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass
from math import ceil
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from proxy.core.curves import LEAD_STEPS, Curves
from proxy.core.demand import Demand
from proxy.core.grid import FloatArray, Grid
from proxy.core.kv_shape import KvShape
from proxy.core.length_bins import places_of
from proxy.core.survival import SurvivalModel

AHEAD_STEPS = 8  # a candidate's age is rounded up to a multiple, half a block, so that few different ones have to be drawn
KEPT_MAX = 256  # pairs of class and delay drawn with each new estimate: a millisecond, for most of what comes within some seconds
CACHED_MAX = 64  # groups of replicas looked at for one waiting request

CurveCache = dict[tuple["Newcomers", int, float], "Newcomer"]  # by survival version and delay


def rounded_ahead(steps: float) -> int:
    """Steps since an anchor as candidates are forecast with."""
    return AHEAD_STEPS * ceil(steps / AHEAD_STEPS) if steps > 0.0 else 0


@dataclass(slots=True)
class Newcomer:
    """What one request adds where it shares nothing: ``rows`` (4, parts, G) in blocks, mean, variance, ceiling and common; ``sum`` over
    the parts, (4, G). It is certain to have ended from interval ``intervals`` on.
    """

    rows: FloatArray
    sum: FloatArray
    curves: Curves  # of ``sum``
    survival: FloatArray  # caps aside
    intervals: int

    @property
    def living(self) -> FloatArray:
        """The probability (G,) that its sequences live at each interval's start."""
        living = self.survival.copy()
        living[self.intervals :] = 0.0
        return living


class Undrawn(NamedTuple):
    """A request whose curves nobody has asked for yet (``core.roomy``), in blocks: by how much it may raise the forecast peak at most, what
    it holds in the first interval, the peak of its mean at most, and the most that it can come to hold.
    """

    bound_blocks: float
    held_blocks: float
    mean_blocks: float
    ceiling_blocks: float


@dataclass(frozen=True, slots=True)
class _Ages:
    """Where newcomers of one delay stand at each interval's start: tokens out, as a list too, and their places in survival's lines."""

    tokens: FloatArray
    listed: list[float]
    places: NDArray[np.intp]


class Newcomers:
    """Curves of requests that are not here yet: those that ``core.curves`` draws of rows, from what is kept for each delay.

    All parts of a request have the same class, cap and delay, so one survival vector serves them all.
    """

    def __init__(self, grid: Grid, model: SurvivalModel, shape: KvShape) -> None:
        self.grid = grid
        self.model = model
        self.shape = shape
        self._grown = grid.ends + LEAD_STEPS
        self._grown_first = float(self._grown[0])
        self._grown_blocks = np.ceil((self._grown + shape.block_size - 1.0) / shape.block_size)  # at the most, of one sequence
        self._ages: dict[float, _Ages] = {}  # by delay, whole steps
        self._by_rest: dict[int, FloatArray] = {}  # blocks at the intervals' ends, by tokens in the prompt's last block
        self._weights: OrderedDict[tuple[int, float], FloatArray] = (
            OrderedDict()
        )  # by class and delay, the last asked for at the end
        self._tops: dict[tuple[int, float], tuple[float, float, float]] = {}  # of the weights, as ``_tops_of``
        self._highest: dict[tuple[int, float], tuple[list[float], list[float]]] = {}  # the same, as ``_highest_of``
        self._version = model.version  # of the estimate they were drawn from

    def __repr__(self) -> str:
        """What is kept, for people and tests."""
        return f"<Newcomers {self.shape!r} kept={len(self._weights)}>"

    def cached(self, demand: Demand, output_tokens_max: int, delay_steps: float, cache: CurveCache | None) -> Newcomer:
        """As ``forecast``, from ``cache``, which belongs to the request: made once for each delay and state of the survival model."""
        if cache is None:
            return self.forecast(demand, output_tokens_max, delay_steps)
        key = (self, self.model.version, delay_steps)
        found = cache.get(key)
        if found is None:
            if len(cache) >= CACHED_MAX:
                cache.clear()
            found = cache[key] = self.forecast(demand, output_tokens_max, delay_steps)
        return found

    def forecast(self, demand: Demand, output_tokens_max: int, delay_steps: float) -> Newcomer:
        """``demand`` decoding its first token ``delay_steps`` after the grid's start; its blocks are taken as growing at once."""
        weights = self._weights_of(self.model.leaf(demand), delay_steps)
        intervals = bisect_left(self._ages[delay_steps].listed, output_tokens_max)
        rows = np.empty((4, len(demand.parts), len(self.grid)))
        for index, part in enumerate(demand.parts):
            blocks, row = self._blocks(demand, demand.kv_prompt_tokens(part), output_tokens_max), rows[:, index]
            np.multiply(weights, blocks, out=row)
            np.multiply(row[1], blocks, out=row[1])
        if intervals < len(self.grid):
            rows[:, :, intervals:] = 0.0
        together: FloatArray = rows[:, 0] if len(demand.parts) == 1 else rows.sum(axis=1)
        return Newcomer(rows, together, Curves(*together), weights[0], intervals)

    def undrawn(self, demand: Demand, output_tokens_max: int, delay_steps: float, z: float) -> Undrawn | None:
        """Bounds of ``forecast`` at a margin of ``z`` at most, at a tenth of its cost; None where only drawing tells.

        For a prompt of F full blocks, g(t) blocks grown by step t and per-block deviation d = sqrt(S (1 - S)) and common error k, each
        curve is at most (F + g) times its weight, and roots of sums of squares are no more than the sums of the roots:

            Q(with) - Q(without)  <=  F + max(S g) + z (F max(d + k) + max((d + k) g))       and  <=  blocks at the cap (1 + z max(d + k))
        """
        shape = self.shape
        if demand.copies != 1 or len(demand.parts) != 1 or not shape.plain:
            return None
        grown, error, grown_error = self._tops_of(self.model.leaf(demand), delay_steps)
        prompt_tokens = demand.kv_prompt_tokens(demand.parts[0])
        full, rest = divmod(prompt_tokens - 1, shape.block_size)
        at_cap = ceil((prompt_tokens - 1 + output_tokens_max) / shape.block_size)
        bound = min(full + grown + z * (full * error + grown_error), at_cap * (1.0 + z * error))
        held = min(full + ceil((self._grown_first + rest) / shape.block_size), at_cap)
        return Undrawn(bound, float(held), min(full + grown, float(at_cap)), float(at_cap))

    def highest(self, demand: Demand, output_tokens_max: int, delay_steps: float) -> tuple[float, float, float, float]:
        """The most that each curve of ``forecast`` can reach, of a demand that may go ``undrawn``: mean, variance, ceiling, common.

        As there, of a weight w: max(w (F + g)) <= F max(w) + max(w g), and at the cap no more than its blocks times max(w).
        """
        prompt_tokens, block_size = demand.kv_prompt_tokens(demand.parts[0]), self.shape.block_size
        full = (prompt_tokens - 1) // block_size
        at_cap = float(ceil((prompt_tokens - 1 + output_tokens_max) / block_size))
        weights, grown = self._highest_of(self.model.leaf(demand), delay_steps)
        mean, deviation, common = (min(full * w + g, at_cap * w) for w, g in zip(weights, grown, strict=True))
        return mean, deviation * deviation, at_cap, common

    def _highest_of(self, leaf: int, delay_steps: float) -> tuple[list[float], list[float]]:
        """max(w) and max(w g) of survival, deviation and common error, for ``highest``."""
        weights = self._weights_of(leaf, delay_steps)
        key = (leaf, delay_steps)
        found = self._highest.get(key)
        if found is None:
            lines = weights[[0, 1, 3]]
            np.sqrt(np.maximum(lines[1], 0.0, out=lines[1]), out=lines[1])
            found = self._highest[key] = lines.max(axis=1).tolist(), (lines * self._grown_blocks).max(axis=1).tolist()
        return found

    def _tops_of(self, leaf: int, delay_steps: float) -> tuple[float, float, float]:
        """max(S g), max(d + k) and max((d + k) g) of ``undrawn``."""
        key = (leaf, delay_steps)
        tops = self._tops.get(key) if self._version == self.model.version else None
        if tops is not None:
            self._weights.move_to_end(key)
            return tops
        survival, spread, _, common = self._weights_of(leaf, delay_steps)
        errors = np.sqrt(np.maximum(spread, 0.0)) + common
        tops = self._tops[key] = (
            float((survival * self._grown_blocks).max()), float(errors.max()), float((errors * self._grown_blocks).max()),
        )  # fmt: skip
        return tops

    def renew(self) -> None:
        """Draw what was asked for lately from a new estimate at once, so that decisions need not."""
        for delay_steps, ages in self._ages.items():
            leaves = [leaf for leaf, delay in self._weights if delay == delay_steps]
            if leaves:
                drawn = self._draw(leaves, ages)
                self._weights.update(((leaf, delay_steps), drawn[:, index]) for index, leaf in enumerate(leaves))
        self._tops.clear()
        self._highest.clear()
        self._version = self.model.version

    def _weights_of(self, leaf: int, delay_steps: float) -> FloatArray:
        """Mean, ceiling and common per block and variance per squared block of a sequence without a cap: (4, G)."""
        if self._version != self.model.version:
            self._weights.clear()
            self._tops.clear()
            self._highest.clear()
            self._version = self.model.version
        key = (leaf, delay_steps)
        weights = self._weights.get(key)
        if weights is not None:
            self._weights.move_to_end(key)
            return weights
        ages = self._ages.get(delay_steps)
        if ages is None:
            tokens = np.maximum(self.grid.starts - delay_steps, 0.0)
            ages = self._ages[delay_steps] = _Ages(tokens, tokens.tolist(), places_of(tokens))
        weights = self._weights[key] = self._draw([leaf], ages)[:, 0]
        if len(self._weights) > KEPT_MAX:
            gone, _ = self._weights.popitem(last=False)
            self._tops.pop(gone, None)
            self._highest.pop(gone, None)
        return weights

    def _draw(self, leaves: list[int], ages: _Ages) -> FloatArray:
        """``_weights_of`` several classes: (4, classes, G)."""
        weights = np.empty((4, len(leaves), len(self.grid)))
        hazard, doubt = self.model.hazard_and_doubt_in(leaves, ages.tokens, ages.places)
        survival, spread, possible, common = weights
        np.exp(np.negative(hazard, out=hazard), out=survival)
        np.multiply(survival, survival, out=spread)
        np.subtract(survival, spread, out=spread)
        possible.fill(1.0)
        np.sqrt(doubt, out=common)
        common *= survival
        return weights

    def _blocks(self, demand: Demand, prompt_tokens: int, output_tokens_max: int) -> FloatArray:
        """Blocks of one part's copies at each interval's end: (G,)."""
        shape = self.shape
        if shape.plain and demand.copies == 1:
            full, rest = divmod(prompt_tokens - 1, shape.block_size)
            by_rest = self._by_rest.get(rest)
            if by_rest is None:
                by_rest = self._by_rest[rest] = np.ceil((self._grown + rest) / shape.block_size)
            at_cap = ceil((prompt_tokens - 1 + output_tokens_max) / shape.block_size)
            blocks: FloatArray = by_rest + full
            return np.minimum(blocks, at_cap, out=blocks)
        tokens = np.minimum(self._grown, output_tokens_max)
        tokens += prompt_tokens - 1.0
        prompt, copies, shares = np.array([[float(prompt_tokens)], [float(demand.copies)], [float(demand.shares_prefix)]])
        blocks = shape.held(prompt, tokens, copies, shares)
        if not shape.plain:
            blocks[0] = max(blocks[0], shape.held(prompt, prompt, copies, shares, prefilling=True)[0])
        return blocks
