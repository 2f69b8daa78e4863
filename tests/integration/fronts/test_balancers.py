"""What the shipped configurations of nginx and Envoy promise, with the real ones before kvgate before a replica that is scripted."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from proxy import app
from proxy.adapters.web_server import server_config
from tests.integration.fronts.envoy import envoy
from tests.integration.fronts.nginx import free_port, nginx
from tests.integration.hostile.exchanging import PROBES, Recorder, statuses
from tests.integration.serving.harness import MESSAGES, RunningProxy, Wire, answer_like_vllm, proxying
from tests.integration.upstream.test_websockets import websockets
from tests.support.upstream_servers import Peer, ScriptedUpstream, served

pytestmark = pytest.mark.fronts
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
CHAT = json.dumps({"model": "mock", "messages": MESSAGES, "stream": True}).encode()


@dataclass(slots=True)
class Streaming:
    """A replica that sends an event whenever the test says so."""

    events: "asyncio.Queue[bytes]" = field(default_factory=asyncio.Queue)
    asked: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)

    async def __call__(self, peer: Peer) -> None:
        head, _ = await peer.request()
        if PROBES.search(head):
            await answer_like_vllm(peer, head)
            return
        self.asked.set()
        await peer.send(STREAM_HEAD)
        leaving = asyncio.ensure_future(peer.until_gone())
        while True:
            event = asyncio.ensure_future(self.events.get())
            await asyncio.wait([event, leaving], return_when=asyncio.FIRST_COMPLETED)
            if leaving.done():
                event.cancel()
                self.gone.set()
                return
            data = event.result()
            await peer.send(b"%x\r\n%b\r\n" % (len(data), data))
            if not data:
                await leaving
                return


@dataclass(slots=True)
class Fronted:
    port: int
    proxies: list[RunningProxy]
    clients: set[Any]  # connections that kvgate saw

    @property
    def wire(self) -> Wire:
        return Wire(self.port)


@asynccontextmanager
async def balancer(kind: str, folder: Path, ports: list[int]) -> AsyncIterator[int]:
    """Either, by its port."""
    if kind == "nginx":
        async with nginx(folder, ports) as front:
            yield front.port
    else:
        async with envoy(folder, ports) as port:
            yield port


Front = Callable[..., AbstractAsyncContextManager[Fronted]]


@pytest.fixture(params=["nginx", "envoy"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def fronted(kind: str, tmp_path: Path) -> Front:
    return partial(standing_before, kind, tmp_path)


@asynccontextmanager
async def standing_before(kind: str, folder: Path, script: Any, *, proxies: int = 1, dead: int = 0) -> AsyncIterator[Fronted]:
    async with AsyncExitStack() as stack:
        upstream = await stack.enter_async_context(ScriptedUpstream.running(script))
        running, ports, clients = [], [free_port() for _ in range(dead)], set[Any]()
        for _ in range(proxies):
            proxy = await stack.enter_async_context(proxying(upstream.url, policy={"mode": "off"}))

            async def noting(scope: Any, receive: Any, send: Any, proxy: RunningProxy = proxy) -> None:
                if scope["path"] != "/ready":
                    clients.add(scope["client"])
                await proxy.endpoints(scope, receive, send)

            config = server_config(noting, partial(app.connection_rules, proxy.services))
            ports.append(await stack.enter_async_context(served(config)))
            running.append(proxy)
        yield Fronted(await stack.enter_async_context(balancer(kind, folder, ports)), running, clients)


async def test_a_stream_arrives_event_by_event(fronted: Front) -> None:
    replica = Streaming()
    async with fronted(replica) as front, asyncio.timeout(20):
        exchange = await front.wire.open("POST", "/v1/chat/completions", CHAT)
        for event in (b"data: {}\n\n", b": comment\n\n", b"x"):  # each is only sent once the one before was read
            replica.events.put_nowait(event)
            await exchange.reader.readuntil(event)
        replica.events.put_nowait(b"")
        assert (await exchange.reader.read()).endswith(b"0\r\n\r\n")
        await exchange.leave()


async def test_a_client_that_leaves_reaches_the_engine(fronted: Front) -> None:
    replica = Streaming()
    async with fronted(replica) as front, asyncio.timeout(20):
        exchange = await front.wire.open("POST", "/v1/chat/completions", CHAT)
        await replica.asked.wait()  # it is still silent then
        replica.events.put_nowait(b"data: {}\n\n")
        await exchange.reader.readuntil(b"data: {}\n\n")
        await exchange.leave()
        await replica.gone.wait()
        await front.proxies[0].until_idle()


@pytest.mark.parametrize("status", [b"429 Too Many Requests", b"503 Service Unavailable", b"500 Internal Server Error"])
async def test_refusals_are_passed_on_and_not_tried_elsewhere(fronted: Front, status: bytes) -> None:
    replica = Recorder()
    replica.let_go.set()
    replica.answer = b"HTTP/1.1 %b\r\nretry-after: 7\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}" % status
    async with fronted(replica, proxies=2) as front:
        for asked in range(1, 7):  # often enough that nginx would have taken both proxies out, had these counted as failures
            reply = await front.wire.request("POST", "/v1/chat/completions", CHAT)
            assert (reply.status, reply.headers["retry-after"], reply.body) == (int(status[:3]), "7", b"{}")
            assert len(replica.requests) == asked


async def test_a_dead_proxy_fails_nobody(fronted: Front) -> None:
    replica = Recorder()
    replica.let_go.set()
    async with fronted(replica, dead=1) as front:
        for _ in range(10):
            assert (await front.wire.request("POST", "/v1/chat/completions", CHAT)).status == 200
    assert len(replica.requests) == 10


async def test_a_request_that_was_sent_is_not_sent_again(kind: str, tmp_path: Path) -> None:
    """A proxy that dies with a request in its hands: what became of it is unknown."""
    seen = []

    async def die(peer: Peer) -> None:
        head, _ = await peer.request()
        if head.startswith(b"POST"):
            seen.append(head)
            peer.reset()
        else:
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")  # of the health check

    async with (
        ScriptedUpstream.running(die) as one, ScriptedUpstream.running(die) as two,
        balancer(kind, tmp_path, [one.port, two.port]) as port,
    ):  # fmt: skip
        assert (await Wire(port).request("POST", "/v1/chat/completions", CHAT)).status in {502, 503}
    assert len(seen) == 1


async def test_websockets_pass(kind: str, tmp_path: Path) -> None:
    async with (
        websockets() as (proxy, url),
        balancer(kind, tmp_path, [int(url.rpartition(":")[2])]) as port,
        connect(f"ws://127.0.0.1:{port}/v1/realtime?model=m") as client,
    ):
        for message in ("text", b"x" * 100_000):
            await client.send(message)
            assert await client.recv() == message
        assert proxy.services.drain.under_way == 1


async def test_bodies_up_to_the_proxys_own_limit(fronted: Front) -> None:
    replica = Recorder()
    replica.let_go.set()
    async with fronted(replica) as front:
        body = b"x" * 5_000_000  # through a file
        assert (await front.wire.request("POST", "/v1/any", body)).status == 200
        assert replica.requests[0][1] == body
        exchange = await front.wire.open("POST", "/v1/any", length=64 * 1024 * 1024 + 1)
        assert (await exchange.reply()).status in {413, 400}  # nginx's own, or kvgate's behind what has no limit
    assert len(replica.requests) == 1


async def test_connections_to_kvgate_are_kept(fronted: Front) -> None:
    replica = Recorder()
    replica.let_go.set()
    async with fronted(replica) as front:
        for _ in range(30):
            assert (await front.wire.request("POST", "/v1/chat/completions", CHAT)).status == 200
        assert len(front.clients) == 1, front.clients


async def test_what_clients_may_not_say_is_taken_out_and_the_rest_passes(fronted: Front) -> None:
    replica = Recorder()
    replica.let_go.set()
    async with fronted(replica) as front:
        fields = {
            "x-kvgate-tenant": "other",
            "x-request-id": "mine",
            "x-under_score": "kept",
            "connection": "close, upgrade",
            "upgrade": "h2c",
        }
        assert (await front.wire.request("POST", "/v1/any?a=%2F", b"body", fields)).status == 200
        assert (await front.wire.request("GET", "/metrics")).status == 404
    ((head, body),) = replica.requests
    lines = head.split(b"\r\n")
    assert lines[0] == b"POST /v1/any?a=%2F HTTP/1.1"
    assert not [line for line in lines if line.startswith((b"x-kvgate-tenant", b"upgrade", b"connection"))]
    assert [line for line in lines if line.startswith(b"x-forwarded-for: ")]
    assert b"x-request-id: mine" in lines
    assert b"x-under_score: kept" in lines
    assert body == b"body"


async def test_what_is_ambiguous_is_refused_by_one_of_them(fronted: Front) -> None:
    """nginx takes a bare LF for the end of a line."""
    replica = Recorder()
    replica.let_go.set()
    async with fronted(replica) as front:
        reader, writer = await asyncio.open_connection("127.0.0.1", front.port)
        writer.write(
            b"POST /v1/any HTTP/1.1\nhost: x\ncontent-length: 0\ntransfer-encoding: chunked\n\n0\r\n\r\nGET /smuggled HTTP/1.1\nhost: x\n\n"
        )
        raw = await reader.read()
        writer.close()
        assert statuses(raw) == [400]
    assert replica.requests == []
