"""The best static cap and the best KV threshold for one workload, found by trying: what an operator could have set had he known the day.

    python -m tests.bench.hindsight --workload chat --seed 1 --load 1.2 --requests 1000 --kv-blocks 2500

Each family is swept on a coarse grid and then once more around its best, every value on the same requests. Best is the highest goodput
over all offered; of equals the one with more tokens per second. ``hindsight`` does it for anything that can play a baseline by name.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from proxy.sim.figures import Figures
from proxy.sim.scenario import Scenario, play

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
    assert figures.goodput_ratio is not None, "a bound is not a run"
    assert figures.tokens_per_s is not None
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


def parse(words: list[str]) -> argparse.Namespace:
    """Read the command line; the scenario's own defaults stand."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.hindsight", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--workload", default="chat")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--requests", type=int)
    parser.add_argument(
        "--load", type=float, help="share of the fluid capacity that arrives; inf: clients that wait for each other"
    )
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--kv-blocks", type=int, default=4000, help="per replica")
    parser.add_argument("--metrics-age", type=float, default=0.0, help="seconds until a scrape arrives")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args(words)


def scenario_of(arguments: argparse.Namespace) -> Scenario:
    """The scenario asked for."""
    return Scenario(
        workload=arguments.workload, seed=arguments.seed, replicas=arguments.replicas, kv_blocks=arguments.kv_blocks,
        metrics_age_s=arguments.metrics_age, load=arguments.load, requests=arguments.requests,
    )  # fmt: skip


def hindsight_of(scenario: Scenario) -> dict[str, Tuned]:
    """Best of each family for one scenario, seed included."""
    return hindsight(lambda name: play(scenario, name), scenario.fluid.sequences)


def main(words: list[str]) -> int:
    """Sweep and print."""
    arguments = parse(words)
    found = hindsight_of(scenario_of(arguments))
    if arguments.json:
        told = {family: {"best": one.name, **one.figures.as_dict(), "tried": len(one.tried)} for family, one in found.items()}
        sys.stdout.write(json.dumps(told) + "\n")
        return 0
    heads = ("goodput", "tokens/s", "preempted/1000", "TTFT p99 s")
    lines = [f"{'tried':20} " + " ".join(f"{head:>14}" for head in heads)]
    for one in found.values():
        for name, each in one.tried.items():
            row = (each.goodput_ratio, each.tokens_per_s, each.preemptions_per_1000, each.ttft_s_p99)
            cells = ("-" if value is None else f"{value:.3f}" for value in row)
            best = "  best" if name == one.name else ""
            lines.append(f"{name:20} " + " ".join(f"{cell:>14}" for cell in cells) + best)
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
