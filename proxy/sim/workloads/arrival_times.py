"""When requests arrive: a renewal process with Gamma gaps, run through a rate that changes in steps.

Gaps of mean 1 are drawn first and then turned into seconds: an arrival comes when the rate has summed up to the next gap. So the
count of an interval follows the rate in it, a coefficient of variation of 1 is a Poisson process, and a faster rate is the same
pattern compressed. The first gap is the rest of one that began before the start (U × a length-biased gap), or bursty clients would
all begin with a burst.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from math import inf
from random import Random


@dataclass(frozen=True, slots=True)
class RatePhase:
    """``rate_per_s`` until ``end_s``; ``gap_cv`` is the standard deviation of gaps over their mean."""

    end_s: float
    rate_per_s: float
    gap_cv: float = 1.0


def steady(rate_per_s: float, gap_cv: float = 1.0) -> tuple[RatePhase, ...]:
    """One rate for ever. Raises ValueError for a rate that is not above 0."""
    return (RatePhase(inf, checked_rate(rate_per_s), gap_cv),)


def checked_rate(rate_per_s: float | None) -> float:
    """Return a rate that can be played. Raises ValueError with what was given."""
    if rate_per_s is None:
        raise ValueError("this workload has no recorded rate: say at how many requests per second it arrives")
    if not 0 < rate_per_s < inf:
        raise ValueError(f"rate_per_s={rate_per_s}: requests per second, above 0")
    return rate_per_s


def checked_cv(gap_cv: float) -> float:
    """Return a coefficient of variation that can be drawn. Raises ValueError with what was given."""
    if not 0 < gap_cv < inf:
        raise ValueError(f"gap_cv={gap_cv}: deviation of gaps over their mean, above 0; 1 is a Poisson process")
    return gap_cv


def arrival_times(phases: Iterable[RatePhase], rng: Random) -> Iterator[float]:
    """Yield seconds from the start, in order, until the last phase ends. Phases are in order of time."""
    start_s = 0.0
    gap = None
    for phase in phases:
        shape = phase.gap_cv**-2
        now_s = start_s
        if gap is None:
            gap = rng.random() * rng.gammavariate(shape + 1.0, 1.0 / shape)
        while phase.rate_per_s > 0 and now_s + gap / phase.rate_per_s < phase.end_s:
            now_s += gap / phase.rate_per_s
            yield now_s
            gap = rng.gammavariate(shape, 1.0 / shape)
        if phase.end_s < inf:
            gap -= (phase.end_s - now_s) * phase.rate_per_s
        start_s = phase.end_s
