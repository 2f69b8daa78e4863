"""Observe holds and refuses nothing, off only relays, and the queue's bounds and deadlines answer as they should in enforce."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from proxy.core.outcome import Outcome
from proxy.sim.step_time import StepTimeModel
from tests.integration.mock_harness import RunningMock, running, settings
from tests.integration.serving.harness import MESSAGES, Exchange, RunningProxy, proxying, until, url_of

LONG: dict[str, Any] = {"max_tokens": 1800, "ignore_eos": True, "stream": True}


@asynccontextmanager
async def small(policy: dict[str, Any], *, replicas: int = 1) -> AsyncIterator[tuple[list[RunningMock], RunningProxy]]:
    """Yield mocks of 128 blocks at a GPU's speed, and kvgate before them."""
    chosen = settings(engine={"num_gpu_blocks": 129, "max_model_len": 2048}, step_time=StepTimeModel())
    async with running(chosen) as one, running(chosen) as two:
        mocks = [one, two][:replicas]
        async with proxying(*map(url_of, mocks), policy=policy) as proxy:
            yield mocks, proxy


async def fill(proxy: RunningProxy, waiting: int = 1) -> list[Exchange]:
    """Send long requests until so many have to wait."""
    gate = proxy.services.dispatcher.gate
    exchanges: list[Exchange] = []
    while len(gate.queue) < waiting:
        assert len(exchanges) < 60
        exchanges.append(await proxy.wire.start_chat(**LONG))
        arrived = len(exchanges)
        await until(lambda: gate.open_requests + len(gate.queue) == arrived, "the request's arrival")  # noqa: B023
    return exchanges


async def leave_all(exchanges: list[Exchange]) -> None:
    for exchange in exchanges:
        await exchange.leave()


@pytest.mark.parametrize("mode", ["observe", "off"])
async def test_nothing_is_held_and_load_is_spread(mode: str) -> None:
    """Four times what fits, and more than the static cap: everything is at the replicas at once, evenly."""
    limits = {"static_cap_per_replica": 4}
    async with small({"mode": mode, "limits": limits}, replicas=2) as (mocks, proxy):
        exchanges = [await proxy.wire.start_chat(**LONG) for _ in range(20)]
        engines = [mock.server.pool.engines[0] for mock in mocks]
        await until(lambda: [engine.unfinished for engine in engines] == [10, 10], "ten requests at each replica")
        counters = proxy.services.dispatcher.gate.counters
        assert (counters.held, counters.shed) == (0, 0)
        assert (proxy.metric("kvgate_would_hold_total") > 0) == (mode == "observe")
        await leave_all(exchanges)
        await proxy.until_idle(*mocks)


@pytest.mark.parametrize("mode", ["observe", "off"])
async def test_nothing_is_refused_that_the_engine_could_answer(mode: str) -> None:
    async with small({"mode": mode, "queue": {"requests_max": 0}}) as (mocks, proxy):
        for fields in ({"prompt": "a " * 5000}, {"prompt": "a " * 100_000}, {"prompt": "x", "model": "other"}):
            direct = await type(proxy.wire)(mocks[0].port).complete(**fields)
            through = await proxy.wire.complete(**fields)
            assert (through.status, through.body) == (direct.status, direct.body)
        assert (await proxy.wire.complete(prompt="x", max_tokens=1)).status == 200
        assert proxy.metric(f'kvgate_mode{{mode="{mode}"}}') == 1.0
        await proxy.until_idle(*mocks)


async def test_observe_counts_what_it_would_have_refused() -> None:
    async with running(settings()) as mock:
        policy = {"mode": "observe", "replicas": [{"url": url_of(mock), "kv_blocks": 21}]}
        async with proxying(policy=policy) as proxy:
            assert (await proxy.wire.complete(prompt=[7] * 400, max_tokens=1)).status == 200
            await proxy.until_idle(mock)
            assert proxy.metric("kvgate_would_shed_total") == 1.0


def check_retry(headers: dict[str, str]) -> None:
    """Retry advice that every SDK obeys."""
    seconds, milliseconds = int(headers["retry-after"]), int(headers["retry-after-ms"])
    assert 1 <= seconds <= 59
    assert seconds == math.ceil(milliseconds / 1000)
    assert headers["x-should-retry"] in {"true", "false"}


async def test_a_full_queue() -> None:
    async with small({"queue": {"requests_max": 2}}) as (mocks, proxy):
        exchanges = await fill(proxy, waiting=2)
        reply = await proxy.wire.chat(**LONG)
        assert (reply.status, reply.headers["x-kvgate-outcome"]) == (429, "queue_full")
        check_retry(reply.headers)
        error = reply.json()["error"]
        assert error["type"] == "rate_limit_error"
        assert (error["code"], error["gate"], error["policy_key"]) == ("queue_full", "queue.requests_max", "queue.requests_max")
        assert (error["measured"], error["limit"], error["queue_position"]) == (3, 2, 3)
        assert proxy.metric('kvgate_refusals_total{gate="queue.requests_max",traffic_class="default"}') == 1.0
        await leave_all(exchanges)
        await proxy.until_idle(*mocks)
        assert (await proxy.wire.chat(max_tokens=2)).status == 200


async def test_brief_errors_hide_the_numbers() -> None:
    async with small({"queue": {"requests_max": 0}, "error_detail": "brief"}) as (mocks, proxy):
        exchanges: list[Exchange] = []
        while not proxy.records:
            exchanges.append(await proxy.wire.start_chat(**LONG))
            await until(lambda: proxy.records or proxy.services.dispatcher.gate.open_requests == len(exchanges))
        error = (await exchanges.pop().reply()).json()["error"]
        assert set(error) == {"message", "type", "param", "code", "retry_after_s"}
        assert "queue" not in error["message"]
        await leave_all(exchanges)
        await proxy.until_idle(*mocks)


@pytest.mark.parametrize(
    "headers", [{"x-kvgate-deadline-ms": "150"}, {"x-stainless-read-timeout": "0.15"}, {"x-envoy-expected-rq-timeout-ms": "150"}]
)
async def test_a_deadline_of_the_client(headers: dict[str, str]) -> None:
    async with small({}) as (mocks, proxy):
        exchanges = await fill(proxy)
        reply = await proxy.wire.chat(headers, **LONG)
        assert (reply.status, reply.headers["x-kvgate-outcome"]) == (429, "queue_timeout")
        check_retry(reply.headers)
        assert reply.json()["error"]["policy_key"] == "queue.wait_max"
        assert len(proxy.services.dispatcher.gate.queue) == 1
        await leave_all(exchanges)
        await proxy.until_idle(*mocks)


@pytest.mark.parametrize("value", ["", "soon", "-5", "nan", "inf", "1e999"])
async def test_a_deadline_that_is_none_is_ignored(value: str) -> None:
    async with small({}) as (mocks, proxy):
        assert (await proxy.wire.chat({"x-kvgate-deadline-ms": value}, max_tokens=1)).status == 200
        exchanges = await fill(proxy)
        late = await proxy.wire.start_chat({"x-kvgate-deadline-ms": value}, **LONG)
        await until(lambda: len(proxy.services.dispatcher.gate.queue) == 2, "a second one that waits")
        assert proxy.services.dispatcher.gate.queue.deadline_s_next() < math.inf
        await leave_all([*exchanges, late])
        await proxy.until_idle(*mocks)


CLASSES = [
    {"name": "urgent", "match": {"headers": {"x-class": "urgent"}}, "priority": 10},
    {"name": "bulk", "match": {"headers": {"x-class": "bulk"}}, "priority": -10, "deadline": "200ms"},
]


async def test_priorities_displace_and_go_first() -> None:
    async with small({"classes": CLASSES, "queue": {"requests_max": 2}}) as (mocks, proxy):
        gate = proxy.services.dispatcher.gate
        exchanges = await fill(proxy, waiting=2)
        urgent = await proxy.wire.start_chat({"x-class": "urgent"}, **LONG)
        displaced = exchanges.pop()
        reply = await displaced.reply()
        assert (reply.status, reply.headers["x-kvgate-outcome"]) == (429, "displaced")
        check_retry(reply.headers)
        refused = await proxy.wire.chat({"x-class": "bulk"}, **LONG)
        assert refused.headers["x-kvgate-outcome"] == "queue_full"
        order = [entry.demand.traffic_class for entry in gate.queue.order()]
        assert order == ["urgent", "default"]
        assert proxy.metric('kvgate_requests_total{outcome="displaced",traffic_class="default"}') == 1.0
        await exchanges.pop(0).leave()
        await until(lambda: [entry.demand.traffic_class for entry in gate.queue.order()] == ["default"], "the urgent one's turn")
        await leave_all([*exchanges, urgent])
        await proxy.until_idle(*mocks)


async def test_the_deadline_of_a_class() -> None:
    async with small({"classes": CLASSES}) as (mocks, proxy):
        exchanges = await fill(proxy)
        reply = await proxy.wire.chat({"x-class": "bulk"}, **LONG)
        assert reply.headers["x-kvgate-outcome"] == "queue_timeout"
        await leave_all(exchanges)
        await proxy.until_idle(*mocks)


async def test_what_can_never_fit() -> None:
    """The context allows it, the pool that the policy grants does not."""
    async with running(settings()) as mock, proxying(policy={"replicas": [{"url": url_of(mock), "kv_blocks": 21}]}) as proxy:
        reply = await proxy.wire.complete(prompt=[7] * 400, max_tokens=1)
        assert (reply.status, reply.headers["x-kvgate-outcome"]) == (400, "never_fits")
        assert reply.headers["x-should-retry"] == "false"
        assert "retry-after" not in reply.headers
        error = reply.json()["error"]
        assert (error["gate"], error["measured"], error["limit"], error["unit"]) == ("kv", 26, 20, "blocks")
        assert (
            await proxy.wire.complete(prompt=[7] * 319, max_tokens=1)
        ).status == 200  # 320 tokens are 20 blocks: an empty pool
        assert (await proxy.wire.complete(prompt=[7] * 320, max_tokens=1)).status == 400
        await proxy.until_idle(mock)


async def test_a_prompt_beyond_the_context_is_refused_by_its_size() -> None:
    async with running(settings()) as mock, proxying(url_of(mock)) as proxy:
        for size in (1_000_000, 5_000_000):
            reply = await proxy.wire.chat(messages=[{"role": "user", "content": "x" * size}])
            assert reply.status == 400
            error = reply.json()["error"]
            assert error["code"] == "context_length_exceeded"
            assert "maximum context length is 4096 tokens" in error["message"]
            assert "at least" in error["message"]  # a bound, for it was not tokenized
        counted = await proxy.wire.complete(prompt="word " * 4500)  # short enough to be counted
        assert counted.status == 400
        assert "your prompt contains 4501 input tokens" in counted.json()["error"]["message"]
        await proxy.until_idle(mock)
        assert [record.outcome for record in proxy.records] == [Outcome.NEVER_FITS] * 3
        assert not proxy.services.counter.stats().counted_by_source.get("exact", 0)


async def test_a_body_over_the_limit() -> None:
    async with running(settings()) as mock, proxying(url_of(mock), policy={"limits": {"body_max": "1KiB"}}) as proxy:
        body = json.dumps({"messages": MESSAGES, "max_tokens": 1}).encode()
        assert (await proxy.wire.request("POST", "/v1/chat/completions", body.ljust(1024))).status == 200
        for path in ("/v1/chat/completions", "/tokenize"):
            reply = await proxy.wire.request("POST", path, body.ljust(1025))
            assert (reply.status, reply.headers["x-kvgate-outcome"]) == (400, "never_fits")
            assert reply.json()["error"]["policy_key"] == "limits.body_max"
        assert (await proxy.wire.chat(max_tokens=1)).status == 200
        await proxy.until_idle(mock)


async def test_many_small_requests_at_once_are_all_served() -> None:
    async with running(settings()) as mock, proxying(url_of(mock)) as proxy:
        replies = await asyncio.gather(*(proxy.wire.chat(max_tokens=3, stream=index % 2 == 0) for index in range(60)))
        assert {reply.status for reply in replies} == {200}
        await proxy.until_idle(mock)
        assert proxy.metric('kvgate_requests_total{outcome="completed",traffic_class="default"}') == 60.0
