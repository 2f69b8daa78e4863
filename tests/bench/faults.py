"""What admission does when its view of the engines goes wrong, in virtual time: one row for each fault.

    python -m tests.bench.faults --workload chat --requests 700 --seeds 1 2

Half of the traffic bypasses kvgate; metrics that are old, do not say so, are gone or miss a part; gauges that jump or freeze;
counters that fall; engines that restart. Rows of half the traffic are compared with plain forwarding of the same requests: ``own`` and
``others`` are each half's tokens per second and goodput as shares of what it has there. All other rows are compared with the first.
"""

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from math import inf

from proxy.core.outcome import Outcome
from proxy.sim.faults import Faults
from proxy.sim.figures import Figures, figures_of
from proxy.sim.scenario import KVGATE, Scenario
from proxy.sim.sim_request import SimResult
from proxy.sim.world import World

KV_BLOCKS = {"chat": 2500, "reasoning": 4000}  # about 35 sequences
PLAIN = "passthrough"


@dataclass(frozen=True, slots=True)
class Case:
    """One row: what is wrong with the world."""

    name: str
    faults: Faults = field(default_factory=Faults)
    metrics_age_s: float = 0.0
    metrics_gone_s: tuple[float, float] = (inf, inf)
    bypass_ratio: float = 0.0
    load: float = inf


AS_IT_SHOULD_BE = Case("nothing wrong")
CASES = (
    AS_IT_SHOULD_BE,
    Case("metrics 0.1 s old", metrics_age_s=0.1),
    Case("metrics 1 s old", metrics_age_s=1.0),
    Case("metrics 5 s old", metrics_age_s=5.0),
    Case("metrics 15 s old", metrics_age_s=15.0),
    Case("metrics 1 s old, as if new", Faults(age_hidden=True), metrics_age_s=1.0),
    Case("metrics 5 s old, as if new", Faults(age_hidden=True), metrics_age_s=5.0),
    Case("metrics gone for 60 s", metrics_gone_s=(15.0, 75.0)),
    Case("no metrics at all", metrics_gone_s=(0.0, inf)),
    Case("no usage", Faults(missing=frozenset({"kv_usage_ratio"}))),
    Case("no running", Faults(missing=frozenset({"running"}))),
    Case("no waiting", Faults(missing=frozenset({"waiting"}))),
    Case("no preemption counter", Faults(missing=frozenset({"preemptions_total"}))),
    Case("no token counters", Faults(missing=frozenset({"generation_tokens_total", "prompt_tokens_total"}))),
    Case("every 10th usage is 1", Faults(jump_every=10, jump_ratio=1.0)),
    Case("every 10th usage is 0", Faults(jump_every=10, jump_ratio=0.0)),
    Case("frozen for 30 s", Faults(frozen_s=(15.0, 45.0))),
    Case("counters fall, no restart", Faults(counters_fall_s=20.25)),
    Case("restart, 5 s away", Faults(restarts_s=(20.25,), down_s=5.0)),
    Case("restart, learned 10 s later", Faults(restarts_s=(20.25,), lost_s=10.0)),
    Case("two restarts", Faults(restarts_s=(20.25, 40.25), down_s=2.0)),
)
BYPASSED = (
    Case("half bypasses, saturated", bypass_ratio=0.5),
    Case("half bypasses, load 1", bypass_ratio=0.5, load=1.0),
    Case("half bypasses, load 1.3", bypass_ratio=0.5, load=1.3),
    Case("half bypasses, 5 s old", bypass_ratio=0.5, metrics_age_s=5.0),
    Case("half bypasses, gone for 60 s", bypass_ratio=0.5, metrics_gone_s=(15.0, 75.0)),
)


@dataclass(frozen=True, slots=True)
class Half:
    """One half of the traffic."""

    tokens_per_s: float
    goodput_ratio: float


@dataclass(frozen=True, slots=True)
class Run:
    """What one world came to."""

    figures: Figures
    own: Half
    others: Half
    lost: int


def scenario_of(case: Case, workload: str, seed: int, requests: int) -> Scenario:
    """The scenario of a row."""
    return Scenario(
        workload=workload, seed=seed, kv_blocks=KV_BLOCKS[workload], load=case.load, requests=requests, bypass_ratio=case.bypass_ratio,
        metrics_age_s=case.metrics_age_s, metrics_gone_s=case.metrics_gone_s,
    )  # fmt: skip


def play(case: Case, name: str, workload: str, seed: int, requests: int) -> Run:
    """Run one case under one policy."""
    scenario = scenario_of(case, workload, seed, requests)
    settings = replace(scenario.settings(), faults=case.faults)
    world = World(settings, scenario.admission(name), scenario.clients()).run()
    busy_s = world.now_s if world.dry_s is None else world.dry_s

    def half(results: list[SimResult]) -> Half:
        tokens = sum(one.output_tokens for one in results if one.end_s is not None and one.end_s <= busy_s)
        return Half(tokens / busy_s, sum(map(scenario.targets.good, results)) / max(1, len(results)))

    results = list(world.results.values())
    lost = sum(one.outcome is Outcome.UPSTREAM_FAILED for one in results)
    own, others = ([one for one in results if one.bypassed is past] for past in (False, True))
    return Run(figures_of(world, scenario.targets), half(own), half(others), lost)


def share(part: float, whole: float) -> str:
    """A ratio for a table."""
    return f"{part / whole:8.2f}" if whole else "       -"


def rows(workload: str, seed: int, requests: int) -> Iterator[str]:
    """Lines of the table, as they are found."""
    first: Run | None = None
    yield f"{workload}, seed {seed}, {KV_BLOCKS[workload]} blocks, {requests} requests"
    yield f"{'':30}{'preempt/1k':>12}{'tokens/s':>10}{'of first':>9}{'lost':>6}"
    for case in CASES:
        run = play(case, KVGATE, workload, seed, requests)
        first = first or run
        per_1000, rate = run.figures.preemptions_per_1000 or 0.0, run.figures.tokens_per_s or 0.0
        yield f"{case.name:30}{per_1000:12.1f}{rate:10.0f} {share(rate, first.figures.tokens_per_s or 0.0)}{run.lost:6}"
    yield f"{'':30}{'preempt/1k':>12}{'of plain':>10}{'own tokens':>12}{'goodput':>9}{'others':>8}{'goodput':>9}"
    for case in BYPASSED:
        plain, run = (play(case, name, workload, seed, requests) for name in (PLAIN, KVGATE))
        per_1000 = run.figures.preemptions_per_1000 or 0.0
        halves = "".join(
            f"  {share(after.tokens_per_s, before.tokens_per_s)} {share(after.goodput_ratio, before.goodput_ratio)}"
            for before, after in ((plain.own, run.own), (plain.others, run.others))
        )
        yield f"{case.name:30}{per_1000:12.1f}  {share(per_1000, plain.figures.preemptions_per_1000 or 0.0)}{halves}"


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workload", nargs="+", choices=sorted(KV_BLOCKS), default=["chat", "reasoning"])
    parser.add_argument("--requests", type=int, default=700, metavar="N", help="requests of each world (default 700)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], metavar="SEED")
    options = parser.parse_args()
    for workload in options.workload:
        for seed in options.seeds:
            for line in rows(workload, seed, options.requests):
                sys.stdout.write(line + "\n")
                sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main())
