"""The best static cap and the best KV threshold for one workload, found by trying: what an operator could have set had he known the day.

    python -m tests.bench.hindsight --workload chat --seed 1 --load 1.2 --requests 2000 --kv-tokens 40000

Each family is swept on a coarse grid and then once more around its best, every value on the same requests. Best is the highest goodput
over all offered; of equals the one with more tokens per second. ``hindsight`` does it for anything that can play a baseline by name.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from proxy.core.policy import Policy
from proxy.sim.baselines import make_baseline
from proxy.sim.engine_requests import EngineSettings
from proxy.sim.figures import Figures, Targets, figures_of
from proxy.sim.fluid import capacity_requests_per_s, fluid_bound
from proxy.sim.sim_request import SimRequest
from proxy.sim.step_time import StepTimeModel
from proxy.sim.workloads import Workload, load_workload
from proxy.sim.world import World, WorldSettings

Play = Callable[[str], Figures]

# Shares of the fluid bound's sequences: from a third, where any pool is half empty, to three times, where any engine preempts.
CAP_SHARES = (0.35, 0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0, 3.0)
THRESHOLDS = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
THRESHOLD_STEP = 0.05
THRESHOLD_FAMILIES = ("threshold", "threshold-own")


@dataclass(frozen=True, slots=True)
class Tuned:
    """The best of a family, and all that were tried, by name."""

    name: str
    figures: Figures
    tried: dict[str, Figures]


def rank(figures: Figures) -> tuple[float, float]:
    """More is better."""
    return figures.goodput_ratio, figures.tokens_per_s


def sweep(play: Play, coarse: Iterable[str], around: Callable[[str], Iterable[str]]) -> Tuned:
    """Play the coarse names, then those around the best of them, each once."""
    tried: dict[str, Figures] = {}

    def best_of(names: Iterable[str]) -> str:
        for name in names:
            if name not in tried:
                tried[name] = play(name)
        return max(tried, key=lambda name: rank(tried[name]))

    best = best_of(around(best_of(coarse)))
    return Tuned(best, tried[best], tried)


def hindsight(play: Play, sequences: float) -> dict[str, Tuned]:
    """Best of each family: ``static``, ``threshold``, ``threshold-own``. ``sequences`` is about what a replica can run at once."""
    caps = sorted({max(1, round(share * sequences)) for share in CAP_SHARES})

    def caps_around(name: str) -> Iterator[str]:
        at = caps.index(int(name.partition(":")[2]))
        for low, high in zip(caps[max(0, at - 1) : at + 1], caps[max(1, at) : at + 2], strict=False):
            yield from (f"static:{round(low + (high - low) * share)}" for share in (1 / 3, 2 / 3))

    found = {"static": sweep(play, [f"static:{cap}" for cap in caps], caps_around)}
    for family in THRESHOLD_FAMILIES:

        def thresholds_around(name: str, family: str = family) -> Iterator[str]:
            best = float(name.partition(":")[2])
            return (f"{family}:{x:g}" for x in (best - THRESHOLD_STEP, best + THRESHOLD_STEP) if round(x, 2) <= 1.0)

        found[family] = sweep(play, [f"{family}:{x:g}" for x in THRESHOLDS], thresholds_around)
    return found


class Offered:
    """The first requests of a workload, at a rate or for clients that wait for each other (``rate_per_s`` None); later turns count."""

    def __init__(self, workload: Workload, requests: int, rate_per_s: float | None) -> None:
        self._workload = workload
        self._left = requests
        self._arrivals = None if rate_per_s is None else workload.arrivals(rate_per_s)

    def next_request(self, now_s: float) -> SimRequest | None:
        """The next, while there are any left."""
        if not self._left:
            return None
        self._left -= 1
        return self._workload.next_request(now_s) if self._arrivals is None else next(self._arrivals, None)

    def follow_up(self, request: SimRequest, now_s: float) -> SimRequest | None:
        """The session's next turn."""
        following = self._workload.follow_up(request, now_s) if self._left else None
        self._left -= following is not None
        return following


def player(arguments: argparse.Namespace) -> tuple[Play, float]:
    """What plays the workload asked for under a baseline, and the sequences that its replicas can run at once."""
    engine = EngineSettings(
        num_gpu_blocks=arguments.kv_tokens // arguments.block_size + 1,
        block_size=arguments.block_size,
        max_num_seqs=arguments.sequences_max,
        max_model_len=arguments.context,
    )
    step_time = StepTimeModel()
    stats = load_workload(arguments.workload, arguments.seed).stats
    rate = None
    if arguments.clients is None:
        rate = arguments.load * capacity_requests_per_s(engine, step_time, stats, arguments.replicas)
    settings = WorldSettings(
        replicas=arguments.replicas,
        engine=engine,
        step_time=step_time,
        scrape_s=arguments.scrape,
        metrics_age_s=arguments.metrics_age,
        concurrency=arguments.clients,
        wait_s_max=arguments.deadline,
    )

    def play(name: str) -> Figures:
        workload = load_workload(arguments.workload, arguments.seed, block_size=engine.block_size)
        offered = Offered(workload, arguments.requests, rate)
        world = World(settings, make_baseline(name, Policy(), seed=arguments.seed), offered).run()
        return figures_of(world, Targets())

    return play, fluid_bound(engine, step_time, stats).sequences


def parse(words: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.hindsight", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workload", default="chat")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--load", type=float, default=1.0, help="share of the fluid capacity that arrives")
    parser.add_argument("--clients", type=int, help="that many clients wait for each other, instead of --load")
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--kv-tokens", type=int, default=40_000, help="per replica")
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--context", type=int, default=17_408)
    parser.add_argument("--sequences-max", type=int, default=256)
    parser.add_argument("--scrape", type=float, default=0.5, help="seconds between scrapes")
    parser.add_argument("--metrics-age", type=float, default=0.0, help="seconds until a scrape arrives")
    parser.add_argument("--deadline", type=float, default=10.0, help="seconds a request waits for its place")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    """Sweep and print."""
    arguments = parse(words)
    play, sequences = player(arguments)
    found = hindsight(play, sequences)
    if arguments.json:
        told = {family: {"best": one.name, **one.figures.as_dict(), "tried": len(one.tried)} for family, one in found.items()}
        sys.stdout.write(json.dumps(told) + "\n")
        return 0
    lines = [f"{'tried':20} {'goodput':>8} {'tokens/s':>9} {'preempted/1000':>15} {'TTFT p99 s':>11}"]
    for one in found.values():
        for name, each in one.tried.items():
            ttft_s = float("nan") if each.ttft_s_p99 is None else each.ttft_s_p99
            lines.append(
                f"{name:20} {each.goodput_ratio:8.3f} {each.tokens_per_s:9.0f} {each.preemptions_per_1000:15.1f} {ttft_s:11.2f}"
                f"{'  best' if name == one.name else ''}"
            )
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
