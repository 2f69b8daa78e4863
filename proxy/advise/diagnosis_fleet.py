"""What only several servers together show: too few of them, load that does not spread; and what a kvgate in front says of itself."""

from collections.abc import Iterator, Sequence

from proxy.advise.diagnosis_load import HEADROOM, USAGE_CEILING, waits
from proxy.advise.finding import Finding, weigh, where
from proxy.advise.watch import EngineWatch, KvgateWatch, ReplicaWatch

UNEVEN = 0.4  # difference of mean KV usage
IDLE_USAGE = 0.5
SAMPLE_AGE_S_MAX = 2.0
ALERTED_PHASES = {"unreachable", "wedged"}
Pool = tuple[ReplicaWatch, EngineWatch]


def findings(replicas: Sequence[ReplicaWatch]) -> Iterator[Finding]:
    """Every rule of this module, over engines that move."""
    pools = [(replica, engine) for replica in replicas for engine in replica.engines if engine.usage_ratio and not engine.wedged]
    yield from _too_few(pools)
    for replica in replicas:
        yield from _uneven([pool for pool in pools if pool[0] is replica], "the engines of one server")
    yield from _uneven([pool for pool in pools if len(pool[0].engines) == 1], "replicas")


def _too_few(pools: Sequence[Pool]) -> Iterator[Finding]:
    """Every pool is full and requests queue everywhere: no knob of one engine makes room."""
    if not pools:
        return
    spreads = [engine.usage_ratio for _, engine in pools if engine.usage_ratio]
    usages = [spread.mean for spread in spreads]
    full = min(usages) >= HEADROOM and min(spread.most for spread in spreads) >= USAGE_CEILING
    if not full or not all(waits(engine) for _, engine in pools):
        return
    running = sum(engine.running.mean for _, engine in pools if engine.running)
    waiting = sum(engine.waiting.mean for _, engine in pools if engine.waiting)
    grown = sum(engine.waiting.last - engine.waiting.first for _, engine in pools if engine.waiting)
    preempts = any(engine.preemptions for _, engine in pools)
    count = len(pools)
    needed = max(count + 1, round(count * min(4.0, (running + waiting) / max(running, 1.0)) / HEADROOM))
    yield Finding(
        "too_few_replicas", "all replicas" if count > 1 else where(*pools[0]), "full caches and a queue, everywhere",
        f"KV usage {min(usages):.0%} to {max(usages):.0%} on average, {running:.0f} running and {waiting:.0f} waiting, the queue"
        f" {'grew by' if grown > 0 else 'changed by'} {grown:+.0f}",
        "there are simply too few replicas for this demand",
        f"add replicas: about {needed} instead of {count} at this load; pushing --gpu-memory-utilization to 0.98 buys a few per cent and an"
        " out-of-memory", weigh(True, True, grown > 0, not preempts), 1,
    )  # fmt: skip


def _uneven(pools: Sequence[Pool], what: str) -> Iterator[Finding]:
    """One pool is full and has a queue while another is half empty."""
    if len(pools) < 2:
        return
    in_order = sorted(pools, key=lambda pool: pool[1].usage_ratio.mean if pool[1].usage_ratio else 0.0)
    (_, low), (replica, high) = in_order[0], in_order[-1]
    if not low.usage_ratio or not high.usage_ratio:
        return
    gap = high.usage_ratio.mean - low.usage_ratio.mean
    if gap < UNEVEN or low.usage_ratio.mean > IDLE_USAGE or not (waits(high) or high.preemptions):
        return
    ranks = len(replica.engines) > 1
    yield Finding(
        "parallelism_uneven" if ranks else "routing_uneven", replica.url if ranks else "all replicas", f"load does not spread over {what}",
        f"KV usage {high.usage_ratio.mean:.0%} of {where(*in_order[-1])} and {low.usage_ratio.mean:.0%} of {where(*in_order[0])};"
        f" {high.waiting.mean if high.waiting else 0:.1f} wait at the full one",
        "parallelism the wrong way: data-parallel engines have separate pools, and the balancer before them does not see what requests will"
        " grow to" if ranks else "the balancer in front counts connections, not KV blocks, or keeps sessions on one replica",
        "pin ranks by X-data-parallel-rank (kvgate does), or join the pools: tensor parallelism instead of data parallelism" if ranks else
        "route by load: kvgate in front of all of them, or a balancer that reads vLLM's metrics", weigh(True, True, waits(high)),
    )  # fmt: skip


def gate_findings(gate: KvgateWatch) -> Iterator[Finding]:
    """A kvgate's own state."""
    if gate.guard_tripped or gate.internal_errors:
        shown = f"{gate.internal_errors:.0f} faults in {gate.watched_s:.0f} s" + (
            ", admission is off" if gate.guard_tripped else ""
        )
        yield Finding(
            "gate_faults", gate.url, "faults inside kvgate", shown, "a fault in its tokenizer, gate or store: requests are"
            " forwarded without"
            " admission", "read kvgate's log (WARNING, ERROR) and report it; `mode: off` keeps serving", 1.0, 0,
        )  # fmt: skip
    for name, phase in gate.phases.items():
        if phase in ALERTED_PHASES:
            yield Finding(
                f"gate_{phase}", name, f"kvgate calls this replica {phase}", f"phase {phase} at {gate.url}",
                "no answer to its probes" if phase == "unreachable" else "it has work and nothing moves",
                "doctor that address itself: kvgate doctor URL", 1.0, 0,
            )  # fmt: skip
    if gate.mode in {"observe", "off"}:
        yield Finding(
            "gate_not_enforcing", gate.url, "kvgate holds nothing back", f"mode: {gate.mode}", "it only watches in this mode",
            "set mode: enforce once kvgate_would_hold_total looks right", weigh(True, None), 2,
        )  # fmt: skip
    for name, age_s in gate.sample_age_s.items():
        if age_s > SAMPLE_AGE_S_MAX and gate.phases.get(name) == "serving":
            yield Finding(
                "metrics_stale", name, "kvgate works with old measurements", f"the last one is {age_s:.1f} s"
                " old", "scrapes fail or come late",
                "see that kvgate reaches this server's /metrics in time, and that its API server has CPU", weigh(True, None),
            )  # fmt: skip
    for name in gate.observed_only:
        yield Finding(
            "gate_observes_only", name, "kvgate does not enforce on this replica", f"kvgate_replica_enforced is 0 at {gate.url}",
            "its block count is not known, or several engines share the address", "set kv_blocks, or give each engine's own address",
            weigh(True, True, None), 2,
        )  # fmt: skip
    yield from _kvgate_queue(gate)


def _kvgate_queue(gate: KvgateWatch) -> Iterator[Finding]:
    refused = sum(gate.refusals.values())
    if not refused and (gate.queued is None or gate.queued.mean < 1.0):
        return
    limits = sorted({binding for binding in gate.binding.values() if binding != "none"})
    by_gate = ", ".join(f"{count:.0f} by {name}" for name, count in sorted(gate.refusals.items()) if count)
    shown = f"{gate.queued.mean:.0f} requests wait in kvgate on average" if gate.queued else "requests wait"
    shown += f"; refused in {gate.watched_s:.0f} s: {by_gate}" if refused else ""
    shown += f"; what binds: {', '.join(limits)}" if limits else ""
    first = {
        "kv": "add replicas or a larger pool",
        "seats": "raise --max-num-seqs of the replicas",
        "tpot": "add replicas, or a looser tpot",
    }
    knob = (
        "; ".join(first[limit] for limit in limits if limit in first)
        or "add replicas, or a longer queue.wait_max if clients can wait"
    )
    cause = "demand is above what the replicas hold: kvgate keeps it outside instead of letting vLLM preempt"
    growing = None if gate.queued is None else gate.queued.last > gate.queued.first
    yield Finding(
        "gate_queues",
        gate.url,
        "requests wait in kvgate, or are refused",
        shown,
        cause,
        knob,
        weigh(True, bool(limits) or None, growing),
    )
