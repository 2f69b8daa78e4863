"""The relay between a real client, a real uvicorn and real upstream sockets, in every phase and way a request can end."""

import asyncio
import json

import pytest

from proxy.serving.relay_result import RelayEnd, RelayHooks
from proxy.wire.answer_usage import Usage
from tests.integration.upstream.relaying import (
    DONE,
    JSON_HEAD,
    SSE_HEAD,
    USAGE,
    chunked,
    once,
    relaying,
    then_close,
    token,
    until,
)
from tests.support.upstream_servers import Peer, dechunk

pytestmark = pytest.mark.usefixtures("either_way")


async def test_a_json_answer_is_copied_and_read() -> None:
    body = json.dumps(
        {"choices": [{"index": 0, "finish_reason": "stop"}], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}
    ).encode()
    answer = b"HTTP/1.1 201 Created\r\n" + (JSON_HEAD % len(body)).partition(b"\r\n")[2] + body
    async with relaying(once(answer)) as setup:
        head, wire, _ = await setup.exchange()
        assert head.startswith(b"HTTP/1.1 201")
        assert wire == body
    async with relaying(once(JSON_HEAD % len(body) + body)) as setup:
        head, wire, result = await setup.exchange()
        assert b"content-type: application/json\r\ncontent-length: %d" % len(body) in head
        assert wire == body
        assert result.ended is RelayEnd.COMPLETED
        assert result.usage == Usage(7, 2, None, ("stop",))
        assert (result.status, result.bytes_sent, result.tokens_seen, result.finish_reasons) == (200, len(body), 2, ("stop",))
        assert not result.is_stream


async def test_the_request_arrives_as_it_was_sent() -> None:
    got: list[tuple[bytes, bytes]] = []

    async def script(peer: Peer) -> None:
        got.append(await peer.request())
        await peer.send(JSON_HEAD % 2 + b"{}")
        await peer.until_gone()

    body = b'{ "odd" :\t1 }\xff' * 100_000
    async with relaying(script) as setup:
        await setup.exchange(body)
    assert got == [
        (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1:%d\r\ncontent-length: %d\r\n\r\n"
            % (setup.server.port, len(body)),
            body,
        )
    ]


async def test_a_stream_is_copied_and_read() -> None:
    events = [token("a"), b": keep-alive\n\n", token("b"), token("", "stop"), USAGE, DONE]
    async with relaying(once(SSE_HEAD, chunked(*events)), extra_headers=[(b"x-kvgate-outcome", b"completed")]) as setup:
        head, wire, result = await setup.exchange()
        assert b"content-type: text/event-stream; charset=utf-8" in head
        assert b"x-kvgate-outcome: completed" in head
        assert dechunk(wire) == (b"".join(events), True)
        assert result.ended is RelayEnd.COMPLETED
        assert result.usage == Usage(7, 2, None, ("stop",))
        assert (result.is_stream, result.stream_done, result.stream_failed) == (True, True, False)
        assert result.first_byte_s is not None
        assert result.last_byte_s is not None
        assert result.first_byte_s <= result.last_byte_s
        assert result.bytes_sent == len(b"".join(events))


async def test_usage_that_only_we_asked_for_is_taken_out() -> None:
    events = [token("a"), token("", "stop"), USAGE, DONE]
    async with relaying(once(SSE_HEAD, chunked(*events)), strip_usage=True) as setup:
        _, wire, result = await setup.exchange()
        assert dechunk(wire) == (b"".join(events).replace(USAGE, b""), True)
        assert result.usage == Usage(7, 2, None, ("stop",))


@pytest.mark.parametrize(
    ("head", "body"),
    [
        (
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip\r\n\r\n",
            USAGE,
        ),  # compressed: unseen, unchanged
        (b"HTTP/1.1 200 OK\r\n\r\n", bytes(range(256)) * 4000),
        (b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\n\r\n", b'{"error":"scaling"}'),
    ],
)
async def test_other_bodies_are_copied(head: bytes, body: bytes) -> None:
    async with relaying(then_close(head, body), strip_usage=True) as setup:
        got, wire, result = await setup.exchange()
        assert got.split()[1] == head.split()[1]
        assert dechunk(wire) == (body, True)
        assert (result.ended, result.usage, result.bytes_sent) == (RelayEnd.COMPLETED, None, len(body))


@pytest.mark.parametrize("status", [b"204 No Content", b"304 Not Modified\r\ncontent-length: 9"])
async def test_answers_without_a_body(status: bytes) -> None:
    async with relaying(once(b"HTTP/1.1 " + status + b"\r\n\r\n")) as setup:
        head, wire, result = await setup.exchange()
        assert head.startswith(b"HTTP/1.1 " + status[:3])
        assert (wire, result.ended) == (b"", RelayEnd.COMPLETED)


async def test_hooks_are_called_in_order() -> None:
    calls: list[object] = []
    hooks = RelayHooks(on_head=calls.append, on_first_byte=lambda: calls.append("byte"), on_progress=calls.append)
    read = asyncio.Event()

    async def script(peer: Peer) -> None:
        await peer.request()
        await peer.send(SSE_HEAD + chunked(b": hello\n\n", end=False))
        await until(lambda: "byte" in calls)
        await peer.send(chunked(token("a"), token("b"), end=False))
        await until(lambda: 2 in calls)
        await peer.send(chunked(USAGE, DONE))
        await read.wait()

    async with relaying(script, hooks=hooks) as setup:
        _, _, result = await setup.exchange()
        read.set()
    assert calls == [200, "byte", 2, 2]
    assert result.first_token_s is not None
    assert result.first_byte_s is not None
    assert result.first_token_s > result.first_byte_s


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 2", b"garbage\r\n\r\n"])
async def test_a_failure_before_the_head_leaves_the_client_to_the_caller(answer: bytes) -> None:
    async with relaying(then_close(answer)) as setup:
        head, _, result = await setup.exchange()
        assert head.startswith(b"HTTP/1.1 502")
        assert (result.ended, result.started, result.status) == (RelayEnd.FAILED_BEFORE_HEAD, False, None)
        assert result.error is not None


async def test_a_refused_status_leaves_the_client_to_the_caller() -> None:
    answer = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\nfull"
    async with relaying(once(answer), refuse_statuses=frozenset({503})) as setup:
        head, _, result = await setup.exchange()
        assert head.startswith(b"HTTP/1.1 502")
        assert (result.ended, result.started, result.status) == (RelayEnd.REFUSED, False, 503)
