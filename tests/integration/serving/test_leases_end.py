"""Every place ends exactly once and nothing of a request stays behind, whatever happens to client or replica, and when."""

import asyncio
import json
import random
from typing import Any

import pytest

from proxy.core.outcome import Outcome
from proxy.ports import PromptCount
from proxy.sim.step_time import StepTimeModel
from tests.integration.mock_harness import running, settings
from tests.integration.serving.harness import MESSAGES, Exchange, RunningProxy, answer_like_vllm, proxying, until, url_of
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


def test_the_messages_are_short() -> None:
    """The sizes above count on a prompt of a few blocks."""
    assert len(json.dumps(MESSAGES)) < 100
