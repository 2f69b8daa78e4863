"""Who is ejected, for how long, how it comes back, and that the pool is never left with too few."""

from math import inf

import pytest

from proxy.core.health import DOUBT_S, INCIDENT_S, PAUSE_S, EjectReason, Outliers, SlowStart
from proxy.core.policy_relay import Health


def outliers(count: int, **changes: float) -> Outliers:
    """Replicas ``r0`` to ``r<count - 1>``, all of one model and in use."""
    found = Outliers(Health(**changes))  # type: ignore[arg-type]
    for index in range(count):
        found.seen(f"r{index}", ("m",), 0.0, usable=True)
    return found


def fail(found: Outliers, name: str, times: int, at_s: float = 0.0) -> list[EjectReason | None]:
    return [found.failed(name, at_s) for _ in range(times)]


def test_the_fifth_failure_in_a_row_ejects() -> None:
    found = outliers(3)
    assert fail(found, "r0", 4) == [None] * 4
    found.answered("r0", 0.0)
    assert fail(found, "r0", 5) == [None] * 4 + [EjectReason.CONSECUTIVE]
    assert found.ejected("r0")
    assert found.ejections == {"r0": {EjectReason.CONSECUTIVE: 1}}
    assert fail(found, "r0", 9) == [None] * 9  # what was still under way there


def test_a_ratio_ejects_from_enough_requests_on_and_is_forgotten_with_time() -> None:
    found = outliers(3)
    for _ in range(4):
        assert fail(found, "r0", 1) == [None]
        found.answered("r0", 0.0)
    assert fail(found, "r0", 1) == [None]  # 5 of 9
    assert fail(found, "r0", 1) == [EjectReason.RATIO]  # 6 of 10
    slow = outliers(3)
    for second in range(0, 400, 2):  # ten in a window, four of them failures
        if second % 10 in {0, 4}:
            assert fail(slow, "r0", 2, float(second)) == [None] * 2
        slow.answered("r0", float(second))


def test_what_fails_everywhere_ejects_nobody() -> None:
    found = outliers(4)
    for _ in range(20):
        for index in range(4):
            assert fail(found, f"r{index}", 1) == [None]
    bad = outliers(4)
    for _ in range(8):
        for index in range(1, 4):  # the others fail a third as often
            bad.answered(f"r{index}", 0.0)
            bad.answered(f"r{index}", 0.0)
            bad.failed(f"r{index}", 0.0)
    assert fail(bad, "r0", 5)[-1] is EjectReason.CONSECUTIVE


@pytest.mark.parametrize(("count", "most"), [(1, 0), (2, 1), (3, 1), (4, 2), (5, 2)])
def test_no_more_than_half_are_out(count: int, most: int) -> None:
    found = outliers(count)
    for index in range(count - 1, -1, -1):
        for other in range(index):
            for _ in range(40):
                found.answered(f"r{other}", 0.0)
        fail(found, f"r{index}", 60)
    assert sum(found.ejected(f"r{index}") for index in range(count)) == most


def test_one_that_was_well_just_now_is_ejected_as_soon_as_any_other() -> None:
    """A fault of another one a moment ago is no excuse for what fails now."""
    found = outliers(4)
    for _ in range(60):
        for index in range(4):
            found.answered(f"r{index}", 0.0)
    for other in ("r1", "r2"):
        fail(found, other, 4, 1.0)
    assert fail(found, "r0", 5, 5.0)[-1] is EjectReason.CONSECUTIVE


def test_unreachable_ones_count_as_out_and_ejected_ones_are_used_again_when_too_many_are() -> None:
    found = outliers(4)
    found.seen("r3", ("m",), 0.0, usable=False)
    assert fail(found, "r0", 5)[-1] is EjectReason.CONSECUTIVE
    assert fail(found, "r1", 5)[-1] is None
    assert not found.returns("r0", 1.0)
    found.seen("r2", ("m",), 1.0, usable=False)
    assert found.returns("r0", 1.0)
    assert not found.ejected("r0")


def test_pools_are_told_apart() -> None:
    found = outliers(2)
    found.seen("other", ("x",), 0.0, usable=True)
    assert fail(found, "other", 9)[-1] is None  # the only one of its model
    found.seen("both", ("m", "x"), 0.0, usable=True)
    assert fail(found, "other", 1) == [EjectReason.CONSECUTIVE]
    assert fail(found, "both", 9)[-1] is None  # x would have nobody
    unknown = outliers(0)
    assert fail(unknown, "unprobed", 9)[-1] is None


def test_an_ejection_doubles_up_to_its_limit_and_begins_anew_after_a_time_in_use() -> None:
    found, at_s, lasted = outliers(2, eject_s=2.0, eject_s_max=10.0), 0.0, []
    for _ in range(5):
        fail(found, "r0", 5, at_s)
        assert found.ejected("r0")
        began_s = at_s
        while not found.returns("r0", at_s):
            at_s += 0.25
        lasted.append(at_s - began_s)
    assert lasted == [2.0, 4.0, 8.0, 10.0, 10.0]
    fail(found, "r0", 5, at_s + 10.0)  # it came through its slow start
    assert not found.returns("r0", at_s + 11.9)
    assert found.returns("r0", at_s + 12.0)


def test_one_that_cannot_be_spared_is_tried_once_a_second_while_another_serves() -> None:
    """Two of four are gone, the third fails at once: it would get every request."""
    found = outliers(4)
    for name in ("r2", "r3"):
        found.seen(name, ("m",), 0.0, usable=False)
    assert fail(found, "r0", 5, 1.0) == [None] * 5
    ramp = found.slow_start_of("r0", 1.0)
    assert ramp == SlowStart(1.0 + PAUSE_S, 10.0)
    assert ramp.closed(0, 1.0 + PAUSE_S - 0.01)
    assert not ramp.closed(0, 1.0 + PAUSE_S)
    assert ramp.closed(1, 1.0 + PAUSE_S)
    assert fail(found, "r0", 1, 2.5) == [None]
    assert found.slow_start_of("r0", 2.5) == SlowStart(2.5 + PAUSE_S, 10.0)
    assert fail(found, "r1", 9, 3.0) == [None] * 9  # now it is the only one that is left
    assert found.slow_start_of("r1", 3.0) is None
    off = outliers(2, slow_start_s=0.0, eject_ratio_max=0.0)
    fail(off, "r0", 5, 1.0)
    ramp = off.slow_start_of("r0", 1.0)
    assert ramp is not None
    assert ramp.closed(0, 1.99)
    assert off.slow_start_of("r0", 2.0) is None


def test_one_that_answered_again_meanwhile_begins_anew() -> None:
    for answers, lasts_s in ((9, 4.0), (10, 2.0)):
        found = outliers(2)
        fail(found, "r0", 5)
        assert found.returns("r0", 2.0)
        for _ in range(answers):
            found.answered("r0", 4.0)
        assert fail(found, "r0", 2, 5.0)[-1] is EjectReason.SLOW_START
        assert not found.returns("r0", 4.99 + lasts_s)
        assert found.returns("r0", 5.0 + lasts_s)


def test_what_is_lost_together_is_one_failure() -> None:
    """Twenty requests on connections that break at once; those sent after that say something new, and so does what breaks later."""
    found = outliers(2)
    assert [found.failed("r0", 1.0 + index / 1000, 0.5) for index in range(20)] == [None] * 20
    assert found.failed("r0", 1.0 + INCIDENT_S - 0.01, 1.0) is None  # sent at the very moment
    later = [found.failed("r0", 1.1 + index / 1000, 1.05) for index in range(3)]
    assert later == [None] * 3  # the second incident
    assert [found.failed("r0", 1.2 + index / 10, 1.19 + index / 10) for index in range(3)][-1] is EjectReason.CONSECUTIVE
    slow = outliers(2)
    assert [slow.failed("r0", 1.0 + index * INCIDENT_S, 0.5) for index in range(5)][-1] is EjectReason.CONSECUTIVE


def test_one_that_comes_back_starts_slowly_and_is_ejected_sooner() -> None:
    found = outliers(2)
    fail(found, "r0", 5)
    assert found.returns("r0", 2.0)
    ramp = found.slow_start_of("r0", 2.0)
    assert ramp == SlowStart(2.0, 10.0)
    assert fail(found, "r0", 2, 3.0) == [None, EjectReason.SLOW_START]
    assert found.slow_start_of("r0", 3.0) is None
    assert found.returns("r0", 7.0)
    assert found.slow_start_of("r0", 16.9) is not None
    assert found.slow_start_of("r0", 17.0) is None
    assert fail(found, "r0", 4, 17.0) == [None] * 4


def test_slow_start_doubles_ten_times() -> None:
    ramp = SlowStart(5.0, 10.0)
    assert [ramp.requests_max(5.0 + second) for second in (0.0, 1.0, 2.0, 9.0, 10.0)] == [1.0, 2.0, 4.0, 512.0, inf]
    assert not ramp.closed(0, 5.0)
    assert ramp.closed(1, 5.99)
    assert not ramp.closed(1, 6.0)
    assert not ramp.closed(10_000, 15.0)


def test_one_that_was_gone_starts_slowly_only_beside_others_that_serve() -> None:
    found = outliers(2)
    found.seen("r0", ("m",), 1.0, usable=False)
    found.seen("r0", ("m",), 2.0, usable=True, cold=True)
    assert found.slow_start_of("r0", 2.0) == SlowStart(2.0, 10.0)
    alone = outliers(1)
    alone.seen("r0", ("m",), 1.0, usable=False)
    alone.seen("r0", ("m",), 2.0, usable=True, cold=True)
    assert alone.slow_start_of("r0", 2.0) is None
    off = outliers(2, slow_start_s=0.0)
    fail(off, "r0", 5)
    assert off.returns("r0", 2.0)
    assert off.slow_start_of("r0", 2.0) is None


def test_one_that_is_none_of_ours_any_more_counts_nowhere() -> None:
    found = outliers(2)
    fail(found, "r0", 5)
    found.forget("r0")
    found.answered("r0", 1.0)
    assert fail(found, "r0", 9) == [None] * 9
    assert found.ejections == {}
    assert fail(found, "r1", 5)[-1] is None  # it is the only one now


def test_one_that_fails_twice_in_a_row_gets_few_at_a_time_until_it_answers() -> None:
    found = outliers(3)
    fail(found, "r0", 1, 1.0)
    assert found.slow_start_of("r0", 1.0) is None  # a broken connection
    fail(found, "r0", 1, 1.5)
    ramp = found.slow_start_of("r0", 1.5)
    assert ramp == SlowStart(1.5, DOUBT_S)
    assert [ramp.closed(requests, 1.5) for requests in (0, 1)] == [False, True]
    assert [ramp.closed(requests, 2.5) for requests in (31, 32)] == [False, True]
    fail(found, "r0", 1, 2.5)
    assert found.slow_start_of("r0", 2.5) == SlowStart(2.5, DOUBT_S)  # anew with each
    assert found.slow_start_of("r0", 2.5 + DOUBT_S) is None
    fail(found, "r0", 1, 5.0)
    assert found.answered("r0", 5.1)
    assert not found.answered("r0", 5.2)
    assert found.slow_start_of("r0", 5.2) is None
    fail(found, "r0", 1, 5.3)
    assert found.slow_start_of("r0", 5.3) is None  # it answered in between


def test_nobody_is_in_doubt_whom_others_cannot_stand_in_for_or_who_fails_as_they_do() -> None:
    alone = outliers(1)
    fail(alone, "r0", 4)
    assert alone.slow_start_of("r0", 0.0) is None
    gone = outliers(2)
    gone.seen("r1", ("m",), 0.0, usable=False)
    fail(gone, "r0", 4)
    assert gone.slow_start_of("r0", 0.0) is None
    alike = outliers(2)
    fail(alike, "r1", 1)
    fail(alike, "r0", 4)
    assert alike.slow_start_of("r0", 0.0) is None


def test_one_that_is_coming_back_is_in_doubt_from_its_first_failure_on() -> None:
    found = outliers(3)
    fail(found, "r0", 5, 1.0)
    assert found.returns("r0", 3.0)
    fail(found, "r0", 1, 4.0)  # two at a time by now, and four in a second, which is less
    assert found.slow_start_of("r0", 4.0) == SlowStart(3.0, 10.0)
    found = outliers(3)
    fail(found, "r0", 5, 1.0)
    assert found.returns("r0", 3.0)
    fail(found, "r0", 1, 11.0)
    assert found.slow_start_of("r0", 11.0) == SlowStart(11.0, DOUBT_S)
    assert found.answered("r0", 11.5)
    assert found.slow_start_of("r0", 11.5) == SlowStart(3.0, 10.0)
