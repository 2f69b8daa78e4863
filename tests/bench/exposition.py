"""What a scrape of kvgate's own metrics costs: wall time, and the longest that anybody else on the event loop waits for it meanwhile.

    python -m tests.bench.exposition [--replicas 64] [--tenants 100] [--in-flight 3200] [--waiting 500] [--shares] [--rounds 40] [--json]

The process is put together as ``kvgate serve`` does it, with replicas that are told to the gate instead of probed. ``--shares`` bounds
every tenant's share of the pool, which makes the blocks that each holds a figure of their own. A *stall* is the longest time between two
turns of a task that asks for its turn again and again while the metrics are written. Beside wall time stands CPU time, which a machine
that does something else as well changes less.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from proxy.app.building import build_services
from proxy.core.demand import CountSource, Demand, LengthClass, PromptPart
from proxy.core.events import Arrive, Event, Forward, Granted, Observed, ReplicaFound, Reserve, Tick
from proxy.core.outcome import Outcome
from proxy.core.policy import Policy
from proxy.core.policy_replicas import ReplicaPolicy
from proxy.core.policy_tenants import TenantPolicy, Tenants
from proxy.core.replica import EngineSample, ReplicaSample, ReplicaSpec
from proxy.ports.record import RequestRecord
from proxy.serving.exposition import exposition
from proxy.serving.services import Services

MODEL = "m"
CLASSES = ("default", "chat", "bulk")
GATES = ("tokens_per_min", "queue.wait_max", "queue.requests_max")
ENDED = (Outcome.COMPLETED, Outcome.COMPLETED, Outcome.CANCELLED, Outcome.QUEUE_TIMEOUT, Outcome.TENANT_RATE)


@dataclass(frozen=True, slots=True)
class Size:
    """What there is to tell."""

    replicas: int = 64
    tenants: int = 100
    in_flight: int = 3200
    waiting: int = 500
    shares: bool = False


@dataclass(frozen=True, slots=True)
class Cost:
    """Of all rounds: milliseconds of CPU, of all and of the longest part, until the answer is whole, and of the longest stall meanwhile."""

    cpu_ms_median: float
    part_cpu_ms_median: float

    whole_ms_median: float
    whole_ms_max: float
    stall_ms_median: float
    stall_ms_max: float
    samples: int
    kilobytes: float


def built(size: Size) -> Services:
    """A process in the middle of its work."""
    others = TenantPolicy(kv_share_max=0.9, requests_per_s=1e6) if size.shares else TenantPolicy()
    policy = replace(
        Policy(), tenants=Tenants(others=others),
        replicas=tuple(ReplicaPolicy(f"http://127.0.0.1:{20000 + index}", f"r{index}:8000") for index in range(size.replicas)),
    )  # fmt: skip
    services = build_services(policy)
    usable = 400 * max(1, size.in_flight // size.replicas)
    for name in services.watchers:
        _told(services, ReplicaFound(ReplicaSpec(name, (MODEL,), usable, 16, 32_768, 100_000)))
    rng = random.Random(1)
    for index in range(size.in_flight):
        _told(services, Arrive(_demand(services, f"q{index}", f"t{index % size.tenants}", rng), streaming=True))
    for name in services.watchers:
        engine = EngineSample("0", 0.4, size.in_flight // size.replicas, 0, preemptions_total=3.0)
        _told(services, Observed(ReplicaSample(name, services.clock.now_s(), (engine,))))
    for index in range(size.waiting):
        demand = _demand(services, f"w{index}", f"t{index % size.tenants}", rng)
        _told(services, Arrive(replace(demand, parts=(PromptPart(30_000),), copies=400), streaming=True))
    for index in range(20 * size.tenants):
        services.telemetry.request_finished(_record(index, size, rng))
    return services


def _told(services: Services, event: Event) -> None:
    gate = services.dispatcher.gate
    for effect in gate.handle(event, services.clock.now_s()):
        if isinstance(effect, Reserve):
            _told(services, Granted(effect.request_id))
        elif isinstance(effect, Forward):
            effect.lease.placed, effect.lease.output_tokens = True, 20


def _demand(services: Services, request_id: str, tenant: str, rng: random.Random) -> Demand:
    now_s, tokens = services.clock.now_s(), min(30_000, max(1, int(rng.lognormvariate(6.0, 0.8))))
    return Demand(
        request_id, (PromptPart(tokens),), LengthClass(MODEL, tenant), now_s, now_s + 1e6, tenant=tenant,
        output_tokens_max=1024, traffic_class=rng.choice(CLASSES),
    )  # fmt: skip


def _record(index: int, size: Size, rng: random.Random) -> RequestRecord:
    outcome = rng.choice(ENDED)
    served = outcome is Outcome.COMPLETED
    return RequestRecord(
        f"q{index}", "/v1/chat/completions", outcome, None if served else rng.choice(GATES), rng.choice(CLASSES),
        f"t{index % size.tenants}", MODEL, "r0:8000", 200, rng.random(), rng.random(), 0.03, 2.0, 100, 100, 50, 60.0,
        CountSource.EXACT, itl_s=0.03, own_s=0.001,
    )  # fmt: skip


async def _turns(stop: asyncio.Event) -> float:
    """The longest between two turns, in seconds, until told to stop."""
    longest_s, last_s = 0.0, time.perf_counter()
    while not stop.is_set():
        await asyncio.sleep(0)
        now_s = time.perf_counter()
        longest_s, last_s = max(longest_s, now_s - last_s), now_s
    return longest_s


def _cpu_ms(services: Services) -> list[float]:
    """CPU of every part of one exposition."""
    spent_ms, parts, began_ns = [], services.telemetry.exposition_parts(), time.thread_time_ns()
    for _ in parts:
        now_ns = time.thread_time_ns()
        spent_ms.append((now_ns - began_ns) / 1e6)
        began_ns = now_ns
    return spent_ms


async def measure(size: Size, rounds: int) -> Cost:
    """Scrape the same process again and again; the gate has its Tick in between."""
    whole_ms, stall_ms, cpu_ms, part_ms, body = [], [], [], [], b""
    services = built(size)
    for _ in range(rounds):
        _told(services, Tick())
        parts_ms = _cpu_ms(services)
        cpu_ms.append(sum(parts_ms))
        part_ms.append(max(parts_ms))
        stop = asyncio.Event()
        watching = asyncio.create_task(_turns(stop))
        await asyncio.sleep(0)
        began_s = time.perf_counter()
        body = (await exposition(services.telemetry, services.clock)).body
        whole_ms.append(1e3 * (time.perf_counter() - began_s))
        stop.set()
        stall_ms.append(1e3 * await watching)
    await services.replicas.aclose()
    await services.upstream.aclose()
    samples = sum(not line.startswith(b"#") for line in body.splitlines())
    median = statistics.median
    return Cost(
        median(cpu_ms), median(part_ms), median(whole_ms), max(whole_ms), median(stall_ms), max(stall_ms), samples, len(body) / 1000,
    )  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("replicas", "tenants", "in_flight", "waiting"):
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=getattr(Size(), name))
    parser.add_argument("--shares", action="store_true")
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    size = Size(chosen.replicas, chosen.tenants, chosen.in_flight, chosen.waiting, chosen.shares)
    cost = asyncio.run(measure(size, chosen.rounds))
    if chosen.json:
        sys.stdout.write(json.dumps({name: getattr(cost, name) for name in Cost.__slots__}) + "\n")
        return 0
    sys.stdout.write(
        f"{size}\n{cost.samples} samples, {cost.kilobytes:.0f} kB\n"
        f"CPU: median {cost.cpu_ms_median:.1f} ms, of the longest part {cost.part_cpu_ms_median:.2f} ms\n"
        f"whole: median {cost.whole_ms_median:.1f} ms, most {cost.whole_ms_max:.1f} ms\n"
        f"stall: median {cost.stall_ms_median:.2f} ms, most {cost.stall_ms_max:.2f} ms\n"
    )
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
