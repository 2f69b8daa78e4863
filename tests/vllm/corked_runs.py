"""Requests sent straight to a real engine, from a known start, with what ``/metrics`` showed meanwhile.

What a scheduler does depends on the step at which each request comes in, and HTTP cannot choose a step. So a run begins corked: a *plug*
holds most of the pool, behind it waits a *cork* too large for what is left, and behind the cork, first come first served, waits
everything else until all of it has arrived. Then the plug's client leaves; the cork is prefilled, ends with its only token, and the
run goes on from a known state: an empty pool and a known queue, whose order the engine's own log tells.

Everything is aligned by generated tokens, never by seconds. All series of one scrape are those of one engine step, because the API
server sets the gauges and counts the tokens of a step in one go. A starved API server shows fewer steps, never mixed ones.
"""

import asyncio
import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import httpx

from proxy.adapters.upstream import HttpUpstream
from tests.bench.engine import CLOSING
from tests.bench.load import Fate, LoadRequest, Record, new_upstream, send
from tests.vllm.conftest import CONTEXT_TOKENS, VllmServer

KV_BLOCKS = 161
USABLE_BLOCKS = KV_BLOCKS - 1  # less the null block
BATCH_TOKENS = 512  # small, so that prompts are prefilled in pieces
FLAGS = ("--max-num-batched-tokens", str(BATCH_TOKENS), "--enable-log-requests")
PLUG_TOKENS = 3000  # 94 blocks of 32: 66 are left
CORK_TOKENS = 2200  # 69 blocks
PLUGS = 6  # one lasts for 1,090 tokens, some seconds; the next waits behind it
SEND_PERIOD_S = 0.002  # the server reads one after the other
SCRAPE_PERIOD_S = 0.001
RUN_S_MAX = 300.0  # a run takes about a minute
TOKEN_IDS = range(100, 4000)  # the tiny model has 4,096

SERIES = {
    "generated": "vllm:generation_tokens_total",
    "usage": "vllm:kv_cache_usage_perc",
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "preemptions": "vllm:num_preemptions_total",
}
METRICS = "/metrics/?" + "&".join(f"name[]={name}" for name in SERIES.values())
_SAMPLE = re.compile(r"^(vllm:\w+)\{[^\n]*\} ([0-9.e+-]+)$", re.MULTILINE)
_ADDED = re.compile(r"Added request (?:(\d+)_)?cmpl-(\S+)-0-[0-9a-f]+\.$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """``copies`` sequences of one prompt, each exactly ``output_tokens`` long; ``temperature`` above 0 where there are several."""

    name: str
    prompt: tuple[int, ...]
    output_tokens: int
    copies: int = 1
    temperature: float = 0.0
    top_p: float = 1.0

    def as_load(self) -> LoadRequest:
        """As a completions request. It does not stream, which spares the API server most of its work per token."""
        fields: dict[str, object] = {"temperature": self.temperature, "top_p": self.top_p, "n": self.copies, "ignore_eos": True}
        fields |= {"max_tokens": self.output_tokens, "prompt": list(self.prompt), "request_id": self.name, "model": "tiny"}
        return LoadRequest("/v1/completions", json.dumps(fields).encode(), stream=False)


@dataclass(frozen=True, slots=True)
class State:
    """What ``/metrics`` shows of one step. ``generated`` (tokens) and ``preemptions`` count from the run's start."""

    generated: int
    used_blocks: int
    running: int
    waiting: int
    preemptions: int


@dataclass(frozen=True, slots=True)
class RealRun:
    """The states that scrapes saw, in order, from the cork's token on, equal neighbours once; and the requests as they arrived."""

    states: tuple[State, ...]
    arrived: tuple[TraceRequest, ...]

    @property
    def preemptions(self) -> int:
        """Of the whole run."""
        return self.states[-1].preemptions


def random_prompt(rng: random.Random, tokens: int) -> tuple[int, ...]:
    """Return token ids; two prompts differ from their first block on."""
    return tuple(rng.choices(TOKEN_IDS, k=tokens))


def cork(run: str) -> TraceRequest:
    """Return the request that keeps the others waiting, a part of every run."""
    return TraceRequest(f"{run}-cork", random_prompt(random.Random(f"{run} cork"), CORK_TOKENS), 1)


class CorkedRun:
    """One run on one server. ``run`` names it; prompts of two runs must differ, since the engine remembers the earlier one's."""

    def __init__(self, server: VllmServer, run: str, requests: Sequence[TraceRequest], clients: int) -> None:
        self._server = server
        self._run = run
        self._requests = requests
        self._clients = min(clients, len(requests))
        self._left = iter(requests)
        self._seen: list[State] = []

    async def go(self) -> RealRun:
        """Send everything with that many requests open at a time, and scrape until the engine is idle."""
        log_start = self._server.log.stat().st_size
        tasks: list[asyncio.Task[None]] = []
        upstream = new_upstream()
        try:
            async with (
                asyncio.timeout(RUN_S_MAX),
                httpx.AsyncClient(base_url=self._server.base_url, headers=CLOSING, timeout=60) as http,
            ):
                before = await self._until(http, lambda state: state.running == state.waiting == state.used_blocks == 0)
                await self._start_corked(http, upstream, tasks)
                while not all(task.done() for task in tasks):
                    await self._scrape(http)
                    await asyncio.sleep(SCRAPE_PERIOD_S)
                await asyncio.gather(*tasks)
                after = await self._until(http, lambda state: state.running == state.waiting == 0)
        finally:
            await leave(tasks)
            await upstream.aclose()
        return RealRun(self._states_since(before, after), self._arrivals(log_start))

    async def _start_corked(self, http: httpx.AsyncClient, upstream: HttpUpstream, tasks: list[asyncio.Task[None]]) -> None:
        rng = random.Random(f"{self._run} plugs")
        plugs: list[asyncio.Task[Record]] = []
        try:
            for index in range(PLUGS):
                prompt = random_prompt(rng, PLUG_TOKENS)
                # Costly sampling: a lone greedy stream of this tiny model starves the engine's own server.
                plug = TraceRequest(f"{self._run}-plug{index}", prompt, CONTEXT_TOKENS - PLUG_TOKENS, 1, 1.0, 0.9)
                plugs.append(asyncio.create_task(send(upstream, self._server.base_url, plug.as_load())))
                await asyncio.sleep(SEND_PERIOD_S)
            await self._until(http, lambda state: state.used_blocks > 0)
            tasks.append(asyncio.create_task(self._exchange(upstream, cork(self._run))))
            for _ in range(self._clients):
                await asyncio.sleep(SEND_PERIOD_S)
                tasks.append(asyncio.create_task(self._client(upstream)))
            corked = 1 + sum(request.copies for request in self._requests[: self._clients])

            def plugged() -> list[asyncio.Task[Record]]:
                left = [plug for plug in plugs if not plug.done()]
                assert left, f"{PLUGS} plugs ended before {corked} sequences had arrived"
                return left

            await self._until(http, lambda state: state.waiting >= corked + len(plugged()) - 1)
            # Those that wait leave first, or one of them would be let in.
            await leave(plugged()[1:])
            await self._until(http, lambda state: state.waiting <= corked)
        finally:
            await leave(plugs)

    async def _client(self, upstream: HttpUpstream) -> None:
        for request in self._left:
            await self._exchange(upstream, request)

    async def _exchange(self, upstream: HttpUpstream, request: TraceRequest) -> None:
        record = await send(upstream, self._server.base_url, request.as_load())
        assert record.fate is Fate.COMPLETED, record
        assert record.tokens == request.output_tokens * request.copies, record

    async def _scrape(self, http: httpx.AsyncClient) -> State:
        answer = await http.get(METRICS)
        answer.raise_for_status()
        values = {name: float(value) for name, value in _SAMPLE.findall(answer.text)}
        shown = {field: values[name] for field, name in SERIES.items()}
        used_blocks = round(shown.pop("usage") * USABLE_BLOCKS)
        state = State(used_blocks=used_blocks, **{field: int(value) for field, value in shown.items()})
        if not self._seen or state != self._seen[-1]:
            self._seen.append(state)
        return state

    async def _until(self, http: httpx.AsyncClient, reached: Callable[[State], bool]) -> State:
        while True:
            state = await self._scrape(http)
            if reached(state):
                return state
            await asyncio.sleep(SCRAPE_PERIOD_S)

    def _states_since(self, before: State, after: State) -> tuple[State, ...]:
        # How many tokens the plug came to before its client left is not known, but how many all others did is.
        first = after.generated - 1 - sum(request.output_tokens * request.copies for request in self._requests)
        return tuple(
            replace(state, generated=state.generated - first, preemptions=state.preemptions - before.preemptions)
            for state in self._seen
            if state.generated > first
        )

    def _arrivals(self, log_start: int) -> tuple[TraceRequest, ...]:
        """In the order in which the API server handed them to the engine."""
        with self._server.log.open("rb") as log:
            log.seek(log_start)
            added = _ADDED.findall(log.read().decode(errors="replace"))
        requests = {request.name: request for request in self._requests}
        arrived = [requests[name] for child, name in added if child in {"", "0"} and name in requests]
        assert len(arrived) == len(requests), f"the log shows {len(arrived)} of {len(requests)} requests"
        return tuple(arrived)


async def leave(tasks: Sequence[asyncio.Task[None]] | Sequence[asyncio.Task[Record]]) -> None:
    """Close the connections of those under way, as clients do that leave."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
