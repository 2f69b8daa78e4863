"""The four signals of a run over time, in equal bins: what a plot or a terminal draws."""

from proxy.advise.result_figures import increments
from proxy.advise.result_file import BenchResult, Signals


def over_time(run: BenchResult, column: str, bins: int) -> list[float | None]:
    """Means of a gauge over ``bins`` equal times of the run: usage over the engines in the mean, the others in sum; None: not seen."""
    engines = [_binned(run, signals, column, bins) for signals in run.signals]
    joined: list[float | None] = []
    for values in zip(*engines, strict=True):
        known = [value for value in values if value is not None]
        total = sum(known)
        joined.append(None if not known else total / len(known) if column == "kv_usage_ratio" else total)
    return joined


def preempted(run: BenchResult, bins: int) -> list[float]:
    """Preemptions in each of ``bins`` equal times, over the engines."""
    sums = [0.0] * bins
    for signals in run.signals:
        for at, new in increments(signals):
            sums[_bin(run, at, bins)] += new
    return sums


def _binned(run: BenchResult, signals: Signals, column: str, bins: int) -> list[float | None]:
    found: list[list[float]] = [[] for _ in range(bins)]
    for at, value in zip(signals.at_s, getattr(signals, column), strict=True):
        if value is not None:
            found[_bin(run, at, bins)].append(value)
    return [sum(each) / len(each) if each else None for each in found]


def _bin(run: BenchResult, at_s: float, bins: int) -> int:
    return min(bins - 1, int(at_s / run.duration_s * bins)) if run.duration_s > 0 else 0
