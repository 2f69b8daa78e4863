"""The account of the last hours: what each minute holds, which preemptions a would-be hold preceded, and which holds were of no use."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from proxy.core.demand import CountSource
from proxy.core.outcome import Mode, Outcome, Would
from proxy.ports.record import RequestRecord
from proxy.serving.history import LATE_S, MINUTE_S, MINUTES_MAX, WAITING_MAX, History
from proxy.wire.history_report import Sums
from tests.support.builders import FakeClock, demand, policy

PLAIN = RequestRecord(
    "q", "/v1/chat/completions", Outcome.COMPLETED, None, "default", "t", "m", "r0", 200, 0.001, 0.1, 0.01, 1.0, 10, 10, 5, 5.0,
    CountSource.EXACT, demand=demand("q"), own_s=0.002,
)  # fmt: skip


class World:
    """A gate of one replica, as far as the account looks at it."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.leases: dict[str, Any] = {}
        self.feedback = SimpleNamespace(preemptions_total=0)
        book = SimpleNamespace(feedback=self.feedback, ledger=SimpleNamespace(leases=self.leases))
        self.gate: Any = SimpleNamespace(mode=Mode.OBSERVE, policy=policy(), fleet=SimpleNamespace(books={"r0": book}))
        self.history = History(self.gate, self.clock)

    def ended(self, **fields: Any) -> None:
        """A request ended that took a second."""
        self.history.keep(replace(PLAIN, arrived_s=self.clock.now_s() - 1.0, **fields))

    def preempted(self, count: int = 1) -> None:
        self.feedback.preemptions_total += count
        self.history.look()

    def later(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.history.look()

    @property
    def observed(self) -> Sums:
        return self.history.report(86_400.0).modes["observe"]


@pytest.fixture
def world() -> World:
    return World()


def test_requests_are_counted_by_what_became_of_them(world: World) -> None:
    world.ended()
    world.ended(would=Would(2.0), prompt_tokens=11)
    world.ended(would=Would(None))
    world.ended(held=True, queue_wait_s=3.0, own_s=None)
    world.ended(
        gate="queue.wait_max",
        outcome=Outcome.QUEUE_TIMEOUT,
        replica=None,
        held=True,
        queue_wait_s=None,
        prompt_tokens_reported=None,
    )
    sums = world.observed
    assert (sums.requests, sums.held, sums.refused, sums.would_hold, sums.would_shed) == (5, 2, 1, 1, 1)
    assert (sums.counted, sums.mismatched) == (4, 1)
    assert (sum(sums.own_s.values()), sum(sums.queue_wait_s.values()), sum(sums.would_wait_s.values())) == (4, 1, 1)


def test_a_preemption_is_preceded_where_a_would_be_hold_runs_or_has_just_ended(world: World) -> None:
    world.preempted()
    assert (world.observed.preemptions, world.observed.preceded) == ({"r0": 1}, {})
    world.leases["a"] = SimpleNamespace(would=None)
    world.leases["b"] = SimpleNamespace(would=Would(None))
    world.preempted()
    assert world.observed.preceded == {}
    world.leases["c"] = SimpleNamespace(would=Would(1.0))
    world.preempted(3)
    assert (world.observed.preemptions, world.observed.preceded) == ({"r0": 5}, {"r0": 3})
    world.leases.clear()
    world.ended(would=Would(1.0))
    world.later(LATE_S)
    world.preempted()
    assert world.observed.preceded == {"r0": 4}
    world.later(0.1)
    world.preempted()
    assert world.observed.preceded == {"r0": 4}, "too long ago"


@pytest.mark.parametrize(("at_s", "needless"), [(None, 1), (0.5, 0), (4.9, 0), (5.1, 1)])
def test_a_hold_is_needless_where_no_preemption_followed(world: World, at_s: float | None, needless: int) -> None:
    world.later(10.0)
    world.ended(would=Would(1.0))
    assert world.observed.would_hold_ended == 0, "not known yet"
    if at_s is not None:
        world.later(at_s)
        world.preempted()
    world.later(6.0)
    assert (world.observed.would_hold_ended, world.observed.would_hold_needless) == (1, needless)


def test_a_preemption_elsewhere_or_before_is_none_that_followed(world: World) -> None:
    world.preempted()
    world.later(30.0)
    world.ended(would=Would(1.0), replica="r1")
    world.preempted()
    world.ended(would=Would(1.0), replica="r0")
    world.later(6.0)
    assert (world.observed.would_hold_ended, world.observed.would_hold_needless) == (2, 1)


def test_modes_are_told_apart_and_the_time_in_each(world: World) -> None:
    world.ended()
    world.later(20.0)
    world.gate.mode = Mode.ENFORCE
    world.ended()
    world.ended()
    world.later(10.0)
    modes = world.history.report(86_400.0).modes
    assert {mode: (sums.requests, sums.seconds) for mode, sums in modes.items()} == {"observe": (1, 20.0), "enforce": (2, 10.0)}


def test_what_can_change_no_more_is_kept_packed_and_told_as_before(world: World) -> None:
    for minute in range(4):
        for count in range(minute + 1):
            world.ended(would=Would(1.0 + count), own_s=0.001 * (count + 1))
        world.later(MINUTE_S)
    before = world.observed
    assert (before.requests, before.would_hold_needless, sum(before.own_s.values()), before.seconds) == (10, 10, 10, 240.0)
    assert len(before.own_s) == 4
    world.later(LATE_S / 2)
    world.ended(would=Would(1.0))
    assert (len(world.history._past), len(world.history._entries)) == (3, 2), "a preemption may still follow the last"
    world.later(LATE_S * 2)
    assert (len(world.history._past), len(world.history._entries)) == (4, 1)
    assert all(len(past.packed) < 200 for past in world.history._past)
    assert (world.observed.requests, world.observed.would_hold_needless) == (11, 11)
    assert world.history.report(2 * MINUTE_S).modes["observe"].requests == 8


def test_only_what_is_asked_for_is_told_and_only_so_much_is_kept(world: World) -> None:
    for minute in range(MINUTES_MAX + 30):
        world.ended()
        (world.clock.advance if minute % 3 == 2 else world.later)(MINUTE_S)
    assert world.history.report(10 * MINUTE_S).modes["observe"].requests == 10
    assert world.history.report(1e9).modes["observe"].requests == MINUTES_MAX
    assert world.history.report(600.0).known_s == 600.0
    for _ in range(WAITING_MAX + 5):
        world.ended(would=Would(1.0))
    assert len(world.history._would_hold) == WAITING_MAX
