"""Several proxies over one store in virtual time, beside one proxy on the same requests: ``python -m tests.bench.shared_sim``.

For each workload one line for one proxy, then one for each number of proxies and each way to the store. ``goodput`` and ``tokens/s`` are
shares of those of one proxy; ``over`` is by how much of the pool the rows of all proxies, read from outside with the margin and bias in
force, were above it at the worst grant, and ``live`` the same of their ledgers as they stood at that moment; ``passed`` counts grants to
a low band before a high one that waited elsewhere; ``calls`` are calls of the store for each grant.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from proxy.sim.figures import Figures, figures_of
from proxy.sim.proxies import Proxies
from proxy.sim.scenario import KVGATE, Scenario, build
from proxy.sim.store import StoreSettings
from tests.support.shared_worlds import Judge

REQUESTS = {"chat": 1200, "reasoning": 400, "rag": 600, "agent": 1200}
WAYS = (
    StoreSettings(delay_s=0.0002),
    StoreSettings(delay_s=0.001),
    StoreSettings(delay_s=0.005),
    StoreSettings(delay_s=0.001, loss=0.01),
)


@dataclass(frozen=True)
class Played:
    """One world's figures, and what its judge saw: shares of the pool, and counts."""

    figures: Figures
    over_ratio: float = 0.0
    live_over_ratio: float = 0.0
    passed_over: int = 0
    calls_per_grant: float = 0.0
    apart: int = 0


def played(scenario: Scenario) -> Played:
    """Play a scenario, with a judge where there are several proxies."""
    world = build(scenario, KVGATE)
    if not isinstance(world.admission, Proxies):
        return Played(figures_of(world.run(), scenario.targets))
    judge = Judge(world, world.admission)
    world.run()
    usable = scenario.kv_blocks
    calls = sum(proxy.link.calls for proxy in judge.living.values())
    return Played(
        figures_of(world, scenario.targets),
        max(judge.rows_over_blocks, default=0.0) / usable,
        max(judge.over_blocks, default=0.0) / usable,
        len(judge.passed_over),
        calls / max(1, len(judge.over_blocks)),
        sum(proxy.member.granted_apart_total + proxy.member.unanswered_total for proxy in judge.living.values()),
    )


def lines(workload: str, scenario: Scenario, counts: Sequence[int], ways: Sequence[StoreSettings]) -> Iterator[str]:
    """The table of one workload, a line as soon as it is known."""
    alone = played(scenario).figures
    yield (
        f"{workload}, {scenario.requests} requests, {scenario.replicas} × {scenario.kv_blocks} blocks, load {scenario.load_ratio:g}: "
        f"one proxy: goodput {alone.goodput_ratio:.3f}, {alone.tokens_per_s:.0f} tokens/s, "
        f"{alone.preemptions_per_1000:.1f} preempted per 1,000, KV used {alone.kv_usage_ratio_mean_while_queued or 0.0:.3f}"
    )
    yield (
        f"{'proxies':>7} {'delay':>8} {'loss':>5} {'goodput':>8} {'tokens/s':>9} {'preempted':>10} {'KV':>6} {'over':>7} {'live':>7} "
        f"{'passed':>7} {'calls':>6} {'apart':>6}"
    )
    for count in counts:
        for way in ways:
            one = played(replace(scenario, proxies=count, store=way))
            figures = one.figures
            goodput = (figures.goodput_ratio or 0.0) / (alone.goodput_ratio or 1.0)
            tokens = (figures.tokens_per_s or 0.0) / (alone.tokens_per_s or 1.0)
            yield (
                f"{count:>7} {way.delay_s * 1e3:>6g}ms {way.loss:>5.0%} {goodput:>8.3f} {tokens:>9.3f} "
                f"{figures.preemptions_per_1000 or 0.0:>10.1f} {figures.kv_usage_ratio_mean_while_queued or 0.0:>6.3f} "
                f"{one.over_ratio:>7.2%} {one.live_over_ratio:>7.2%} {one.passed_over:>7} {one.calls_per_grant:>6.1f} {one.apart:>6}"
            )


def main(argv: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", nargs="+", default=["chat", "reasoning"])
    parser.add_argument("--proxies", nargs="+", type=int, default=[2, 4, 16])
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--kv-blocks", type=int, default=4000)
    parser.add_argument("--load", type=float, default=1.3)
    parser.add_argument("--requests", type=int, help="arrivals of each world")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--ways", nargs="+", type=int, default=[0, 1, 2, 3], help="0: 0.2 ms, 1: 1 ms, 2: 5 ms, 3: 1 ms and 1 %% lost"
    )
    arguments = parser.parse_args(argv)
    for workload in arguments.workloads:
        requests = arguments.requests or REQUESTS.get(workload, 1000)
        scenario = Scenario(
            workload=workload, seed=arguments.seed, replicas=arguments.replicas, kv_blocks=arguments.kv_blocks, load=arguments.load,
            requests=requests,
        )  # fmt: skip
        for line in lines(workload, scenario, arguments.proxies, [WAYS[way] for way in arguments.ways]):
            print(line, flush=True)  # noqa: T201
        print()  # noqa: T201
    return 0


if __name__ == "__main__":
    sys.exit(main())
