"""Prompts that go uncounted: which do, that every so many is counted all the same, and that what is in flight adds up to nothing again."""

from itertools import pairwise

import pytest

from proxy.core.demand import CountSource, PromptPart
from proxy.core.events import ReplicaFound
from proxy.core.gate import Gate
from proxy.ports import PromptCount
from proxy.serving.uncounted import COUNTED_EVERY, COUNTED_EVERY_S, Uncounted
from proxy.wire.call import Call, CallKind
from tests.support.builders import FakeClock, policy, spec

CALL = Call(CallKind.CHAT, "m")


class Expecting:
    """Expects 100 tokens of anything, whose bound is 400."""

    def __init__(self) -> None:
        self.asked_with: list[int] = []

    def expect(self, call: Call, bound_tokens_max: int) -> PromptCount | None:
        assert call is CALL
        self.asked_with.append(bound_tokens_max)
        return PromptCount((PromptPart(100),), CountSource.BOUND, 300) if bound_tokens_max >= 400 else None


@pytest.fixture
def gate() -> Gate:
    gate = Gate(policy(), 0.0)
    gate.handle(ReplicaFound(spec("r0", usable=1000)), 0.0)
    return gate


def test_one_in_so_many_is_counted_all_the_same(gate: Gate) -> None:
    clock = FakeClock()
    uncounted = Uncounted(gate, Expecting(), clock)  # type: ignore[arg-type]
    found = []
    for _ in range(3 * COUNTED_EVERY):
        clock.advance(2 * COUNTED_EVERY_S / COUNTED_EVERY)
        found.append(uncounted.take(CALL, list(gate.fleet)))
        uncounted.ended(found[-1])
    assert [found[start : start + COUNTED_EVERY].count(None) for start in range(0, len(found), COUNTED_EVERY)] == [1, 1, 1]
    assert uncounted.slack_tokens == 0


def test_of_many_at_once_no_more_are_counted_than_it_takes_to_see_a_drift(gate: Gate) -> None:
    clock = FakeClock()
    uncounted = Uncounted(gate, Expecting(), clock)  # type: ignore[arg-type]
    counted_s = []
    for _ in range(100 * COUNTED_EVERY):  # ten times as fast
        now_s = clock.advance(COUNTED_EVERY_S / (10 * COUNTED_EVERY))
        found = uncounted.take(CALL, list(gate.fleet))
        uncounted.ended(found)
        if found is None:
            counted_s.append(now_s)
    assert 9 <= len(counted_s) <= 10
    assert min(later - earlier for earlier, later in pairwise(counted_s)) >= COUNTED_EVERY_S


def test_bounds_of_those_in_flight_make_newcomers_count(gate: Gate) -> None:
    counter = Expecting()
    uncounted = Uncounted(gate, counter, FakeClock())  # type: ignore[arg-type]
    taken = [uncounted.take(CALL, list(gate.fleet)) for _ in range(28)]
    assert all(one is not None for one in taken[:26])
    assert taken[-1] is None  # 26 * 300 tokens of half a pool of 16,000 leave room for 200
    assert counter.asked_with[-1] < 400
    for one in taken:
        uncounted.ended(one)
    assert repr(uncounted) == "<Uncounted slack_tokens=0>"


def test_a_recording_wants_lengths(gate: Gate) -> None:
    uncounted = Uncounted(gate, Expecting(), FakeClock())  # type: ignore[arg-type]
    uncounted.exact_for += 1
    assert uncounted.take(CALL, list(gate.fleet)) is None
    uncounted.exact_for -= 1
    assert uncounted.take(CALL, list(gate.fleet)) is not None


def test_what_is_refused_whatever_its_length_is_not_counted(gate: Gate) -> None:
    uncounted = Uncounted(gate, Expecting(), FakeClock())  # type: ignore[arg-type]
    uncounted.slack_tokens = 10**9
    assert uncounted.take(CALL, list(gate.fleet)) is None
    refused = uncounted.take(CALL, list(gate.fleet), refused=True)
    assert refused is not None
    uncounted.ended(refused)
    assert uncounted.slack_tokens == 10**9
