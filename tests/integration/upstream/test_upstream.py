"""The upstream client against real sockets that hang, lie and die at every step, on both event loops."""

import asyncio
from collections.abc import Callable

import pytest

from proxy.adapters.upstream_head import HEAD_BYTES_MAX
from proxy.ports import UpstreamError
from tests.integration.upstream.exchanging import CHUNKED, OK, answering, client, once, post, read_all
from tests.support.upstream_servers import Peer, ScriptedUpstream


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
