"""The doctor before the real engine, in the states that this one can be put into."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from proxy.adapters.clock import SystemClock
from proxy.adapters.upstream import HttpUpstream
from proxy.advise.watch import Targets
from proxy.bench.pace import every
from proxy.cli.doctor import Ask, Visit, examine
from proxy.wire.serve_command import read_command
from tests.bench.engine import scrape
from tests.vllm.conftest import VllmFactory, VllmServer

pytestmark = pytest.mark.vllm

PATIENT = Targets(ttft_s=1000.0, tpot_s=1000.0)  # this CPU is slow, and shared
WATCH_S = 12.0


@asynccontextmanager
async def loaded(server: VllmServer, clients: int, prompt: Callable[[int], list[int]], output_tokens: int) -> AsyncIterator[None]:
    """Keep clients sending completions until the block ends."""
    upstream = HttpUpstream()
    sent = 0

    async def client() -> None:
        nonlocal sent
        while True:
            sent += 1
            body = {"model": server.served_name, "prompt": prompt(sent), "max_tokens": output_tokens, "ignore_eos": True}
            headers = [(b"content-type", b"application/json")]
            answer = await upstream.open(server.base_url, b"POST", b"/v1/completions", headers, json.dumps(body).encode())
            try:
                assert answer.status == 200, await answer.read()
                while await answer.read():
                    pass
            finally:
                answer.close()

    tasks = [asyncio.create_task(client()) for _ in range(clients)]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        await upstream.aclose()
    assert all(isinstance(each, asyncio.CancelledError) for each in ended), ended


def distinct(tokens: int) -> Callable[[int], list[int]]:
    """Prompts of token ids that share no block."""
    return lambda number: [100 + (number * 7919 + index) % 1500 for index in range(tokens)]


async def until_preempted(server: VllmServer) -> AsyncIterator[float]:
    """Looks a second apart until the engine's own counter moves, which on a shared CPU takes its time."""
    async with httpx.AsyncClient() as client:
        before = (await scrape(client, server.base_url)).preemptions  # this server may have had its share of others' tests
        for number in range(180):
            await asyncio.sleep(1.0)
            yield float(number)
            if (await scrape(client, server.base_url)).preemptions > before:
                yield float(number + 1)
                return
    pytest.fail("no preemption within 180 looks")


async def visit(server: VllmServer, *flags: str, looks: AsyncIterator[float] | None = None) -> Visit:
    ask = Ask((server.base_url,), WATCH_S, PATIENT, flags=read_command(flags) if flags else None)
    return await examine(ask, SystemClock(), looks or every(1.0, WATCH_S, SystemClock()))


def cases(found: Visit) -> list[str]:
    return [finding.case for finding in found.diagnosis.findings]


async def test_an_idle_healthy_engine(replica: VllmServer) -> None:
    found = await visit(replica)
    assert cases(found) == ["context_fills_pool"]  # 4,096 tokens of 8,160: just over one half, as this server is set up
    assert found.replicas[0].pool_tokens == 255 * 32
    assert any("--swap-space is gone from vLLM 0.32" in note for note in found.diagnosis.notes)


async def test_over_capacity(replica: VllmServer) -> None:
    async with loaded(replica, 48, distinct(100), 300):
        found = await visit(replica, "--max-num-seqs", "64", looks=until_preempted(replica))
    first = found.diagnosis.findings[0]
    assert first.case == "over_capacity", found.diagnosis.findings
    assert "--max-num-seqs from 64" in first.knob
    (engine,) = found.replicas[0].engines
    assert engine.preemptions
    assert first.evidence.startswith(f"{engine.preemptions:,.0f} preemptions")


async def test_statistics_switched_off(vllm_server: VllmFactory) -> None:
    found = await visit(vllm_server(256, "--disable-log-stats"))
    assert cases(found) == ["metrics_off"]
    assert any("its metrics are off" in sentence for sentence in found.diagnosis.unseen)
