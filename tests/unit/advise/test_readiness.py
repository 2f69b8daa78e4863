"""Ready to enforce: each question at its edge, and why not."""

import msgspec
import pytest

from proxy.advise.readiness import judge
from proxy.core.log_buckets import bucket_of
from proxy.wire.history_report import HistoryReport, Sums, added


def histogram(value: float, count: int = 100) -> dict[str, int]:
    return {str(bucket_of(value)): count}


def observed(**changed: object) -> Sums:
    """A day that nothing stands against."""
    sums = Sums(
        seconds=86_400.0, requests=10_000, would_hold=500, would_hold_ended=500, would_hold_needless=100, counted=9_000, mismatched=10,
        preemptions={"r0": 100}, preceded={"r0": 95}, own_s=histogram(0.002), would_wait_s=histogram(2.0),
    )  # fmt: skip
    return msgspec.structs.replace(sums, **changed)


def test_a_good_day_is_ready() -> None:
    readiness = judge(observed(), 30.0)
    assert readiness.ready
    assert "500 of 10000" in readiness.because
    assert all(finding.good for finding in readiness.findings)


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"requests": 999}, "fewer than 1000"),
        ({"mismatched": 91}, "counted otherwise"),
        ({"own_s": histogram(0.025)}, "kvgate itself takes"),
        ({"preceded": {"r0": 79}}, "79% of 100 preemptions"),
        ({"would_hold_needless": 401}, "followed by no preemption"),
        ({"would_wait_s": histogram(33.0)}, "beyond queue.wait_max of 30 s"),
    ],
)
def test_what_stands_against_it(changed: dict[str, object], word: str) -> None:
    readiness = judge(observed(**changed), 30.0)
    assert not readiness.ready
    assert word in readiness.because
    assert sum(finding.good is False for finding in readiness.findings) == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"requests": 1000, "would_hold": 10},
        {"mismatched": 90},
        {"own_s": histogram(0.018)},
        {"preceded": {"r0": 80}},
        {"preceded": {}, "preemptions": {"r0": 9}},
        {"would_hold_needless": 400},
        {"would_hold_needless": 100, "would_hold_ended": 100, "would_hold": 100},
        {"would_wait_s": histogram(28.0)},
    ],
)
def test_the_edge_is_inside(changed: dict[str, object]) -> None:
    assert judge(observed(**changed), 30.0).ready


def test_of_nothing_it_is_not_ready() -> None:
    readiness = judge(Sums(), 30.0)
    assert not readiness.ready
    assert [finding.good for finding in readiness.findings] == [False, None, None, None, None, None]


def test_proxies_add_up_but_for_what_all_of_them_saw() -> None:
    other = observed(seconds=80_000.0, preemptions={"r0": 90, "r1": 7})
    total = added([observed(), other], proxies=True)
    assert (total.requests, total.seconds, total.preemptions, total.preceded) == (
        20_000,
        86_400.0,
        {"r0": 100, "r1": 7},
        {"r0": 95},
    )
    assert total.own_s == histogram(0.002, 200)
    assert added([observed(), other], proxies=False).preemptions == {"r0": 190, "r1": 7}


def test_a_report_travels_as_json() -> None:
    report = HistoryReport(86_400.0, 60.0, "observe", 30.0, modes={"observe": observed()})
    assert msgspec.json.decode(msgspec.json.encode(report), type=HistoryReport) == report
