"""``kvgate doctor``: watch live servers and say what is wrong, why one thinks so, and what to turn first."""

import argparse
import asyncio
import json
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

import httpx

from proxy.adapters.clock import SystemClock
from proxy.advise.diagnosis import Diagnosis, diagnose
from proxy.advise.diagnosis_text import as_json, progress, report
from proxy.advise.watch import KvgateWatch, ReplicaWatch, Targets
from proxy.bench.gate_observer import GateObserver
from proxy.bench.observer import TIMEOUT_S, ReplicaObserver
from proxy.bench.pace import every
from proxy.bench.screen import Screen
from proxy.cli.reading import authorization, base_url, scalar, slo
from proxy.config.scalars import duration
from proxy.ports import Clock
from proxy.wire.dcgm import read_gpu_util
from proxy.wire.serve_command import ServeFlags, read_command

WATCH_S_DEFAULT = 15.0  # a wedged engine shows after ten
LOOK_EVERY_S = 1.0
FOUND = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument("urls", nargs="+", type=base_url, metavar="URL",
                        help="vLLM servers; or a kvgate, whose admin address tells the servers behind it")  # fmt: skip
    parser.add_argument("--watch", type=scalar(duration("1s", "24h")), default=WATCH_S_DEFAULT, metavar="TIME",
                        help="how long to look, as 60s or 5m (default: 15s); under the load that is to be judged")  # fmt: skip
    parser.add_argument("--slo", type=slo, default={}, metavar="KEY=TIME,…",
                        help="what is late: ttft=2s,tpot=50ms (these are the defaults)")  # fmt: skip
    parser.add_argument("--dcgm", type=str, action="append", default=[], metavar="URL",
                        help="a DCGM exporter's metrics, for GPU utilisation; once for all servers, or once for each in their"
                        " order")  # fmt: skip
    parser.add_argument("--api-key-env", metavar="NAME", help="the environment variable that holds the servers' API key")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")
    parser.set_defaults(engine_command=None)
    parser.usage = "kvgate doctor URL… [flags] [-- vllm serve …]"


def run(arguments: argparse.Namespace) -> int:
    """Watch and tell: 0 when nothing is wrong, 1 when something was found, an address without answer included."""
    ask = Ask(
        urls=tuple(dict.fromkeys(arguments.urls)),
        watch_s=arguments.watch,
        targets=Targets(**{f"{key}_s": value for key, value in arguments.slo.items() if key in ("ttft", "tpot")}),
        dcgm=tuple(arguments.dcgm),
        headers=authorization(arguments.api_key_env),
        flags=None if arguments.engine_command is None else read_command(arguments.engine_command),
    )
    clock = SystemClock()
    screen = Screen(sys.stderr, plain_every=5)
    visit = asyncio.run(examine(ask, clock, every(LOOK_EVERY_S, ask.watch_s, clock), screen))
    screen.clear()
    if arguments.json:
        print(json.dumps(as_json(visit.diagnosis, visit.replicas, visit.gates), indent=2))
    else:
        print(report(visit.diagnosis, visit.replicas, visit.gates), end="")
    return FOUND if visit.diagnosis.findings else 0


@dataclass(frozen=True, slots=True)
class Ask:
    """What the operator wants looked at. ``flags`` are those of the command line given for the engines."""

    urls: tuple[str, ...]
    watch_s: float
    targets: Targets = field(default_factory=Targets)
    dcgm: tuple[str, ...] = ()
    headers: Mapping[str, str] = field(default_factory=dict)
    flags: ServeFlags | None = None


@dataclass(frozen=True, slots=True)
class Visit:
    """What came of it."""

    diagnosis: Diagnosis
    replicas: tuple[ReplicaWatch, ...]
    gates: tuple[KvgateWatch, ...]


async def examine(ask: Ask, clock: Clock, looks: AsyncIterator[float], screen: Screen | None = None) -> Visit:
    """Look at everything as often as ``looks`` says, then judge."""
    gates, urls = await _sorted_out(ask.urls, clock)
    replicas = [ReplicaObserver(url, clock, headers=ask.headers) for url in urls]
    cards = _Cards(ask.dcgm)
    watchers: list[ReplicaObserver | GateObserver | _Cards] = [*replicas, *gates, cards]
    try:
        await asyncio.gather(*(one.begin() for one in replicas), *(one.look() for one in gates), cards.look())
        async for elapsed_s in looks:
            await asyncio.gather(*(one.look() for one in watchers))
            if screen is not None:
                screen.update(progress([one.watch() for one in replicas], elapsed_s, ask.watch_s))
        await asyncio.gather(*(one.finish() for one in replicas), *(one.look() for one in gates))
    finally:
        await asyncio.gather(*(one.aclose() for one in watchers))
    watched = tuple(one.watch(ask.flags, cards.of(index, len(replicas))) for index, one in enumerate(replicas))
    seen = tuple(gate.watch() for gate in gates)
    diagnosis = diagnose(watched, seen, ask.targets)
    blind = tuple(f"{url}: no DCGM_FI_DEV_GPU_UTIL came from there" for url in cards.silent())
    alone = tuple(
        f"the engines behind {gate.url}: give its admin address (port 8081), or theirs" for gate in seen if not replicas
    )
    return Visit(Diagnosis(diagnosis.findings, (*diagnosis.unseen, *blind, *alone), diagnosis.notes), watched, seen)


async def _sorted_out(urls: Sequence[str], clock: Clock) -> tuple[list[GateObserver], list[str]]:
    """Which addresses are a kvgate's, and which engines there are, those behind a kvgate included."""
    gates: list[GateObserver] = []
    engines: list[str] = []
    for url in urls:
        gate = GateObserver(url, clock)
        if await gate.is_gate():
            gates.append(gate)
            engines += await gate.replicas()
        else:
            await gate.aclose()
            engines.append(url)
    return gates, list(dict.fromkeys(engines))


class _Cards:
    """What DCGM exporters show, look by look."""

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = urls
        self._values: list[list[float]] = [[] for _ in urls]
        self._client = httpx.AsyncClient(timeout=TIMEOUT_S, trust_env=False)

    async def look(self) -> None:
        """Scrape every exporter once; one that does not answer leaves the look out."""
        await asyncio.gather(*(self._one(index, url) for index, url in enumerate(self._urls)))

    async def _one(self, index: int, url: str) -> None:
        try:
            answer = await self._client.get(url if "/metrics" in url else f"{url.rstrip('/')}/metrics")
        except (httpx.HTTPError, httpx.InvalidURL):
            return
        value = read_gpu_util(answer.content)
        if value is not None:
            self._values[index].append(value)

    def of(self, index: int, replicas: int) -> list[float]:
        """Of a replica: its own exporter's where there is one for each, else those of all of them."""
        return self._values[index] if len(self._urls) == replicas else [one for values in self._values for one in values]

    def silent(self) -> list[str]:
        """Exporters that showed nothing."""
        return [url for url, values in zip(self._urls, self._values, strict=True) if not values]

    async def aclose(self) -> None:
        """Close every connection."""
        await self._client.aclose()
