"""When a replica counts as standing still, and what is not standing still: busy, late, idle, silent."""

import pytest

from proxy.core.replica import EngineSample
from proxy.core.wedge import QUIET_S_MAX, QUIET_S_MIN, QUIET_SAMPLES, RETRY_S, Wedge
from tests.support.builders import engine_sample

STUCK = engine_sample(usage=0.5, running=4, waiting=1, generated=100.0)


def look(
    wedge: Wedge, start_s: float, seconds: float, sample: EngineSample = STUCK, *, every_s: float = 0.5, leases: int = 3
) -> float:
    """Scrapes that show no movement; return the time of the last."""
    at_s = start_s
    while at_s < start_s + seconds:
        at_s += every_s
        wedge.observe(sample, at_s, leases=leases, streamed_tokens=40)
    return at_s


def wedged() -> Wedge:
    one = Wedge()
    one.observe(STUCK, 0.0, leases=3, streamed_tokens=40)
    look(one, 0.0, QUIET_S_MIN)
    assert one.wedged
    return one


def test_it_is_wedged_after_its_patience_and_not_before() -> None:
    one = Wedge()
    one.observe(STUCK, 0.0, leases=3, streamed_tokens=40)
    look(one, 0.0, QUIET_S_MIN - 0.5)
    assert not one.wedged
    look(one, QUIET_S_MIN - 0.5, 0.5)
    assert one.wedged
    assert one.closed(3, QUIET_S_MIN)


def test_scrapes_that_come_late_are_no_evidence() -> None:
    """The server answers once in five seconds: after ten there are two looks, which say little."""
    one = Wedge()
    one.observe(STUCK, 0.0, leases=3, streamed_tokens=40)
    at_s = look(one, 0.0, 5.0 * (QUIET_SAMPLES - 1), every_s=5.0)
    assert at_s > QUIET_S_MIN
    assert not one.wedged
    look(one, at_s, 5.0, every_s=5.0)
    assert one.wedged


@pytest.mark.parametrize(
    "moved",
    [
        engine_sample(usage=0.51, running=4, waiting=1, generated=100.0),  # a chunk of a long prefill
        engine_sample(usage=0.5, running=5, waiting=1, generated=100.0),
        engine_sample(usage=0.5, running=4, waiting=2, generated=100.0),
        engine_sample(usage=0.5, running=4, waiting=1, generated=101.0),
        engine_sample(usage=0.5, running=4, waiting=1, generated=100.0, preemptions=1.0),
    ],
)
def test_any_movement_opens_it_at_once(moved: EngineSample) -> None:
    one = wedged()
    one.observe(moved, 100.0, leases=3, streamed_tokens=40)
    assert not one.wedged
    assert not one.closed(3, 100.0)


def test_a_token_on_one_stream_is_movement() -> None:
    one = wedged()
    one.observe(STUCK, 100.0, leases=3, streamed_tokens=41)
    assert not one.wedged


def test_a_request_that_was_given_up_is_none() -> None:
    one = wedged()
    one.observe(STUCK, 100.0, leases=2, streamed_tokens=30)
    assert one.wedged


def test_a_long_prefill_that_takes_blocks_is_busy() -> None:
    one = Wedge()
    for index in range(200):
        usage = 0.1 + 0.004 * index
        one.observe(engine_sample(usage=usage, running=1, waiting=0, generated=5.0), 0.5 * index, leases=1, streamed_tokens=0)
    assert not one.wedged


@pytest.mark.parametrize(
    "sample",
    [
        engine_sample(usage=0.0, running=0, waiting=0, generated=100.0),
        engine_sample(usage=0.3, running=0, waiting=2, waiting_capacity=0),  # grammar or adapter: the engine is free
        engine_sample(usage=None, running=None, waiting=None, preemptions=None),
    ],
)
def test_idle_and_silent_engines_are_not_wedged(sample: EngineSample) -> None:
    one = Wedge()
    look(one, 0.0, 100.0, sample)
    assert not one.wedged


def test_a_gauge_that_stuck_without_requests_of_ours_closes_nothing() -> None:
    one = Wedge()
    look(one, 0.0, 100.0, leases=0)
    assert not one.wedged


def test_a_quiet_that_ended_by_itself_makes_it_patient() -> None:
    one = Wedge()
    one.observe(STUCK, 0.0, leases=3, streamed_tokens=40)
    look(one, 0.0, 8.0)
    one.observe(STUCK, 8.5, leases=3, streamed_tokens=41)
    assert one.patience_s == 17.0
    one = wedged()
    one.observe(STUCK, 10_000.0, leases=3, streamed_tokens=41)
    assert one.patience_s == QUIET_S_MAX


def test_without_requests_of_ours_it_is_tried_with_one_after_a_while() -> None:
    one = wedged()
    left_s = QUIET_S_MIN
    look(one, left_s, RETRY_S - 0.5, leases=0)
    assert one.closed(0, left_s + RETRY_S - 0.5)
    look(one, left_s + RETRY_S - 0.5, 1.0, leases=0)
    assert not one.closed(0, left_s + RETRY_S)
    assert one.closed(1, left_s + RETRY_S)  # one, not many
    end_s = look(one, left_s + RETRY_S + 0.5, 20.0, leases=1)
    look(one, end_s, 1.0, leases=0)
    assert one.closed(0, end_s + 1.0)  # it did not move: rest again
