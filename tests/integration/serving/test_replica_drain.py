"""A replica that an operator drains: it gets nobody new, what runs there finishes, and it is used again when it is resumed."""

import asyncio

import pytest

from proxy.core.outcome import Outcome
from proxy.core.replica import ReplicaPhase
from proxy.sim.step_time import StepTimeModel
from tests.integration.mock_harness import running, settings
from tests.integration.serving.harness import proxying, until, url_of


@pytest.mark.parametrize("mode", ["enforce", "observe", "off"])
async def test_a_drained_replica_finishes_what_it_has_and_gets_nobody(mode: str) -> None:
    async with running(settings(step_time=StepTimeModel(speed=20))) as one, running(settings()) as two:
        policy = {"mode": mode, "scrape": {"interval": "50ms", "timeout": "2s", "stale": "5s", "probe_every": 2}}
        async with proxying(url_of(one), url_of(two), policy=policy) as proxy:
            drained = proxy.services.watchers[url_of(one).removeprefix("http://")]
            other = proxy.services.watchers[url_of(two).removeprefix("http://")]
            other.drain()
            stream = await proxy.wire.start_chat(max_tokens=400, ignore_eos=True, stream=True)
            await stream.reader.readuntil(b"data: ")
            assert proxy.services.outstanding.on(drained.name) == 1
            other.resume()
            drained.drain()
            drained.drain()  # once more is no news
            assert drained.phase is ReplicaPhase.DRAINING
            found = proxy.services.dispatcher.gate.fleet.books[drained.name].scrapes
            replies = await asyncio.gather(
                *(proxy.wire.chat(max_tokens=2) for _ in range(6)), proxy.wire.request("GET", "/version")
            )
            assert [reply.status for reply in replies] == [200] * 7
            assert {record.replica for record in proxy.records} == {other.name}
            rest = await stream.reader.read()
            await stream.leave()
            assert rest.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
            await until(lambda: not proxy.services.outstanding.on(drained.name), "a drained replica")
            book = proxy.services.dispatcher.gate.fleet.books[drained.name]
            await until(lambda: book.scrapes > found + 4, "scrapes and probes of the drained replica")
            assert drained.phase is ReplicaPhase.DRAINING
            assert (await proxy.wire.chat(max_tokens=2)).status == 200
            assert proxy.records[-1].replica == other.name
            other.drain()
            drained.resume()
            assert (await proxy.wire.chat(max_tokens=2)).status == 200
            assert proxy.records[-1].replica == drained.name
            await proxy.until_idle(one, two)
            assert {record.outcome for record in proxy.records} == {Outcome.COMPLETED}


async def test_with_every_replica_drained_clients_are_told_so() -> None:
    async with running(settings()) as mock, proxying(url_of(mock)) as proxy:
        (watcher,) = proxy.services.watchers.values()
        watcher.drain()
        reply = await proxy.wire.chat(max_tokens=2)
        assert (reply.status, reply.headers["x-kvgate-outcome"]) == (503, "no_replica")
        assert proxy.metric(f'kvgate_replica_phase{{phase="draining",replica="{watcher.name}"}}') == 1.0
        watcher.resume()
        assert (await proxy.wire.chat(max_tokens=2)).status == 200
        await proxy.until_idle(mock)
