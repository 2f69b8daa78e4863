"""Every place ends exactly once and nothing of a request stays behind, whatever happens to client or replica, and when."""

import asyncio
import json
import random
from contextlib import AsyncExitStack
from typing import Any

import pytest

from proxy.core.outcome import Outcome
from proxy.ports import PromptCount
from proxy.sim.step_time import StepTimeModel
from tests.integration.mock_harness import running, settings
from tests.integration.serving.harness import MESSAGES, Exchange, RunningProxy, proxying, until, url_of
from tests.support.upstream_servers import Peer, ScriptedUpstream

LONG: dict[str, Any] = {"max_tokens": 3000, "ignore_eos": True}
GPU_LIKE = StepTimeModel()  # 10 ms a step: a long request is still running whenever a test looks


def small(**changes: Any) -> Any:
    """Return a mock that holds one long request at a time: 3,000 tokens of at most 4,096."""
    return settings(engine={"num_gpu_blocks": 257}, step_time=GPU_LIKE, **changes)


async def fill(proxy: RunningProxy) -> list[Exchange]:
    """Send long requests until one has to wait."""
    exchanges: list[Exchange] = []
    while not len(proxy.services.dispatcher.gate.queue):
        assert len(exchanges) < 40
        exchanges.append(await proxy.wire.start_chat(stream=True, **LONG))
        arrived = len(exchanges)
        gate = proxy.services.dispatcher.gate
        await until(lambda: gate.open_requests + len(gate.queue) == arrived, "the request's arrival")  # noqa: B023
    return exchanges


async def test_client_leaves_while_it_waits() -> None:
    async with running(small()) as mock, proxying(url_of(mock)) as proxy:
        holders = await fill(proxy)
        waiting = [await proxy.wire.start_chat(stream=stream, **LONG) for stream in (True, False)]
        await until(lambda: len(proxy.services.dispatcher.gate.queue) == 3, "three waiting")
        assert proxy.services.body_bytes_held > 0
        for exchange in (*waiting, holders.pop()):
            await exchange.leave()
        await until(lambda: not len(proxy.services.dispatcher.gate.queue), "an empty queue")
        assert proxy.services.dispatcher.gate.open_requests == len(holders)
        for exchange in holders:
            await exchange.leave()
        await proxy.until_idle(mock)
        assert {record.outcome for record in proxy.records} == {Outcome.CANCELLED}
        assert len(proxy.records) == len(holders) + 3
        assert (await proxy.wire.chat(max_tokens=2)).status == 200
        await proxy.until_idle(mock)


async def test_client_leaves_while_its_prompt_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(settings()) as mock, proxying(url_of(mock)) as proxy:
        counting, go_on = asyncio.Event(), asyncio.Event()
        count = proxy.services.counter.count

        async def slow(*args: Any, **kwargs: Any) -> PromptCount:
            counting.set()
            await go_on.wait()
            return await count(*args, **kwargs)

        monkeypatch.setattr(proxy.services.counter, "count", slow)
        exchange = await proxy.wire.start_chat(stream=True, **LONG)
        await counting.wait()
        await exchange.leave()
        go_on.set()
        await proxy.until_idle(mock)
        assert [record.outcome for record in proxy.records] == [Outcome.CANCELLED]


async def test_client_leaves_while_it_sends_its_body() -> None:
    async with running(settings()) as mock, proxying(url_of(mock)) as proxy:
        exchange = await proxy.wire.open("POST", "/v1/chat/completions", b'{"mess', length=4000)
        await until(lambda: proxy.services.drain.under_way, "a request under way")
        await exchange.leave()
        await proxy.until_idle(mock)
        assert proxy.records == []


@pytest.mark.parametrize("stream", [True, False])
async def test_client_leaves_before_the_head(stream: bool) -> None:
    gone = asyncio.Event()

    async def silent(peer: Peer) -> None:
        head, _ = await peer.request()
        if b"POST" not in head:
            await answer_like_vllm(peer, head)
            return
        await peer.until_gone()
        gone.set()

    async with ScriptedUpstream.running(silent) as upstream, proxying(upstream.url, kv_blocks=300) as proxy:
        exchange = await proxy.wire.start_chat(stream=stream)
        await until(lambda: proxy.services.dispatcher.gate.open_requests, "a request at the replica")
        await exchange.leave()
        await asyncio.wait_for(gone.wait(), 10)
        await proxy.until_idle()
        assert [record.outcome for record in proxy.records] == [Outcome.CANCELLED]


@pytest.mark.parametrize("stream", [True, False])
async def test_client_leaves_in_the_middle(stream: bool) -> None:
    async with running(small()) as mock, proxying(url_of(mock)) as proxy:
        exchange = await proxy.wire.start_chat(stream=stream, **LONG)
        await until(lambda: mock.server.pool.engines[0].published.gauges.running, "a running request")
        if stream:
            await exchange.reader.readuntil(b"data: ")
        await exchange.leave()
        await proxy.until_idle(mock)
        assert [record.outcome for record in proxy.records] == [Outcome.CANCELLED]


async def test_clients_leave_at_random_moments_and_at_the_very_end() -> None:
    """Twelve at a time on a pool for about four, so that some leave the queue, some the engine, and some when all is said."""
    rng = random.Random(7)
    chosen = settings(engine={"num_gpu_blocks": 257}, step_time=StepTimeModel(speed=20))
    async with running(chosen) as mock, proxying(url_of(mock)) as proxy:

        async def one(stream: bool, bytes_read: int) -> None:
            fields = {"max_tokens": rng.randrange(1, 900), "ignore_eos": True, "stream": stream}
            exchange = await proxy.wire.start_chat(**fields)
            if bytes_read:
                async with asyncio.timeout(30):
                    await exchange.reader.read(bytes_read)
            await exchange.leave()

        for _ in range(5):
            await asyncio.gather(*(one(rng.random() < 0.7, rng.choice((0, 1, 400, 100_000))) for _ in range(12)))
        await proxy.until_idle(mock)
        assert len(proxy.records) <= 60  # some left before their body was read
        assert {record.outcome for record in proxy.records} <= {Outcome.CANCELLED, Outcome.COMPLETED}


async def answer_like_vllm(peer: Peer, head: bytes) -> None:
    """Answer a probe as a server does that tells its models and nothing else."""
    body, kind, status = b"", b"application/json", b"404 Not Found"
    if b"GET /health " in head:
        status = b"200 OK"
    elif b"GET /v1/models " in head:
        status, body = b"200 OK", json.dumps({"object": "list", "data": [{"id": "mock", "max_model_len": 4096}]}).encode()
    await peer.send(
        b"HTTP/1.1 %b\r\ncontent-type: %b\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (status, kind, len(body), body)
    )


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
    "after the head": (SSE_HEAD, True, Outcome.CUT_OFF, 200),
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


def test_the_messages_are_short() -> None:
    """The sizes above count on a prompt of a few blocks."""
    assert len(json.dumps(MESSAGES)) < 100
