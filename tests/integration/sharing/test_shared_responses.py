"""Responses that engines keep, where several proxies share a Redis: each knows where those of the others live, or asks."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from proxy.ports.store import StorePhase
from tests.integration.serving.harness import RunningProxy, proxying, until
from tests.support.keeping_engine import KeepingEngine
from tests.support.redis_server import RedisServer, redis_server
from tests.support.upstream_servers import asgi_server

pytestmark = pytest.mark.redis

STORE = {"timeout": "1s", "lease": "10s", "beat": "50ms", "rewrite": "50ms"}
PATIENCE_S = 60.0  # of a starved machine


@asynccontextmanager
async def sharing() -> AsyncIterator[tuple[RedisServer, list[RunningProxy], list[KeepingEngine]]]:
    """Two proxies before three engines that keep responses."""
    engines = [KeepingEngine(name) for name in "abc"]
    async with AsyncExitStack() as stack:
        server = stack.enter_context(redis_server())
        ports = [await stack.enter_async_context(asgi_server(engine)) for engine in engines]
        replicas = [
            {"name": engine.name, "url": f"http://127.0.0.1:{port}", "kv_blocks": 64}
            for engine, port in zip(engines, ports, strict=True)
        ]
        policy = {"replicas": replicas, "store": STORE}
        proxies = [await stack.enter_async_context(proxying(policy=policy, redis_url=server.url)) for _ in range(2)]
        for proxy in proxies:
            await proxy.until_serving(3)
        await until(lambda: all(one.sharing.phase is StorePhase.SHARING for one in proxies), "sharing", PATIENCE_S)
        yield server, proxies, engines


async def respond(proxy: RunningProxy, **fields: str) -> str:
    body = {"model": "m", "input": "hi", "max_output_tokens": 5} | fields  # fits a proxy's own share as well
    reply = await proxy.wire.request("POST", "/v1/responses", json.dumps(body).encode())
    assert reply.status == 200
    return str(reply.json()["id"])


async def test_a_response_that_one_proxy_began_is_asked_for_continued_and_cancelled_by_the_other_where_it_lives() -> None:
    async with sharing() as (_, (one, other), engines):
        kept = await respond(one)
        home = next(engine for engine in engines if kept in engine.kept)
        await until(lambda: other.services.stored.home(kept) is not None, "word of it", PATIENCE_S)
        assert other.services.stored.home(kept) == one.services.stored.home(kept)
        got = await other.wire.request("GET", f"/v1/responses/{kept}")
        assert (got.status, got.json()["id"]) == (200, kept)
        for _ in range(3):
            await respond(other, previous_response_id=kept)
        assert (await other.wire.request("POST", f"/v1/responses/{kept}/cancel")).json()["status"] == "cancelled"
        assert len(home.bodies) == 4
        assert [engine.asked for engine in engines if engine is not home] == [[], []]


async def test_without_the_store_each_replica_is_asked_once_and_word_comes_when_it_is_back() -> None:
    async with sharing() as (server, (one, other), engines):
        server.stop()
        await until(lambda: all(proxy.sharing.phase is StorePhase.DEGRADED for proxy in (one, other)), "no store", PATIENCE_S)
        assert other.metric('kvgate_store_phase{phase="degraded"}') == 1.0
        kept = await respond(one)
        assert other.services.stored.home(kept) is None
        assert (await other.wire.request("GET", f"/v1/responses/{kept}")).status == 200
        assert all(len(engine.asked) <= 1 for engine in engines)
        later = await respond(one)
        server.restart()
        await until(lambda: other.services.stored.home(later) is not None, "word of it", PATIENCE_S)
