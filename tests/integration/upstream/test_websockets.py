"""WebSockets through kvgate, with a real WebSocket library at both ends."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from functools import partial
from http import HTTPStatus
from typing import Any

import pytest
import uvicorn
from websockets.asyncio.client import connect
from websockets.asyncio.server import Request, Response, ServerConnection, serve
from websockets.exceptions import ConnectionClosed, ConnectionClosedError, InvalidStatus

from proxy import app
from proxy.adapters.web_server import server_config
from proxy.serving.websockets import WebSockets
from tests.integration.serving.harness import RunningProxy, proxying, until
from tests.support.upstream_servers import Peer, ScriptedUpstream

MODELS = json.dumps({"object": "list", "data": [{"id": "m", "object": "model", "parent": None, "max_model_len": 4096}]})
RUNNING: dict[int, uvicorn.Server] = {}  # by the port of the proxy without WebSockets beside it
Talk = Callable[[ServerConnection], Awaitable[None]]


async def echo(connection: ServerConnection) -> None:
    """Send everything back."""
    async for message in connection:
        await connection.send(message)


def control(connection: ServerConnection, request: Request) -> Response | None:
    """What is no WebSocket: the probes of kvgate, and refusals."""
    path = request.path.partition("?")[0]
    if path == "/v1/models":
        response = connection.respond(HTTPStatus.OK, MODELS)
        response.headers["content-type"] = "application/json"
        return response
    if path == "/forbidden":
        return connection.respond(HTTPStatus.FORBIDDEN, "not for you\n")
    return None if path in {"/v1/realtime", "/plugin"} else connection.respond(HTTPStatus.OK, "")


@asynccontextmanager
async def websockets(
    talk: Talk = echo, policy: dict[str, Any] | None = None, **options: Any
) -> AsyncIterator[tuple[RunningProxy, str]]:
    """A server that talks so, kvgate in front of it with both its protocols, and the address to connect to."""
    async with serve(talk, "127.0.0.1", 0, process_request=control, **options) as server:
        port = next(iter(server.sockets)).getsockname()[1]
        async with tunnelling(f"http://127.0.0.1:{port}", policy) as found:
            yield found


@asynccontextmanager
async def tunnelling(url: str, policy: dict[str, Any] | None = None) -> AsyncIterator[tuple[RunningProxy, str]]:
    async with proxying(url, policy=policy, tokenizer=False) as proxy:
        config = server_config(proxy.endpoints, partial(app.connection_rules, proxy.services), WebSockets(proxy.services))
        server = uvicorn.Server(config)
        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        config.load()
        server.lifespan = config.lifespan_class(config)
        await server.startup(sockets=[listener])
        RUNNING[proxy.wire.port] = server
        try:
            yield proxy, f"ws://127.0.0.1:{listener.getsockname()[1]}"
            await proxy.until_idle()
            await until(lambda: not server.server_state.connections, "the end of all connections")
        finally:
            del RUNNING[proxy.wire.port]
            for listening in server.servers:
                listening.close()
            listener.close()


async def test_messages_of_every_kind_and_size_pass_both_ways() -> None:
    async with websockets() as (proxy, url), connect(f"{url}/v1/realtime?model=m") as client:
        for message in ("text ✓", b"\0\xff", "", b"x" * 300_000, "y" * 70_000):
            await client.send(message)
            assert await client.recv() == message
        await asyncio.wait_for(await client.ping(b"a ping"), 10)
        await client.send(["in ", "three ", "frames"])
        assert await client.recv() == "in three frames"
        assert proxy.services.drain.under_way == 1


async def test_subprotocols_and_headers_are_the_two_ends_business() -> None:
    seen: list[Request] = []

    async def look(connection: ServerConnection) -> None:
        assert connection.request is not None
        seen.append(connection.request)
        await connection.send(connection.subprotocol or "")

    async with websockets(look, subprotocols=["realtime", "other"]) as (_, url):
        headers = {"authorization": "Bearer theirs", "x-request-id": "mine", "traceparent": "00-a-b-01"}
        async with connect(f"{url}/plugin?a=%2F", subprotocols=["other"], additional_headers=headers) as client:
            assert await client.recv() == "other"
            assert client.response is not None
            assert client.response.headers["x-request-id"] == "mine"
    assert seen[0].path == "/plugin?a=%2F"
    assert {name: seen[0].headers[name] for name in headers} == headers


@pytest.mark.parametrize("code", [1000, 1001, 1011, 4321])
async def test_a_close_by_either_side_arrives_with_its_code(code: int) -> None:
    heard = asyncio.get_running_loop().create_future()

    async def talk(connection: ServerConnection) -> None:
        if await connection.recv() == "you":
            await connection.close(code, "because")
            return
        try:
            await connection.recv()
        except ConnectionClosed as closed:
            heard.set_result(closed.rcvd)

    async with websockets(talk) as (_, url):
        async with connect(f"{url}/v1/realtime") as client:
            await client.send("you")
            with pytest.raises(ConnectionClosed) as caught:
                await client.recv()
            assert caught.value.rcvd is not None
            assert (caught.value.rcvd.code, caught.value.rcvd.reason) == (code, "because")
        async with connect(f"{url}/v1/realtime") as client:
            await client.send("me")
            await client.close(code, "mine")
        close = await asyncio.wait_for(heard, 10)
        assert (close.code, close.reason) == (code, "mine")


async def test_a_client_that_is_gone_ends_the_replicas_side() -> None:
    ended = asyncio.Event()

    async def talk(connection: ServerConnection) -> None:
        await connection.send("hello")
        await connection.wait_closed()
        ended.set()

    async with websockets(talk) as (_, url), connect(f"{url}/v1/realtime") as client:
        await client.recv()
        client.transport.abort()
        await asyncio.wait_for(ended.wait(), 10)


async def test_a_replica_that_is_gone_ends_the_clients_side() -> None:
    async def talk(connection: ServerConnection) -> None:
        await connection.recv()
        connection.transport.abort()

    async with websockets(talk) as (_, url), connect(f"{url}/v1/realtime") as client:
        await client.send("go")
        with pytest.raises(ConnectionClosedError):
            await asyncio.wait_for(client.recv(), 10)


async def test_the_end_of_the_process_ends_them() -> None:
    ended = asyncio.Event()

    async def talk(connection: ServerConnection) -> None:
        await connection.wait_closed()
        ended.set()

    async with websockets(talk) as (proxy, url), connect(f"{url}/v1/realtime") as client:
        for connection in list(RUNNING[proxy.wire.port].server_state.connections):
            connection.shutdown()
        with pytest.raises(ConnectionClosedError):
            await asyncio.wait_for(client.recv(), 10)
        await asyncio.wait_for(ended.wait(), 10)


@pytest.mark.slow
async def test_a_slow_client_holds_the_replica_back() -> None:
    """What lies between the two is bounded: the sender stands still long before it has sent everything."""
    sent = 0

    async def talk(connection: ServerConnection) -> None:
        nonlocal sent
        for _ in range(400):
            await connection.send(b"x" * 100_000)
            sent += 1

    bare = {"compression": None}  # one letter over and over would become nothing
    async with websockets(talk, **bare) as (_, url), connect(f"{url}/v1/realtime", max_queue=1) as client:
        stood = -1
        while sent != stood or not sent:  # until a second has brought nothing more
            stood = sent
            await asyncio.sleep(1)
        assert 0 < stood < 300
        for _ in range(400):
            assert len(await client.recv()) == 100_000


async def refused(url: str, path: str) -> InvalidStatus:
    with pytest.raises(InvalidStatus) as caught:
        async with connect(url + path):
            pass
    return caught.value


async def test_what_the_replica_refuses_is_its_own_answer() -> None:
    async with websockets() as (_, url):
        response = (await refused(url, "/forbidden")).response
        assert (response.status_code, response.body) == (403, b"not for you\n")


@pytest.mark.parametrize(("path", "code"), [("/sleep", 403), ("/%73leep/", 403)])
async def test_closed_paths_are_closed_to_websockets_too(path: str, code: int) -> None:
    async with websockets() as (_, url):
        assert (await refused(url, path)).response.status_code == code


async def test_the_limit_of_connections_holds_for_them() -> None:
    async with websockets(policy={"limits": {"connections_max": 1}}) as (proxy, url), connect(f"{url}/v1/realtime"):
        assert (await refused(url, "/v1/realtime")).response.status_code == 429
        assert proxy.metric("kvgate_websockets") == 1
    assert proxy.services.websockets == 0


async def upgrade(url: str, more: bytes = b"", method: bytes = b"GET", path: bytes = b"/v1/realtime") -> bytes:
    """The whole answer to a bare request for an upgrade, with bytes sent behind it at once."""
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    fields = b"host: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\nsec-websocket-key: AAAAAAAAAAAAAAAAAAAAAA==\r\n"
    writer.write(b"%b %b HTTP/1.1\r\n%b\r\n" % (method, path, fields))
    await writer.drain()
    writer.write(more)
    async with asyncio.timeout(20):
        answer = await reader.read()
    writer.close()
    return answer


def refusing(answer: bytes, *, ends: bool = False) -> tuple[list[bytes], Callable[[Peer], Awaitable[None]]]:
    """A replica that is well, and answers a request for an upgrade so; and all it was sent."""
    got: list[bytes] = []

    async def script(peer: Peer) -> None:
        head, _ = await peer.request()
        body = MODELS.encode() if b" /v1/models " in head else b""
        if b"upgrade: websocket" not in head:
            await peer.send(
                b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                % len(body)
            )
            await peer.send(body)
            return
        await peer.send(answer)
        if ends:
            peer.writer.write_eof()
        got.append(head + await peer.reader.read())

    return got, script


async def test_nothing_is_smuggled_behind_a_refused_upgrade() -> None:
    got, script = refusing(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok")
    async with ScriptedUpstream.running(script) as upstream, tunnelling(upstream.url) as (_, url):
        answer = await upgrade(url, b"POST /sleep HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200 OK\r\n")
        assert answer.endswith(b"connection: close\r\n\r\nok")
        await until(lambda: got, "the end of the replica's side")
    assert b"/sleep" not in got[0]
    assert got[0].count(b"HTTP/1.1") == 1


@pytest.mark.parametrize("answer", [b"", b"nonsense\r\n\r\n", b"HTTP/1.1 101 Switching", b"HTTP/1.1 101\r\nx: " + b"y" * 70_000])
async def test_a_replica_that_makes_no_sense_is_502(answer: bytes) -> None:
    _, script = refusing(answer, ends=True)
    async with ScriptedUpstream.running(script) as upstream, tunnelling(upstream.url) as (_, url):
        assert (await upgrade(url)).startswith(b"HTTP/1.1 502 ")


async def test_an_upgrade_by_another_method_is_405() -> None:
    async with websockets() as (_, url):
        assert (await upgrade(url, method=b"POST")).startswith(b"HTTP/1.1 405 ")


async def test_what_the_client_sends_too_early_is_kept_for_the_replica() -> None:
    got, script = refusing(b"HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\nconnection: Upgrade\r\n\r\n")

    async def slowly(peer: Peer) -> None:
        await asyncio.sleep(0.2)
        await script(peer)

    async with ScriptedUpstream.running(slowly) as upstream, tunnelling(upstream.url) as (_, url):
        reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
        writer.write(b"GET /v1/realtime HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n")
        await asyncio.sleep(0.05)
        writer.write(b"early" * 20_000)
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 101 ")
        writer.write(b"late")
        await writer.drain()
        writer.close()
        await until(lambda: got, "the end of the replica's side")
        assert got[0].endswith(b"early" * 20_000 + b"late")
