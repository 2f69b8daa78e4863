"""Replicas that are not there yet, lie, die, come back different, tell nothing, or are several behind one address."""

import asyncio
import json
from contextlib import AsyncExitStack
from typing import Any

import pytest

from proxy.core.replica import ReplicaPhase
from proxy.sim.mock_metrics import MetricsVersion
from proxy.sim.mock_server import MockServer
from proxy.sim.step_time import StepTimeModel
from tests.integration.mock_harness import running, settings
from tests.integration.serving.harness import Exchange, RunningProxy, phases, proxying, until, url_of
from tests.support.upstream_servers import Peer, ScriptedUpstream, gateway


async def test_a_replica_that_is_not_there_yet() -> None:
    backends: list[int] = []
    async with gateway(backends) as port, proxying(f"http://127.0.0.1:{port}", probed=False) as proxy:
        assert (await proxy.wire.request("GET", "/ready")).status == 503
        assert (await proxy.wire.request("GET", "/health")).status == 200
        reply = await proxy.wire.chat(max_tokens=2)
        assert (reply.status, reply.headers["x-kvgate-outcome"]) == (503, "no_replica")
        assert 1 <= int(reply.headers["retry-after"]) <= 59
        await until(lambda: next(iter(proxy.services.watchers.values())).fault, "a fault that is told")
        told = (await proxy.wire.request("GET", "/ready")).json()["replicas"].popitem()[1]
        assert "Check that vLLM is running there" in told["fault"]
        async with running(settings()) as mock:
            backends.append(mock.port)
            await proxy.until_serving()
            assert (await proxy.wire.request("GET", "/ready")).status == 200
            assert (await proxy.wire.chat(max_tokens=2)).status == 200
            await proxy.until_idle(mock)


async def test_a_replica_that_comes_back_with_another_pool() -> None:
    backends: list[int] = []
    async with gateway(backends) as port, AsyncExitStack() as stack:
        first = await stack.enter_async_context(running(settings(step_time=StepTimeModel())))
        backends.append(first.port)
        async with proxying(f"http://127.0.0.1:{port}") as proxy:
            book = proxy.services.dispatcher.gate.fleet.books
            name = next(iter(book))
            assert book[name].spec.usable_blocks == 511
            open_stream = await proxy.wire.start_chat(max_tokens=3000, ignore_eos=True, stream=True)
            await open_stream.reader.readuntil(b"data: ")
            backends.clear()
            first.server.pool.hang_up()
            await stack.aclose()
            await until(lambda: phases(proxy) == [ReplicaPhase.UNREACHABLE], "an unreachable replica")
            assert (await proxy.wire.chat(max_tokens=2)).headers["x-kvgate-outcome"] == "no_replica"
            assert (await proxy.wire.request("GET", "/ready")).status == 200  # or every proxy would leave its Service at once
            models = (await proxy.wire.request("GET", "/v1/models")).json()
            assert [card["id"] for card in models["data"]] == ["mock"]
            async with running(settings(engine={"num_gpu_blocks": 300})) as second:
                backends.append(second.port)
                await proxy.until_serving()
                await until(lambda: book[name].spec.usable_blocks == 299, "the new pool")
                assert (await proxy.wire.chat(max_tokens=2)).status == 200
                await open_stream.leave()
                await proxy.until_idle(second)


@pytest.mark.parametrize("what", ["model", "version", "cache"])
async def test_a_server_that_restarts_as_another_is_probed_before_it_is_used(what: str) -> None:
    """Too fast for a scrape to fail: the counters that begin anew tell."""
    changes: dict[str, Any] = {
        "model": {"model": "other"}, "version": {"metrics_version": MetricsVersion.V0_10_2}, "cache": {"engine": {"num_gpu_blocks": 300}}
    }[what]  # fmt: skip
    backends: list[int] = []
    async with AsyncExitStack() as stack, AsyncExitStack() as ending:
        first = await ending.enter_async_context(running(settings(step_time=StepTimeModel(speed=20))))
        second = await stack.enter_async_context(running(settings(**changes)))
        port = await stack.enter_async_context(gateway(backends))
        backends.append(first.port)
        proxy = await stack.enter_async_context(proxying(f"http://127.0.0.1:{port}"))
        (watcher,), fleet = proxy.services.watchers.values(), proxy.services.dispatcher.gate.fleet
        stream = await proxy.wire.start_chat(max_tokens=3000, ignore_eos=True, stream=True)
        await stream.reader.readuntil(b"data: ")
        epochs, backends[:] = fleet.epochs_total, [second.port]
        first.server.pool.hang_up()
        await ending.aclose()
        await until(lambda: fleet.epochs_total > epochs, "a new epoch")
        await stream.leave()
        assert not fleet.books[watcher.name].ledger.leases
        facts = watcher.facts
        assert facts is not None  # the new one's, before anybody was sent there
        model = "other" if what == "model" else "mock"
        assert (facts.models, facts.kv_blocks_total) == ((model,), 300 if what == "cache" else 512)
        assert fleet.books[watcher.name].spec.models == facts.models
        await until(lambda: not proxy.services.loading() and watcher.phase is ReplicaPhase.SERVING, "the new server")
        assert (await proxy.wire.chat(model=model, max_tokens=2)).status == 200
        await proxy.until_idle(second)


GARBAGE = {
    "no HTTP": b"\x00\x01\x02 garbage \r\n\r\n",
    "nothing": b"",
    "a web page": b"HTTP/1.1 200 OK\r\ncontent-type: text/html\r\ncontent-length: 13\r\n\r\n<html></html>",
    "a broken chunk": b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
    "half a JSON": b'HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 8\r\n\r\n{"data":',
    "a JSON number": b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 1\r\n\r\n7",
    "an endless head": b"HTTP/1.1 200 OK\r\n" + b"x: " + b"y" * 200_000,
    "bad compression": b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\ncontent-length: 4\r\n\r\nabcd",
    "an odd status": b"HTTP/1.1 999 Odd\r\ncontent-length: 0\r\n\r\n",
}


@pytest.mark.parametrize("what", GARBAGE)
async def test_a_replica_that_answers_garbage(what: str) -> None:
    """It is named, never used, and its neighbour serves on."""

    async def lying(peer: Peer) -> None:
        while True:
            await peer.request()
            await peer.send(GARBAGE[what])
            if b"content-length" not in GARBAGE[what]:
                return

    async with AsyncExitStack() as stack:
        liar = await stack.enter_async_context(ScriptedUpstream.running(lying))
        mock = await stack.enter_async_context(running(settings()))
        proxy = await stack.enter_async_context(proxying(liar.url, url_of(mock), probed=False))
        await proxy.until_serving()
        watcher = proxy.services.watchers[liar.url.removeprefix("http://")]
        await until(lambda: watcher.failures >= 2, "two failed probes")
        assert watcher.phase is ReplicaPhase.PROBING
        assert watcher.fault
        assert liar.url in watcher.fault
        assert [(await proxy.wire.chat(max_tokens=2)).status for _ in range(3)] == [200] * 3
        await proxy.until_idle(mock)


MODELS = {"object": "list", "data": [{"id": "mock", "max_model_len": 4096}]}
ODD_METRICS = {
    "NaN": b'vllm:num_requests_running{engine="0"} NaN\nvllm:kv_cache_usage_perc{engine="0"} NaN\n',
    "too large": b'vllm:num_requests_running{engine="0"} 1e400\nvllm:kv_cache_usage_perc{engine="0"} 7\n',
    "negative": b'vllm:num_requests_running{engine="0"} -3\nvllm:kv_cache_usage_perc{engine="0"} -1\n',
    "text": b'vllm:num_requests_running{engine="0"} many\n\xff\xfe\nvllm:kv_cache_usage_perc{engine="0"\n',
    "odd blocks": b'vllm:num_requests_running 0\nvllm:cache_config_info{num_gpu_blocks="None",block_size="x"} 1\n',
    "no blocks": b'vllm:num_requests_running 0\nvllm:cache_config_info{num_gpu_blocks="0",block_size="0"} 1\n',
}


@pytest.mark.parametrize("what", ODD_METRICS)
async def test_odd_metrics_stop_nothing(what: str) -> None:
    """With a pool size from the policy such a replica is served on own accounting."""

    async def odd(peer: Peer) -> None:
        while True:
            head, _ = await peer.request()
            kind, body = b"application/json", json.dumps(MODELS).encode()
            if b" /metrics" in head:
                kind, body = b"text/plain; version=0.0.4", ODD_METRICS[what]
            elif b"POST" in head:
                body = b'{"choices":[]}'
            await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (kind, len(body), body))

    async with ScriptedUpstream.running(odd) as upstream, proxying(upstream.url, kv_blocks=300, probed=False) as proxy:
        await proxy.until_serving()
        assert [(await proxy.wire.chat(max_tokens=2)).status for _ in range(3)] == [200] * 3
        assert phases(proxy) == [ReplicaPhase.SERVING]
        measured = proxy.metric(f'kvgate_replica_measured_blocks{{replica="{upstream.url.removeprefix("http://")}"}}')
        assert 0.0 <= measured <= 299.0
        await proxy.until_idle()


@pytest.mark.parametrize("blocks", [None, 512])
async def test_without_log_stats(blocks: int | None) -> None:
    """Enforced on own accounting when the pool's size is told, else only observed."""
    async with running(settings(log_stats=False)) as mock, proxying(url_of(mock), kv_blocks=blocks) as proxy:
        book = next(iter(proxy.services.dispatcher.gate.fleet))
        assert book.spec.enforced is (blocks is not None)
        assert book.spec.usable_blocks == (511 if blocks else 0)
        facts = next(iter(proxy.services.watchers.values())).facts
        assert facts is not None
        assert not facts.log_stats
        assert any("--disable-log-stats" in warning for warning in facts.warnings)
        replies = await asyncio.gather(*(proxy.wire.chat(max_tokens=20) for _ in range(30)))
        assert {reply.status for reply in replies} == {200}
        assert "kvgate_replica_measured_blocks{" not in proxy.metrics  # unknown is not zero
        await proxy.until_idle(mock)


@pytest.mark.parametrize("version", MetricsVersion)
async def test_every_version_of_the_metrics_is_read(version: MetricsVersion) -> None:
    """The ledger and the measured usage agree, whatever the metric is called and whether it counts the null block."""
    chosen = settings(metrics_version=version, step_time=StepTimeModel())
    async with running(chosen) as mock, proxying(url_of(mock), kv_blocks=512) as proxy:
        watcher = next(iter(proxy.services.watchers.values()))
        assert watcher.facts is not None
        history = watcher.history[watcher.name]
        assert watcher.facts.usage_metric in {"vllm:gpu_cache_usage_perc", "vllm:kv_cache_usage_perc"}
        open_streams: list[Exchange] = [
            await proxy.wire.start_chat(max_tokens=2000, ignore_eos=True, stream=True, user=str(index)) for index in range(4)
        ]
        for exchange in open_streams:
            await exchange.reader.readuntil(b"data: ")

        def agree() -> bool:
            last = list(history)[-3:]
            return len(last) == 3 and all(
                one.running == 4
                and not one.prefilling_leases
                and one.measured_blocks is not None
                and abs(one.measured_blocks - one.low_blocks) <= 4
                for one in last
            )

        await until(agree, f"agreement (last {list(history)[-1:]})")
        for exchange in open_streams:
            await exchange.leave()
        await proxy.until_idle(mock)
        await until(lambda: history[-1].measured_blocks == 0.0, "an empty pool, null block left out")


async def test_several_engines_behind_one_address(caplog: pytest.LogCaptureFixture) -> None:
    wall = iter(range(10**18, 10**20, 10**12))
    async with AsyncExitStack() as stack:
        caplog.set_level("INFO")
        mocks = [await stack.enter_async_context(running(settings())) for _ in range(2)]
        for mock in mocks:  # started at different times
            assert isinstance(mock.server, MockServer)
            mock.server._started_s = next(wall) / 1e9
        port = await stack.enter_async_context(gateway([mock.port for mock in mocks]))
        proxy: RunningProxy = await stack.enter_async_context(proxying(f"http://127.0.0.1:{port}"))
        watcher = next(iter(proxy.services.watchers.values()))
        await until(lambda: watcher.facts and watcher.facts.several_engines_behind, "the several engines' being noticed")
        book = next(iter(proxy.services.dispatcher.gate.fleet))
        assert not book.spec.enforced
        assert "this URL balances over several servers" in caplog.text
        assert "headless Service" in caplog.text
        assert proxy.metric(f'kvgate_replica_enforced{{replica="127.0.0.1:{port}"}}') == 0.0
        replies = await asyncio.gather(*(proxy.wire.chat(max_tokens=400, ignore_eos=True) for _ in range(30)))
        assert {reply.status for reply in replies} == {200}
        assert proxy.services.dispatcher.gate.counters.held == 0
        await proxy.until_idle(*mocks)


async def test_two_replicas_share_the_load() -> None:
    async with running(settings()) as one, running(settings()) as two, proxying(url_of(one), url_of(two)) as proxy:
        exchanges = [await proxy.wire.start_chat(max_tokens=1500, ignore_eos=True, stream=True) for _ in range(4)]
        for exchange in exchanges:
            await exchange.reader.readuntil(b"data: ")
        leases = [len(book.ledger.leases) for book in proxy.services.dispatcher.gate.fleet]
        assert leases == [2, 2]
        for exchange in exchanges:
            await exchange.leave()
        await proxy.until_idle(one, two)


async def test_each_model_goes_to_its_replica() -> None:
    async with AsyncExitStack() as stack:
        mocks = {name: await stack.enter_async_context(running(settings(model=name))) for name in ("small", "large")}
        proxy = await stack.enter_async_context(proxying(*map(url_of, mocks.values())))
        for model, mock in mocks.items():
            replies: list[Any] = [await proxy.wire.chat(model=model, max_tokens=2) for _ in range(3)]
            assert [reply.json()["model"] for reply in replies] == [model] * 3
            assert {record.replica for record in proxy.records[-3:]} == {url_of(mock).removeprefix("http://")}
        unknown = await proxy.wire.chat(model="other", max_tokens=2)
        assert unknown.status == 404
        error = unknown.json()["error"]
        assert (error["code"], error["param"]) == ("model_not_found", "model")
        assert error["message"] == "The model `other` does not exist."
        await proxy.until_idle(*mocks.values())
