"""Somebody with the password of a shared Redis breaks what kvgate keeps there, over and over, while two proxies serve from it.

What a vandal writes is no word of kvgate's: no request fails by it, nobody is admitted for it whom the pool cannot hold, it is seen in
``kvgate_store_errors_total`` or the log where it needed mending, and shortly after the last stroke everything is shared again. Who writes
a *well-formed* word, a mode or a drain, is believed: SECURITY.md says so.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from proxy.core.override import MODE, Override
from proxy.core.shared import Answer
from proxy.ports.store import StorePhase
from tests.integration.serving.harness import until
from tests.integration.sharing.test_live_sharing import Pool, good, pool
from tests.security.vandal import Stroke, Vandal
from tests.security.vandalisms import VANDALISMS

pytestmark = [pytest.mark.redis, pytest.mark.slow]  # two minutes; run with -m 'redis and slow', CI's suites leave it out

STROKE_S = 0.03  # between two strokes
BACK_S = 6.0  # of one second a lease: rows of a ghost, a registration, a record that nobody holds
# Nobody reads these, the very call that meets them puts them right, or they look like what a proxy left that stopped.
QUIET = {"thousands of foreign fields", "rows below nothing", "offers of junk", "a total of NaN", "a total of nothing for ever",
         "a ghost's row without an entry", "a ghost's row of the far future", "a ghost's head of the far future", "a holder who is nobody",
         "steps where no clock comes", "an epoch beyond all", "a grid of nothing", "a grid of NaN"}  # fmt: skip


@asynccontextmanager
async def vandalised(two: Pool, stroke: Stroke) -> AsyncIterator[Vandal]:
    """Strike again and again for as long as the block runs."""
    replicas = tuple(two.proxies[0].services.watchers)
    with two.server.client() as client:
        vandal = Vandal(client, replicas, tuple(one.sharing.member.name for one in two.proxies))

        async def strike() -> None:
            while True:
                stroke(vandal)
                vandal.turn += 1
                await asyncio.sleep(STROKE_S)

        striking = asyncio.create_task(strike())
        try:
            yield vandal
            assert not striking.done(), striking
        finally:
            striking.cancel()
            await asyncio.gather(striking, return_exceptions=True)


async def shared_again(two: Pool) -> None:
    """Both share, each hears of the other and of a word by hand, and the store grants what both ask for."""
    one, other = two.proxies
    await two.until_all(StorePhase.SHARING, BACK_S)
    clock = one.services.clock
    word = Override(MODE, "observe", "a test", "me", clock.now_s() + 60.0, f"after {clock.now_s()}")
    async with asyncio.timeout(BACK_S):
        # why it was not said is told to whoever says it; the next beat mends what was in its way
        while await one.services.switches.say(word, everywhere=True) is not None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
    await until(lambda: other.services.dispatcher.gate.mode == "observe", "a word heard by the other", BACK_S)
    await one.services.switches.take_back(MODE, reason="over", by="me", serial=f"over {clock.now_s()}", everywhere=True)
    await until(lambda: all(each.services.dispatcher.gate.mode == "enforce" for each in two.proxies), "an end of it", BACK_S)
    exchanges = [each.services.exchange for each in two.proxies]
    await until(lambda: all(len(each.proxies) == 2 for each in exchanges if each is not None), "both cards and no other", BACK_S)

    def numbers() -> list[int]:
        return [each.sharing.member._records.number(name) for each in two.proxies for name in each.services.watchers]

    heard = numbers()
    await until(lambda: all(now != before for now, before in zip(numbers(), heard, strict=True)), "new records", BACK_S)
    granted = [each.sharing.answers[Answer.GRANTED] for each in two.proxies]
    assert good(await two.chats(8, tokens=4))
    await two.until_all(StorePhase.SHARING, BACK_S)
    assert good(await two.chats(8, tokens=4))
    for each, before in zip(two.proxies, granted, strict=True):
        assert each.sharing.answers[Answer.GRANTED] > before
        assert each.sharing.phase is StorePhase.SHARING


@pytest.mark.parametrize("what", VANDALISMS)
async def test_nobody_pays_for_a_vandal(what: str, caplog: pytest.LogCaptureFixture) -> None:
    async with pool() as two:
        caplog.clear()
        caplog.set_level(logging.WARNING)
        errors = [sum(one.sharing.errors.values()) for one in two.proxies]

        def seen() -> bool:
            counted = any(sum(one.sharing.errors.values()) > before for one, before in zip(two.proxies, errors, strict=True))
            return counted or any(
                one.name == "kvgate.store" and not one.msg.startswith("store.sharing") for one in caplog.records
            )

        async with vandalised(two, VANDALISMS[what]), asyncio.timeout(25):
            assert good(await two.chats(24, tokens=200))  # over twice what both replicas hold
            while what not in QUIET and not seen():  # by who writes or asks there next
                assert good(await two.chats(4, tokens=20))
        preempted = sum(engine.engine.counters.preemptions for mock in two.mocks for engine in mock.server.pool.engines)
        assert preempted <= 4, "never is everything admitted"
        for one in two.proxies:
            assert not one.services.guard.tripped
            assert not one.services.guard._faults_s
            faults = [line for line in one.metrics.splitlines() if line.startswith("kvgate_internal_errors_total{")]
            assert [line for line in faults if not line.endswith(" 0.0")] == []
        assert max((len(one.getMessage()) for one in caplog.records), default=0) < 5000
        await shared_again(two)
        for one in two.proxies:
            queue = one.services.dispatcher.gate.queue
            assert len(queue.bands) <= 4
            assert sum(len(band.tenants) for band in queue.bands.values()) <= 4
            await one.until_idle(*two.mocks)
