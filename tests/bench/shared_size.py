"""Many proxies before many replicas in virtual time: how far the simulator goes, and whether what holds of a few holds of many.

    python -m tests.bench.shared_size --proxies 64 --replicas 1000 --seconds 10

Plays the first seconds of one workload, with all proxies over one ledger and then with one proxy, and judges every grant from outside: the
rows of all proxies on its replica must fit, with the margin, spread and bias in force. Blocks held must not exceed a pool, and preemptions
and tokens stand beside those of the one proxy. CPU is of the whole simulation, engines, judge and all proxies included.

The policy is one for such a fleet: scrapes every 2 s, leases of 10 s. A proxy renews each row four times in a scrape lease, so with the
defaults 64,000 pairs of a proxy and a replica would call the store 256,000 times a second, virtual or not.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from resource import RUSAGE_SELF, getrusage

from proxy.core.policy import Policy
from proxy.core.shared import Answer
from proxy.sim.proxies import Proxies
from proxy.sim.scenario import KVGATE, Scenario, build
from proxy.sim.store import StoreSettings
from proxy.sim.world import World
from tests.support.shared_worlds import Judge

FLEET_POLICY = replace(
    Policy(),
    scrape=replace(Policy().scrape, interval_s=2.0),
    store=replace(Policy().store, lease_s=10.0, beat_s=1.0, rewrite_s=0.5),
)
NEVER = 10_000_000  # requests: the time ends it
KB_PER_MB = 1024.0


@dataclass(frozen=True)
class Sized:
    """What one world showed. Blocks are by how much the worst grant was above its pool; below 0 where it left room."""

    arrived: int
    completed: int
    waiting: int
    tokens: int
    preempted: int
    used_ratio_max: float  # of a pool, the fullest
    admission_us: float  # of a gate's call for an arrival, in the middle
    cpu_s: float
    memory_mb: float
    calls: int = 0
    grants: int = 0
    refused: int = 0  # at the store: others had been faster
    over_blocks: float = 0.0


def world_of(scenario: Scenario, seconds: float) -> World:
    """The first seconds of a scenario."""
    world = build(scenario, KVGATE)
    world.settings = replace(world.settings, until_s=seconds)
    return world


def played(scenario: Scenario, seconds: float) -> Sized:
    """Play the first seconds of a scenario, with a judge where there are several proxies."""
    begun_s = time.process_time()
    world = world_of(scenario, seconds)
    judge = Judge(world, world.admission, samples=False) if isinstance(world.admission, Proxies) else None
    world.run()
    cpu_s = time.process_time() - begun_s
    results = list(world.results.values())
    decisions_ns = sorted(world.admission.decisions_ns)  # type: ignore[attr-defined]
    found = Sized(
        arrived=len(results),
        completed=sum(one.end_s is not None and one.outcome is not None and one.outcome.value == "completed" for one in results),
        waiting=world.admission.queued,
        tokens=world.tokens,
        preempted=sum(counters.preemptions for counters in world.counters),
        used_ratio_max=max(engine.used_blocks / engine.usable_blocks for engine in world.engines.values()),
        admission_us=decisions_ns[len(decisions_ns) // 2] / 1e3 if decisions_ns else 0.0,
        cpu_s=cpu_s,
        memory_mb=getrusage(RUSAGE_SELF).ru_maxrss / KB_PER_MB,
    )
    if judge is None:
        return found
    refused = sum(count for answer, count in judge.answers.items() if answer is not Answer.GRANTED)
    return replace(
        found,
        calls=sum(proxy.link.calls for proxy in judge.living.values()),
        grants=len(judge.rows_over_blocks),
        refused=refused,
        over_blocks=max(judge.rows_over_blocks, default=0.0),
    )


def line(proxies: int, one: Sized) -> str:
    """One world's figures."""
    return (
        f"{proxies:>4} proxies: {one.arrived} arrived, {one.completed} completed, {one.waiting} wait, {one.tokens} tokens, "
        f"{one.preempted} preempted, fullest pool {one.used_ratio_max:.1%}, worst grant {one.over_blocks:+.2f} blocks over; "
        f"{one.grants} grants and {one.refused} refusals of {one.calls} calls; an admission {one.admission_us:.0f} us; "
        f"CPU {one.cpu_s:.0f} s, {one.memory_mb:.0f} MB"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Print both worlds; 1 where a grant did not fit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--proxies", type=int, default=64)
    parser.add_argument("--replicas", type=int, default=1000)
    parser.add_argument("--seconds", type=float, default=10.0, help="virtual ones")
    parser.add_argument("--kv-blocks", type=int, default=200)
    parser.add_argument("--load", type=float, default=1.2)
    parser.add_argument("--workload", default="chat")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--alone", action="store_true", help="one proxy too")
    asked = parser.parse_args(argv)
    scenario = Scenario(
        workload=asked.workload, seed=asked.seed, replicas=asked.replicas, kv_blocks=asked.kv_blocks, load=asked.load, requests=NEVER,
        store=StoreSettings(delay_s=0.001), policy=FLEET_POLICY,
    )  # fmt: skip
    print(f"{asked.replicas} × {asked.kv_blocks} blocks, {scenario.rate_per_s:.0f} requests/s, {asked.seconds:g} s")  # noqa: T201
    over = 0.0
    for proxies in [asked.proxies, 1] if asked.alone else [asked.proxies]:
        one = played(replace(scenario, proxies=proxies), asked.seconds)
        over = max(over, one.over_blocks)
        print(line(proxies, one), flush=True)  # noqa: T201
    return 1 if over > 1.0 else 0


if __name__ == "__main__":
    sys.exit(main())
