"""Requests that make any engine answer 500: who sends them takes no replica from the others."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

import pytest

from proxy.core.replica import ReplicaPhase
from tests.integration.serving.harness import RunningProxy, answer_like_vllm, proxying
from tests.integration.serving.test_reroutes import BROKEN, SERVED
from tests.support.upstream_servers import Peer, ScriptedUpstream

POISON = "poison"
STRICT = {"health": {"failures_max": 2, "requests_min": 1000}, "relay": {"retries_per_s_min": 1000}}


@dataclass(slots=True)
class Engine:
    """A replica that serves all but poison, or nothing."""

    broken: bool = False
    asked: list[bool] = field(default_factory=list)  # whether it served

    async def __call__(self, peer: Peer) -> None:
        head, body = await peer.request()
        if b"POST /v1/" not in head:
            await answer_like_vllm(peer, head)
            return
        self.asked.append(not self.broken and POISON.encode() not in body)
        await peer.send(SERVED if self.asked[-1] else BROKEN)


@asynccontextmanager
async def pool(*engines: Engine, mode: str) -> AsyncIterator[RunningProxy]:
    """kvgate before these."""
    async with AsyncExitStack() as stack:
        urls = [(await stack.enter_async_context(ScriptedUpstream.running(one))).url for one in engines]
        async with proxying(*urls, kv_blocks=300, policy=STRICT | {"mode": mode}) as proxy:
            yield proxy
            await proxy.until_idle()


def ejected(proxy: RunningProxy) -> list[str]:
    return [name for name, watcher in proxy.services.watchers.items() if watcher.phase is ReplicaPhase.EJECTED]


def ejections(proxy: RunningProxy) -> float:
    lines = [line for line in proxy.metrics.splitlines() if line.startswith("kvgate_replica_ejections_total{")]
    return sum(float(line.rpartition(" ")[2]) for line in lines)


@pytest.mark.parametrize("mode", ["enforce", "off"])
async def test_what_no_replica_answers_takes_none_away(mode: str) -> None:
    """Beside good traffic each had been found at fault in its turn, for the others served more of that."""
    engines = [Engine() for _ in range(4)]
    async with pool(*engines, mode=mode) as proxy:
        for _ in range(3):
            good = await asyncio.gather(*(proxy.wire.chat(max_tokens=2) for _ in range(12)))
            assert {reply.status for reply in good} == {200}
            for _ in range(3):
                assert (await proxy.wire.chat(max_tokens=2, user=POISON)).status == 500
        assert (ejected(proxy), ejections(proxy)) == ([], 0)
        assert sum(not served for one in engines for served in one.asked) >= 2 * 9, "it was tried elsewhere"
        slow = [name for name, watcher in proxy.services.watchers.items() if watcher.standing.slow_start is not None]
        assert slow == []


@pytest.mark.parametrize("mode", ["enforce", "off"])
async def test_two_that_fail_what_a_third_serves_are_found_all_the_same(mode: str) -> None:
    engines = [Engine(broken=True), Engine(broken=True), Engine(), Engine(), Engine()]
    async with pool(*engines, mode=mode) as proxy:
        names = list(proxy.services.watchers)[:2]
        for _ in range(40):
            assert (await proxy.wire.chat(max_tokens=2)).status == 200
            if ejected(proxy) == names:
                break
        assert ejected(proxy) == names
        assert max(len(one.asked) for one in engines[:2]) <= 10
