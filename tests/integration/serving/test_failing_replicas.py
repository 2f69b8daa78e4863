"""Replicas that die in every phase or refuse for themselves: another takes the request where one can, and every place ends once."""

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest

from proxy.core.outcome import Outcome
from tests.integration.mock_harness import running, settings
from tests.integration.serving.harness import answer_like_vllm, proxying, url_of
from tests.support.upstream_servers import Peer, ScriptedUpstream


async def answering(peer: Peer) -> None:
    """Answer every call with a small body."""
    head, _ = await peer.request()
    if b"POST" not in head:
        await answer_like_vllm(peer, head)
        return
    await peer.send(b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 14\r\n\r\n{"choices":[]}')


SSE_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
EVENT = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
DEATHS: dict[str, tuple[bytes, bool, Outcome, int | None]] = {
    # what the replica says before it dies, whether the request streams, how it ends, what the client is told
    "at once": (b"", True, Outcome.UPSTREAM_FAILED, 502),
    "in the head": (b"HTTP/1.1 200 OK\r\ncontent-", True, Outcome.UPSTREAM_FAILED, 502),
    "after the head": (SSE_HEAD, True, Outcome.UPSTREAM_FAILED, 502),  # a stream's head comes before its prefill
    "mid-stream": (SSE_HEAD + b"%x\r\n%b\r\n" % (len(EVENT), EVENT), True, Outcome.CUT_OFF, 200),
    "in an event": (SSE_HEAD + b"a\r\n" + EVENT[:10] + b"\r\n", True, Outcome.CUT_OFF, 200),
    "in a body": (
        b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 99\r\n\r\n{",
        False,
        Outcome.CUT_OFF,
        200,
    ),
    "with garbage": (b"\x16\x03\x01 this is no HTTP\r\n\r\n", False, Outcome.UPSTREAM_FAILED, 502),
}


@pytest.mark.parametrize("when", DEATHS)
async def test_the_replica_dies(when: str) -> None:
    said, stream, outcome, status = DEATHS[when]

    async def dying(peer: Peer) -> None:
        head, _ = await peer.request()
        if b"POST" not in head:
            await answer_like_vllm(peer, head)
            return
        await peer.send(said)
        peer.reset()

    async with ScriptedUpstream.running(dying) as upstream, proxying(upstream.url, kv_blocks=300) as proxy:
        exchange = await proxy.wire.start_chat(stream=stream)
        raw = await exchange.reader.read()
        await exchange.leave()
        await proxy.until_idle()
        assert [(record.outcome, record.status) for record in proxy.records] == [(outcome, 200 if status == 200 else status)]
        assert raw.startswith(b"HTTP/1.1 %d " % status)
        if status == 502:
            assert b"x-kvgate-outcome: upstream_failed" in raw
        elif stream:
            assert b'"code":"cut_off"' in raw
            assert raw.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        else:
            assert raw.endswith(b"\r\n\r\n{")  # less than was announced: no client takes it for the whole


@pytest.mark.parametrize("status", [429, 503])
async def test_a_replica_that_refuses_is_passed_by(status: int) -> None:
    refused = 0

    async def full(peer: Peer) -> None:
        nonlocal refused
        head, _ = await peer.request()
        if b"POST" not in head:
            await answer_like_vllm(peer, head)
            return
        refused += 1
        await peer.send(b"HTTP/1.1 %d Full\r\ncontent-length: 4\r\nretry-after: 7\r\n\r\nfull" % status)

    async with ScriptedUpstream.running(full) as upstream:
        async with proxying(upstream.url, kv_blocks=300) as proxy:
            reply = await proxy.wire.chat(max_tokens=2)
            assert (reply.status, reply.body, reply.headers["retry-after"]) == (status, b"full", "7")
            await proxy.until_idle()
            assert [record.outcome for record in proxy.records] == [Outcome.COMPLETED]
        # the larger pool attracts every request, so each meets the refusal first
        refused = 0
        async with ScriptedUpstream.running(answering) as other:
            replicas = [{"url": upstream.url, "kv_blocks": 5000}, {"url": other.url, "kv_blocks": 300}]
            async with proxying(policy={"replicas": replicas}) as proxy:
                replies = [await proxy.wire.chat(max_tokens=2) for _ in range(6)]
                assert [(reply.status, reply.body) for reply in replies] == [(200, b'{"choices":[]}')] * 6
                await proxy.until_idle()
            assert refused == 6
            assert [record.reroutes for record in proxy.records] == [1] * 6
            assert proxy.metric("kvgate_reroutes_total") == 6
            assert all(watcher.phase == "serving" for watcher in proxy.services.watchers.values())  # backpressure is no fault


async def test_reroutes_are_bounded() -> None:
    tried: list[int] = []

    def dead(number: int) -> Any:
        async def script(peer: Peer) -> None:
            head, _ = await peer.request()
            if b"POST" not in head:
                await answer_like_vllm(peer, head)
                return
            tried.append(number)
            peer.reset()

        return script

    async with AsyncExitStack() as stack:
        urls = [(await stack.enter_async_context(ScriptedUpstream.running(dead(number)))).url for number in range(3)]
        policy = {"relay": {"reroutes_max": 1}}
        proxy = await stack.enter_async_context(proxying(*urls, kv_blocks=300, policy=policy))
        reply = await proxy.wire.chat(max_tokens=2)
        assert (reply.status, reply.headers["x-kvgate-outcome"]) == (502, "upstream_failed")
        assert reply.json()["error"]["policy_key"] == "relay.reroutes_max"
        await proxy.until_idle()
        assert len(tried) == len(set(tried)) == 2
        assert [record.outcome for record in proxy.records] == [Outcome.UPSTREAM_FAILED]


async def test_a_replica_that_is_gone_is_left_for_another() -> None:
    async with running(settings()) as stays, AsyncExitStack() as stack:
        goes = await stack.enter_async_context(running(settings(engine={"num_gpu_blocks": 5000})))
        async with proxying(url_of(stays), url_of(goes)) as proxy:
            await proxy.wire.chat(max_tokens=2)
            assert proxy.records[0].replica == url_of(goes).removeprefix("http://")
            await stack.aclose()
            replies = await asyncio.gather(*(proxy.wire.chat(max_tokens=2) for _ in range(8)))
            assert [reply.status for reply in replies] == [200] * 8
            await proxy.until_idle(stays)
            assert {record.outcome for record in proxy.records} == {Outcome.COMPLETED}
            await proxy.until_serving(1)


async def test_an_error_event_of_the_engine_is_no_success() -> None:
    async def failing(peer: Peer) -> None:
        head, _ = await peer.request()
        if b"POST" not in head:
            await answer_like_vllm(peer, head)
            return
        body = EVENT + b'data: {"error":{"message":"engine died","type":"InternalServerError","code":500}}\n\ndata: [DONE]\n\n'
        await peer.send(SSE_HEAD + b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))

    async with ScriptedUpstream.running(failing) as upstream, proxying(upstream.url, kv_blocks=300) as proxy:
        reply = await proxy.wire.chat(stream=True)
        assert b"engine died" in reply.body
        await proxy.until_idle()
        assert [record.outcome for record in proxy.records] == [Outcome.UPSTREAM_FAILED]


@pytest.mark.parametrize("status", [429, 503])
async def test_when_all_refuse_the_last_refusal_is_the_answer(status: int) -> None:
    async def full(peer: Peer) -> None:
        head, _ = await peer.request()
        if b"POST" not in head:
            await answer_like_vllm(peer, head)
            return
        await peer.send(b"HTTP/1.1 %d Full\r\ncontent-length: 4\r\nretry-after: 7\r\n\r\nfull" % status)

    async with ScriptedUpstream.running(full) as one, ScriptedUpstream.running(full) as two:
        async with proxying(one.url, two.url, kv_blocks=300) as proxy:
            reply = await proxy.wire.chat(max_tokens=2)
            assert (reply.status, reply.body, reply.headers["retry-after"]) == (status, b"full", "7")
            assert proxy.records[0].reroutes == 1
            await proxy.until_idle()
        # the other one could never hold it, so there is nobody to send it to
        replicas = [{"url": one.url, "kv_blocks": 5000}, {"url": two.url, "kv_blocks": 21}]
        async with proxying(policy={"replicas": replicas}) as proxy:
            reply = await proxy.wire.complete(prompt=[7] * 400, max_tokens=2)
            assert (reply.status, reply.body) == (status, b"full")
            assert proxy.records[0].reroutes == 0
            await proxy.until_idle()
