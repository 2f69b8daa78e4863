"""How long an answer may take, and how much of all answers may lie unread."""

import asyncio

import pytest

from proxy.adapters.upstream_bounds import Patience
from proxy.ports import UpstreamError
from tests.integration.upstream.exchanging import CHUNKED, OK, answering, client, post, read_all, until
from tests.support.upstream_servers import Peer, ScriptedUpstream


async def test_no_head_in_time() -> None:
    async with ScriptedUpstream.running(Peer.until_gone) as server, client(patience=Patience(first_byte_s_max=0.02)) as upstream:
        with pytest.raises(UpstreamError) as caught:
            await post(upstream, server)
        assert (caught.value.kind, caught.value.limit) == ("timeout", "relay.first_byte")
        await asyncio.wait_for(server.peers[0].gone.wait(), 5)


async def test_a_body_that_is_not_taken_in_time() -> None:
    async def script(peer: Peer) -> None:
        peer.writer.transport.pause_reading()
        await asyncio.Event().wait()

    async with ScriptedUpstream.running(script) as server, client(patience=Patience(first_byte_s_max=0.05)) as upstream:
        with pytest.raises(UpstreamError, match="timeout"):
            await post(upstream, server, b"x" * 50_000_000)


async def test_a_silent_stream() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + b"3\r\nabc\r\n")
        await peer.until_gone()

    async with ScriptedUpstream.running(script) as server, client(patience=Patience(idle_s_max=0.5)) as upstream:
        response = await post(upstream, server)
        assert await response.read() == b"abc"
        with pytest.raises(UpstreamError, match="timeout"):
            await response.read()
        await asyncio.wait_for(server.peers[0].gone.wait(), 5)
        response.close()


async def test_a_head_without_a_body_is_no_first_byte() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        await peer.until_gone()

    async with (
        ScriptedUpstream.running(script) as server,
        client(patience=Patience(first_byte_s_max=0.1, idle_s_max=0.02)) as upstream,
    ):
        response = await post(upstream, server)
        with pytest.raises(UpstreamError, match="no byte of the answer's body") as caught:
            await response.read()
        assert caught.value.limit == "relay.first_byte"
        response.close()


async def test_an_answer_that_never_ends() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED)
        while True:
            await peer.send(b"3\r\nabc\r\n")
            await asyncio.sleep(0.001)

    patience = Patience(first_byte_s_max=5.0, idle_s_max=5.0, total_s_max=0.1)
    async with ScriptedUpstream.running(script) as server, client(patience=patience) as upstream:
        response, parts = await post(upstream, server), list[bytes]()
        with pytest.raises(UpstreamError, match="not at its end") as caught:
            await read_all(response, parts)
        assert caught.value.limit == "relay.total"
        assert parts
        response.close()


async def test_all_slow_readers_together_have_one_bound() -> None:
    """Each would take 256 KiB; together they get what the bound leaves, and all of it arrives once they read."""
    count, piece, steps, bound = 8, 20 * 1024, 20, 100_000

    async with ScriptedUpstream.running(Peer.until_gone) as server, client(buffer_bytes_max=bound) as upstream:
        opening = [asyncio.create_task(post(upstream, server)) for _ in range(count)]
        await until(lambda: len(server.peers) == count)
        for peer in server.peers:
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % (steps * piece))
        responses = [await one for one in opening]

        def arrived(number: int) -> bool:
            return all(one._buffered >= number * piece or (one._connection and one._connection._paused) for one in responses)

        for number in range(1, steps + 1):
            for peer in server.peers:
                peer.writer.write(b"x" * piece)
            await until(lambda number=number: arrived(number))  # type: ignore[misc]
        assert bound < upstream.buffered_bytes <= bound + count * piece
        responses.pop().close()  # one leaves
        assert [len(await read_all(response)) for response in responses] == [steps * piece] * (count - 1)
        assert upstream.buffered_bytes == 0


async def test_a_slow_reader_is_no_silent_stream() -> None:
    async with ScriptedUpstream.running(answering(OK)) as server, client(patience=Patience(idle_s_max=0.01)) as upstream:
        response = await post(upstream, server)
        await asyncio.sleep(0.05)
        assert await read_all(response) == b"hello"
