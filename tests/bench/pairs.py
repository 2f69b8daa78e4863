"""Direct against through kvgate, in pairs, on a real engine: preemptions, elapsed time and latencies of the same load.

    python -m tests.bench.pairs --vllm http://127.0.0.1:8104 --kvgate http://127.0.0.1:8080 --load wave --pairs 5 --json out.json

Each pair sends the load both ways, one after the other and in alternating order; before each the engine is idle and nothing else is sent.
The two ways of a pair differ in the words of the prompts only (``natural``: not at all), or the second would find the first's prefix
blocks. Preemptions are the engine's own counter. ``natural`` and ``sudden`` also read that counter when the 100th answer
ends, to part what kvgate learns from, from the rest. Without ``--kvgate`` only the direct figures are taken.

Elapsed ratios mean something on a quiet machine only: the load of the machine before each run is printed with it.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx
import uvloop

from tests.bench.admin import why_not_deciding
from tests.bench.engine import EngineState, model_name, scrape, wait_idle
from tests.bench.load import LoadRequest, Record, Summary, run_load
from tests.bench.loads import APIS, LEARNING, LOADS

CLIENTS = 60
LEARNED_AFTER = 100  # answers after which `natural` is judged


@dataclass(frozen=True, slots=True)
class Arm:
    """One run of a load. ``preemptions_learned`` are those after the 100th answer, None where that was not looked at."""

    way: str
    summary: Summary
    preemptions: int
    preemptions_learned: int | None
    machine_load: float

    def line(self) -> str:
        """The run in one line."""
        got = self.summary
        learned = "" if self.preemptions_learned is None else f" ({self.preemptions_learned} after the {LEARNED_AFTER}th)"
        return (
            f"{self.way:<7} {got.elapsed_s:6.1f} s  preemptions {self.preemptions}{learned}  "
            f"TPOT {_ms(got.tpot_p50_s)}/{_ms(got.tpot_p99_s)} ms  TTFT {_ms(got.ttft_p50_s)}/{_ms(got.ttft_p99_s)} ms  "
            f"{got.tokens_per_s:.0f} tokens/s  completed {got.completed}, failed {got.failed}, shed {got.shed}  "
            f"[prompt {got.prompt_tokens_mean or 0:.0f}, tokens {got.output_tokens}, load {self.machine_load:.1f}]"
        )


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{seconds * 1000:.0f}"


class _LearnedMark:
    """Reads the engine's preemptions at the moment the 100th answer ends."""

    def __init__(self, engine_url: str) -> None:
        self._engine_url = engine_url
        self._ended = 0
        self._reading: asyncio.Task[EngineState] | None = None

    def on_end(self, _: Record) -> None:
        self._ended += 1
        if self._ended == LEARNED_AFTER:
            self._reading = asyncio.create_task(self._read())

    async def _read(self) -> EngineState:
        async with httpx.AsyncClient() as client:
            return await scrape(client, self._engine_url)

    async def preemptions(self) -> int | None:
        """What was read; None when fewer than 100 answers ended."""
        return None if self._reading is None else (await self._reading).preemptions


async def run_arm(
    way: str, target_url: str, engine_url: str, requests: list[LoadRequest], *, clients: int = CLIENTS, learning: bool = False
) -> Arm:
    """Wait for the idle engine, send the load to ``target_url``, and read the engine's counters around it."""
    before = await wait_idle(engine_url)
    machine_load = os.getloadavg()[0]
    mark = _LearnedMark(engine_url) if learning else None
    _, summary = await run_load(target_url, requests, clients, mark.on_end if mark else None)
    after = await wait_idle(engine_url)
    at_mark = await mark.preemptions() if mark else None
    learned = None if at_mark is None else after.preemptions - at_mark
    return Arm(way, summary, after.preemptions - before.preemptions, learned, machine_load)


async def run_pair(
    index: int, load: str, *, vllm: str, kvgate: str, api: str = "chat", seed: int = 0, requests_max: int | None = None
) -> dict[str, Arm]:
    """Send one load both ways; odd pairs go through kvgate first."""
    model = await model_name(vllm)
    arms = {}
    ways = [("direct", vllm), ("kvgate", kvgate)]
    for way, url in ways if index % 2 == 0 else reversed(ways):
        salt = 0 if load == "natural" else ("direct", "kvgate").index(way)
        requests = LOADS[load](model, seed + 2 * index + salt, APIS[api])[:requests_max]
        arms[way] = await run_arm(way, url, vllm, requests, learning=load in LEARNING)
    return arms


def ratios(direct: Arm, kvgate: Arm) -> dict[str, float]:
    """kvgate ÷ direct, of what is wanted small."""
    pairs = {
        "elapsed": (direct.summary.elapsed_s, kvgate.summary.elapsed_s),
        "tpot_p50": (direct.summary.tpot_p50_s, kvgate.summary.tpot_p50_s),
        "tpot_p99": (direct.summary.tpot_p99_s, kvgate.summary.tpot_p99_s),
        "ttft_p50": (direct.summary.ttft_p50_s, kvgate.summary.ttft_p50_s),
    }
    return {name: after / before for name, (before, after) in pairs.items() if before and after}


def medians(pairs: list[dict[str, Arm]]) -> dict[str, float]:
    """The median ratio of each kind over the pairs."""
    each = [ratios(arms["direct"], arms["kvgate"]) for arms in pairs if len(arms) == 2]
    return {name: statistics.median(row[name] for row in each) for name in (each[0] if each else ())}


def as_json(load: str, pairs: list[dict[str, Arm]]) -> dict[str, Any]:
    """Everything measured, as plain values."""
    return {
        "load": load,
        "pairs": [{way: asdict(arm) for way, arm in arms.items()} for arms in pairs],
        "median_ratios": medians(pairs),
    }


def say(text: str) -> None:
    """Print a line now: runs are long."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def measure(arguments: argparse.Namespace) -> int:
    """Run the pairs, print each as it ends, then the medians."""
    pairs: list[dict[str, Arm]] = []
    for index in range(arguments.pairs):
        if arguments.kvgate:
            arms = await run_pair(
                index,
                arguments.load,
                vllm=arguments.vllm,
                kvgate=arguments.kvgate,
                api=arguments.api,
                seed=arguments.seed,
                requests_max=arguments.requests,
            )
        else:
            requests = LOADS[arguments.load](await model_name(arguments.vllm), arguments.seed + 2 * index, APIS[arguments.api])[
                : arguments.requests
            ]
            arms = {
                "direct": await run_arm("direct", arguments.vllm, arguments.vllm, requests, learning=arguments.load in LEARNING)
            }
        pairs.append(arms)
        say(f"pair {index + 1}, {arguments.load}")
        for arm in arms.values():
            say(f"  {arm.line()}")
            for error, count in arm.summary.errors.items():
                say(f"    {count} × {error}")
        if len(arms) == 2:
            say("  kvgate ÷ direct: " + _ratio_line(ratios(arms["direct"], arms["kvgate"])))
    not_deciding = await why_not_deciding(arguments.admin) if arguments.admin else ""
    if not_deciding:
        say(f"NOT VALID: {not_deciding}")
    if arguments.kvgate:
        say("median kvgate ÷ direct: " + _ratio_line(medians(pairs)))
    if arguments.json:
        arguments.json.write_text(json.dumps(as_json(arguments.load, pairs), indent=1), encoding="utf-8")
    return 1 if not_deciding or any(arm.summary.failed for arms in pairs for arm in arms.values()) else 0


def _ratio_line(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.2f}" for name, value in values.items())


def main(argv: list[str] | None = None) -> int:
    """Run from the command line; 1 when any request failed."""
    parser = argparse.ArgumentParser(description="Send a load directly and through kvgate, in pairs.")
    parser.add_argument("--vllm", required=True, metavar="URL", help="the engine; its /metrics are read")
    parser.add_argument("--kvgate", metavar="URL", help="kvgate in front of that engine (default: direct runs only)")
    parser.add_argument("--admin", metavar="URL", help="its admin port: asked at the end whether it decided on every request")
    parser.add_argument("--load", choices=sorted(LOADS), default="wave", help="which load (default: %(default)s)")
    parser.add_argument("--api", choices=sorted(APIS), default="chat", help="which API (default: %(default)s)")
    parser.add_argument("--pairs", type=int, default=5, metavar="N", help="how many pairs (default: %(default)s)")
    parser.add_argument("--requests", type=int, metavar="N", help="only the first N of the load (default: all)")
    parser.add_argument("--seed", type=int, default=1, help="of the prompts (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    try:
        return uvloop.run(measure(parser.parse_args(argv)))
    except httpx.TransportError as exc:
        sys.stderr.write(f"a server does not answer any more, see its log: {exc}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
