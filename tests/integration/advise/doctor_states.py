"""Puts a mock into a state under load, and has the doctor look at it, step by step of its engine."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from itertools import count

from proxy.adapters.upstream import HttpUpstream
from proxy.advise.watch import Targets
from proxy.cli.doctor import Ask, Visit, examine
from proxy.sim.mock_engine import EngineLoop, Pace
from proxy.sim.mock_settings import MockSettings
from proxy.wire.serve_command import ServeFlags
from tests.integration.mock_harness import RunningMock, running
from tests.integration.serving.harness import ShiftedClock, until

WORDS = ("river", "stone", "light", "paper", "green", "winter")
PATIENT = Targets(ttft_s=1000.0, tpot_s=1000.0)  # no latency is late


@dataclass(frozen=True, slots=True)
class Traffic:
    """Clients that each send one request after another. ``prompt`` makes the next one's text, ``output_tokens`` its length."""

    clients: int
    prompt: Callable[[int], str]
    output_tokens: Callable[[int], int]
    headers: Mapping[str, str] = field(default_factory=dict)


def words(tokens: int, first: str = "") -> str:
    """A prompt of about so many tokens."""
    return " ".join([first, *(WORDS[index % len(WORDS)] for index in range(tokens))])


def steps(mock: RunningMock) -> int:
    """Engine steps so far."""
    return sum(engine.latencies.step_tokens.count for engine in mock.server.pool.engines)


class Lockstep(Pace):
    """Steps as long as the model says, each begun when every client has asked. Else a starved machine would tell how many wait: an engine
    gets through what it has before its clients have asked again, its queue is empty, and its steps are as long as the machine is slow.
    """

    def __init__(self, engines: Sequence[EngineLoop], clients: int) -> None:
        super().__init__()
        self._engines, self._clients = engines, clients
        self._spent_s = 0.0

    def now_s(self) -> float:
        return self._spent_s

    async def begin(self) -> None:
        await until(lambda: sum(engine.unfinished for engine in self._engines) >= self._clients, "a request of each client", 30)

    async def spend(self, seconds: float) -> None:
        await asyncio.sleep(seconds)  # so that looks fall between steps
        self._spent_s += seconds


@asynccontextmanager
async def loaded(mock: RunningMock, *traffic: Traffic) -> AsyncIterator[None]:
    """Keep the clients sending until the block ends."""
    serial = count()
    upstream = HttpUpstream()
    engines = mock.server.pool.engines

    async def client(of: Traffic) -> None:
        headers = [(b"content-type", b"application/json"), *((key.encode(), value.encode()) for key, value in of.headers.items())]
        while True:
            number = next(serial)
            body = {"prompt": f"{number} {of.prompt(number)}", "max_tokens": of.output_tokens(number), "ignore_eos": True}
            url = mock.base_url.removesuffix("/v1")
            answer = await upstream.open(url, b"POST", b"/v1/completions", headers, json.dumps(body).encode())
            try:
                assert answer.status == 200, await answer.read()
                while await answer.read():
                    pass
            finally:
                answer.close()

    for engine in engines:
        engine.pace = Lockstep(engines, sum(one.clients for one in traffic))
    tasks = [asyncio.create_task(client(one)) for one in traffic for _ in range(one.clients)]
    try:
        yield
    finally:
        for engine in engines:
            engine.pace = Pace()
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        await upstream.aclose()
    assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended


@asynccontextmanager
async def busy(chosen: MockSettings, *traffic: Traffic) -> AsyncIterator[RunningMock]:
    """A mock under load."""
    async with running(chosen) as mock, loaded(mock, *traffic):
        yield mock


async def after_steps(mock: RunningMock, each: int, looks: int) -> AsyncIterator[float]:
    """Looks that are each so many engine steps apart."""
    for number in range(looks):
        goal = steps(mock) + each
        await until(lambda goal=goal: steps(mock) >= goal, f"step {goal}", 30)  # type: ignore[misc]
        yield float(number)


async def at_once(looks: int) -> AsyncIterator[float]:
    """Looks without anything to wait for."""
    for number in range(looks):
        yield float(number)


async def visit(
    mock: RunningMock,
    looks: AsyncIterator[float],
    *,
    targets: Targets = PATIENT,
    flags: ServeFlags | None = None,
    clock: ShiftedClock | None = None,
    dcgm: tuple[str, ...] = (),
) -> Visit:
    """What the doctor says."""
    ask = Ask((mock.base_url.removesuffix("/v1"),), 1.0, targets, dcgm, flags=flags)
    return await examine(ask, clock or ShiftedClock(), looks)


def cases(found: Visit) -> list[str]:
    """Its findings, most certain first."""
    return [finding.case for finding in found.diagnosis.findings]
