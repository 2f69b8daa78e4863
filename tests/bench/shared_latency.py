"""What Redis adds to an admission: the same arrivals through proxies with and without ``--redis``, by turns.

    python -m tests.bench.shared_latency --rate 500 --replicas 16 --rounds 5 --seconds 10

Loopback, replicas that answer after a fixed time (``tests.bench.shared_replicas``), arrivals at random moments of a given rate, one prompt
like no other each. Told: what proxy and replicas took beyond that time, p50 and p99 of each side, the median over rounds of the difference;
Redis' round trips per grant (calls from outside, from INFO commandstats), its CPU per admission, and the proxies' CPU on both sides.
Exit status 1 when a request failed or a target is missed. Figures of a machine that is busy with something else say little.
"""

import argparse
import asyncio
import gc
import json
import random
import statistics
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import redis.asyncio
import uvloop

from proxy.bench.processes import free_ports
from tests.bench.load import Fate, new_upstream, percentile, send
from tests.bench.relay_cost import cpu_s
from tests.bench.shared_load import new_request
from tests.bench.shared_processes import Child, Fleet, FleetSettings
from tests.bench.shared_replicas import HOLD_S

P50_MS_MAX, P99_MS_MAX = 0.5, 2.0  # targets: what Redis may add
WARM_S = 3.0


@dataclass(slots=True)
class Side:
    """One set of proxies and what was measured of it. Milliseconds beyond the replicas' own time."""

    name: str
    fleet: Fleet
    cpu_ms: float = 0.0
    added_ms: list[list[float]] = field(default_factory=list)  # by round
    failed: list[str] = field(default_factory=list)

    def quantile(self, share: float) -> list[float]:
        """Of each round."""
        return [value for one in self.added_ms if (value := percentile(one, share)) is not None]


@dataclass(slots=True)
class StoreCost:
    """What Redis did for the admissions of the measured rounds."""

    admissions: int = 0
    calls: dict[str, int] = field(default_factory=dict)
    scripts_us: float = 0.0
    cpu_s: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """Per admission."""
        most = max(1, self.admissions)
        outer = {name: count for name, count in self.calls.items() if count}
        return {
            "admissions": self.admissions,
            "script_calls_per_admission": sum(outer.get(name, 0) for name in ("evalsha", "eval", "fcall")) / most,
            "redis_cpu_us_per_admission": self.cpu_s * 1e6 / most,
            "script_us_per_call": self.scripts_us / max(1, outer.get("evalsha", 0)),
            "calls": outer,
        }


async def _one(side: Side, upstream: Any, url: str, rng: random.Random, kept: list[float]) -> None:
    request = new_request(rng, f"t{rng.randrange(8)}", high=False, max_tokens=64, streaming_share=0.0)
    sent_s = perf_counter()  # the loop's own clock tells whole milliseconds
    record = await send(upstream, url, request)
    if record.fate is Fate.COMPLETED:
        kept.append(1000.0 * (perf_counter() - sent_s - HOLD_S))
    else:
        side.failed.append(f"{record.status} {record.outcome} {record.error}"[:160])


async def _play(side: Side, rate_per_s: float, seconds: float, seed: int) -> list[float]:
    """Arrivals at a rate, in an open loop: nobody waits for anybody. Returns what each took beyond the replicas' own time, ms."""
    loop, rng = asyncio.get_running_loop(), random.Random(seed)
    upstream, kept, due_s = new_upstream(), list[float](), loop.time()
    end_s = due_s + seconds
    try:
        async with asyncio.TaskGroup() as tasks:
            while (due_s := due_s + rng.expovariate(rate_per_s)) < end_s:
                await asyncio.sleep(max(0.0, due_s - loop.time()))
                tasks.create_task(_one(side, upstream, rng.choice(side.fleet.proxies).url, rng, kept))
    finally:
        await upstream.aclose()
    return kept


def _cpu_ms(side: Side) -> float:
    return 1000.0 * sum(cpu_s(proxy.child.pid) for proxy in side.fleet.proxies)


async def _stats(client: redis.asyncio.Redis) -> dict[str, Any]:
    return {"commands": await client.info("commandstats"), "cpu": await client.info("cpu")}


def _count(cost: StoreCost, before: dict[str, Any], after: dict[str, Any]) -> None:
    for name, told in after["commands"].items():
        word = name.removeprefix("cmdstat_")
        earlier = before["commands"].get(name, {"calls": 0, "usec": 0})
        cost.calls[word] = cost.calls.get(word, 0) + told["calls"] - earlier["calls"]
        if word == "evalsha":
            cost.scripts_us += told["usec"] - earlier["usec"]
    for name in ("used_cpu_user", "used_cpu_sys"):
        cost.cpu_s += after["cpu"][name] - before["cpu"][name]


async def run_latency(folder: Path, *, replicas: int, proxies: int, rate: float, rounds: int, seconds: float) -> dict[str, Any]:
    """Both sides by turns, each before replicas of its own: the others' traffic would be foreign to it. Returns the figures."""
    ports = free_ports(2 * replicas)
    words = [sys.executable, str(Path(__file__).with_name("shared_replicas.py")), *map(str, ports)]
    plain = Child("replicas", words, folder)
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    settings = {name: FleetSettings(folder / name, proxies=proxies, shared=name == "redis") for name in ("memory", "redis")}
    cost = StoreCost()
    plain.start()
    try:
        await plain.until(f"{urls[-1]}/health")
        async with Fleet(settings["memory"], urls[:replicas]) as alone, Fleet(settings["redis"], urls[replicas:]) as shared:
            sides = [Side("memory", alone), Side("redis", shared)]
            async with redis.asyncio.from_url(shared.redis.url) as client:
                for number in range(rounds):
                    for side in sides if number % 2 == 0 else sides[::-1]:
                        await _round(side, client, cost, rate, seconds, number)
            complaints = await alone.complaints() | await shared.complaints()
    finally:
        plain.kill()
    return _figures(*sides, cost) | {"complaints": complaints, "proxies": proxies, "replicas": replicas, "rate_per_s": rate}


async def _round(side: Side, client: redis.asyncio.Redis, cost: StoreCost, rate: float, seconds: float, number: int) -> None:
    await _play(side, rate, WARM_S, 1000 + number)
    before, cpu_before = await _stats(client), _cpu_ms(side)
    gc.collect()
    gc.disable()  # ours took 42 ms once a run, which would be counted as the proxy's
    try:
        kept = await _play(side, rate, seconds, number)
    finally:
        gc.enable()
    side.cpu_ms += _cpu_ms(side) - cpu_before
    side.added_ms.append(kept)
    if side.name == "redis":
        _count(cost, before, await _stats(client))
        cost.admissions += len(kept)


def _figures(alone: Side, shared: Side, cost: StoreCost) -> dict[str, Any]:
    def difference(share: float) -> float:
        return statistics.median(b - a for a, b in zip(alone.quantile(share), shared.quantile(share), strict=True))

    found: dict[str, Any] = {"store": cost.as_json(), "failed": alone.failed + shared.failed}
    for side in (alone, shared):
        requests = sum(map(len, side.added_ms))
        found[side.name] = {
            "requests": requests,
            "p50_ms": side.quantile(0.5),
            "p99_ms": side.quantile(0.99),
            "proxy_cpu_ms_per_request": side.cpu_ms / max(1, requests),
        }
    return found | {"added_p50_ms": difference(0.5), "added_p99_ms": difference(0.99)}


def report(found: dict[str, Any]) -> str:
    """The figures for people."""
    lines = [f"{found['rate_per_s']:g} requests/s, {found['replicas']} replicas, {found['proxies']} proxies"]
    for name in ("memory", "redis"):
        side = found[name]
        rounds = "  ".join(f"{p50:.2f}/{p99:.2f}" for p50, p99 in zip(side["p50_ms"], side["p99_ms"], strict=True))
        lines.append(
            f"{name:7} {side['requests']} requests, p50/p99 ms by round: {rounds}; CPU {side['proxy_cpu_ms_per_request']:.2f} ms"
        )
    store = found["store"]
    lines += [
        f"added p50 {found['added_p50_ms']:.2f} ms (at most {P50_MS_MAX}), p99 {found['added_p99_ms']:.2f} ms (at most {P99_MS_MAX})",
        f"script calls per admission {store['script_calls_per_admission']:.2f}, {store['script_us_per_call']:.0f} us each",
        f"Redis CPU per admission {store['redis_cpu_us_per_admission']:.0f} us; calls {store['calls']}",
        *(f"failed: {text}" for text in found["failed"][:5]),
        *(f"{name} complained: {text}" for name, text in found["complaints"].items()),
    ]
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="What Redis adds to an admission.")
    parser.add_argument("--rate", type=float, default=500.0, help="requests a second (default: %(default)s)")
    parser.add_argument("--replicas", type=int, default=16, help="default: %(default)s")
    parser.add_argument("--proxies", type=int, default=1, help="that share the rate (default: %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of each side (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=10.0, help="of each round (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write every figure there")
    known = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="kvgate-latency-") as folder:
        found = uvloop.run(
            run_latency(
                Path(folder), replicas=known.replicas, proxies=known.proxies, rate=known.rate, rounds=known.rounds,
                seconds=known.seconds,
            )
        )  # fmt: skip
    sys.stdout.write(report(found) + "\n")
    if known.json:
        known.json.write_text(json.dumps(found, indent=1), encoding="utf-8")
    missed = found["added_p50_ms"] > P50_MS_MAX or found["added_p99_ms"] > P99_MS_MAX
    return 1 if missed or found["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
