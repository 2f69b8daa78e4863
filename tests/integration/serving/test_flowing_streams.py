"""What a stream that flows has let go of: it may last for minutes, and there may be thousands."""

import asyncio
import json

from tests.integration.serving.harness import answer_like_vllm, proxying
from tests.support.upstream_servers import Peer, ScriptedUpstream

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


async def test_a_flowing_stream_holds_neither_the_request_nor_what_was_read_of_it() -> None:
    asked, go_on = list[bytes](), asyncio.Event()

    async def stream(peer: Peer) -> None:
        head, body = await peer.request()
        if b"POST /v1/" not in head:
            await answer_like_vllm(peer, head)
            return
        asked.append(body)
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + EVENT)
        await go_on.wait()
        await peer.send(END)

    async with ScriptedUpstream.running(stream) as upstream, proxying(upstream.url) as proxy:
        words = "words " * 200
        exchange = await proxy.wire.start_chat(messages=[{"role": "user", "content": words}], stream=True)
        assert b"200 OK" in await exchange.reader.readuntil(EVENT)
        (course,) = proxy.services.decisions._open.values()
        assert course.intake.body == b""
        assert not course.intake.headers
        assert not course.intake.fields
        assert words not in repr(course.intake)
        assert words not in repr(course.demand)
        go_on.set()
        assert b"[DONE]" in await exchange.reader.read()
        assert words == json.loads(asked[0])["messages"][0]["content"]
        await exchange.leave()
        await proxy.until_idle()
    assert proxy.records[-1].status == 200
    assert proxy.records[-1].request_id


async def test_the_coroutines_that_began_a_stream_have_ended() -> None:
    """Of those that lie in a task while it flows, none belongs to the way up to it."""
    go_on = asyncio.Event()

    async def stream(peer: Peer) -> None:
        head, _ = await peer.request()
        if b"POST /v1/" not in head:
            await answer_like_vllm(peer, head)
            return
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + EVENT)
        await go_on.wait()
        await peer.send(END)

    def awaited() -> set[str]:
        names, one = set[str](), [task.get_coro() for task in asyncio.all_tasks()]
        while one:
            coroutine = one.pop()
            names.add(getattr(coroutine, "__qualname__", ""))
            if (inner := getattr(coroutine, "cr_await", None)) is not None:
                one.append(inner)
        return names

    async with ScriptedUpstream.running(stream) as upstream, proxying(upstream.url) as proxy:
        exchange = await proxy.wire.start_chat(stream=True)
        await exchange.reader.readuntil(EVENT)
        assert "Flowing.run" in (there := awaited())
        assert not {"Endpoints._forwarded", "Calls.serve", "Calls._relay", "Relay.begin"} & there
        go_on.set()
        assert b"[DONE]" in await exchange.reader.read()
        await exchange.leave()
        await proxy.until_idle()
