"""A response whose pieces are handed over in the callback that brings them."""

import asyncio

import pytest

from proxy.ports import UpstreamError
from tests.integration.upstream.exchanging import CHUNKED, client, once, post
from tests.support.upstream_servers import Peer, ScriptedUpstream


class Taker:
    """Takes so many pieces, then has no room."""

    def __init__(self, room: int) -> None:
        self.room, self.pieces = room, list[bytes]()

    def __call__(self, piece: bytes) -> bool:
        self.pieces.append(piece)
        self.room -= 1
        return self.room > 0


async def test_all_of_it_in_order_and_then_the_end() -> None:
    pieces = CHUNKED + b"1\r\na\r\n", b"1\r\nb\r\n", b"1\r\nc\r\n0\r\n\r\n"
    async with ScriptedUpstream.running(once(*pieces)) as server, client() as upstream:
        response, taker = await post(upstream, server), Taker(room=9)
        await response.pour(taker)
        assert b"".join(taker.pieces) == b"abc"
        assert await response.read() == b""
        response.close()


async def test_without_room_it_stops_and_read_goes_on() -> None:
    more = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + b"1\r\na\r\n")
        await more.wait()
        await peer.send(b"1\r\nb\r\n0\r\n\r\n")
        await peer.until_gone()

    async with ScriptedUpstream.running(script) as server, client() as upstream:
        response, taker = await post(upstream, server), Taker(room=1)
        await response.pour(taker)  # returns, though the body goes on
        assert taker.pieces == [b"a"]
        more.set()
        assert await response.read() == b"b"
        assert taker.pieces == [b"a"]
        assert await response.read() == b""
        response.close()


async def test_a_failure_is_told_by_the_next_read() -> None:
    async with ScriptedUpstream.running(once(CHUNKED + b"1\r\na\r\n", Peer.reset)) as server, client() as upstream:
        response, taker = await post(upstream, server), Taker(room=9)
        await response.pour(taker)
        with pytest.raises(UpstreamError) as caught:
            await response.read()
        assert (taker.pieces, caught.value.kind) == ([b"a"], "reset")
        response.close()


async def test_who_stops_waiting_is_handed_nothing_more() -> None:
    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(CHUNKED + b"1\r\na\r\n")
        await peer.until_gone()

    async with ScriptedUpstream.running(script) as server, client() as upstream:
        response, taken = await post(upstream, server), asyncio.Event()

        def take(_: bytes) -> bool:
            taken.set()
            return True

        task = asyncio.ensure_future(response.pour(take))
        await taken.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        response.close()
