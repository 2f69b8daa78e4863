"""The phases of an end: unready at once, accepting for a while, refusing, and gone when the last request is."""

import asyncio

import pytest

from proxy.serving.drain import Drain, DrainPhase


async def never() -> None:
    pytest.fail("nothing is left to cut off")


async def test_an_idle_process_goes_through_the_phases() -> None:
    drain = Drain(0.0, 60.0, never)
    assert (drain.phase, drain.refusing) == (DrainPhase.SERVING, False)
    await asyncio.wait_for(drain.run(), 10)
    assert drain.refusing


async def test_it_waits_for_what_is_under_way() -> None:
    drain = Drain(0.0, 60.0, never)
    with drain.request():
        with drain.request():
            ending = asyncio.ensure_future(drain.run())
            while not drain.refusing:  # noqa: ASYNC110
                await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert (ending.done(), drain.under_way) == (False, 1)
    await asyncio.wait_for(ending, 10)
    assert drain.under_way == 0


async def test_what_outlasts_the_grace_time_is_cut_off_and_waited_for() -> None:
    told = asyncio.Event()

    async def cut_off() -> None:
        told.set()

    drain = Drain(0.0, 0.01, cut_off)
    with drain.request():
        ending = asyncio.ensure_future(drain.run())
        await asyncio.wait_for(told.wait(), 10)
        assert not ending.done()
    await asyncio.wait_for(ending, 10)


async def test_what_does_not_end_even_then_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("proxy.serving.drain.CUT_OFF_S", 0.01)

    async def cut_off() -> None: ...

    drain = Drain(0.0, 0.01, cut_off)
    with drain.request():
        await asyncio.wait_for(drain.run(), 10)
        assert drain.under_way == 1


async def test_requests_are_still_taken_at_first() -> None:
    drain = Drain(60.0, 60.0, never)
    ending = asyncio.ensure_future(drain.run())
    await asyncio.sleep(0)
    assert (drain.phase, drain.refusing) == (DrainPhase.ACCEPTING, False)
    ending.cancel()
    await asyncio.gather(ending, return_exceptions=True)
