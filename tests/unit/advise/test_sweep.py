"""The sweet spot of a sweep, and how it is shown."""

from proxy.advise.result_file import Slo
from proxy.advise.sweep import SweepPoint, chart, sweet_spot

SLO = Slo(ttft_s=1.0, tpot_s=0.05)


def point(value: str, rate: float, ttft_s: float = 0.5, preemptions: float = 0, fault: str | None = None) -> SweepPoint:
    return SweepPoint(value, rate, 1.0, ttft_s, 0.02, 0.8, preemptions, 1000, fault)


def test_the_sweet_spot_is_the_most_within_the_slo_and_without_preemptions() -> None:
    points = [point("16", 500), point("32", 900), point("64", 1100, preemptions=80), point("128", 1200, ttft_s=3.0)]
    spot = sweet_spot(points, SLO)
    assert spot.index == 1
    assert "preempting, or beyond the SLO: 64, 128" in spot.reason


def test_of_equals_the_one_that_answers_first_is_taken() -> None:
    points = [point("16", 500), point("32", 990, ttft_s=0.4), point("64", 1000, ttft_s=0.9)]
    assert sweet_spot(points, SLO).index == 1
    assert sweet_spot([point("32", 970, ttft_s=0.4), point("64", 1000, ttft_s=0.9)], SLO).index == 1


def test_a_preemption_in_a_hundred_requests_is_next_to_nothing() -> None:
    assert sweet_spot([point("16", 500), point("32", 900, preemptions=10)], SLO).index == 1
    assert sweet_spot([point("16", 500), point("32", 900, preemptions=11)], SLO).index == 0


def test_where_none_is_good_the_nearest_is_told_and_none_is_marked() -> None:
    points = [point("16", 500, ttft_s=2.0), point("32", 900, ttft_s=2.0, preemptions=90)]
    spot = sweet_spot(points, SLO)
    assert spot.index is None
    assert "16 comes nearest (p99 TTFT is beyond the SLO)" in spot.reason
    assert "←" not in chart("max-num-seqs", points, spot)


def test_an_engine_that_did_not_start_is_a_row_and_no_candidate() -> None:
    points = [SweepPoint("0", fault="did not start\nlog"), point("32", 900)]
    spot = sweet_spot(points, Slo())
    shown = chart("max-num-seqs", points, spot).splitlines()
    assert "could not be run: did not start" in shown[1]
    assert shown[2].endswith("← sweet spot")
    assert sweet_spot(points[:1], SLO).index is None
