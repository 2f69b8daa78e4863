"""What a stream that flows has let go of: it may last for minutes, and there may be thousands."""

import asyncio
import json
from collections.abc import Awaitable, Callable

from proxy.core.outcome import Outcome
from tests.integration.serving.harness import Exchange, RunningProxy, answer_like_vllm, proxying, until
from tests.support.upstream_servers import Peer, ScriptedUpstream, dechunk

EVENT = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
END = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\ndata: [DONE]\n\n'


async def test_a_flowing_stream_holds_neither_the_request_nor_what_was_read_of_it() -> None:
    asked, go_on = list[bytes](), asyncio.Event()
    async with ScriptedUpstream.running(stream_until(go_on, end, asked)) as upstream, proxying(upstream.url) as proxy:
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


def stream_until(
    go_on: asyncio.Event, last: Callable[[Peer], Awaitable[None]], asked: list[bytes] | None = None
) -> Callable[[Peer], Awaitable[None]]:  # fmt: skip
    """An engine that streams one event and, when it may ``go_on``, the ``last`` of it. ``asked`` gets the bodies of its calls."""

    async def stream(peer: Peer) -> None:
        head, body = await peer.request()
        if b"POST /v1/" not in head:
            await answer_like_vllm(peer, head)
            return
        if asked is not None:
            asked.append(body)
        await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\nconnection: close\r\n\r\n" + EVENT)
        await go_on.wait()
        await last(peer)

    return stream


async def end(peer: Peer) -> None:
    await peer.send(END)


def at_work() -> set[str]:
    """The coroutines that a request may lie in."""
    names, left = set[str](), [task.get_coro() for task in asyncio.all_tasks()]
    while left:
        coroutine = left.pop()
        names.add(getattr(coroutine, "__qualname__", ""))
        if (inner := getattr(coroutine, "cr_await", None)) is not None:
            left.append(inner)
    return names & {"Cycle.run_asgi", "Endpoints.__call__", "Flowing.run", "Relay.rest"}


async def flowing(proxy: RunningProxy) -> Exchange:
    """A stream of which the first event is through, and which no task works at."""
    exchange = await proxy.wire.start_chat(stream=True)
    await exchange.reader.readuntil(EVENT)
    assert not at_work()
    return exchange


async def test_a_stream_that_flows_has_no_task() -> None:
    go_on = asyncio.Event()
    async with ScriptedUpstream.running(stream_until(go_on, end)) as upstream, proxying(upstream.url) as proxy:
        exchange = await flowing(proxy)
        assert proxy.services.drain.under_way == 1  # a process that drains waits for it
        go_on.set()
        assert b"[DONE]" in await exchange.reader.read()
        await exchange.leave()
        await proxy.until_idle()
        assert not proxy.services.drain.under_way
    assert [record.outcome for record in proxy.records] == [Outcome.COMPLETED]


async def test_a_client_that_leaves_while_it_flows_takes_its_request_with_it() -> None:
    never = asyncio.Event()
    async with ScriptedUpstream.running(stream_until(never, end)) as upstream, proxying(upstream.url) as proxy:
        exchange = await flowing(proxy)
        await exchange.leave()
        await proxy.until_idle()
        assert not proxy.services.drain.under_way
        assert not at_work()
    assert [record.outcome for record in proxy.records] == [Outcome.CANCELLED]


async def test_a_replica_and_a_client_that_go_in_the_same_moment_end_it_once() -> None:
    go_on = asyncio.Event()

    async def vanish(peer: Peer) -> None:
        await exchange.leave()
        await peer.reset()

    async with ScriptedUpstream.running(stream_until(go_on, vanish)) as upstream, proxying(upstream.url) as proxy:
        exchange = await proxy.wire.start_chat(stream=True)
        await exchange.reader.readuntil(EVENT)
        go_on.set()
        await proxy.until_idle()
        assert not proxy.services.drain.under_way
        assert not at_work()
    assert len(proxy.records) == 1
    assert proxy.records[0].outcome in {Outcome.CANCELLED, Outcome.CUT_OFF}


async def test_a_replica_that_fails_while_it_flows_is_told_to_the_client() -> None:
    go_on = asyncio.Event()
    async with ScriptedUpstream.running(stream_until(go_on, Peer.reset)) as upstream, proxying(upstream.url) as proxy:
        exchange = await flowing(proxy)
        go_on.set()
        reply = await exchange.reader.read()
        assert b"error" in reply
        assert reply.endswith(b"0\r\n\r\n")
        await exchange.leave()
        await proxy.until_idle()
        assert not proxy.services.drain.under_way
    assert [record.outcome for record in proxy.records] == [Outcome.CUT_OFF]


async def test_who_reads_slowly_gets_a_task_and_the_whole_of_it() -> None:
    go_on, count = asyncio.Event(), 60_000  # 5 MB, more than the sockets hold

    async def much(peer: Peer) -> None:
        await peer.send(EVENT * count + END)

    async with ScriptedUpstream.running(stream_until(go_on, much)) as upstream, proxying(upstream.url) as proxy:
        exchange = await proxy.wire.start_chat(stream=True)
        await exchange.reader.readuntil(EVENT + b"\r\n")
        assert not at_work()
        exchange.writer.transport.pause_reading()
        go_on.set()
        await until(lambda: "Relay.rest" in at_work(), "a task that waits for room")
        exchange.writer.transport.resume_reading()
        body, whole = dechunk(await exchange.reader.read())
        assert whole
        assert body == EVENT * count + END
        await exchange.leave()
        await proxy.until_idle()
        assert not proxy.services.drain.under_way
    assert [record.outcome for record in proxy.records] == [Outcome.COMPLETED]


async def test_a_connection_is_kept_for_the_next_request() -> None:
    """What ends a stream that flowed goes on with what its client has sent meanwhile."""
    go_on = asyncio.Event()
    async with ScriptedUpstream.running(stream_until(go_on, end)) as upstream, proxying(upstream.url) as proxy:
        exchange = await proxy.wire.start_chat({"connection": ""}, stream=True)
        await exchange.reader.readuntil(EVENT)
        exchange.writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
        go_on.set()
        whole = await exchange.reader.read()
        assert whole.index(b"[DONE]") < whole.index(b"0\r\n\r\n") < whole.index(b"HTTP/1.1 200 OK")
        await exchange.leave()
        await proxy.until_idle()
