"""How sure a difference between two runs is: a bootstrap over blocks of time.

Requests that are open at once share a queue, so their latencies are not independent, and a bootstrap over single requests would promise
too much. A run is cut into equal blocks of time, at most ``BLOCKS_MAX``, each at least as long as the median answer; blocks are drawn with
replacement ``DRAWS`` times from a fixed seed, each with all its requests (by their planned time) and scrapes. An interval is the middle
99 % of the drawn figures. Where both runs sent the same requests at the same times (one workload, one seed, an open loop), both draw
the same blocks: what the load itself brought then cancels out.

Fails: a drift longer than a block, as a cache that fills during the whole run, is not seen; nor is what differs between two starts of one
engine. Repeat the pair where it matters.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from math import ceil, nan

import numpy as np

from proxy.advise.result_figures import Gaps, increments, itl_bin_s
from proxy.advise.result_file import BenchResult, RequestSample, Signals, Slo

DRAWS = 2000
SEED = 20_240_607
BLOCKS_MAX = 30
BLOCKS_FEW = 8
PAIRED_S_MAX = 0.005  # planned times of one seed are equal but for rounding
CONFIDENCE = 99.0  # eight figures decide: at 95 % every fifth pair of equal runs had one that differed
CELLS_MAX = 4_000_000  # draws × values held at a time

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]
Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Blocks:
    """How both runs are cut: ``count`` blocks of ``block_s``, from the end of the warm-up."""

    count: int
    block_s: float
    paired: bool

    @property
    def few(self) -> bool:
        """Too few to trust an interval."""
        return self.count < BLOCKS_FEW


@dataclass(frozen=True, slots=True)
class Run:
    """One run, cut. ``weights[d, k]``: how often draw d took block k; ``slo`` is one for both runs."""

    result: BenchResult
    slo: Slo
    requests: tuple[RequestSample, ...]
    done: tuple[RequestSample, ...]
    blocks: Blocks
    weights: Floats

    def block_of(self, at_s: float) -> int:
        """The block of a time."""
        return min(self.blocks.count - 1, max(0, int((at_s - self.result.warmup_s) / self.blocks.block_s)))


def cut(before: BenchResult, after: BenchResult) -> tuple[Run, Run]:
    """Cut both runs into as many blocks, and draw."""
    windows = [max(1e-9, run.duration_s - run.warmup_s) for run in (before, after)]
    longest_s = max(_median_s(run) for run in (before, after))
    paired = _paired(before, after)
    lengths = [max(windows)] * 2 if paired else windows
    count = max(1, min(BLOCKS_MAX, *(int(each / longest_s) if longest_s > 0.0 else BLOCKS_MAX for each in lengths)))
    rng = np.random.default_rng(SEED)
    first = rng.multinomial(count, np.full(count, 1 / count), size=DRAWS).astype(np.float64)
    second = first if paired else rng.multinomial(count, np.full(count, 1 / count), size=DRAWS).astype(np.float64)
    made = [
        Run(
            run, before.slo, run.measured, tuple(one for one in run.measured if one.outcome == "completed"),
            Blocks(count, length / count, paired), weights,
        )
        for run, length, weights in zip((before, after), lengths, (first, second), strict=True)
    ]  # fmt: skip
    return made[0], made[1]


@dataclass(frozen=True, slots=True)
class Drawn:
    """A figure: as measured, as drawn (NaN where a draw has none), and of how many values; ``measured`` is None without any."""

    measured: float | None
    draws: Floats
    count: int


def latency(run: Run, value: Callable[[RequestSample], float | None], share: float | None) -> Drawn:
    """The percentile at ``share``, or the mean for None, of the completed requests' values."""
    pairs = sorted((each, run.block_of(one.planned_s)) for one in run.done if (each := value(one)) is not None)
    values = np.array([each for each, _ in pairs])
    return _of_values(run, values, np.array([block for _, block in pairs], dtype=np.int64), share)


def gaps(run: Run, share: float) -> Drawn:
    """The percentile of the pooled gaps between chunks."""

    bins = sorted({each for one in run.done for each in one.itl_counts})
    place = {each: index for index, each in enumerate(bins)}
    counts = np.zeros((run.blocks.count, max(1, len(bins))))
    for one in run.done:
        for each, count in one.itl_counts.items():
            counts[run.block_of(one.planned_s), place[each]] += count
    total = int(counts.sum())
    if not total:
        return _nothing()
    drawn = _weighted_percentile(np.array([itl_bin_s(each) for each in bins]), run.weights @ counts, share)
    return Drawn(Gaps.of(run.done).percentile(share), drawn, total)


def output_rate(run: Run) -> Drawn:
    """Output tokens per second while the load was sent, by the time an answer ended: after it only the last answers run out."""
    until_s = max((one.planned_s for one in run.requests), default=run.result.warmup_s)
    starts = run.result.warmup_s + run.blocks.block_s * np.arange(run.blocks.count)
    seconds = np.clip(until_s - starts, 0.0, run.blocks.block_s)
    tokens, count = np.zeros(run.blocks.count), 0
    for one in run.done:
        if one.ended_s <= until_s:
            tokens[run.block_of(one.ended_s)] += one.output_tokens
            count += 1
    if seconds.sum() <= 0.0:
        return _nothing()
    return Drawn(float(tokens.sum() / seconds.sum()), _divided(run.weights @ tokens, run.weights @ seconds), count)


def ratio(run: Run, part: Callable[[RequestSample], bool], whole: Sequence[RequestSample]) -> Drawn:
    """The share of ``whole`` that is ``part``."""
    tops, count = _sums(run, lambda one: float(part(one)), whole)
    bottoms, _ = _sums(run, lambda _: 1.0, whole)
    if not whole:
        return _nothing()
    return Drawn(float(tops.sum() / bottoms.sum()), _divided(run.weights @ tops, run.weights @ bottoms), count)


def level(run: Run, column: str, *, summed: bool) -> Drawn:
    """The mean over time of a gauge: over the engines the sum (requests) or the mean (usage)."""
    over_engines = [_by_block(run, signals, column) for signals in run.result.signals]
    known = [each for each in over_engines if not np.all(np.isnan(each))]
    if not known:
        return _nothing()
    stacked = np.array([np.where(np.isnan(each), np.nanmean(each), each) for each in known])
    values = stacked.sum(axis=0) if summed else stacked.mean(axis=0)
    seen = sum(value is not None for signals in run.result.signals for value in getattr(signals, column))
    return Drawn(float(values.mean()), run.weights @ values / run.blocks.count, seen)


def growth_per_1000(run: Run) -> Drawn:
    """Preemptions per 1,000 requests sent."""
    sums, seen = np.zeros(run.blocks.count), 0
    for signals in run.result.signals:
        for at, new in increments(signals):
            if at > run.result.warmup_s:
                sums[run.block_of(at)] += new
                seen += 1
    requests, _ = _sums(run, lambda _: 1.0, run.requests)
    if not seen or not run.requests:
        return _nothing()
    drawn = _divided(1000 * run.weights @ sums, run.weights @ requests)
    return Drawn(1000 * float(sums.sum()) / len(run.requests), drawn, seen)


def interval(draws: Floats) -> tuple[float, float] | None:
    """The middle 99 %; None where most draws have no figure."""
    known = draws[np.isfinite(draws)]
    if known.size < draws.size / 2:
        return None
    tail = (100.0 - CONFIDENCE) / 2
    low, high = np.percentile(known, (tail, 100.0 - tail))
    return float(low), float(high)


def _nothing() -> Drawn:
    return Drawn(None, np.full(DRAWS, nan), 0)


def _median_s(run: BenchResult) -> float:
    return run.summary.e2e_s.p50 or 0.0


def _paired(before: BenchResult, after: BenchResult) -> bool:
    one, other = before.measured, after.measured
    if before.workload != after.workload or before.workload.rate_per_s is None or len(one) != len(other):
        return False
    return all(
        abs(first.planned_s - second.planned_s) <= PAIRED_S_MAX and first.prompt_tokens == second.prompt_tokens
        for first, second in zip(one, other, strict=True)
    )


def _of_values(run: Run, values: Floats, blocks: Ints, share: float | None) -> Drawn:
    if not values.size:
        return _nothing()
    if share is None:
        sums, counts = (np.bincount(blocks, each, run.blocks.count) for each in (values, np.ones(values.size)))
        return Drawn(float(values.mean()), _divided(run.weights @ sums, run.weights @ counts), values.size)
    parts = np.array_split(run.weights, ceil(run.weights.shape[0] * values.size / CELLS_MAX))
    drawn = np.concatenate([_weighted_percentile(values, part[:, blocks], share) for part in parts])
    return Drawn(float(np.percentile(values, 100 * share)), drawn, values.size)


def _weighted_percentile(values: Floats, weights: Floats, share: float) -> Floats:
    """For each row of weights, the first of the ascending ``values`` whose rank reaches ``share`` of them."""
    ranks = np.cumsum(weights, axis=1)
    wanted = share * (ranks[:, -1:] - 1.0)
    index = np.argmax(ranks - 1.0 >= wanted, axis=1)
    found: Floats = np.where(ranks[:, -1] > 0.0, values[index], nan)
    return found


def _sums(run: Run, amount: Callable[[RequestSample], float], requests: Iterable[RequestSample]) -> tuple[Floats, int]:
    sums, count = np.zeros(run.blocks.count), 0
    for one in requests:
        sums[run.block_of(one.planned_s)] += amount(one)
        count += 1
    return sums, count


def _divided(top: Floats, bottom: Floats) -> Floats:
    filled: Floats = np.full(np.shape(top), nan)
    np.divide(top, bottom, out=filled, where=bottom > 0.0)
    return filled


def _by_block(run: Run, signals: Signals, column: str) -> Floats:
    """Mean of a gauge in each block; NaN where nothing was seen."""
    sums, counts = np.zeros(run.blocks.count), np.zeros(run.blocks.count)
    for at, value in zip(signals.at_s, getattr(signals, column), strict=True):
        if value is not None and at >= run.result.warmup_s:
            sums[run.block_of(at)] += value
            counts[run.block_of(at)] += 1
    return _divided(sums, counts)
