"""What is said by hand is in force at once, ends in time, and reaches the proxies it is meant for."""

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from proxy.core.outcome import Mode
from proxy.core.override import MODE, Override, drain_of
from proxy.ports.store import StoreFault
from tests.support.builders import FakeClock, policy
from tests.support.local_store import LocalStore
from tests.support.several import quarter
from tests.support.sharing_proxies import SharingProxy


class Drained:
    """A watcher as far as it drains."""

    def __init__(self) -> None:
        self.draining = False

    def drain(self) -> None:
        self.draining = True

    def resume(self) -> None:
        self.draining = False


class Pool:
    """Two proxies over one store."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = LocalStore(self.clock, policy().store.lease_s)
        self.a, self.b = (SharingProxy(name, self.store, self.clock) for name in "ab")
        self.serial = 0

    def said(self, word: str, for_s: float = 60.0, subject: str = MODE) -> Override:
        self.serial += 1
        return Override(subject, word, "because", "me", self.clock.now_s() + for_s, str(self.serial))

    async def beat(self) -> None:
        self.clock.advance(0.25)
        for proxy in (self.a, self.b):
            await proxy.exchange.beat()

    @property
    def modes(self) -> list[Mode]:
        return [self.a.gate.mode, self.b.gate.mode]


@pytest.fixture
async def pool() -> AsyncIterator[Pool]:
    found = Pool()
    await found.beat()
    yield found
    for proxy in (found.a, found.b):
        await proxy.close()


async def test_a_word_to_one_proxy_stays_there_and_ends_in_time(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert await pool.a.switches.say(pool.said("off", 10.0), everywhere=False) is None
    assert "by=me reason='because'" in caplog.text
    await pool.beat()
    assert pool.modes == [Mode.OFF, Mode.ENFORCE]
    pool.clock.advance(9.74)
    pool.a.switches.apply()
    assert pool.a.gate.mode is Mode.OFF
    pool.clock.advance(0.02)
    pool.a.switches.apply()
    assert pool.a.gate.mode is Mode.ENFORCE


async def test_a_word_to_all_reaches_all_and_whoever_starts_later(pool: Pool) -> None:
    await pool.b.switches.say(pool.said("off"), everywhere=False)
    assert await pool.a.switches.say(pool.said("observe"), everywhere=True) is None
    assert pool.a.gate.mode is Mode.OBSERVE
    await pool.beat()
    assert pool.modes == [Mode.OBSERVE, Mode.OBSERVE], "what was said to one before is put aside"
    late = SharingProxy("late", pool.store, pool.clock)
    await late.exchange.beat()
    assert late.gate.mode is Mode.OBSERVE
    pool.clock.advance(60.0)
    late.switches.apply()
    assert late.gate.mode is Mode.ENFORCE, "its end needs no beat"
    await pool.beat()
    assert pool.modes == [Mode.ENFORCE, Mode.ENFORCE]


async def test_a_word_taken_back_from_all_is_gone_everywhere(pool: Pool) -> None:
    await pool.a.switches.say(pool.said("observe"), everywhere=True)
    await pool.beat()
    await pool.b.switches.say(pool.said("off"), everywhere=False)
    assert pool.modes == [Mode.OBSERVE, Mode.OFF]
    await pool.a.switches.take_back(MODE, reason="", by="me", serial="back", everywhere=False)
    assert pool.a.gate.mode is Mode.OBSERVE, "its own is gone, the shared one is not"
    await pool.a.switches.take_back(MODE, reason="", by="me", serial="all back", everywhere=True)
    assert pool.modes == [Mode.ENFORCE, Mode.OFF]
    await pool.beat()
    assert pool.modes == [Mode.ENFORCE, Mode.ENFORCE]


async def test_a_beat_that_was_asked_before_does_not_undo_a_word(pool: Pool) -> None:
    asked_s = pool.clock.now_s()
    pool.clock.advance(0.01)
    await pool.a.switches.say(pool.said("observe"), everywhere=True)
    await pool.beat()
    assert pool.a.gate.mode is Mode.OBSERVE
    pool.a.switches.hear({}, asked_s)
    assert pool.a.gate.mode is Mode.OBSERVE


async def test_without_the_store_it_holds_here_and_says_who_was_not_told(pool: Pool) -> None:
    pool.store.fault = StoreFault.CONNECTION
    assert await pool.a.switches.say(pool.said("off"), everywhere=True) == "as the test says"
    assert pool.modes == [Mode.OFF, Mode.ENFORCE]


async def test_who_waits_when_enforcing_ends_goes_on(pool: Pool) -> None:
    await pool.a.share()
    for index in range(8):
        await pool.a.ask(quarter(f"q{index}"))
    waiting = len(pool.a.gate.queue)
    assert waiting > 0
    await pool.a.switches.say(pool.said("off"), everywhere=False)
    await pool.a.quiet()
    assert len(pool.a.gate.queue) == 0
    assert len(pool.a.placed()) == 8
    for index in range(8):
        await pool.a.finish(f"q{index}")


async def test_replicas_drain_and_resume(pool: Pool) -> None:
    r0, other = Drained(), Drained()
    replicas = {"r0": r0, "other": other}
    pool.a.switches.watch_over(replicas)
    await pool.a.switches.say(pool.said("drain", 30.0, drain_of("r0")), everywhere=False)
    await pool.a.switches.say(pool.said("drain", 10.0, drain_of("other")), everywhere=False)
    assert (r0.draining, other.draining) == (True, True)
    pool.clock.advance(10.0)
    pool.a.switches.apply()
    assert (r0.draining, other.draining) == (True, False)
    again = replicas["r0"] = Drained()  # it went and came back under its name
    pool.a.switches.apply()
    assert again.draining
    await pool.a.switches.take_back(drain_of("r0"), reason="", by="me", serial="x", everywhere=False)
    assert not again.draining


async def test_the_loop_ends_an_override_by_itself() -> None:
    pool = Pool()
    loop = asyncio.create_task(pool.a.switches.run())
    try:
        await pool.a.switches.say(pool.said("off", 10.0), everywhere=False)
        pool.clock.advance(10.0)  # the timer of an override that is over runs out at once
        pool.a.switches._changed.set()
        async with asyncio.timeout(10):
            while pool.a.gate.mode is Mode.OFF:  # noqa: ASYNC110
                await asyncio.sleep(0)
    finally:
        loop.cancel()
        await pool.a.close()
