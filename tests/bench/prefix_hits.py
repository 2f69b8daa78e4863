"""How well a fleet's prefix caches were used in a simulated world, and how evenly its replicas worked."""

from collections.abc import Iterable

from proxy.sim.sim_request import SimRequest
from proxy.sim.workloads.workload import length_stats
from proxy.sim.world import World

WORK_TOKENS_PER_SEQUENCE_STEP = 0.04 / 0.03  # a decoding sequence costs as much as these prefill tokens (``sim.step_time``)


def hit_ratio(one: World) -> float:
    """Share of prompt tokens that were found in a cache; 0 where nothing was asked for."""
    counters = [engine.counters for engine in one.engines.values()]
    return sum(each.prefix_hits for each in counters) / max(1, sum(each.prefix_queries for each in counters))


def imbalance(one: World) -> float:
    """The most loaded replica's work over the mean: prefill done and sequences decoded, in tokens of prefill."""
    work = [
        each.counters.prefix_queries - each.counters.prefix_hits + WORK_TOKENS_PER_SEQUENCE_STEP * each.counters.generation_tokens
        for each in one.engines.values()
    ]
    return max(work) / (sum(work) / len(work))


def ceiling(requests: Iterable[SimRequest], block_size: int) -> float:
    """Hit ratio of one endless cache, a request at a time: the workload's own figure, of these requests."""
    return length_stats(requests, block_size=block_size).prefix_hit_ratio_max
