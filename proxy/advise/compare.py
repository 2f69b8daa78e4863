"""Two benchmark runs side by side: every figure with its interval, and whether the second is better, worse, or noise.

A figure is *better* or *worse* when the 99 % interval of its change leaves out zero and the change is large enough to care about (2 % of
a latency or rate; one preemption in 1,000 requests; a hundredth of a share). Usage and running have no better side: they explain.

The whole: failed requests and goodput go before everything else, since latencies of fewer answers are no gain. Without a difference there,
the latencies, throughput and preemptions decide; where some are better and others worse, it is mixed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from proxy.advise.compare_draws import (
    Blocks,
    Drawn,
    Floats,
    Run,
    cut,
    gaps,
    growth_per_1000,
    interval,
    latency,
    level,
    output_rate,
    ratio,
)
from proxy.advise.result_figures import is_good
from proxy.advise.result_file import BenchResult, RequestSample

CHANGE_RATIO_MIN = 0.02  # two runs of the same differ by about this much on a quiet machine
TAIL_COUNT_MIN = 200  # a p99 of fewer values is the second or third largest of them


class Verdict(StrEnum):
    """What a change is."""

    BETTER = "better"
    WORSE = "worse"
    NOISE = "noise"
    MIXED = "mixed"
    CHANGED = "changed"  # of a figure without a better side
    UNKNOWN = "unknown"  # not measured in both runs, or too few values


@dataclass(frozen=True, slots=True)
class Kind:
    """A figure's name and how to read it. ``sign``: 1 more is better, -1 less is better, 0 neither.

    ``absolute``: the change is a difference of at least so much; None: a ratio of at least ``CHANGE_RATIO_MIN``. ``scale`` and ``unit``
    are for people. ``first`` decides before the others.
    """

    name: str
    title: str
    sign: int
    unit: str = ""
    scale: float = 1.0
    absolute: float | None = None
    decides: bool = False
    first: bool = False


@dataclass(frozen=True, slots=True)
class Figure:
    """One row. ``change`` is after ÷ before - 1, or after - before where the kind is absolute; so are ``low`` and ``high``."""

    kind: Kind
    before: float | None
    after: float | None
    change: float | None
    low: float | None
    high: float | None
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Comparison:
    """The rows, and the whole."""

    figures: tuple[Figure, ...]
    verdict: Verdict
    blocks: Blocks

    def figure(self, name: str) -> Figure:
        """The row of a name."""
        return next(each for each in self.figures if each.kind.name == name)

    def of(self, verdict: Verdict) -> list[Figure]:
        """The deciding rows with a verdict."""
        return [each for each in self.figures if each.kind.decides and each.verdict is verdict]


def compare(before: BenchResult, after: BenchResult) -> Comparison:
    """Compare two runs."""
    runs = cut(before, after)
    figures = tuple(_figure(kind, measure, runs) for kind, measure in _MEASURES)
    return Comparison(figures, whole(figures), runs[0].blocks)


def whole(figures: Sequence[Figure]) -> Verdict:
    """The verdict over all rows."""
    for rows in ([each for each in figures if each.kind.first], [each for each in figures if each.kind.decides]):
        found = {each.verdict for each in rows} & {Verdict.BETTER, Verdict.WORSE}
        if len(found) == 1:
            return found.pop()
        if found:
            return Verdict.MIXED
    return Verdict.NOISE


def _figure(kind: Kind, measure: Callable[[Run], Drawn], runs: tuple[Run, Run]) -> Figure:
    before, after = (measure(run) for run in runs)
    if before.measured is None or after.measured is None:
        return Figure(kind, before.measured, after.measured, None, None, None, Verdict.UNKNOWN)
    if kind.absolute is not None:
        change, draws = after.measured - before.measured, after.draws - before.draws
    elif before.measured > 0.0:
        change, draws = after.measured / before.measured - 1.0, _changes(before.draws, after.draws)
    else:
        return Figure(kind, before.measured, after.measured, None, None, None, Verdict.UNKNOWN)
    bounds = interval(draws)
    thin = kind.name.endswith("p99") and min(before.count, after.count) < TAIL_COUNT_MIN
    if bounds is None or thin or runs[0].blocks.count < 2:
        return Figure(kind, before.measured, after.measured, change, None, None, Verdict.UNKNOWN)
    low, high = bounds
    return Figure(kind, before.measured, after.measured, change, low, high, _verdict(kind, change, low, high))


def _verdict(kind: Kind, change: float, low: float, high: float) -> Verdict:
    least = CHANGE_RATIO_MIN if kind.absolute is None else kind.absolute
    if low <= 0.0 <= high or abs(change) < least:
        return Verdict.NOISE
    if not kind.sign:
        return Verdict.CHANGED
    return Verdict.BETTER if (change > 0.0) == (kind.sign > 0) else Verdict.WORSE


def _changes(before: Floats, after: Floats) -> Floats:
    found: Floats = np.full(before.shape, np.nan)
    np.divide(after, before, out=found, where=before > 0.0)
    return found - 1.0


def _ttft(one: RequestSample) -> float | None:
    return one.ttft_s


def _tpot(one: RequestSample) -> float | None:
    return one.tpot_s


def _e2e(one: RequestSample) -> float | None:
    return one.e2e_s


def _asked(run: Run) -> list[RequestSample]:
    """All requests but those that the load itself gave up."""
    return [one for one in run.requests if one.outcome != "cancelled"]


def _good(run: Run) -> Drawn:
    return ratio(run, lambda one: is_good(one, run.slo), _asked(run))


def _lost(run: Run) -> Drawn:
    return ratio(run, lambda one: one.outcome in ("failed", "unfinished"), _asked(run))


def _shed(run: Run) -> Drawn:
    return ratio(run, lambda one: one.outcome == "shed", _asked(run))


def _seconds(name: str, title: str, *, decides: bool = False) -> Kind:
    return Kind(name, title, -1, "s", decides=decides)


def _milliseconds(name: str, title: str, *, decides: bool = False) -> Kind:
    return Kind(name, title, -1, "ms", 1000.0, decides=decides)


_MEASURES: tuple[tuple[Kind, Callable[[Run], Drawn]], ...] = (
    (Kind("failed_ratio", "failed or unfinished", -1, "%", 100.0, 0.01, decides=True, first=True), _lost),
    (Kind("goodput_ratio", "within the objective", 1, "%", 100.0, 0.01, decides=True, first=True), _good),
    (Kind("shed_ratio", "told to come back", -1, "%", 100.0, 0.01), _shed),
    (Kind("output_tokens_per_s", "output tokens/s", 1, decides=True), output_rate),
    (_seconds("ttft_s_p50", "TTFT p50"), lambda run: latency(run, _ttft, 0.5)),
    (_seconds("ttft_s_p90", "TTFT p90", decides=True), lambda run: latency(run, _ttft, 0.9)),
    (_seconds("ttft_s_p99", "TTFT p99", decides=True), lambda run: latency(run, _ttft, 0.99)),
    (_milliseconds("tpot_s_p50", "TPOT p50"), lambda run: latency(run, _tpot, 0.5)),
    (_milliseconds("tpot_s_p99", "TPOT p99", decides=True), lambda run: latency(run, _tpot, 0.99)),
    (_milliseconds("itl_s_p50", "ITL p50"), lambda run: gaps(run, 0.5)),
    (_milliseconds("itl_s_p99", "ITL p99", decides=True), lambda run: gaps(run, 0.99)),
    (_seconds("e2e_s_mean", "E2E mean"), lambda run: latency(run, _e2e, None)),
    (_seconds("e2e_s_p99", "E2E p99"), lambda run: latency(run, _e2e, 0.99)),
    (Kind("kv_usage_ratio_mean", "KV usage", 0, "%", 100.0, 0.02), lambda run: level(run, "kv_usage_ratio", summed=False)),
    (Kind("running_mean", "running", 0), lambda run: level(run, "running", summed=True)),
    (Kind("waiting_mean", "waiting in the engine", -1, absolute=0.5), lambda run: level(run, "waiting", summed=True)),
    (Kind("preemptions_per_1000", "preemptions per 1,000", -1, absolute=1.0, decides=True), growth_per_1000),
)  # fmt: skip
