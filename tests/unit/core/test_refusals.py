"""What the store has refused lately, and who is not asked for meanwhile."""

import pytest

from proxy.core.refusals import AGAIN_S, Refusals
from proxy.core.waiting import Waiting
from tests.support.builders import demand


def waiting(name: str, peak_blocks: float = 10.0, priority: int = 0) -> Waiting:
    entry = Waiting(demand(name, priority=priority), 0.0)
    entry.peak_blocks = peak_blocks
    return entry


def test_nothing_refused_holds_nobody() -> None:
    refusals = Refusals()
    assert not refusals
    assert not refusals.hold(waiting("a"), "r0", 1.0)


def test_who_was_refused_is_asked_for_again_after_the_time_the_store_said() -> None:
    refusals, entry = Refusals(), waiting("a")
    refusals.refused(entry, "r0", 1.0, 0.2)
    assert refusals.hold(entry, "r0", 1.19)
    assert not refusals.hold(entry, "r0", 1.2)
    assert not refusals.hold(entry, "r1", 1.0), "elsewhere it may have room"


def test_a_first_refusal_without_a_time_holds_nobody_and_a_second_one_does() -> None:
    refusals, entry, other = Refusals(), waiting("a"), waiting("b")
    refusals.refused(entry, "r0", 1.0, 0.0)
    assert not refusals.hold(entry, "r0", 1.0)
    refusals.refused(entry, "r0", 1.0, 0.0)
    assert refusals.hold(other, "r0", 1.0 + AGAIN_S - 0.001)
    assert not refusals.hold(other, "r0", 1.0 + AGAIN_S)


@pytest.mark.parametrize(
    ("peak_blocks", "priority", "held"),
    [(10.0, 0, True), (11.0, 0, True), (9.9, 0, False), (10.0, -1, True), (10.0, 1, False), (50.0, 1, False)],
)
def test_those_behind_who_want_no_less_are_not_asked_for(peak_blocks: float, priority: int, held: bool) -> None:
    refusals = Refusals()
    refusals.refused(waiting("a"), "r0", 1.0, 0.05)
    assert refusals.hold(waiting("b", peak_blocks, priority), "r0", 1.01) is held


def test_a_store_that_recovers_is_asked_before_it_said_it_would_have() -> None:
    refusals, entry = Refusals(), waiting("a")
    refusals.refused(entry, "r0", 1.0, 3.0)
    assert refusals.hold(entry, "r0", 1.2)
    assert not refusals.hold(entry, "r0", 1.25)


def test_a_grant_opens_the_replica_for_all_but_who_was_refused_there() -> None:
    refusals, entry = Refusals(), waiting("a")
    refusals.refused(entry, "r0", 1.0, 0.05)
    refusals.granted("r0")
    assert not refusals.hold(waiting("b"), "r0", 1.01)
    assert refusals.hold(entry, "r0", 1.01)
