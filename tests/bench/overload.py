"""What kvgate does with more than it can serve: goodput, whom it refuses and when, who returns, and how tenants fare. Virtual time.

    python -m tests.bench.overload --workload chat --kv-blocks 2500 --minutes 2 --seeds 1 2 3 --sample 10

Every row has the same configuration: the default policy. Good is a first token within 10 s of the arrival and 50 ms per further token;
requests wait as long as that. Rates count good answers whose first token came between ``WARM_S`` and the last arrival.

``goodput N×``: good answers per second at N times the fluid capacity over those at 1×. ``precision``, ``recall``, ``time to shed``: see
``proxy/sim/counterfactual.py``. ``returning``: at 2×, everybody refused comes back within 1 s of its Retry-After (unless told not to); the
share of those comings that are not refused again, after ``WARM_S``. ``jain``: see ``proxy/sim/fairness.py``; equal tenants of whom one
offers 10 times its share, or ServeGen's clients with ``--servegen FILE``. ``others' TTFT``: p99 of the tenants who offer their share while
one offers ten times its own, over the same without the excess.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import takewhile
from pathlib import Path
from statistics import fmean

from proxy.core.policy import Policy
from proxy.sim.admission import GateAdmission
from proxy.sim.counterfactual import judge_shedding
from proxy.sim.engine_requests import EngineSettings
from proxy.sim.fairness import jain_of_backlogged
from proxy.sim.figures import Targets
from proxy.sim.fluid import capacity_requests_per_s
from proxy.sim.percentile import percentile
from proxy.sim.returning import Returning
from proxy.sim.sim_request import SimRequest
from proxy.sim.step_time import StepTimeModel
from proxy.sim.workloads import Workload, load_workload
from proxy.sim.world import Listed, World, WorldSettings

WARM_S = 20.0
TENANTS = 8
OVER_SHARE = 10.0
BLOCK_SIZE = 16
ROWS = ("goodput", "shed", "returning", "loud", "servegen")


@dataclass(frozen=True)
class Overload:
    """One seed's worlds."""

    workload: str
    seed: int
    kv_blocks: int
    duration_s: float
    targets: Targets

    def source(self) -> Workload:
        """The workload from its start."""
        return load_workload(self.workload, self.seed, block_size=BLOCK_SIZE)

    @property
    def engine(self) -> EngineSettings:
        """One replica."""
        context = max(4096, self.source().stats.tokens_max + 1)
        return EngineSettings(num_gpu_blocks=self.kv_blocks + 1, block_size=BLOCK_SIZE, max_model_len=context)

    @property
    def capacity_per_s(self) -> float:
        """Requests per second that the replica can do at most."""
        return capacity_requests_per_s(self.engine, StepTimeModel(), self.source().stats)

    def requests(self, load: float) -> list[SimRequest]:
        """Arrivals at a load, each waiting as long as its first token may take."""
        wait_s = self.targets.ttft_s
        arrivals = takewhile(lambda one: one.arrival_s < self.duration_s, self.source().arrivals(load * self.capacity_per_s))
        return [replace(one, ttft_s=wait_s, wait_s_max=wait_s) for one in arrivals]

    def world(
        self, requests: list[SimRequest], *, spared: frozenset[str] = frozenset(), until_s: float = 1e7,
        returning: Returning | None = None,
    ) -> World:  # fmt: skip
        """A world that has not run yet."""
        settings = WorldSettings(engine=self.engine, wait_s_max=self.targets.ttft_s, until_s=until_s)
        return World(settings, GateAdmission(Policy(), spared=spared), Listed(requests), returning)

    def good_per_s(self, world: World) -> float:
        """Good answers per second between warming up and the last arrival."""
        results = (one for one in world.results.values() if one.first_s is not None and WARM_S <= one.first_s < self.duration_s)
        return sum(map(self.targets.good, results)) / (self.duration_s - WARM_S)


def goodput(at: Overload) -> dict[str, float]:
    """Good answers per second under overload over those at capacity."""
    rates = {load: at.good_per_s(at.world(at.requests(load)).run()) for load in (1.0, 2.0, 4.0)}
    return {"good/s at capacity": rates[1.0], "goodput 2x": rates[2.0] / rates[1.0], "goodput 4x": rates[4.0] / rates[1.0]}


def shed(at: Overload, load: float, sample: int) -> dict[str, float]:
    """Whom it refuses, and when."""
    requests = at.requests(load)

    def replay(spared: frozenset[str], until_s: float) -> World:
        return at.world(requests, spared=spared, until_s=until_s)

    judged = judge_shedding(at.world(requests).run(), replay, at.targets, sample=sample, seed=at.seed)
    found = {"precision": judged.precision, "recall": judged.recall, "time to shed": judged.wait_ratio_p50}
    return {f"{name} {load:g}x": value for name, value in found.items() if value is not None}


def returning(at: Overload) -> dict[str, float]:
    """Those who come back when told."""
    clients = Returning(at.seed)
    world = at.world(at.requests(2.0), returning=clients).run()
    comings = [world.results[name] for name in clients.returned if name in world.results]
    settled = [one for one in comings if WARM_S <= one.arrived_s < at.duration_s]
    served = sum(one.first_s is not None for one in settled)
    good = at.good_per_s(world) / at.capacity_per_s
    return {"returned": float(len(settled)), "returning not shed": served / max(1, len(settled)), "good/s over fluid": good}


def tenants(at: Overload, share: float, loud: float) -> list[SimRequest]:
    """Equal tenants that together offer ``share`` of capacity, the first of them ``loud`` times its part."""
    rate = share * (TENANTS - 1 + loud) / TENANTS
    names = [index / (TENANTS - 1 + loud) for index in range(TENANTS)]
    requests = at.requests(rate)

    def tenant(index: int) -> str:
        # Every request is somebody's by its place in a low-discrepancy sequence: no draw of one seed favours a tenant.
        point = (index * 0.6180339887498949) % 1.0
        return f"t{sum(point >= low for low in names[: TENANTS - 1])}"

    return [replace(one, tenant=tenant(index)) for index, one in enumerate(requests)]


def loud_tenant(at: Overload) -> dict[str, float]:
    """One tenant offers ten times its share, at a load at which all together would be just served."""
    last = f"t{TENANTS - 1}"

    def others_p99(world: World) -> float:
        ttft_s = (
            one.first_s - one.arrived_s
            for one in world.results.values()
            if one.first_s is not None and one.request.tenant != last and one.arrived_s >= WARM_S
        )
        return percentile(ttft_s, 0.99) or float("nan")

    loud = at.world(tenants(at, 0.9, OVER_SHARE)).run()
    even = at.world(tenants(at, 0.9, 1.0)).run()
    shed_others = [one for one in loud.results.values() if one.request.tenant != last]
    found = {
        "others' TTFT p99 s, even": others_p99(even),
        "others' TTFT p99 ratio": others_p99(loud) / others_p99(even),
        "others shed": sum(one.first_s is None for one in shed_others) / max(1, len(shed_others)),
    }
    everybody = at.world(tenants(at, 3.0, OVER_SHARE)).run()
    index = jain_of_backlogged(everybody.results.values(), at.duration_s)
    return found if index is None else {**found, "jain, all backlogged": index}


def servegen(at: Overload) -> dict[str, float]:
    """Real tenants, skewed as they are, at four times the capacity: at twice there is hardly a minute in which two of them always wait."""
    world = at.world(at.requests(4.0)).run()
    index = jain_of_backlogged(world.results.values(), at.duration_s)
    return {} if index is None else {"jain, ServeGen 4x": index}


def rows(at: Overload, wanted: list[str], sample: int, servegen_file: str | None) -> Iterator[dict[str, float]]:
    """Figures, row by row."""
    if "goodput" in wanted:
        yield goodput(at)
    if "shed" in wanted:
        for load in (2.0, 4.0):
            yield shed(at, load, sample)
    if "returning" in wanted:
        yield returning(at)
    if "loud" in wanted:
        yield loud_tenant(at)
    if "servegen" in wanted and servegen_file is not None:
        yield servegen(replace(at, workload=servegen_file))


def parse(words: list[str]) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench.overload", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workload", default="chat", help="generator or file (chat)")
    parser.add_argument("--kv-blocks", type=int, default=2500, help="blocks of 16 tokens (2500: about 35 sequences of chat)")
    parser.add_argument("--minutes", type=float, default=2.0, help="of arrivals (2)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1], help="(1)")
    parser.add_argument("--sample", type=int, default=5, help="refused requests replayed per load (5)")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(ROWS), help="(all)")
    parser.add_argument("--servegen", metavar="FILE", help="a ServeGen file, for its row")
    parser.add_argument("--json", metavar="FILE", help="keep every seed's figures")
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    """Print a table of means, least and most over the seeds."""
    options = parse(words)
    figures: dict[str, list[float]] = {}
    for seed in options.seeds:
        at = Overload(options.workload, seed, options.kv_blocks, 60.0 * options.minutes, Targets())
        for row in rows(at, options.rows, options.sample, options.servegen):
            for name, value in row.items():
                figures.setdefault(name, []).append(value)
                sys.stderr.write(f"seed {seed}: {name} {value:.3f}\n")
    sys.stdout.write(f"{'figure':28} {'mean':>8} {'least':>8} {'most':>8}   n\n")
    for name, values in figures.items():
        sys.stdout.write(f"{name:28} {fmean(values):8.3f} {min(values):8.3f} {max(values):8.3f} {len(values):3}\n")
    if options.json:
        Path(options.json).write_text(json.dumps(figures, indent=1), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
