"""A time-out counts only the time in which its loop was there to see."""

import asyncio

import pytest

from proxy.adapters.stall_proof import SLICES, StallProofTimer, stall_proof_timeout
from tests.unit.adapters.fake_loop import FakeLoop


def fired_after_s(loop: FakeLoop, seconds: float = 5.0) -> float:
    """Seconds until the timer fires, which it does once."""
    fired: list[float] = []
    StallProofTimer(loop, seconds, lambda: fired.append(loop.time() - 100.0))
    loop.run()
    (after_s,) = fired
    return after_s


def test_on_a_free_loop_it_fires_after_its_time() -> None:
    assert fired_after_s(FakeLoop()) == pytest.approx(5.0)


@pytest.mark.parametrize("stall_s", [2.0, 60.0, 3600.0])
@pytest.mark.parametrize("stall_at_s", [0.5, 1.5, 2.5, 3.5])
def test_a_stall_costs_one_slice_however_long(stall_at_s: float, stall_s: float) -> None:
    """What is left counts from its end."""
    slices_left = SLICES - 1 - int(stall_at_s)
    assert fired_after_s(FakeLoop(stall_at_s=stall_at_s, stall_s=stall_s)) == pytest.approx(stall_at_s + stall_s + slices_left)


def test_a_stall_in_the_last_slice_leaves_a_further_one() -> None:
    """Or it would fire in the turn in which the loop comes back, before it has looked at its sockets."""
    assert fired_after_s(FakeLoop(stall_at_s=4.5, stall_s=60.0)) == pytest.approx(65.5)


def test_a_loop_that_is_always_late_ends_all_the_same() -> None:
    assert fired_after_s(FakeLoop(turn_s=2.5)) == pytest.approx(2 * SLICES * 3.5)


def test_a_loop_that_is_a_little_late_loses_that_much() -> None:
    assert fired_after_s(FakeLoop(turn_s=0.5)) == pytest.approx(SLICES * 1.5)


def test_once_cancelled_it_never_fires() -> None:
    loop = FakeLoop()
    timer = StallProofTimer(loop, 5.0, lambda: pytest.fail("it fired"))
    loop.call_later(3.5, timer.cancel)
    loop.run()
    timer.cancel()


async def test_what_never_comes_times_out_and_what_comes_does_not() -> None:
    with pytest.raises(TimeoutError):
        async with stall_proof_timeout(0.01):
            await asyncio.Event().wait()
    async with stall_proof_timeout(60.0):
        await asyncio.sleep(0)


async def test_a_cancelled_wait_is_no_timeout() -> None:
    async def wait() -> None:
        async with stall_proof_timeout(60.0):
            await asyncio.Event().wait()

    waiting = asyncio.create_task(wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
