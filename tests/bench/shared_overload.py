"""Four proxies that share Redis against one proxy, under more load than fits, by turns; grants judged outside the code under test.

    python -m tests.bench.shared_overload --rounds 3 --seconds 40

Each side has mock replicas of its own. Eight tenants with 20 to 60 clients, half of them known to one proxy only, and
a few clients of a high band at one proxy. Verdict:

| what | at least or at most |
| --- | --- |
| grants that do not fit, all rows evaluated anew (``tests.bench.shared_judge``) | none |
| grants past a better head at another proxy that fits, within its offer; grants that delay one | none |
| blocks held, by the engines' own word | usable |
| preemptions per 1,000 requests | 5 |
| goodput (tokens of completed requests per second) ÷ that of one proxy | 0.97 |
| Jain's index over tenants, of token-time | 0.95 |
| failed requests | none |
"""

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import uvloop

from tests.bench.load import Fate, percentile
from tests.bench.shared_engines import EngineWatch
from tests.bench.shared_judge import Judge
from tests.bench.shared_load import MAX_TOKENS, Clients, Sent, SharedLoad, failures, jain
from tests.bench.shared_monitor import Monitor
from tests.bench.shared_processes import Fleet, FleetSettings

PREEMPTIONS_MAX, GOODPUT_MIN, JAIN_MIN = 5.0, 0.97, 0.95
COUNTS = (60, 20, 40, 20, 60, 20, 40, 20)  # clients of each tenant: where who comes first is served first, 3 to 1
HIGH_CLIENTS = 8
WARM_S = 10.0
LEARN_S = 20.0  # more before the first round: lengths have to be learned


def clients_of(proxies: int) -> list[Clients]:
    """Tenants at the proxies of a side: the first half at one each, the others everywhere; the high band at the first."""
    everywhere = tuple(range(proxies))
    low = [Clients(f"tenant{i}", count, (i % proxies,) if i < len(COUNTS) // 2 else everywhere) for i, count in enumerate(COUNTS)]
    return [*low, Clients("vip", HIGH_CLIENTS, (0,), high=True)]


@dataclass(slots=True)
class Side:
    """One side and what was measured of it."""

    name: str
    fleet: Fleet
    watch: EngineWatch
    sent: list[Sent] = field(default_factory=list)
    goodputs: list[float] = field(default_factory=list)
    preemptions: int = 0

    def as_json(self) -> dict[str, Any]:
        """The figures."""
        took: dict[str, float] = {}
        for one in self.sent:
            if not one.high:
                took[one.tenant] = took.get(one.tenant, 0.0) + one.token_steps
        waits = {
            band: [one.record.first_s - one.record.sent_s for one in self.sent if one.high == high and one.record.first_s]
            for band, high in (("high", True), ("low", False))
        }
        return {
            "requests": len(self.sent),
            "fates": {str(fate): sum(one.record.fate is fate for one in self.sent) for fate in Fate},
            "failures": failures(self.sent),
            "goodput_tokens_per_s": self.goodputs,
            "preemptions_per_1000": 1000.0 * self.preemptions / max(1, len(self.sent)),
            "held_ratio_max": self.watch.held_ratio_max,
            "held_ratio_mean": self.watch.held_ratio_mean,
            "jain": jain(list(took.values())),
            "token_steps_by_tenant": dict(sorted(took.items())),
            "ttft_s_p50": {band: percentile(values, 0.5) for band, values in waits.items()},
            "ttft_s_p99": {band: percentile(values, 0.99) for band, values in waits.items()},
        }


async def _round(side: Side, seconds: float, warm_s: float, seed: int, max_tokens: int) -> None:
    loop, load = asyncio.get_running_loop(), SharedLoad(side.fleet.proxies, seed, max_tokens)
    try:
        load.start(clients_of(len(side.fleet.proxies)))
        await asyncio.sleep(warm_s)
        before, start_s = await side.watch.preemptions(), loop.time()
        watching = asyncio.create_task(side.watch.run())
        try:
            done, _ = await asyncio.wait([watching], timeout=seconds)
            for task in done:
                task.result()
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        end_s = loop.time()
        side.preemptions += await side.watch.preemptions() - before
        await load.finish()
    finally:
        await load.drop()
    within = [one for one in load.sent if start_s <= one.record.end_s <= end_s]
    side.sent += within
    tokens = sum(one.record.tokens for one in within if one.record.fate is Fate.COMPLETED)
    side.goodputs.append(tokens / (end_s - start_s))


async def run_overload(
    settings: FleetSettings, *, rounds: int, seconds: float, alone: bool = True, max_tokens: int = MAX_TOKENS, seed: int = 0
) -> dict[str, Any]:
    """Both sides by turns, or only the shared one; everything measured."""
    judge = Judge()
    shared = Fleet(settings)
    alike = replace(settings, folder=settings.folder / "single", proxies=1, shared=False, clocks_ahead_s=())
    async with shared:
        sides = [Side("shared", shared, EngineWatch(shared.replica_urls))]
        monitor = Monitor(shared.redis.port, judge)
        following = asyncio.create_task(monitor.run())
        await monitor.ready.wait()
        async with Fleet(alike) if alone else nullcontext() as single:
            if single is not None:
                sides.append(Side("single", single, EngineWatch(single.replica_urls)))
            for number in range(rounds):
                for side in sides if number % 2 == 0 else sides[::-1]:
                    await _round(side, seconds, WARM_S + (LEARN_S if number == 0 else 0.0), seed + number, max_tokens)
                    if following.done():
                        following.result()
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        found = {
            "judge": judge.verdict.as_json() | {"clock_back_steps_max": judge.clock_back_steps_max},
            "network": shared.network.kind,
            "complaints": await shared.complaints(),
        }
    return found | {side.name: side.as_json() for side in sides}


def rows(found: dict[str, Any]) -> list[tuple[str, str, bool]]:
    """What was measured, in words, and whether it held."""
    judged, shared = found["judge"], found["shared"]
    lines = [
        (f"grants that do not fit: {judged['grants_over']} of {judged['grants']}", judged["excess_blocks_max"], judged["grants_over"] == 0),
        ("grants past a better head within its offer", judged["grants_past_a_head"], judged["grants_past_a_head"] == 0),
        ("grants that delay a better head", judged["grants_delaying_a_head"], judged["grants_delaying_a_head"] == 0),
        ("most of the usable blocks held", shared["held_ratio_max"], shared["held_ratio_max"] <= 1.0),
        (f"preemptions per 1,000 (of {shared['requests']})", shared["preemptions_per_1000"],
         shared["preemptions_per_1000"] <= PREEMPTIONS_MAX),
        ("Jain over tenants", shared["jain"], shared["jain"] >= JAIN_MIN),
        ("failed requests", sum(shared["failures"].values()), not shared["failures"]),
        ("grants the judge saw while something ran", len_of(judged), len_of(judged) > 0 and judged["unread"] == 0),
        ("processes that complained", ", ".join(found["complaints"]) or "none", not found["complaints"]),
    ]  # fmt: skip
    if "single" in found:
        mine, other = sum(shared["goodput_tokens_per_s"]), sum(found["single"]["goodput_tokens_per_s"])
        lines.append(("goodput, of one proxy's", mine / max(1e-9, other), mine >= GOODPUT_MIN * other))
    return [(what, f"{value:.3f}" if isinstance(value, float) else str(value), held) for what, value, held in lines]


def len_of(judged: dict[str, Any]) -> int:
    """Grants that were evaluated."""
    return int(judged["grants"]) - int(judged["grants_on_empty"])


def report(found: dict[str, Any]) -> str:
    """A table for people."""
    lines = [f"{what:58} {value:>12}  {'held' if held else 'FAULT'}" for what, value, held in rows(found)]
    for name in ("shared", "single"):
        if name in found:
            shown = {key: value for key, value in found[name].items() if key != "failures"}
            lines.append(f"{name}: {json.dumps(shown)}")
    lines.append(f"judge: {json.dumps(found['judge'])}")
    lines += [f"failed: {count} × {text}" for text, count in found["shared"]["failures"].items()]
    lines += [f"{name} complained: {text}" for name, text in found["complaints"].items()]
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Proxies that share Redis against one, under overload.")
    parser.add_argument("--proxies", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--rounds", type=int, default=3, help="of each side (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=40.0, help="measured of each round (default: %(default)s)")
    parser.add_argument("--speed", type=float, default=1.0, help="of the mocks, 1 a GPU's (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="of the first round's requests (default: %(default)s)")
    parser.add_argument("--shared-only", action="store_true", help="do without the single proxy")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    known = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="kvgate-overload-") as folder:
        found = uvloop.run(
            run_overload(
                FleetSettings(Path(folder), proxies=known.proxies, speed=known.speed),
                rounds=known.rounds, seconds=known.seconds, alone=not known.shared_only, seed=known.seed,
            )
        )  # fmt: skip
    sys.stdout.write(report(found) + "\n")
    if known.json:
        known.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    return 0 if all(held for _, _, held in rows(found)) else 1


if __name__ == "__main__":
    sys.exit(main())
