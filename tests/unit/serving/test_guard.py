"""The guard counts faults and decides when to stop trying; the static cap holds no more than it says and wakes whoever can go."""

import asyncio
from collections.abc import Awaitable
from contextlib import AsyncExitStack

import pytest

from proxy.serving.guard import FAULTS_MAX, QUIET_S, TRIAL_S, WINDOW_S, Guard, InternalFaultError, Part, StaticCap


class ManualClock:
    """A clock that a test moves."""

    def __init__(self) -> None:
        self.s = 100.0

    def now_s(self) -> float:
        return self.s

    def wall_s(self) -> float:
        return self.s


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def faults() -> list[Part]:
    return []


@pytest.fixture
def guard(clock: ManualClock, faults: list[Part]) -> Guard:
    return Guard(clock, faults.append)


def fail() -> None:
    raise ZeroDivisionError


async def answer(value: int | Exception) -> int:
    if isinstance(value, Exception):
        raise value
    return value


async def test_unexpected_faults_become_one_kind(guard: Guard, faults: list[Part]) -> None:
    assert await guard.run(Part.TOKENIZER, answer(7), ()) == 7
    with pytest.raises(InternalFaultError) as caught:
        await guard.run(Part.TOKENIZER, answer(ValueError("odd")), (KeyError,))
    assert caught.value.part is Part.TOKENIZER
    with pytest.raises(KeyError):
        await guard.run(Part.TOKENIZER, answer(KeyError("expected")), (KeyError,))
    assert faults == [Part.TOKENIZER]


async def test_a_cancellation_is_no_fault(guard: Guard, faults: list[Part]) -> None:
    async def cancelled() -> int:
        raise asyncio.CancelledError

    work: Awaitable[int] = cancelled()
    with pytest.raises(asyncio.CancelledError):
        await guard.run(Part.GATE, work, ())
    assert faults == []


def test_it_trips_after_ten_within_ten_seconds(guard: Guard, clock: ManualClock, faults: list[Part]) -> None:
    for _ in range(FAULTS_MAX - 1):
        assert not guard.run_now(Part.STORE, fail)
    clock.s += WINDOW_S + 0.1
    guard.run_now(Part.STORE, fail)
    assert not guard.tripped  # the first nine are too old
    assert not guard.bypassed()
    for _ in range(FAULTS_MAX - 1):
        guard.run_now(Part.STORE, fail)
    assert guard.tripped
    assert len(faults) == 2 * FAULTS_MAX - 1


def tripped(guard: Guard) -> Guard:
    for _ in range(FAULTS_MAX):
        guard.run_now(Part.GATE, fail)
    assert guard.tripped
    return guard


def test_one_trial_every_five_seconds(guard: Guard, clock: ManualClock) -> None:
    tripped(guard)
    assert guard.bypassed()
    clock.s += TRIAL_S
    assert [guard.bypassed() for _ in range(3)] == [False, True, True]
    clock.s += TRIAL_S
    assert not guard.bypassed()


def test_a_successful_trial_restores_it_once_all_is_quiet(guard: Guard, clock: ManualClock) -> None:
    tripped(guard)
    clock.s += TRIAL_S
    guard.run_now(Part.LEARNING, fail)
    guard.succeeded()
    assert guard.tripped
    clock.s += QUIET_S
    guard.succeeded()
    assert not guard.tripped
    for _ in range(FAULTS_MAX - 1):
        guard.run_now(Part.GATE, fail)
    assert not guard.tripped  # it counts anew


def test_success_of_an_untripped_guard_forgives_nothing(guard: Guard) -> None:
    for _ in range(FAULTS_MAX - 1):
        guard.run_now(Part.GATE, fail)
    guard.succeeded()
    guard.run_now(Part.GATE, fail)
    assert guard.tripped


async def test_the_static_cap_spreads_and_holds() -> None:
    cap = StaticCap(2)
    async with AsyncExitStack() as stack:
        load = {"a": 5, "b": 0}
        places = [await stack.enter_async_context(cap.place(lambda: load, 1.0, capped=True)) for _ in range(4)]
        assert sorted(place.replica for place in places if place is not None) == ["a", "a", "b", "b"]
        assert places[0] is not None
        assert places[0].replica == "b"
        async with cap.place(lambda: load, 0.01, capped=True) as none:
            assert none is None
        async with cap.place(lambda: load, 0.01, capped=False) as beyond:
            assert beyond is not None


async def test_a_freed_place_goes_to_whoever_can_use_it() -> None:
    """The first in line waits for another replica: the second must not wait with it."""
    cap, asked, granted = StaticCap(1), set[str](), list[str]()
    both_wait = asyncio.Event()

    async def wait_for(replica: str) -> None:
        def load() -> dict[str, int]:
            asked.add(replica)
            if asked == {"a", "b"}:
                both_wait.set()
            return {replica: 0}

        async with cap.place(load, 30.0, capped=True) as place:
            assert place is not None
            granted.append(place.replica)

    async with cap.place(lambda: {"a": 0}, 1.0, capped=True):
        async with cap.place(lambda: {"b": 0}, 1.0, capped=True):
            first, second = asyncio.ensure_future(wait_for("a")), asyncio.ensure_future(wait_for("b"))
            await both_wait.wait()
        await asyncio.wait_for(second, 10)
        assert granted == ["b"]
    await asyncio.wait_for(first, 10)
    assert granted == ["b", "a"]


async def test_a_cancelled_wait_leaves_no_place_behind() -> None:
    cap = StaticCap(1)

    async def hold() -> None:
        async with cap.place(lambda: {"a": 0}, 30.0, capped=True):
            await asyncio.Event().wait()

    holder = asyncio.ensure_future(hold())
    waiter = asyncio.ensure_future(hold())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    waiter.cancel()
    holder.cancel()
    await asyncio.gather(holder, waiter, return_exceptions=True)
    async with cap.place(lambda: {"a": 0}, 1.0, capped=True) as place:
        assert place is not None
