"""Responses that engines keep: asked for, continued and cancelled where they live, and in the background they hold their place."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest

from proxy.serving import response_routes
from tests.integration.serving.harness import Reply, RunningProxy, proxying, until
from tests.support.keeping_engine import KeepingEngine
from tests.support.upstream_servers import asgi_server


@asynccontextmanager
async def keeping(**policy: Any) -> AsyncIterator[tuple[RunningProxy, KeepingEngine, KeepingEngine]]:
    """A proxy before two engines that keep responses."""
    engines = KeepingEngine("a"), KeepingEngine("b")
    async with AsyncExitStack() as stack:
        ports = [await stack.enter_async_context(asgi_server(engine)) for engine in engines]
        urls = [f"http://127.0.0.1:{port}" for port in ports]
        proxy = await stack.enter_async_context(proxying(*urls, policy=policy, kv_blocks=64))
        yield proxy, *engines


async def respond(proxy: RunningProxy, **fields: Any) -> Reply:
    return await proxy.wire.request("POST", "/v1/responses", json.dumps({"model": "m", "input": "hi"} | fields).encode())


def of(response_id: str, engines: tuple[KeepingEngine, KeepingEngine]) -> tuple[KeepingEngine, KeepingEngine]:
    """The engine that keeps the response, and the other one."""
    return engines if response_id in engines[0].kept else (engines[1], engines[0])


async def test_a_response_is_asked_for_where_it_lives() -> None:
    async with keeping() as (proxy, *engines):
        kept = (await respond(proxy)).json()["id"]
        home, other = of(kept, tuple(engines))
        got = await proxy.wire.request("GET", f"/v1/responses/{kept}")
        assert (got.status, got.json()["id"]) == (200, kept)
        cancelled = await proxy.wire.request("POST", f"/v1/responses/{kept}/cancel")
        assert cancelled.json()["status"] == "cancelled"
        assert home.asked == [f"GET /v1/responses/{kept}", f"POST /v1/responses/{kept}/cancel"]
        assert other.asked == []
        assert proxy.metric("kvgate_responses_known") == 1
        await proxy.until_idle()


async def test_of_an_unknown_one_every_replica_is_asked_and_the_engine_says_404() -> None:
    async with keeping() as (proxy, first, second):
        second.kept["resp_old"] = {"id": "resp_old", "status": "completed", "usage": None}
        assert (await proxy.wire.request("GET", "/v1/responses/resp_old")).json()["id"] == "resp_old"
        asked_before = len(first.asked)
        assert (await proxy.wire.request("GET", "/v1/responses/resp_old")).status == 200
        assert len(first.asked) == asked_before  # now it is known
        missing = await proxy.wire.request("GET", "/v1/responses/resp_none")
        assert (missing.status, missing.json()) == (404, {"error": {"message": "not found", "code": 404}})
        assert {"GET /v1/responses/resp_none"} <= set(first.asked) & set(second.asked)


@pytest.mark.parametrize("mode", ["enforce", "observe", "off"])
async def test_a_conversation_goes_on_where_it_is_kept(mode: str) -> None:
    async with keeping(mode=mode) as (proxy, *engines):
        first = (await respond(proxy)).json()["id"]
        home, other = of(first, tuple(engines))
        for _ in range(3):
            assert (await respond(proxy, previous_response_id=first)).status == 200
        assert len(home.bodies) == 4
        assert other.bodies == []
        await proxy.until_idle()
        if mode == "enforce":  # the history counts, by what the engine said of it
            assert [record.prompt_tokens or 0 for record in proxy.records][-1] > 17


async def test_one_that_another_proxy_began_is_found() -> None:
    async with keeping() as (proxy, first, second):
        second.kept["resp_old"] = {"id": "resp_old", "status": "completed", "usage": {"input_tokens": 500, "output_tokens": 100}}
        assert (await respond(proxy, previous_response_id="resp_old")).status == 200
        assert (len(first.bodies), len(second.bodies)) == (0, 1)
        assert (proxy.records[-1].prompt_tokens or 0) > 600


async def test_in_the_background_the_place_is_held_to_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_routes, "POLL_S", 0.02)
    async with keeping() as (proxy, *engines):
        kept = (await respond(proxy, background=True)).json()["id"]
        home, _ = of(kept, tuple(engines))
        await until(lambda: len(home.asked) >= 3, "three looks")
        assert proxy.services.dispatcher.gate.leases.started - proxy.services.dispatcher.gate.leases.ended == 1
        assert proxy.metric("kvgate_background_leases") == 1
        home.finish(kept)
        await proxy.until_idle()
        assert proxy.metric("kvgate_background_leases") == 0


async def test_a_cancelled_one_gives_its_place_back_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_routes, "POLL_S", 3600.0)
    async with keeping() as (proxy, *_):
        kept = (await respond(proxy, background=True)).json()["id"]
        await until(lambda: proxy.metric("kvgate_background_leases") == 1, "the place")
        await proxy.wire.request("POST", f"/v1/responses/{kept}/cancel")
        await proxy.until_idle()


async def test_a_stream_in_the_background_may_break_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_routes, "POLL_S", 0.02)
    async with keeping() as (proxy, *engines):
        reply = await respond(proxy, background=True, stream=True)
        last = reply.body.decode().split("\n\n")[-2]
        assert last.startswith("event: error\n")  # cut off in the form of its API
        assert json.loads(last.split("data: ")[1])["sequence_number"] == 2
        (kept,) = engines[0].kept or engines[1].kept
        assert proxy.metric("kvgate_background_leases") == 1
        of(kept, tuple(engines))[0].finish(kept, "incomplete")
        await proxy.until_idle()


async def test_the_bound_gives_a_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(response_routes, "POLL_S", 0.02)
    async with keeping(limits={"background_max": "1s"}) as (proxy, *_):
        await respond(proxy, background=True)
        await proxy.until_idle()


async def test_ids_are_forgotten_beyond_the_limit() -> None:
    async with keeping(limits={"responses_max": 2}) as (proxy, *_):
        kept = [(await respond(proxy)).json()["id"] for _ in range(3)]
        assert proxy.metric("kvgate_responses_known") == 2
        assert (await proxy.wire.request("GET", f"/v1/responses/{kept[0]}")).status == 200  # asked for anew


@pytest.mark.parametrize("headers", ["full", "none"])
async def test_answers_tell_of_their_way(headers: str) -> None:
    async with keeping(headers=headers) as (proxy, *_):
        told = (await respond(proxy)).headers
        unknown = json.dumps({"model": "x", "messages": [{"role": "user"}], "max_tokens": 1}).encode()
        refused = (await proxy.wire.request("POST", "/v1/messages", unknown)).headers
        if headers == "none":
            assert not [name for name in (*told, *refused) if name.startswith("x-kvgate")]
            return
        assert told["x-kvgate-outcome"] == "completed"
        assert told["x-kvgate-queue-ms"].isdigit()
        assert told["x-kvgate-replica"] in proxy.services.watchers
        assert refused["x-kvgate-outcome"] == "no_replica"


async def test_the_engines_priority_is_clamped_per_tenant() -> None:
    tenants = {"list": {"eager": {"engine_priority_min": 0}}}
    async with keeping(tenants=tenants) as (proxy, *engines):
        for tenant in ("eager", "other"):
            body = json.dumps({"model": "m", "input": "hi", "priority": -7}).encode()
            assert (await proxy.wire.request("POST", "/v1/responses", body, {"x-kvgate-tenant": tenant})).status == 200
        asked = sorted(body["priority"] for engine in engines for body in engine.bodies)
        assert asked == [-7, 0]


async def test_a_list_that_no_pool_could_hold_is_the_engines_to_take_in_turn() -> None:
    async with keeping() as (proxy, *_):
        body = json.dumps({"model": "m", "input": [[7] * 100] * 500}).encode()
        assert (await proxy.wire.request("POST", "/v1/embeddings", body)).status == 200
        (record,) = proxy.records
        assert record.prompt_tokens == 50_000  # of a pool of 1,008
        assert (
            await proxy.wire.request("POST", "/v1/embeddings", json.dumps({"model": "m", "input": [7] * 2000}).encode())
        ).status == 400
        await proxy.until_idle()


@pytest.mark.parametrize("named", ["x HTTP/1.1\r\nhost: x\r\n\r\nPOST /sleep", "../../sleep?x=", "\ud800", "x" * 10_000, ""])
async def test_a_made_up_id_asks_for_nothing_else(named: str) -> None:
    async with keeping() as (proxy, *engines):
        assert (await respond(proxy, previous_response_id=named)).status == 200
        asked = [path for engine in engines for path in engine.asked]
        assert all(path.startswith("GET /v1/responses/") and path.count(" ") == 1 + named.count(" ") for path in asked)
        await proxy.until_idle()
