"""Streams that wait in the queue are kept alive by comments, and nothing else changes for whoever reads them."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import pytest

from proxy.sim.step_time import StepTimeModel
from tests.integration.mock_harness import RunningMock, running, settings
from tests.integration.serving.harness import Exchange, RunningProxy, proxying, until, url_of

LONG: dict[str, Any] = {"max_tokens": 1800, "ignore_eos": True, "stream": True}
PATIENT = {"relay": {"keepalive_after": "100ms"}, "queue": {"wait_max": "1h"}}  # so that a place can be promised to all
COMMENT = re.compile(rb": kvgate queued position=(\d+) estimate_s=[\d.]+\n\n")


@asynccontextmanager
async def full(**policy: Any) -> AsyncIterator[tuple[RunningMock, RunningProxy, list[Exchange]]]:
    """A replica with no room, and long requests in the queue already, so that whoever comes waits as well."""
    chosen = settings(engine={"num_gpu_blocks": 129, "max_model_len": 2048}, step_time=StepTimeModel())
    async with running(chosen) as mock, proxying(url_of(mock), policy=PATIENT | policy) as proxy:
        gate = proxy.services.dispatcher.gate
        filling: list[Exchange] = []
        while len(gate.queue) < 3:
            filling.append(await proxy.wire.start_chat(**LONG))
            arrived = len(filling)
            await until(lambda: gate.open_requests + len(gate.queue) == arrived, "the request's arrival")  # noqa: B023
        yield mock, proxy, filling
        for exchange in filling:
            await exchange.leave()
        await proxy.until_idle(mock)


async def read_comment(exchange: Exchange) -> bytes:
    async with asyncio.timeout(20):
        return await exchange.reader.readuntil(b": kvgate queued") + await exchange.reader.readuntil(b"\n\n")


async def test_comments_come_before_the_answer() -> None:
    async with full() as (_, proxy, filling):
        waits = await proxy.wire.start_chat(**LONG)
        head = await read_comment(waits)
        assert head.startswith(b"HTTP/1.1 200 OK")
        assert b"content-type: text/event-stream" in head
        for exchange in filling:
            await exchange.leave()
        async with asyncio.timeout(20):
            between = await waits.reader.readuntil(b'data: {"id"')
            await waits.reader.readuntil(b'"finish_reason":null')
        assert b"HTTP/" not in between
        await waits.leave()


async def test_a_refusal_after_the_head_is_an_event() -> None:
    async with full(queue={"wait_max": "1s"}) as (_, proxy, _filling):
        proxy.services.dispatcher.gate.shedding.promises = lambda *_: True  # type: ignore[method-assign]
        waits = await proxy.wire.start_chat(**LONG)
        reply = await waits.reply()
        assert reply.status == 200
        assert reply.whole
        *comments, error, done, _end = COMMENT.sub(b"", reply.body).decode().split("\n\n")
        assert comments == []
        assert COMMENT.search(reply.body)
        assert json.loads(error.removeprefix("data: "))["error"]["code"] == "queue_timeout"
        assert done == "data: [DONE]"


@pytest.mark.parametrize("fields", [LONG | {"stream": False}, LONG])
async def test_without_the_key_nobody_hears_of_the_queue(fields: dict[str, Any]) -> None:
    relay = {} if fields["stream"] else {"keepalive_after": "100ms"}
    async with full(relay=relay, queue={"wait_max": "1s"}) as (_, proxy, _filling):
        reply = await proxy.wire.chat(**fields)
        assert reply.status == 429


async def test_the_openai_sdk_reads_over_comments() -> None:
    messages: Any = [{"role": "user", "content": "Tell me about the river."}]
    headers = {"x-kvgate-tenant": "default"}  # else it would go before those who fill the queue
    transport = openai.DefaultAsyncHttpxClient()  # takes a while to make: the queue must not have moved on by then
    async with transport, full() as (_, proxy, filling):
        client = openai.AsyncOpenAI(
            base_url=proxy.base_url, api_key="none", max_retries=0, default_headers=headers, http_client=transport
        )
        stream = await client.chat.completions.create(model="mock", messages=messages, max_tokens=1800, stream=True)
        assert "x-kvgate-replica" not in stream.response.headers  # it came with a comment, before any replica was chosen
        for exchange in filling:
            await exchange.leave()
        words = 0
        async for chunk in stream:
            words += bool(chunk.choices[0].delta.content)
            if words == 3:
                break
        assert words == 3
        await stream.close()
