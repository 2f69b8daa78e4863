"""Who is suspected because another proxy ejected it, how it is trusted again, and what is told of that."""

from proxy.core.health import EjectReason, Outliers
from proxy.core.policy_relay import Health
from proxy.core.shared_health import NOTICES_MAX, Notice, SharedHealth
from tests.unit.core.test_health import fail, outliers

AHEAD_S = 500.0  # of the store's clock
EJECTED = Notice("r0", 500.0, 502.0, 1)  # at second 0 by ours, for two


def hearing(found: Outliers, *notices: Notice, at_s: float = 0.5, by: str = "other") -> list[str]:
    """What one proxy, which knew nothing yet, makes of these."""
    return SharedHealth(found).hear({by: notices}, AHEAD_S, at_s)


def test_what_another_ejected_starts_slowly_and_goes_after_two_failures_for_as_long_as_there() -> None:
    found = outliers(2)
    assert hearing(found, Notice("r0", 500.0, 504.0, 2)) == ["r0"]
    assert found.news("r0")
    assert not found.news("r0")
    ramp = found.slow_start_of("r0", 0.5)
    assert ramp is not None
    assert ramp.closed(1, 0.5)
    assert fail(found, "r0", 2, 1.0) == [None, EjectReason.ELSEWHERE]
    assert found.ejections_now() == [("r0", 1.0, 5.0, 2)], "four seconds, the second in a row, as there"
    assert found.slow_start_of("r0", 1.0) is None


def test_suspicion_ends_with_the_ejection_that_began_it() -> None:
    found = outliers(2, slow_start_s=0.0)
    assert hearing(found, EJECTED)
    assert fail(found, "r0", 4, 2.0) == [None] * 4
    late = outliers(2, slow_start_s=0.0)
    assert not hearing(late, EJECTED, at_s=2.0)
    assert fail(late, "r0", 2, 2.0) == [None] * 2
    in_time = outliers(2, slow_start_s=0.0)
    assert hearing(in_time, EJECTED)
    assert fail(in_time, "r0", 2, 1.99) == [None, EjectReason.ELSEWHERE]


def test_one_that_answered_since_is_not_suspected() -> None:
    found = outliers(2)
    found.answered("r0", 0.1)
    assert not hearing(found, EJECTED)
    earlier = outliers(2)
    earlier.answered("r0", 0.0)
    assert hearing(earlier, EJECTED)
    elsewhere = outliers(2)
    told = {"a": [EJECTED], "b": [Notice("r0", answered_s=500.1)]}
    assert not SharedHealth(elsewhere).hear(told, AHEAD_S, 0.5)
    assert elsewhere.slow_start_of("r0", 0.5) is None


def test_nobody_is_suspected_whom_no_other_can_stand_in_for() -> None:
    assert not hearing(outliers(1), EJECTED)
    two = outliers(2)
    assert hearing(two, EJECTED, Notice("r1", 500.0, 502.0, 1)) == ["r0"], "r1 carries what r0 is spared"
    assert not hearing(outliers(0), EJECTED), "a replica that is not ours"


def test_an_answer_here_ends_suspicion_and_is_told_while_it_is_of_use() -> None:
    found = outliers(2)
    shared = SharedHealth(found)
    assert shared.hear({"a": [EJECTED]}, AHEAD_S, 0.5) == ["r0"]
    assert shared.notices(AHEAD_S) == ()
    found.answered("r0", 1.0)
    assert found.slow_start_of("r0", 1.0) is None
    assert shared.notices(AHEAD_S) == (Notice("r0", answered_s=501.0),)
    assert shared.hear({"a": [EJECTED]}, AHEAD_S, 1.5) == [], "not suspected again for the same"
    assert shared.hear({}, AHEAD_S, 2.5) == []
    assert shared.notices(AHEAD_S) == ()


def test_an_answer_elsewhere_ends_an_ejection_once_in_a_row() -> None:
    found = outliers(2)
    fail(found, "r0", 5, 0.0)
    before = Notice("r0", answered_s=500.0)
    assert not hearing(found, before), "it was answered before"
    assert hearing(found, Notice("r0", answered_s=500.5)) == ["r0"]
    assert found.returns("r0", 0.6)
    assert fail(found, "r0", 2, 1.0)[-1] is EjectReason.SLOW_START
    assert not hearing(found, Notice("r0", answered_s=501.5)), "it is our way there that fails"
    assert not found.returns("r0", 4.9)
    assert found.returns("r0", 5.0)


def test_one_ejection_is_told_by_the_same_figures_whatever_the_clocks_do_meanwhile() -> None:
    found = outliers(2)
    shared = SharedHealth(found)
    fail(found, "r0", 5, 0.0)
    (told,) = shared.notices(AHEAD_S)
    assert told == EJECTED
    assert shared.notices(AHEAD_S + 0.003) == (told,)
    assert found.returns("r0", 2.0)
    assert shared.notices(AHEAD_S) == ()


def test_a_card_carries_no_more_than_so_many_notices_the_latest_ejections_first() -> None:
    count = 2 * NOTICES_MAX + 2
    found = Outliers(Health(eject_s=600.0, eject_s_max=600.0))
    for index in range(count):
        found.seen(f"r{index}", ("m",), 0.0, usable=True)
        for _ in range(40 if index > NOTICES_MAX else 0):
            found.answered(f"r{index}", 0.0)
    for index in range(NOTICES_MAX + 1):
        assert fail(found, f"r{index}", 5, float(index) * 0.1)[-1] is EjectReason.CONSECUTIVE
        if index >= NOTICES_MAX - 2:
            told = SharedHealth(found).notices(AHEAD_S)
            assert len(told) == min(index + 1, NOTICES_MAX)
            assert told[0].replica == f"r{index}"


def test_a_broken_way_of_one_proxy_takes_a_replica_from_nobody() -> None:
    """a cannot reach r0, b and c can: however often a ejects it, the others serve by it, and a tries ever more seldom."""
    found = {name: outliers(2, eject_s=2.0, eject_s_max=60.0) for name in "abc"}
    shared = {name: SharedHealth(one) for name, one in found.items()}
    told: dict[str, tuple[Notice, ...]] = {}
    ejections = 0
    for tick in range(1200):
        now_s = tick * 0.1
        for name, one in found.items():
            one.returns("r0", now_s)
            if not one.ejected("r0"):
                ramp = one.slow_start_of("r0", now_s)
                if ramp is None or not ramp.closed(0, now_s):
                    if name == "a":
                        ejections += one.failed("r0", now_s) is not None
                    else:
                        one.answered("r0", now_s)
            told[name] = shared[name].notices(AHEAD_S)
            shared[name].hear({other: notices for other, notices in told.items() if other != name}, AHEAD_S, now_s)
    assert not found["b"].ejections
    assert not found["c"].ejections
    assert 4 <= ejections <= 8, "2 s cut short, then 4, 8, 16, 32 and 60"
