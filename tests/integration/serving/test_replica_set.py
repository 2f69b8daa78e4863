"""Replicas that come and go while requests run: nothing is failed, nothing is sent to one that is not probed, nothing of one is left."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from proxy.core.policy import ReplicaPolicy
from proxy.core.replica import ReplicaPhase
from proxy.serving import replica_set
from proxy.serving.replica_set import ReplicaChanges
from proxy.sim.step_time import StepTimeModel
from tests.integration.mock_harness import RunningMock, running, settings
from tests.integration.serving.harness import Exchange, RunningProxy, proxying, until, url_of
from tests.support.upstream_servers import gateway

SLOW = StepTimeModel(speed=20)


def named(mock: RunningMock, name: str = "") -> ReplicaPolicy:
    url = url_of(mock)
    return ReplicaPolicy(url, name or url.removeprefix("http://"))


async def streaming(proxy: RunningProxy, max_tokens: int = 400) -> Exchange:
    """A stream under way."""
    stream = await proxy.wire.start_chat(max_tokens=max_tokens, ignore_eos=True, stream=True)
    await stream.reader.readuntil(b"data: ")
    return stream


async def whole(stream: Exchange) -> bool:
    rest = await stream.reader.read()
    await stream.leave()
    return rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")


@asynccontextmanager
async def mocks(count: int, **changes: Any) -> AsyncIterator[list[RunningMock]]:
    async with AsyncExitStack() as stack:
        yield [await stack.enter_async_context(running(settings(**changes))) for _ in range(count)]


async def test_one_that_is_taken_out_finishes_what_it_has_and_is_gone_then() -> None:
    async with mocks(2, step_time=SLOW) as (one, two), proxying(url_of(one)) as proxy:
        replicas, gate = proxy.services.replicas, proxy.services.dispatcher.gate
        leaving = replicas.watchers[named(one).name]
        stream = await streaming(proxy)
        assert replicas.apply([named(two)]) == ReplicaChanges(added=(named(two).name,), removed=(leaving.name,))
        assert (await proxy.wire.chat(max_tokens=2)).status == 200  # whoever has it by then
        await until(lambda: leaving.phase is ReplicaPhase.DRAINING, "a replica that drains")
        proxy.records.clear()
        assert [(await proxy.wire.chat(max_tokens=2)).status for _ in range(3)] == [200] * 3
        assert {record.replica for record in proxy.records} == {named(two).name}
        assert leaving.name in replicas.watchers
        assert await whole(stream)
        await until(lambda: leaving.name not in replicas.watchers, "the end of the replica")
        assert (list(gate.fleet.books), list(replicas.credentials)) == ([named(two).name], [named(two).name])
        assert url_of(one) not in repr(proxy.services.upstream)
        assert len(replicas.tasks) == 1
        await proxy.until_idle(one, two)


async def test_one_that_comes_back_while_it_drains_is_used_again() -> None:
    async with mocks(1, step_time=SLOW) as (one,), proxying(url_of(one)) as proxy:
        replicas = proxy.services.replicas
        (watcher,) = replicas.watchers.values()
        stream = await streaming(proxy)
        replicas.apply([])
        await until(lambda: watcher.draining, "a replica that drains")
        assert (await proxy.wire.chat(max_tokens=2)).headers["x-kvgate-outcome"] == "no_replica"
        assert replicas.apply([watcher.policy]) == ReplicaChanges(added=(watcher.name,))
        assert watcher.phase is ReplicaPhase.SERVING
        assert (await proxy.wire.chat(max_tokens=2)).status == 200
        assert await whole(stream)
        assert replicas.watchers == {watcher.name: watcher}
        await proxy.until_idle(one)


async def test_one_that_is_added_gets_nobody_before_it_was_probed() -> None:
    backends: list[int] = []
    async with mocks(2) as (one, two), gateway(backends) as port, proxying(url_of(one)) as proxy:
        later = ReplicaPolicy(f"http://127.0.0.1:{port}", "later")
        proxy.services.replicas.apply([*proxy.services.replicas.wanted, later])
        assert [(await proxy.wire.chat(max_tokens=2)).status for _ in range(4)] == [200] * 4
        assert proxy.services.watchers["later"].phase is ReplicaPhase.PROBING
        backends.append(two.port)
        await proxy.until_serving(2)
        streams = [await proxy.wire.start_chat(max_tokens=50) for _ in range(8)]
        assert [(await stream.reply()).status for stream in streams] == [200] * 8
        assert {record.replica for record in proxy.records[-8:]} == {"later", named(one).name}
        await proxy.until_idle(one, two)


async def test_who_waits_for_one_that_goes_is_placed_elsewhere() -> None:
    """The pool is full, one waits; its replica leaves, another comes, and the one who waited goes there."""
    full = settings(engine={"num_gpu_blocks": 20, "max_model_len": 300}, step_time=StepTimeModel())
    async with running(full) as one, mocks(1) as (two,), proxying(url_of(one)) as proxy:
        stream = await streaming(proxy, max_tokens=280)
        waiting = await proxy.wire.start_chat(max_tokens=280)
        await until(lambda: len(proxy.services.dispatcher.gate.queue) == 1, "one who waits")
        proxy.services.replicas.apply([named(two)])
        assert (await waiting.reply()).status == 200
        assert proxy.records[-1].replica == named(two).name
        await stream.leave()
        await proxy.until_idle(one, two)


async def test_the_same_name_at_another_address_is_another_engine() -> None:
    small = settings(engine={"num_gpu_blocks": 300})
    async with AsyncExitStack() as stack:
        one, two = [await stack.enter_async_context(running(one)) for one in (settings(step_time=SLOW), small)]
        proxy = await stack.enter_async_context(proxying(policy={"replicas": [{"url": url_of(one), "name": "gpu"}]}))
        books = proxy.services.dispatcher.gate.fleet.books
        stream = await streaming(proxy)
        assert len(books["gpu"].ledger.leases) == 1
        assert proxy.services.replicas.apply([named(two, "gpu")]) == ReplicaChanges(changed=("gpu",))
        assert "gpu" not in books
        await proxy.until_serving()
        assert (books["gpu"].spec.usable_blocks, len(books["gpu"].ledger.leases)) == (299, 0)
        assert (await proxy.wire.chat(max_tokens=2)).status == 200
        assert await whole(stream)
        await proxy.until_idle(one, two)
        await until(lambda: url_of(one) not in repr(proxy.services.upstream), "the end of old connections")


async def test_another_block_count_takes_effect_while_it_serves() -> None:
    async with mocks(1) as (one,), proxying(url_of(one)) as proxy:
        books = proxy.services.dispatcher.gate.fleet.books
        (watcher,) = proxy.services.watchers.values()
        proxy.services.replicas.apply([replace(watcher.policy, kv_blocks=101, headers=(("x-house", "1"),))])
        assert watcher.phase is ReplicaPhase.SERVING
        await until(lambda: books[watcher.name].spec.usable_blocks == 100, "the new size")
        assert proxy.services.upstream_headers(watcher.name, []) == [(b"x-house", b"1")]
        assert (await proxy.wire.chat(max_tokens=2)).status == 200
        await proxy.until_idle(one)


async def test_every_engine_of_a_server_goes_with_it() -> None:
    async with mocks(1, data_parallel_size=2) as (several,), mocks(1) as (one,), proxying(url_of(several), url_of(one)) as proxy:
        books = proxy.services.dispatcher.gate.fleet.books
        assert len(books) == 3
        proxy.services.replicas.apply([named(one)])
        await until(lambda: list(books) == [named(one).name], "the end of every engine")
        assert (await proxy.wire.chat(max_tokens=2)).status == 200
        await proxy.until_idle(one)


async def test_a_server_that_never_answered_goes_at_once() -> None:
    async with gateway([]) as port, mocks(1) as (one,), proxying(url_of(one), f"http://127.0.0.1:{port}", probed=False) as proxy:
        proxy.services.replicas.apply([named(one)])
        await until(lambda: list(proxy.services.watchers) == [named(one).name], "the end of the silent one")
        await proxy.until_serving()
        assert (await proxy.wire.chat(max_tokens=2)).status == 200
        await proxy.until_idle(one)


async def test_the_last_one_of_a_model_serves_until_its_successor_does(monkeypatch: pytest.MonkeyPatch) -> None:
    backends: list[int] = []
    async with mocks(2) as (one, two), gateway(backends) as port, proxying(url_of(one)) as proxy:
        later = ReplicaPolicy(f"http://127.0.0.1:{port}", "later")
        proxy.services.replicas.apply([later])
        assert [(await proxy.wire.chat(max_tokens=2)).status for _ in range(4)] == [200] * 4
        backends.append(two.port)
        await until(lambda: list(proxy.services.watchers) == ["later"], "the change")
        assert (await proxy.wire.chat(max_tokens=2)).status == 200
        assert proxy.records[-1].replica == "later"
        backends.clear()
        monkeypatch.setattr(replica_set, "HANDOVER_S_MAX", 0.05)
        proxy.services.replicas.apply([ReplicaPolicy("http://127.0.0.1:1", "nobody")])
        await until(lambda: list(proxy.services.watchers) == ["nobody"], "the end of it all the same")
        assert (await proxy.wire.chat(max_tokens=2)).headers["x-kvgate-outcome"] == "no_replica"


@pytest.mark.slow
async def test_replicas_come_and_go_under_load() -> None:
    """Three at a time of four, another one leaving every few requests; every answer is whole."""
    async with mocks(4) as all_four, proxying(*map(url_of, all_four)) as proxy:
        await proxy.until_serving(4)
        answered = 0

        async def client(number: int) -> None:
            nonlocal answered
            for turn in range(30):
                reply = await proxy.wire.chat(max_tokens=5 + (number + turn) % 20, ignore_eos=True, stream=turn % 2 == 0)
                assert (reply.status, reply.whole) == (200, True), reply
                answered += 1

        async def change() -> None:
            turn = 0
            while answered < 8 * 30:
                proxy.services.replicas.apply([named(mock) for index, mock in enumerate(all_four) if index != turn % 4])
                turn, seen = turn + 1, answered
                await until(lambda seen=seen: answered >= min(seen + 7, 8 * 30), "some answers")  # type: ignore[misc]
            assert turn > 8

        await asyncio.gather(change(), *(client(number) for number in range(8)))
        assert len({record.replica for record in proxy.records}) > 1
        await proxy.until_idle(*all_four)
        assert proxy.metric('kvgate_internal_errors_total{part="gate"}') == 0.0
