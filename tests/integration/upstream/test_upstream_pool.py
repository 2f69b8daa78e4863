"""The upstream client's connections: idle, bounded, timed out, cancelled, closed, and under TLS."""

import asyncio
import shutil
import socket
import ssl
import subprocess
import time
from pathlib import Path

import pytest

from proxy.adapters.upstream import HttpUpstream
from proxy.adapters.upstream_unread import BUFFER_BYTES_MAX
from proxy.ports import UpstreamError
from tests.integration.upstream.exchanging import CHUNKED, OK, answering, client, once, post, read_all, until
from tests.support.upstream_servers import Peer, ScriptedUpstream


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
    async with ScriptedUpstream.running(answering(OK)) as server, client(connections_max=1, connect_s_max=1.0) as upstream:
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


async def test_a_stall_of_our_own_process_is_no_time_out() -> None:
    """Longer than a connection may take, once it was begun."""
    async with ScriptedUpstream.running(answering(OK)) as server, client(connect_s_max=0.5) as upstream:
        posting = asyncio.create_task(post(upstream, server))
        for _ in range(2):
            await asyncio.sleep(0)
        time.sleep(0.6)  # noqa: ASYNC251 - nothing else holds the loop up for certain
        assert await read_all(await posting) == b"hello"


async def test_what_may_not_be_sent_twice_goes_over_a_connection_of_its_own() -> None:
    connections = 0

    async def script(peer: Peer) -> None:
        nonlocal connections
        connections += 1
        while True:
            await peer.request()
            await peer.send(OK)

    async with ScriptedUpstream.running(script) as server, client(connections_max=2) as upstream:
        for once_only in (False, False, True, True):
            response = await upstream.open(server.url, b"POST", b"/", [], b"", once=once_only)
            assert await read_all(response) == b"hello"
        assert connections == 3
        assert await read_all(await upstream.open(server.url, b"POST", b"/", [], b"")) == b"hello"
        assert connections == 3


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
