"""Replicas that take connections and answer nothing for a while: nobody is sent there, and nobody is refused for it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from proxy.app import building
from proxy.core.replica import ReplicaPhase
from proxy.serving.watcher import FAILURES_MAX, LATE_S_MAX
from tests.integration.mock_harness import RunningMock, running, settings
from tests.integration.serving.harness import FAST_SCRAPES, RunningProxy, ShiftedClock, phases, proxying, until
from tests.support.upstream_servers import gateway

SCRAPES = {"scrape": FAST_SCRAPES["scrape"] | {"timeout": "500ms"}}


@asynccontextmanager
async def stalled(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[RunningMock, RunningProxy, list[int], asyncio.Event]]:
    """Yield a mock, kvgate before it, and the gateway between them, which has taken connections and let nothing through for long."""
    clock, flowing = ShiftedClock(), asyncio.Event()
    monkeypatch.setattr(building, "SystemClock", lambda: clock)
    flowing.set()
    async with running(settings()) as mock:
        backends = [mock.port]
        async with gateway(backends, flowing) as port, proxying(f"http://127.0.0.1:{port}", policy=SCRAPES) as proxy:
            watcher = next(iter(proxy.services.watchers.values()))
            flowing.clear()
            await until(lambda: watcher.failures, "a late scrape")
            assert phases(proxy) == [ReplicaPhase.SERVING]
            clock.ahead_s += LATE_S_MAX
            await until(lambda: phases(proxy) == [ReplicaPhase.STALLED], "a stalled replica")
            yield mock, proxy, backends, flowing


async def test_requests_wait_for_a_replica_that_answers_nothing_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    async with stalled(monkeypatch) as (mock, proxy, _, flowing):
        gate = proxy.services.dispatcher.gate
        chats = [await proxy.wire.start_chat(max_tokens=2, stream=stream) for stream in (True, False)]
        await until(lambda: len(gate.queue) == 2, "two waiting")
        assert (gate.open_requests, gate.counters.shed) == (0, 0)
        series = f'kvgate_replica_phase{{phase="stalled",replica="{next(iter(proxy.services.watchers))}"}}'
        assert proxy.metric(series) == 1.0
        ready = await proxy.wire.request("GET", "/ready")
        assert ready.status == 200
        assert [one["phase"] for one in ready.json()["replicas"].values()] == ["stalled"]
        models = (await proxy.wire.request("GET", "/v1/models")).json()  # the last known: it could not tell
        assert [card["id"] for card in models["data"]] == ["mock"]
        flowing.set()
        assert [(await chat.reply()).status for chat in chats] == [200, 200]
        assert phases(proxy) == [ReplicaPhase.SERVING]
        assert proxy.metric(series) == 0.0
        await proxy.until_idle(mock)


async def test_a_stalled_replica_that_hangs_up_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who comes then is told so at once; who waits already keeps its place, and goes when it is back."""
    async with stalled(monkeypatch) as (mock, proxy, backends, flowing):
        early = await proxy.wire.start_chat(max_tokens=2)
        await until(lambda: len(proxy.services.dispatcher.gate.queue) == 1, "its waiting")
        backends.clear()
        await until(lambda: phases(proxy) == [ReplicaPhase.UNREACHABLE], "an unreachable replica")
        reply = await proxy.wire.chat(max_tokens=2)
        assert (reply.status, reply.headers["x-kvgate-outcome"]) == (503, "no_replica")
        flowing.set()
        backends.append(mock.port)
        assert (await early.reply()).status == 200
        await proxy.until_idle(mock)


async def test_a_stalled_replica_is_passed_over_while_another_serves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Admitted or passed through: two stall, then one of them is back."""
    clock, held = ShiftedClock(), [asyncio.Event() for _ in range(2)]
    monkeypatch.setattr(building, "SystemClock", lambda: clock)
    async with AsyncExitStack() as stack:
        urls, mocks = [], []
        for flowing in held:
            flowing.set()
            mocks.append(await stack.enter_async_context(running(settings())))
            urls.append(f"http://127.0.0.1:{await stack.enter_async_context(gateway([mocks[-1].port], flowing))}")
        proxy = await stack.enter_async_context(proxying(*urls, policy=SCRAPES))
        first, second = proxy.services.watchers.values()
        held[0].clear()
        await until(lambda: first.failures >= FAILURES_MAX, "late scrapes")
        clock.ahead_s += LATE_S_MAX
        await until(lambda: first.phase is ReplicaPhase.STALLED, "a stalled replica")
        await proxy.until_serving(1)
        assert second.phase is ReplicaPhase.SERVING
        replies = [await proxy.wire.chat(max_tokens=2) for _ in range(4)]
        replies += [await proxy.wire.request("GET", "/version") for _ in range(4)]
        assert [reply.status for reply in replies] == [200] * 8
        assert {record.replica for record in proxy.records} == {second.name}
        held[0].set()
        await proxy.until_serving(2)
        await proxy.until_idle(*mocks)
