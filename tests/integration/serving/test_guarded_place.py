"""A fault inside kvgate fails no request: planted in tokenizer, gate and store, under load, at random and for good."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from proxy.app import building
from proxy.core import events
from proxy.core.gate import Gate
from proxy.serving.guard import FAULTS_MAX, TRIAL_S, Part
from proxy.sim.step_time import StepTimeModel
from tests.integration.mock_harness import RunningMock, running, settings
from tests.integration.serving.harness import RunningProxy, ShiftedClock, admin_of, proxying, until, url_of

REQUESTS = 40


class PlantedError(Exception):
    """The planted fault."""


class Fault:
    """Raises with a probability while it is ``on``."""

    def __init__(self, share: float) -> None:
        self.on = True
        self.raised = 0
        self._share = share
        self._rng = random.Random(11)

    def strike(self) -> None:
        if self.on and self._rng.random() < self._share:
            self.raised += 1
            raise PlantedError


def before(call: Callable[..., Any], fault: Fault) -> Callable[..., Any]:
    """Return ``call`` with the fault in front of it."""

    def planted(*args: Any, **kwargs: Any) -> Any:
        fault.strike()
        return call(*args, **kwargs)

    return planted


def plant_event(proxy: RunningProxy, kind: type[object], fault: Fault) -> None:
    """Make the gate fail on one kind of event."""
    gate = proxy.services.dispatcher.gate
    handle = gate.handle

    def planted(event: events.Event, now_s: float) -> list[events.Effect]:
        if isinstance(event, kind):
            fault.strike()
        return handle(event, now_s)

    gate.handle = planted  # type: ignore[method-assign]


def plant(proxy: RunningProxy, place: str, fault: Fault) -> None:
    """Put the fault where ``place`` says."""
    services = proxy.services
    gate, store = services.dispatcher.gate, proxy.store
    match place:
        case "tokenizer":
            services.counter.count = before(services.counter.count, fault)  # type: ignore[method-assign]
        case "learning":
            services.counter.learn = before(services.counter.learn, fault)  # type: ignore[method-assign]
        case "reserve":
            store.reserve = before(store.reserve, fault)  # type: ignore[method-assign]
        case "release":
            store.release = before(store.release, fault)  # type: ignore[method-assign]
        case "choice":
            gate.placement.choose = before(gate.placement.choose, fault)  # type: ignore[method-assign]
        case "booking":  # after the request was taken from the queue
            gate._book_lease = before(gate._book_lease, fault)  # type: ignore[method-assign]
        case "everything":
            plant_event(proxy, object, fault)
        case kind:
            plant_event(proxy, getattr(events, kind), fault)


PARTS = {
    "tokenizer": "tokenizer",
    "learning": "learning",
    "reserve": "store",
    "release": "store",
    "choice": "gate",
    "booking": "gate",
    "everything": "gate",
    "Arrive": "gate",
    "Finished": "gate",
    "Cancelled": "gate",
    "Observed": "gate",
    "Tick": "gate",
    "Granted": "store",  # the store's answer is carried into the gate within the call of the store
}


@asynccontextmanager
async def guarded(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[RunningMock, RunningProxy, ShiftedClock]]:
    """Yield a mock that holds a quarter of the load at a time, so that the rest has to wait, and kvgate before it."""
    clock = ShiftedClock()
    monkeypatch.setattr(building, "SystemClock", lambda: clock)
    chosen = settings(engine={"num_gpu_blocks": 129, "max_model_len": 2048}, step_time=StepTimeModel(speed=100))
    async with running(chosen) as mock, proxying(url_of(mock)) as proxy:
        yield mock, proxy, clock


async def load(proxy: RunningProxy, requests: int = REQUESTS) -> None:
    """Send ``requests`` at once; each must be answered in full."""
    rng = random.Random(5)
    calls = [{"max_tokens": rng.randrange(1, 300), "ignore_eos": True, "stream": rng.random() < 0.6} for _ in range(requests)]
    replies = await asyncio.gather(*(proxy.wire.chat(**fields) for fields in calls))
    assert [reply.status for reply in replies] == [200] * requests
    for fields, reply in zip(calls, replies, strict=True):
        assert reply.whole
        if fields["stream"]:
            assert reply.events()[-1]["choices"][0]["finish_reason"] == "length"
            assert b'"usage"' not in reply.body
        else:
            assert reply.json()["usage"]["completion_tokens"] == fields["max_tokens"]


@pytest.mark.parametrize("share", [0.1, 1.0], ids=["at random", "for good"])
@pytest.mark.parametrize("place", PARTS)
async def test_a_fault_fails_no_request(place: str, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    async with guarded(monkeypatch) as (mock, proxy, clock):
        fault = Fault(share)
        plant(proxy, place, fault)
        await load(proxy)
        counted = {part: proxy.metric(f'kvgate_internal_errors_total{{part="{part}"}}') for part in Part}
        assert (counted[Part(PARTS[place])] > 0) == (fault.raised > 0)
        # a fault that strikes while another one is cleaned up after counts once with it
        assert sum(counted.values()) <= fault.raised <= 2 * sum(counted.values())
        fault.on = False
        clock.ahead_s += TRIAL_S  # the trial that finds it gone
        assert (await proxy.wire.chat(max_tokens=2)).status == 200
        clock.ahead_s += TRIAL_S
        assert (await proxy.wire.chat(max_tokens=2)).status == 200
        assert not proxy.services.guard.tripped
        await load(proxy, 10)
        if place == "release":  # what the store could not be told, it cannot know; a lost row of one process concerns nobody
            proxy.store._held.clear()
        await proxy.until_idle(mock)
        assert len(proxy.records) == REQUESTS + 12


async def test_ten_faults_trip_the_guard_and_a_trial_restores_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarded(monkeypatch) as (mock, proxy, clock), admin_of(proxy) as admin:
        fault = Fault(1.0)
        plant(proxy, "tokenizer", fault)
        for number in range(FAULTS_MAX):
            assert proxy.metric("kvgate_guard_tripped") == 0.0, number
            assert (await proxy.wire.chat(max_tokens=2)).status == 200
        assert "guard.tripped 10 internal faults within 10 s" in caplog.text
        assert [record.levelno for record in caplog.records if "guard.tripped" in record.message] == [logging.CRITICAL]
        assert proxy.metric("kvgate_guard_tripped") == 1.0
        ready = await admin.request("GET", "/ready")
        assert (ready.status, ready.json()["guard_tripped"]) == (200, True)

        assert [(await proxy.wire.chat(max_tokens=2)).status for _ in range(3)] == [200] * 3
        assert fault.raised == FAULTS_MAX  # nobody asked the tokenizer again
        clock.ahead_s += TRIAL_S
        assert (await proxy.wire.chat(max_tokens=2)).status == 200  # a trial, in vain
        assert (await proxy.wire.chat(max_tokens=2)).status == 200
        assert fault.raised == FAULTS_MAX + 1
        assert proxy.services.guard.tripped

        fault.on = False
        clock.ahead_s += TRIAL_S
        assert (await proxy.wire.chat(max_tokens=2)).status == 200
        assert not proxy.services.guard.tripped
        assert "guard.restored" in caplog.text
        assert proxy.metric("kvgate_guard_tripped") == 0.0
        assert (await admin.request("GET", "/ready")).json()["guard_tripped"] is False
        await proxy.until_idle(mock)
        assert proxy.metric('kvgate_internal_errors_total{part="tokenizer"}') == fault.raised


async def test_slow_faults_do_not_trip_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with guarded(monkeypatch) as (_, proxy, clock):
        plant(proxy, "tokenizer", Fault(1.0))
        for _ in range(2 * FAULTS_MAX):
            assert (await proxy.wire.chat(max_tokens=1)).status == 200
            clock.ahead_s += 1.2
        assert not proxy.services.guard.tripped


async def test_a_request_from_before_the_fault_does_not_end_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with guarded(monkeypatch) as (mock, proxy, _):
        early = await proxy.wire.start_chat(max_tokens=1800, ignore_eos=True, stream=True)
        await early.reader.readuntil(b"data: ")
        plant(proxy, "tokenizer", Fault(1.0))
        for _ in range(FAULTS_MAX):
            await proxy.wire.chat(max_tokens=1)
        assert proxy.services.guard.tripped
        assert (await early.reader.read()).endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n")
        await early.leave()
        await proxy.until_idle(mock)
        assert proxy.services.guard.tripped


@pytest.mark.parametrize("place", ["Finished", "Observed", "learning"])
async def test_a_fault_beside_the_request_keeps_the_guard_tripped(place: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial whose request was answered is no success while another part still fails."""
    async with guarded(monkeypatch) as (_, proxy, clock):
        plant(proxy, place, Fault(1.0))
        errors = f'kvgate_internal_errors_total{{part="{PARTS[place]}"}}'
        while not proxy.services.guard.tripped:
            assert (await proxy.wire.chat(max_tokens=1)).status == 200
        seen = proxy.metric(errors)
        clock.ahead_s += TRIAL_S
        if place == "Observed":
            await until(lambda: proxy.metric(errors) > seen, "another failed scrape")
        assert (await proxy.wire.chat(max_tokens=1)).status == 200
        assert proxy.services.guard.tripped


async def test_places_whose_end_failed_are_ended_later(monkeypatch: pytest.MonkeyPatch) -> None:
    async with guarded(monkeypatch) as (mock, proxy, _):
        fault = Fault(1.0)
        plant(proxy, "Finished", fault)
        for _ in range(5):
            assert (await proxy.wire.chat(max_tokens=2)).status == 200
        assert fault.raised >= 5
        fault.on = False
        assert (await proxy.wire.chat(max_tokens=2)).status == 200
        await proxy.until_idle(mock)


async def test_a_dead_gate_holds_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those who wait when the gate dies go on without it, long before their deadline."""
    async with guarded(monkeypatch) as (mock, proxy, clock):
        gate = proxy.services.dispatcher.gate
        calls = [asyncio.ensure_future(proxy.wire.chat(max_tokens=500, ignore_eos=True)) for _ in range(30)]
        await until(lambda: len(gate.queue) >= 10, "a queue")
        plant(proxy, "everything", Fault(1.0))
        async with asyncio.timeout(20):  # against 30 s of queue.wait_max
            assert [reply.status for reply in await asyncio.gather(*calls)] == [200] * 30
        assert isinstance(gate, Gate)
        assert clock.ahead_s == 0.0
        await mock.until_idle()


async def test_clients_that_leave_beside_a_fault_leave_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async with guarded(monkeypatch) as (mock, proxy, clock):
        fault = Fault(1.0)
        plant(proxy, "Cancelled", fault)
        exchanges = [await proxy.wire.start_chat(max_tokens=900, ignore_eos=True, stream=True) for _ in range(20)]
        await until(lambda: len(proxy.services.dispatcher.gate.queue) >= 5, "a queue")
        for exchange in exchanges:
            await exchange.leave()
        await until(lambda: len(proxy.records) == 20, "the end of every request")
        fault.on = False
        clock.ahead_s += TRIAL_S
        assert (await proxy.wire.chat(max_tokens=2)).status == 200
        await proxy.until_idle(mock)
