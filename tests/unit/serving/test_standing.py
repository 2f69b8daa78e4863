"""What comes first of what is known of a replica, and who is told of it."""

from math import inf

from proxy.core.health import Outliers, SlowStart
from proxy.core.policy import Health
from proxy.core.replica import ReplicaPhase
from proxy.serving.standing import Standing
from tests.support.builders import FakeClock


def pair(clock: FakeClock, **changes: float) -> tuple[Standing, Standing]:
    """Two replicas of one model, both serving."""
    outliers = Outliers(Health(**changes))  # type: ignore[arg-type]
    both = Standing("a", outliers, clock), Standing("b", outliers, clock)
    for one in both:
        one.see(ReplicaPhase.SERVING, ("m",))
    return both


def eject(one: Standing) -> bool:
    for _ in range(5):
        one.failed("reset", inf)
    return one.phase is ReplicaPhase.EJECTED


def test_a_drain_comes_before_everything_but_that_nobody_answers() -> None:
    one, _ = pair(FakeClock())
    assert eject(one)
    assert one.phase is ReplicaPhase.EJECTED
    assert one.drain("operator")
    assert not one.drain("operator")
    assert one.phase is ReplicaPhase.DRAINING
    assert not one.drain("taken out")
    assert not one.resume("operator")  # the other reason stands
    assert one.resume("taken out")
    one.see(ReplicaPhase.UNREACHABLE, ("m",))
    assert one.phase is ReplicaPhase.UNREACHABLE
    one.drain("operator")
    assert one.phase is ReplicaPhase.UNREACHABLE


def test_the_last_one_that_moves_is_not_ejected() -> None:
    one, other = pair(FakeClock())
    other.stand_still(True)
    assert not eject(one)
    other.stand_still(False)
    assert eject(one)


def test_one_that_returns_is_spared_and_one_that_is_forgotten_is_new() -> None:
    clock = FakeClock()
    one, other = pair(clock, slow_start_s=10.0)
    assert eject(one)
    clock.advance(1.9)
    assert not one.returns()
    clock.advance(0.1)
    assert one.returns()
    assert one.slow_start == SlowStart(clock.now_s(), 10.0)
    assert (one.spared(0), one.spared(1), other.spared(99)) == (False, True, False)
    one.forget()
    assert (one.phase, one.slow_start) == (ReplicaPhase.PROBING, None)
    assert not eject(one)


def test_one_in_doubt_is_spared_until_it_answers() -> None:
    one, other = pair(FakeClock())
    assert [one.failed("reset", inf) for _ in range(2)] == [False, True]
    assert (one.spared(0), one.spared(1), other.spared(99)) == (False, True, False)
    assert one.answered()
    assert not one.spared(99)
    assert not one.answered()


def test_one_that_is_paused_is_told_of_as_one_that_is_ejected() -> None:
    clock = FakeClock()
    one, _ = pair(clock, eject_ratio_max=0.0)
    assert [one.failed("reset", inf) for _ in range(5)] == [False, True, False, False, True]
    assert one.phase is ReplicaPhase.SERVING
    assert one.spared(0)
    clock.advance(1.0)
    assert not one.spared(0)
