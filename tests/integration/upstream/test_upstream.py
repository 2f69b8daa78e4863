"""The upstream client against real sockets that hang, lie and die at every step, on both event loops."""

import asyncio
import shutil
import socket
import ssl
import subprocess
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from proxy.adapters.upstream import HttpUpstream, UpstreamLimits
from proxy.adapters.upstream_exchange import BUFFER_BYTES_MAX, HEAD_BYTES_MAX
from proxy.ports import UpstreamError, UpstreamResponse
from tests.support.upstream_servers import Peer, Script, ScriptedUpstream

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nhello"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@asynccontextmanager
async def client(**limits: object) -> AsyncIterator[HttpUpstream]:
    upstream = HttpUpstream(UpstreamLimits(**limits))
    try:
        yield upstream
    finally:
        await upstream.aclose()
        assert "open=0" in repr(upstream) or "no origins" in repr(upstream)


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not true():  # noqa: ASYNC110 (the pool has no event for a closed idle connection)
            await asyncio.sleep(0.001)


async def read_all(response: UpstreamResponse, parts: list[bytes] | None = None) -> bytes:
    parts = [] if parts is None else parts
    while part := await response.read():
        parts.append(part)
    response.close()
    return b"".join(parts)


async def post(upstream: HttpUpstream, server: ScriptedUpstream, body: bytes = b"{}") -> UpstreamResponse:
    return await upstream.open(server.url, b"POST", b"/x", [(b"a", b"b")], body)


def answering(answer: bytes) -> Script:
    """Answers every request with these bytes; closes when it is not asked again."""

    async def script(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(answer)

    return script


def once(*steps: bytes | Callable[[Peer], None]) -> Script:
    """Answers the first request with these bytes or actions, then closes."""

    async def script(peer: Peer) -> None:
        await peer.request()
        for step in steps:
            if isinstance(step, bytes):
                await peer.send(step)
            else:
                step(peer)

    return script


async def test_requests_share_one_connection() -> None:
    async with ScriptedUpstream.running(answering(OK)) as server, client() as upstream:
        for _ in range(3):
            assert await read_all(await post(upstream, server)) == b"hello"
        assert repr(upstream) == f"<HttpUpstream {server.url} open=1 idle=1>"
        assert len(server.peers) == 1


@pytest.mark.parametrize("size", [0, 1, 64 * 1024, 64 * 1024 + 1, 5_000_000])
async def test_a_body_of_any_size_arrives_whole(size: int) -> None:
    got: list[tuple[bytes, bytes]] = []

    async def script(peer: Peer) -> None:
        got.append(await peer.request())
        await peer.send(OK)
        await peer.until_gone()

    body = bytes(range(256)) * (size // 256 + 1)
    async with ScriptedUpstream.running(script) as server, client() as upstream:
        assert await read_all(await post(upstream, server, body[:size])) == b"hello"
        assert got[0][1] == body[:size]
        assert got[0][0] == b"POST /x HTTP/1.1\r\nhost: 127.0.0.1:%d\r\na: b\r\ncontent-length: %d\r\n\r\n" % (server.port, size)
        assert "idle=1" in repr(upstream)


async def test_an_answer_before_the_body_was_taken_is_read_and_the_connection_dropped() -> None:
    async def script(peer: Peer) -> None:
        await peer.reader.readuntil(b"\r\n\r\n")
        await peer.send(b"HTTP/1.1 413 Too Large\r\ncontent-length: 3\r\n\r\nbig")
        await peer.until_gone()

    async with ScriptedUpstream.running(script) as server, client() as upstream:
        response = await post(upstream, server, b"x" * 30_000_000)
        assert response.status == 413
        assert await read_all(response) == b"big"
        assert "idle=0" in repr(upstream)


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (OK, b"hello"),
        (CHUNKED + b"3\r\nabc\r\n2;x=y\r\nde\r\n0\r\ntrail: x\r\n\r\n", b"abcde"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK, b"hello"),
        (b"HTTP/1.1 200 OK\r\n\r\nto the end", b"to the end"),
        (b"HTTP/1.0 200 OK\r\nconnection: close\r\n\r\n", b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 10\r\n\r\n", b""),
    ],
)
async def test_bodies_end_as_they_say(answer: bytes, body: bytes) -> None:
    async with ScriptedUpstream.running(once(answer)) as server, client() as upstream:
        response = await post(upstream, server)
        assert b"link" not in dict(response.headers)
        assert await read_all(response) == body


async def test_head_has_a_length_and_no_body() -> None:
    async with (
        ScriptedUpstream.running(answering(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\n")) as server,
        client() as upstream,
    ):
        response = await upstream.open(server.url, b"HEAD", b"/", [], b"")
        assert response.headers == [(b"content-length", b"5")]
        assert await read_all(response) == b""


async def test_every_byte_in_a_read_of_its_own_gives_the_same() -> None:
    answer = b"HTTP/1.1 100 Continue\r\n\r\n" + CHUNKED + b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n"

    async def script(peer: Peer) -> None:
        await peer.request()
        for i in range(len(answer)):
            await peer.send(answer[i : i + 1])
            await asyncio.sleep(0.0002)
        await peer.until_gone()

    async with ScriptedUpstream.running(script) as server, client() as upstream:
        assert await read_all(await post(upstream, server)) == b"abcde"
        assert "idle=1" in repr(upstream)


@pytest.mark.parametrize(
    ("answer", "kind"),
    [
        (b"", "reset"),
        (Peer.reset, "reset"),
        (b"HTTP/1.1 200", "reset"),
        (b"\x16\x03\x01 hello", "protocol"),
        (b"HTTP/1.1 200 OK\r\nx: a\r\n folded\r\n\r\n", "protocol"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\n", "protocol"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n", "protocol"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n", "protocol"),
        (b"HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\nconnection: upgrade\r\n\r\n", "protocol"),
        (b"HTTP/1.1 700 Odd\r\n\r\n", "protocol"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * HEAD_BYTES_MAX, "protocol"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * (HEAD_BYTES_MAX // 6 + 1) + b"\r\n", "protocol"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" * (HEAD_BYTES_MAX // 25 + 1), "protocol"),
    ],
)
async def test_no_usable_head(answer: bytes | Callable[[Peer], None], kind: str) -> None:
    async with ScriptedUpstream.running(once(answer)) as server, client() as upstream:
        with pytest.raises(UpstreamError) as caught:
            await post(upstream, server)
        assert caught.value.kind == kind
        assert caught.value.answered is (isinstance(answer, bytes) and answer != b"")
        assert not caught.value.reused
        assert len(server.peers) == 1


@pytest.mark.parametrize(
    ("answer", "body", "kind"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nhello", b"hello", "reset"),
        (CHUNKED + b"5\r\nhello\r\n", b"hello", "reset"),
        (CHUNKED + b"9\r\nhello", b"hello", "reset"),
        (CHUNKED + b"5\r\nhello\r\nzz\r\n", b"hello", "protocol"),
    ],
)
async def test_what_arrived_of_a_broken_body_is_read_before_the_error(answer: bytes, body: bytes, kind: str) -> None:
    async with ScriptedUpstream.running(once(answer)) as server, client() as upstream:
        response = await post(upstream, server)
        parts: list[bytes] = []
        with pytest.raises(UpstreamError) as caught:
            await read_all(response, parts)
        got = b"".join(parts)
        assert (got, caught.value.kind, caught.value.answered) == (body, kind, True)
        response.close()


async def test_a_body_to_the_end_that_is_reset_is_not_whole() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\n\r\npart")
        await asyncio.wait_for(read.wait(), 5)
        peer.reset()

    read = asyncio.Event()
    async with ScriptedUpstream.running(script) as server, client() as upstream:
        response = await post(upstream, server)
        assert await response.read() == b"part"
        read.set()
        with pytest.raises(UpstreamError, match="reset"):
            await response.read()
        response.close()


@pytest.mark.parametrize("surplus", [b"x", b"HTTP/1.1 200 OK\r\n"])
async def test_a_connection_with_more_than_the_answer_is_not_reused(surplus: bytes) -> None:
    async with ScriptedUpstream.running(answering(OK + surplus)) as server, client() as upstream:
        for _ in range(2):
            assert await read_all(await post(upstream, server)) == b"hello"
        assert len(server.peers) == 2


async def test_an_answer_with_connection_close_is_not_reused() -> None:
    answer = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 5\r\n\r\nhello"
    async with ScriptedUpstream.running(answering(answer)) as server, client() as upstream:
        for _ in range(2):
            assert await read_all(await post(upstream, server)) == b"hello"
        assert len(server.peers) == 2


async def test_a_kept_connection_that_dies_under_the_request_is_replaced_once() -> None:
    async def script(peer: Peer) -> None:
        if len(server.peers) == 1:
            await peer.request()
            await peer.send(OK)
            await peer.request()
            return  # closes with the second request unanswered
        await answering(OK)(peer)

    async with ScriptedUpstream.running(script) as server, client() as upstream:
        for _ in range(2):
            assert await read_all(await post(upstream, server)) == b"hello"
        assert len(server.peers) == 2


async def test_it_is_replaced_only_once() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        if len(server.peers) == 1:
            await peer.send(OK)
            await peer.request()

    async with ScriptedUpstream.running(script) as server, client() as upstream:
        await read_all(await post(upstream, server))
        with pytest.raises(UpstreamError) as caught:
            await post(upstream, server)
        assert (caught.value.kind, caught.value.reused, len(server.peers)) == ("reset", False, 2)


async def test_it_is_not_replaced_once_an_answer_began() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(OK)
        await peer.request()
        await peer.send(b"HTTP/1.1 2")

    async with ScriptedUpstream.running(script) as server, client() as upstream:
        await read_all(await post(upstream, server))
        with pytest.raises(UpstreamError) as caught:
            await post(upstream, server)
        assert (caught.value.kind, caught.value.answered, len(server.peers)) == ("reset", True, 1)


async def test_a_connection_closed_while_idle_leaves_the_pool() -> None:
    async def script(peer: Peer) -> None:
        await once(OK)(peer)
        await closing.wait()

    closing = asyncio.Event()
    async with ScriptedUpstream.running(script) as server, client() as upstream:
        await read_all(await post(upstream, server))
        assert "open=1 idle=1" in repr(upstream)
        closing.set()
        await until(lambda: "open=0 idle=0" in repr(upstream))
        assert await read_all(await post(upstream, server)) == b"hello"


async def test_idle_connections_are_retired() -> None:
    async with ScriptedUpstream.running(answering(OK)) as server, client(idle_s_max=0.02) as upstream:
        await read_all(await post(upstream, server))
        await until(lambda: "open=0 idle=0" in repr(upstream))


async def test_the_last_used_connection_is_taken_first() -> None:
    async def script(peer: Peer) -> None:
        answer = b"HTTP/1.1 200 OK\r\ncontent-length: 1\r\n\r\n%d" % len(server.peers)
        await answering(answer)(peer)

    async with ScriptedUpstream.running(script) as server, client() as upstream:
        first = await post(upstream, server)
        second = await post(upstream, server)
        assert await read_all(first) == b"1"
        assert await read_all(second) == b"2"
        for _ in range(3):
            assert await read_all(await post(upstream, server)) == b"2"
        assert "open=2 idle=2" in repr(upstream)


async def test_connections_are_bounded_and_a_returned_one_is_handed_on() -> None:
    async with ScriptedUpstream.running(answering(OK)) as server, client(connections_max=2) as upstream:
        held = [await post(upstream, server) for _ in range(2)]
        waiting = [asyncio.create_task(post(upstream, server)) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        for response in held:
            await read_all(response)
        for task in waiting[1:]:
            assert await read_all(await task) == b"hello"
        assert len(server.peers) == 2
        assert "open=2 idle=2" in repr(upstream)


async def test_no_place_in_time_is_a_connect_error_that_names_the_limit() -> None:
    async with ScriptedUpstream.running(answering(OK)) as server, client(connections_max=1, connect_s_max=0.02) as upstream:
        held = await post(upstream, server)
        with pytest.raises(UpstreamError, match="connections_max=1") as caught:
            await post(upstream, server)
        assert caught.value.kind == "connect"
        held.close()
        assert await read_all(await post(upstream, server)) == b"hello"


async def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        async with client() as upstream:
            with pytest.raises(UpstreamError) as caught:
                await upstream.open(f"http://127.0.0.1:{taken.getsockname()[1]}", b"GET", b"/", [], b"")
            assert caught.value.kind == "connect"
            assert "open=0" in repr(upstream)


async def test_a_host_that_does_not_accept_times_out() -> None:
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        with socket.create_connection(full.getsockname()):  # its queue is full: further SYNs are dropped
            async with client(connect_s_max=0.05) as upstream:
                with pytest.raises(UpstreamError, match="connect"):
                    await upstream.open(f"http://127.0.0.1:{full.getsockname()[1]}", b"GET", b"/", [], b"")
                assert "open=0" in repr(upstream)


async def test_no_head_in_time() -> None:
    async with ScriptedUpstream.running(Peer.until_gone) as server, client(head_s_max=0.02) as upstream:
        with pytest.raises(UpstreamError) as caught:
            await post(upstream, server)
        assert caught.value.kind == "timeout"
        await asyncio.wait_for(server.peers[0].gone.wait(), 5)


async def test_a_body_that_is_not_taken_in_time() -> None:
    async def script(peer: Peer) -> None:
        peer.writer.transport.pause_reading()
        await asyncio.Event().wait()

    async with ScriptedUpstream.running(script) as server, client(head_s_max=0.05) as upstream:
        with pytest.raises(UpstreamError, match="timeout"):
            await post(upstream, server, b"x" * 50_000_000)


async def test_a_silent_stream() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + b"3\r\nabc\r\n")
        await peer.until_gone()

    async with ScriptedUpstream.running(script) as server, client(read_idle_s_max=0.02) as upstream:
        response = await post(upstream, server)
        assert await response.read() == b"abc"
        with pytest.raises(UpstreamError, match="timeout"):
            await response.read()
        await asyncio.wait_for(server.peers[0].gone.wait(), 5)
        response.close()


async def test_a_slow_reader_is_no_silent_stream() -> None:
    async with ScriptedUpstream.running(answering(OK)) as server, client(read_idle_s_max=0.01) as upstream:
        response = await post(upstream, server)
        await asyncio.sleep(0.05)
        assert await read_all(response) == b"hello"


async def test_a_reader_that_stops_stops_the_upstream() -> None:
    sent = 0
    total = 64 * 1024 * 1024

    async def script(peer: Peer) -> None:
        nonlocal sent
        await peer.request()
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % total)
        while sent < total:
            await peer.send(b"x" * 65536)
            sent += 65536

    async with ScriptedUpstream.running(script) as server, client() as upstream:
        response = await post(upstream, server)
        before = -1
        while sent != before:  # until it can send no more
            before = sent
            await asyncio.sleep(0.02)
        # what the two kernels hold is megabytes; ours is two buffers at most
        assert sent < total // 2
        assert len(await response.read()) <= 2 * BUFFER_BYTES_MAX + 65536
        size = 0
        while part := await response.read():
            size += len(part)
        assert size > total // 2
        response.close()


@pytest.mark.parametrize("answer", [b"", CHUNKED, CHUNKED + b"3\r\nabc\r\n"])
async def test_closing_or_cancelling_closes_the_connection(answer: bytes) -> None:
    reached = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(answer)
        reached.set()
        await peer.until_gone()

    async with ScriptedUpstream.running(script) as server, client() as upstream:
        task = asyncio.create_task(post(upstream, server))
        await reached.wait()
        if answer:
            response = await task
            response.close()
            response.close()
        else:
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        await asyncio.wait_for(server.peers[0].gone.wait(), 5)
        assert "open=0 idle=0" in repr(upstream)


async def test_closing_wakes_a_reader() -> None:
    async with ScriptedUpstream.running(once(CHUNKED + b"1\r\na\r\n", b"")) as server, client() as upstream:
        response = await post(upstream, server)
        reading = asyncio.create_task(read_all(response))
        await asyncio.sleep(0)
        response.close()
        with pytest.raises(UpstreamError):
            await asyncio.wait_for(reading, 5)


async def test_a_host_name_that_cannot_be_looked_up() -> None:
    async with client() as upstream:
        with pytest.raises(UpstreamError) as caught:
            await upstream.open(f"http://{'a' * 64}.invalid", b"GET", b"/", [], b"")
        assert caught.value.kind == "connect"


async def test_a_request_that_cannot_be_written_opens_no_connection() -> None:
    async with ScriptedUpstream.running(answering(OK)) as server, client() as upstream:
        with pytest.raises(UpstreamError, match="CR, LF"):
            await upstream.open(server.url, b"POST", b"/", [(b"a", b"b\r\nc: d")], b"")
        assert not server.peers


async def test_a_closed_client_refuses_and_running_responses_fail() -> None:
    async with ScriptedUpstream.running(once(CHUNKED + b"1\r\na\r\n", b"")) as server:
        upstream = HttpUpstream()
        response = await post(upstream, server)
        assert await response.read() == b"a"
        await upstream.aclose()
        with pytest.raises(UpstreamError):
            await response.read()
        with pytest.raises(UpstreamError):
            await upstream.open("http://127.0.0.1:1", b"GET", b"/", [], b"")


async def test_a_forgotten_replica_has_no_connections() -> None:
    async with ScriptedUpstream.running(answering(OK)) as server, client() as upstream:
        await read_all(await post(upstream, server))
        upstream.forget(server.url)
        assert repr(upstream) == "<HttpUpstream no origins>"
        assert await read_all(await post(upstream, server)) == b"hello"


async def test_two_hundred_at_once() -> None:
    async with ScriptedUpstream.running(answering(OK)) as server, client(connections_max=50) as upstream:

        async def one() -> bytes:
            return await read_all(await post(upstream, server))

        assert await asyncio.gather(*(one() for _ in range(200))) == [b"hello"] * 200
        assert len(server.peers) <= 50
        assert f"open={len(server.peers)} idle={len(server.peers)}" in repr(upstream)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    openssl = shutil.which("openssl")
    assert openssl, "install openssl: the TLS tests make their own certificate with it"
    path = tmp_path_factory.mktemp("tls") / "both.pem"
    command = f"{openssl} req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=IP:127.0.0.1"
    subprocess.run([*command.split(), "-keyout", str(path), "-out", f"{path}.crt"], check=True, capture_output=True)
    path.write_bytes(path.read_bytes() + Path(f"{path}.crt").read_bytes())
    return path


async def test_https_with_a_context_of_its_own(certificate: Path) -> None:
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_side.load_cert_chain(certificate)
    trusting = ssl.create_default_context(cafile=certificate)
    async with ScriptedUpstream.running(answering(OK), ssl=server_side) as server:
        upstream = HttpUpstream(tls={server.url: trusting})
        for body in (b"{}", b"x" * 3_000_000):
            assert await read_all(await post(upstream, server, body)) == b"hello"
        assert "open=1 idle=1" in repr(upstream)
        await upstream.aclose()


async def test_https_with_an_unknown_certificate_is_a_connect_error(certificate: Path) -> None:
    server_side = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_side.load_cert_chain(certificate)
    async with ScriptedUpstream.running(answering(OK), ssl=server_side) as server, client() as upstream:
        with pytest.raises(UpstreamError, match="certificate") as caught:
            await post(upstream, server)
        assert caught.value.kind == "connect"
