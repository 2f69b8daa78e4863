"""The figures of one simulated run: what ``kvgate simulate --json`` prints for each policy."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from proxy.core.outcome import Outcome
from proxy.sim.fairness import jain_of_backlogged
from proxy.sim.percentile import percentile
from proxy.sim.sim_request import SimResult
from proxy.sim.world import World


@dataclass(frozen=True, slots=True)
class Targets:
    """When an answer counts as good: both held, from the moment the request arrived. Seconds; milliseconds per token after the first."""

    ttft_s: float = 10.0
    tpot_ms: float = 50.0

    def good(self, result: SimResult) -> bool:
        """Whether a request was served well; one that was shed was not."""
        if result.outcome is not Outcome.COMPLETED or result.first_s is None:
            return False
        ttft_s = result.request.ttft_s or self.ttft_s
        tpot_ms = self.tpot_ms if result.request.tpot_s is None else 1000.0 * result.request.tpot_s
        return result.first_s - result.arrived_s <= ttft_s and (tpot_ms_of(result) or 0.0) <= tpot_ms


def tpot_ms_of(result: SimResult) -> float | None:
    """Milliseconds per output token after the first; None for answers of one token and for requests without an end."""
    if result.first_s is None or result.end_s is None or result.output_tokens < 2:
        return None
    return 1000.0 * (result.end_s - result.first_s) / (result.output_tokens - 1)


@dataclass(frozen=True, slots=True)
class Figures:
    """Names carry their units. Ratios are 0..1; a figure that this run cannot tell is None.

    ``tokens_per_s`` counts output tokens until the workload had no more requests to offer (afterwards the pool only drains);
    ``goodput_ratio`` is over all offered; ``recomputed_prefill_ratio`` is recomputed tokens over prompt tokens; ``jain_index`` is over
    tenants while they are backlogged (``sim.fairness``); ``shed_precision`` takes replays (``sim.counterfactual``).
    """

    offered: int | None = None
    completed: int | None = None
    shed: int | None = None
    goodput_ratio: float | None = None
    preemptions: int | None = None
    preemptions_per_1000: float | None = None
    recomputed_prefill_ratio: float | None = None
    kv_usage_ratio_mean: float | None = None
    kv_usage_ratio_mean_while_queued: float | None = None
    queued_time_ratio: float | None = None
    tokens_per_s: float | None = None
    ttft_s_p50: float | None = None
    ttft_s_p99: float | None = None
    tpot_ms_p99: float | None = None
    jain_index: float | None = None
    shed_precision: float | None = None
    decision_us_p50: float | None = None
    decision_us_p99: float | None = None
    elapsed_s: float | None = None
    good_per_s: float | None = None
    extra: Mapping[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, float | int | None]:
        """JSON form, the extra figures flattened in."""
        named = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "extra"}
        return {**named, **self.extra}


def figures_of(world: World, targets: Targets, decisions_ns: Iterable[int] = ()) -> Figures:
    """Read the books of a world that has run."""
    results = list(world.results.values())
    done = [one for one in results if one.outcome is Outcome.COMPLETED]
    ttft_s = [one.first_s - one.arrived_s for one in done if one.first_s is not None]
    good = sum(map(targets.good, results))
    counters = world.counters
    preemptions = sum(each.preemptions for each in counters)
    busy_s = world.now_s if world.dry_s is None else world.dry_s
    tokens = world.tokens if world.dry_s is None else world.dry_tokens
    decisions_us = [each / 1000.0 for each in decisions_ns]
    return Figures(
        offered=len(results),
        completed=len(done),
        shed=sum(one.outcome not in {None, Outcome.COMPLETED} for one in results),
        goodput_ratio=good / max(1, len(results)),
        preemptions=preemptions,
        preemptions_per_1000=1000.0 * preemptions / max(1, len(done)),
        recomputed_prefill_ratio=sum(each.recomputed_tokens for each in counters) / max(1, sum(each.prompt_tokens for each in counters)),
        kv_usage_ratio_mean=world.usage.ratio_mean,
        kv_usage_ratio_mean_while_queued=world.usage.ratio_mean_while_queued if world.usage.queued_ratio else None,
        queued_time_ratio=world.usage.queued_ratio,
        tokens_per_s=tokens / max(busy_s, 1e-9),
        ttft_s_p50=percentile(ttft_s, 0.5),
        ttft_s_p99=percentile(ttft_s, 0.99),
        tpot_ms_p99=percentile((each for one in done if (each := tpot_ms_of(one)) is not None), 0.99),
        jain_index=jain_of_backlogged(results, world.now_s),
        shed_precision=None,
        decision_us_p50=percentile(decisions_us, 0.5),
        decision_us_p99=percentile(decisions_us, 0.99),
        elapsed_s=world.now_s,
        good_per_s=good / max(world.now_s, 1e-9),
    )  # fmt: skip
