"""The kinds of run of the admission protocol: each plays worlds of one seed and tells figures by name.

``KINDS`` maps a kind to ``(scenario, policy, options) → {"figures": {…}, "series": […]}``. The series is KV usage over time, thinned.
``warm_`` figures count from the ``WARM_COMPLETIONS``-th completion on, when a cold start is over.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from math import inf
from pathlib import Path
from typing import Any
from unittest.mock import patch

from proxy.core import placement
from proxy.core.policy import Policy, Queue
from proxy.sim.engine_requests import EngineSettings
from proxy.sim.figures import figures_of
from proxy.sim.scenario import KVGATE, Scenario
from proxy.sim.sim_request import SimRequest
from proxy.sim.workloads import Trace, load_workload
from proxy.sim.world import Listed, Source, World, WorldSettings
from tests.bench import decision, faults, overload
from tests.bench.prefix_hits import ceiling, hit_ratio, imbalance

Measured = dict[str, Any]
Options = Mapping[str, float | str]
Kind = Callable[[Scenario, str, Options], Measured]

WARM_COMPLETIONS = 500
SERIES_POINTS = 3000  # of a whole run, of which a plot shows the beginning
MOONCAKE_BLOCK = 512
LONG_PROMPT, LONG_OUTPUT = 32_000, 100


@dataclass(frozen=True, slots=True)
class Mark:
    """How far a world was at a moment."""

    at_s: float
    preemptions: int
    tokens: int


class Marking:
    """A source that notes how far the world is when so many requests have been answered."""

    def __init__(self, source: Source, completions: int) -> None:
        self.mark: Mark | None = None
        self.world: World | None = None
        self._source = source
        self._left = completions

    def next_request(self, now_s: float) -> SimRequest | None:
        """The source's."""
        return self._source.next_request(now_s)

    def follow_up(self, request: SimRequest, now_s: float) -> SimRequest | None:
        """The source's; called once for each request that was answered."""
        self._left -= 1
        if self._left == 0:
            assert self.world is not None
            self.mark = Mark(now_s, preemptions_of(self.world), self.world.tokens)
        return self._source.follow_up(request, now_s)


def preemptions_of(world: World) -> int:
    """Of all engines so far."""
    return sum(engine.counters.preemptions for engine in world.engines.values())


def queued_usage_since(world: World, from_s: float) -> float | None:
    """Mean KV usage ratio while somebody waited, from a time on; steps follow each other closely while there is a queue."""
    seconds = held = 0.0
    last: dict[str, tuple[float, str, float, int]] = {}
    for point in world.usage.points:
        before = last.get(point[1])
        if before is not None and before[0] >= from_s and before[3]:
            seconds += point[0] - before[0]
            held += (point[0] - before[0]) * before[2]
        last[point[1]] = point
    return held / seconds if seconds else None


def warm_figures(world: World, mark: Mark | None, completed: int) -> dict[str, float | None]:
    """After the cold start; nothing where the run was too short for that."""
    busy_s = world.now_s if world.dry_s is None else world.dry_s
    tokens = world.tokens if world.dry_s is None else world.dry_tokens
    if mark is None or busy_s <= mark.at_s or completed <= WARM_COMPLETIONS:
        return {}
    return {
        "warm_preemptions_per_1000": 1000.0 * (preemptions_of(world) - mark.preemptions) / (completed - WARM_COMPLETIONS),
        "warm_tokens_per_s": (tokens - mark.tokens) / (busy_s - mark.at_s),
        "warm_kv_usage_ratio_mean_while_queued": queued_usage_since(world, mark.at_s),
    }


def simulated(scenario: Scenario, policy: str, options: Options) -> Measured:
    """One policy on one scenario, as ``kvgate simulate`` plays it."""
    source = Marking(scenario.clients(), WARM_COMPLETIONS)
    world = source.world = World(scenario.settings(), scenario.admission(policy), source)
    world.run()
    figures = figures_of(world, scenario.targets)
    told = figures.as_dict()
    told["shed_ratio"] = (figures.shed or 0) / max(1, figures.offered or 0)
    told["prefix_hit_ratio"], told["load_imbalance"] = hit_ratio(world), imbalance(world)
    told["prefix_hit_ratio_max"] = scenario.source.stats.prefix_hit_ratio_max
    told.update(warm_figures(world, source.mark, figures.completed or 0))
    measured: Measured = {"figures": told}
    if options.get("series"):
        points = [point for point in world.usage.points if point[1] == "r0"]
        measured["series"] = [
            (round(at_s, 2), round(ratio, 4), queued) for at_s, _, ratio, queued in points[:: 1 + len(points) // SERIES_POINTS]
        ]
    return measured


def faulty(scenario: Scenario, policy: str, options: Options) -> Measured:
    """One fault of ``tests.bench.faults``, under one policy."""
    gone_s = float(options.get("gone_from_s", inf)), float(options.get("gone_until_s", inf))
    case = faults.Case("", metrics_gone_s=gone_s, bypass_ratio=float(options.get("bypass_ratio", 0.0)))
    assert scenario.requests is not None
    run = faults.play(case, policy, scenario.workload, scenario.seed, scenario.requests)
    halves = {
        f"{name}_{figure}": getattr(half, figure)
        for name, half in (("own", run.own), ("others", run.others))
        for figure in ("tokens_per_s", "goodput_ratio")
    }
    return {"figures": {**run.figures.as_dict(), **halves}}


def overloaded(scenario: Scenario, policy: str, options: Options) -> Measured:
    """One row of ``tests.bench.overload``."""
    assert policy == KVGATE, "it plays the gate only"
    at = overload.Overload(scenario.workload, scenario.seed, scenario.kv_blocks, float(options["duration_s"]), scenario.targets)
    row = str(options["row"])
    if row == "shed":
        return {"figures": overload.shed(at, float(options["load"]), int(options["sample"]))}
    rows = {
        "goodput": overload.goodput,
        "returning": overload.returning,
        "loud": overload.loud_tenant,
        "servegen": overload.servegen,
    }
    return {"figures": rows[row](at)}


def routed(scenario: Scenario, policy: str, options: Options) -> Measured:
    """A Mooncake trace with its prefixes, played faster than recorded: at the recorded rate eight replicas have little to do."""
    del options
    trace = load_workload(Path(scenario.workload), scenario.seed, block_size=MOONCAKE_BLOCK)
    assert isinstance(trace, Trace)
    requests = list(islice(trace.scaled(scenario.load_ratio).arrivals(), scenario.requests))
    engine = EngineSettings(
        num_gpu_blocks=scenario.kv_blocks + 1, block_size=MOONCAKE_BLOCK, max_model_len=200 * 1024, max_num_batched_tokens=8192
    )
    patient = Policy(queue=Queue(requests_max=1_000_000, tokens_max=10_000_000_000))  # routing is measured, not shedding
    patient_scenario = replace(scenario, policy=patient)
    world = World(WorldSettings(scenario.replicas, engine), patient_scenario.admission(policy), Listed(requests)).run()
    figures = figures_of(world, scenario.targets).as_dict()
    highest = ceiling(requests, MOONCAKE_BLOCK)
    of_ceiling = {
        "prefix_hit_ratio": hit_ratio(world),
        "prefix_hit_ratio_max": highest,
        "hit_ratio_of_ceiling": hit_ratio(world) / highest,
    }
    return {"figures": {**figures, **of_ceiling, "load_imbalance": imbalance(world)}}


def decided(scenario: Scenario, policy: str, options: Options) -> Measured:
    """What decisions cost."""
    assert policy == KVGATE
    row = decision.measure(int(options["in_flight"]), scenario.replicas, int(options["samples"]), shared=False)
    figures: dict[str, float | None] = {}
    for kind, found in row.items():
        if isinstance(found, dict):
            figures.update({f"{kind}_us_p50": found["p50"], f"{kind}_us_p99": found["p99"]})
    return {"figures": figures}


def identical(scenario: Scenario, policy: str, options: Options) -> Measured:
    """How far a policy is from plain forwarding: the largest difference of any first token or end, and who was not served alike.

    Requests have a TTFT and a TPOT target only where the options say so: to keep one, others are held however large the cache is.
    """
    requests = list(islice(scenario.source.arrivals(scenario.rate_per_s), scenario.requests))
    if options.get("targets"):
        targets = scenario.targets
        requests = [replace(one, ttft_s=targets.ttft_s, tpot_s=targets.tpot_ms / 1000.0) for one in requests]
    worlds = [World(scenario.settings(), scenario.admission(name), Listed(requests)).run() for name in (policy, "passthrough")]
    ours, plain = (world.results for world in worlds)
    assert ours.keys() == plain.keys()
    apart = [0.0]
    for name, one in ours.items():
        for mine, theirs in ((one.first_s, plain[name].first_s), (one.end_s, plain[name].end_s)):
            if mine is not None and theirs is not None:
                apart.append(abs(mine - theirs))
    unlike = sum(one.outcome is not plain[name].outcome for name, one in ours.items())
    return {"figures": {"apart_s_max": max(apart), "unlike": float(unlike), "offered": float(len(ours))}}


def long_prompt(scenario: Scenario, policy: str, options: Options) -> Measured:
    """When a 32k-token request starts that comes among small ones, against the same gate where nobody may go ahead of the head.

    Small ones arrive at the scenario's load and wait for ever; it comes after half of them.
    """
    del options
    small = [replace(one, wait_s_max=1e6) for one in islice(scenario.source.arrivals(scenario.rate_per_s), scenario.requests)]
    head = SimRequest("long", LONG_PROMPT, LONG_OUTPUT, LONG_OUTPUT, small[len(small) // 2].arrival_s, wait_s_max=1e6)
    requests = sorted([*small, head], key=lambda one: one.arrival_s)
    settings = replace(scenario.settings(), engine=replace(scenario.engine, max_model_len=LONG_PROMPT + 4096))

    def waited_s() -> float:
        result = World(settings, scenario.admission(policy), Listed(requests)).run().results["long"]
        assert result.forwarded_s is not None, "it never started"
        return result.forwarded_s - result.arrived_s

    easy_s = waited_s()
    with patch.object(placement, "BACKFILL_DEPTH", 0):
        strict_s = waited_s()
    return {"figures": {"wait_s": easy_s, "strict_wait_s": strict_s, "later_s": easy_s - strict_s}}


KINDS: dict[str, Kind] = {
    "simulated": simulated,
    "faulty": faulty,
    "overloaded": overloaded,
    "routed": routed,
    "decided": decided,
    "identical": identical,
    "long_prompt": long_prompt,
}
