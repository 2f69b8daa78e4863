"""The figures of a benchmark run, from its requests: one arithmetic for the bench that writes them and the comparison that reads them."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import floor, log

import numpy as np

from proxy.advise.result_file import RequestSample, Signals, Slo, Spread, Summary

ITL_BIN_RATIO = 1.005
ITL_BIN_S_MIN = 1e-6  # gaps below a microsecond fall into the first bin


def itl_bin(gap_s: float) -> int:
    """The bin of a gap between two chunks."""
    return max(0, floor(log(max(gap_s, ITL_BIN_S_MIN) / ITL_BIN_S_MIN) / log(ITL_BIN_RATIO)))


def itl_bin_s(number: int) -> float:
    """The geometric middle of a bin, seconds."""
    return float(ITL_BIN_S_MIN * ITL_BIN_RATIO ** (number + 0.5))


def itl_counts(gaps_s: Iterable[float]) -> dict[int, int]:
    """Count a request's gaps."""
    return dict(Counter(map(itl_bin, gaps_s)))


def is_good(request: RequestSample, slo: Slo) -> bool:
    """Whether a request was answered to its end within the objective; what has no TPOT cannot miss it."""
    if request.outcome != "completed":
        return False
    kept = ((request.ttft_s, slo.ttft_s), (request.tpot_s, slo.tpot_s), (request.e2e_s, slo.e2e_s))
    return all(limit is None or value is None or value <= limit for value, limit in kept)


@dataclass(frozen=True, slots=True)
class Gaps:
    """Pooled gaps: ``seconds`` ascending with ``counts``; ``total_s`` is their exact sum."""

    seconds: np.ndarray[tuple[int], np.dtype[np.float64]]
    counts: np.ndarray[tuple[int], np.dtype[np.int64]]
    total_s: float

    @classmethod
    def of(cls, requests: Iterable[RequestSample]) -> "Gaps":
        """Pool the gaps of answers that were completed."""
        pooled: Counter[int] = Counter()
        total_s = 0.0
        for one in requests:
            if one.outcome == "completed" and one.first_token_s is not None and one.itl_counts:
                pooled.update(one.itl_counts)
                total_s += one.ended_s - one.first_token_s
        bins = sorted(pooled)
        return cls(
            np.array([itl_bin_s(each) for each in bins]), np.array([pooled[each] for each in bins], dtype=np.int64), total_s
        )

    def percentile(self, share: float) -> float | None:
        """The gap below which ``share`` of the gaps lie; None without any."""
        if not self.counts.size:
            return None
        rank = share * (self.counts.sum() - 1)
        return float(self.seconds[np.searchsorted(np.cumsum(self.counts) - 1, rank)])

    @property
    def spread(self) -> Spread:
        """The figures of the pool."""
        count = int(self.counts.sum())
        mean = self.total_s / count if count else None
        return Spread(count, mean, self.percentile(0.5), self.percentile(0.9), self.percentile(0.99))


def increments(signals: Signals) -> list[tuple[float, float]]:
    """(time, preemptions since the scrape before); a counter that falls started again from 0."""
    told = [(at, value) for at, value in zip(signals.at_s, signals.preemptions_total, strict=True) if value is not None]
    return [(at, new - old if new >= old else new) for (_, old), (at, new) in pairwise(told)]


def spread(values_s: Sequence[float]) -> Spread:
    """Mean and percentiles, linear between ranks."""
    if not values_s:
        return Spread(0)
    p50, p90, p99 = map(float, np.percentile(values_s, (50, 90, 99)))
    return Spread(len(values_s), float(np.mean(values_s)), p50, p90, p99)


def summarise(requests: Iterable[RequestSample], slo: Slo, *, duration_s: float, warmup_s: float = 0.0) -> Summary:
    """The figures of a run; latencies are those of completed requests."""
    counted = [one for one in requests if one.planned_s >= warmup_s]
    done = [one for one in counted if one.outcome == "completed"]
    outcomes = Counter(one.outcome for one in counted)
    good = sum(is_good(one, slo) for one in done)
    asked = len(counted) - outcomes["cancelled"]
    seconds = duration_s - warmup_s

    def rate(amount: float) -> float | None:
        return amount / seconds if seconds > 0.0 else None

    return Summary(
        ttft_s=spread([one.ttft_s for one in done if one.ttft_s is not None]),
        tpot_s=spread([one.tpot_s for one in done if one.tpot_s is not None]),
        itl_s=Gaps.of(done).spread,
        e2e_s=spread([one.e2e_s for one in done]),
        outcomes={str(name): count for name, count in sorted(outcomes.items())},
        requests_per_s=rate(len(done)),
        prompt_tokens_per_s=rate(sum(one.prompt_tokens for one in done)),
        output_tokens_per_s=rate(sum(one.output_tokens for one in done)),
        goodput_per_s=rate(good),
        goodput_ratio=good / asked if asked else None,
    )
