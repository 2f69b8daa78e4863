"""How many replicas each pool's load asks for, as metrics: this proxy's share, so that the sum over proxies is the pool's."""

from collections.abc import Iterator, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric

from proxy.adapters.metric_families import labelled
from proxy.ports.state import PoolState


def pool_metrics(pools: Sequence[PoolState]) -> Iterator[Metric]:
    """Every family."""
    wanted = "Replicas that the load asks for, this proxy's share of them"
    yield labelled("kvgate_pool_replicas_wanted", wanted, "pool", {one.name: one.replicas_wanted for one in pools})
    known = "Replicas of the pool whose size is known, whatever their state"
    yield labelled("kvgate_pool_replicas_known", known, "pool", {one.name: one.replicas for one in pools})
    budget = "Blocks that a replica of the pool can take, on average"
    yield labelled("kvgate_pool_budget_blocks", budget, "pool", {one.name: one.budget_blocks for one in pools})
    load = GaugeMetricFamily("kvgate_pool_demand_blocks", "Blocks asked for, this proxy's share", labels=("pool", "part"))
    for one in pools:
        load.add_metric((one.name, "running"), one.running_blocks)
        load.add_metric((one.name, "queued"), one.queued_blocks)
        load.add_metric((one.name, "foreign"), one.foreign_blocks)
    yield load
