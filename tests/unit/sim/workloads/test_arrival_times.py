"""Renewal arrivals through a rate that changes."""

from itertools import islice, pairwise
from math import inf, isclose
from random import Random
from statistics import mean, pstdev

import pytest

from proxy.sim.workloads.arrival_times import RatePhase, arrival_times, steady


@pytest.mark.parametrize("gap_cv", [0.5, 1.0, 2.0, 4.0])
def test_gaps_have_the_mean_and_the_variation_asked_for(gap_cv: float) -> None:
    times = list(islice(arrival_times(steady(2.0, gap_cv), Random(1)), 40_000))
    gaps = [after - before for before, after in pairwise(times)]
    assert isclose(mean(gaps), 0.5, rel_tol=0.03 * max(1.0, gap_cv))
    assert isclose(pstdev(gaps) / mean(gaps), gap_cv, rel_tol=0.05)


@pytest.mark.parametrize("gap_cv", [0.5, 1.0, 4.0])
def test_the_first_seconds_are_as_busy_as_any(gap_cv: float) -> None:
    """Without the rest of a gap that began before, bursty clients all begin with a burst: nearly 4 times the rate at a variation of 4."""
    phases = (RatePhase(1.0, 2.0, gap_cv),)
    counts = [len(list(arrival_times(phases, Random(seed)))) for seed in range(6000)]
    assert isclose(mean(counts), 2.0, rel_tol=0.1)


def test_the_count_follows_the_rate() -> None:
    phases = (RatePhase(1000.0, 5.0), RatePhase(2000.0, 0.0), RatePhase(3000.0, 20.0), RatePhase(4000.0, 5.0))
    times = list(arrival_times(phases, Random(3)))
    counts = [sum(start <= one < start + 1000.0 for one in times) for start in (0.0, 1000.0, 2000.0, 3000.0)]
    assert counts[1] == 0
    for count, rate in zip(counts, (5.0, 0.0, 20.0, 5.0), strict=True):
        assert isclose(count, 1000.0 * rate, rel_tol=0.05)
    assert times == sorted(times)


def test_phases_of_one_rate_are_one_phase() -> None:
    whole = list(arrival_times((RatePhase(100.0, 3.0),), Random(5)))
    parts = list(arrival_times((RatePhase(10.0, 3.0), RatePhase(10.5, 3.0), RatePhase(100.0, 3.0)), Random(5)))
    assert parts == pytest.approx(whole)


def test_arrivals_end_with_the_last_phase_or_never() -> None:
    assert list(arrival_times((RatePhase(5.0, 0.0),), Random(1))) == []
    assert len(list(islice(arrival_times((RatePhase(inf, 1.0),), Random(1)), 1000))) == 1000
