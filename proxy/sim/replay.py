"""A recording of kvgate played again: the same arrivals under a policy, set against what was.

The policy's classes are taken by the recorded class's name (its last class where it has none of that name): their priority, targets,
deadline and longest wait. What a client said of its own patience stays. Tenants' names are hashed: those that were listed may take what
was recorded of them, all others what the policy gives ``tenants.others``.

It begins as the recording did: the gate knows what it knew (``core.learned``), and requests that were there are played before the first,
and counted nowhere. The first request comes after a few scrapes, as at a proxy that is there already.

Scrapes come when they came, and show what the engine's last whole step left, as a real one's do; a step takes what the recorded requests
took (``sim.recorded_steps``), else what kvgate had learned.

Where the replay can differ from what was: nobody knows how long the answers would have been that were refused; the streams of one step
are relayed in an order that is not recorded, so here and there a forecast is a token off; a machine that lags is not in the recording,
nor do clients leave. Under overload one decision that falls otherwise changes those after it: who is refused differs, not how many.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from msgspec import structs

from proxy.core.outcome import Outcome
from proxy.core.policy import Policy, Saturated, TrafficClass
from proxy.core.policy_tenants import TenantPolicy
from proxy.sim.figures import Figures
from proxy.sim.percentile import percentile
from proxy.sim.recorded_steps import fitted_step_time
from proxy.sim.sim_request import SimRequest
from proxy.sim.step_time import StepTimeModel
from proxy.sim.workloads.recording import Recording
from proxy.sim.workloads.trace_text import TraceError
from proxy.sim.world import Source, World
from proxy.wire.recording import RecordedEngine, RecordedRequest, RecordingEnd, RecordingHead

RECORDED = "recorded"
LATE_RATIO_MAX = 1.2  # a scrape comes as much after the one before as it takes to be answered: beyond it, it is another interval
REFUSED = frozenset({
    Outcome.NEVER_FITS, Outcome.QUEUE_TIMEOUT, Outcome.QUEUE_FULL, Outcome.DISPLACED, Outcome.TENANT_RATE, Outcome.TENANT_SHARE,
    Outcome.NO_REPLICA,
})  # fmt: skip


class Replayed:
    """Recorded requests as ``policy`` would see them."""

    def __init__(self, source: Source, policy: Policy, later_s: float = 0.0) -> None:
        self._source = source
        self._policy = policy
        self._later_s = later_s
        self._classes = {one.name: one for one in policy.classes}

    def _seen(self, request: SimRequest | None) -> SimRequest | None:
        if request is None:
            return None
        rules: TrafficClass = self._classes.get(request.traffic_class, self._policy.classes[-1])
        waits = (rules.wait_s_max(self._policy.queue.wait_s_max), rules.deadline_s, request.wait_s_max)
        may_wait = Saturated.QUEUE in rules.when_saturated
        priority = rules.priority + self._policy.tenants.policy_of(request.tenant).priority
        return replace(
            request, arrival_s=request.arrival_s + self._later_s, priority=priority, ttft_s=rules.ttft_s, tpot_s=rules.tpot_s,
            wait_s_max=max(0.0, min(wait_s for wait_s in waits if wait_s is not None) - request.waited_s) if may_wait else 0.0,
        )  # fmt: skip

    def next_request(self, now_s: float) -> SimRequest | None:
        """The source's."""
        return self._seen(self._source.next_request(now_s))

    def follow_up(self, request: SimRequest, now_s: float) -> SimRequest | None:
        """The source's."""
        return self._seen(self._source.follow_up(request, now_s))


def policy_of(head: RecordingHead, policy: Policy) -> Policy:
    """The policy with the recorded tenants in place of those that it lists, whose names the recording does not tell."""
    if head.tenants is None:
        return policy
    listed = tuple(TenantPolicy(**structs.asdict(one)) for one in head.tenants)
    return replace(policy, tenants=replace(policy.tenants, listed=listed, weights=()))


def engines_of(head: RecordingHead, end: RecordingEnd | None) -> tuple[RecordedEngine, ...]:
    """The engines as last told. Raises TraceError where there are none, or none alike."""
    engines = head.engines if end is None else end.engines
    if not engines:
        raise TraceError("the recording tells of no engine; give --replicas and --kv-blocks")
    if len({(one.usable_blocks, one.block_size, one.context_tokens) for one in engines}) > 1:
        raise TraceError("the recording has engines of several sizes, which cannot be simulated side by side yet")
    return engines


def world_of(head: RecordingHead, end: RecordingEnd | None, rows: Iterable[RecordedRequest] = ()) -> dict[str, Any]:
    """What a recording says of its engines, in the fields of a ``Scenario``. Raises TraceError."""
    engines = engines_of(head, end)
    one = engines[0]
    return {
        "replicas": len(engines), "kv_blocks": one.usable_blocks, "block_size": one.block_size, "context_tokens": one.context_tokens,
        "sequences_max": one.sequences_max, "step_time": fitted_step_time(rows) or step_time_of(engines),
    }  # fmt: skip


def step_time_of(engines: Iterable[RecordedEngine]) -> StepTimeModel:
    """What kvgate had learned of their steps, on average; the simulator's own where it had learned nothing."""
    learned = [one.step for one in engines if one.step is not None and sum(one.step) > 0.0]
    if not learned:
        return StepTimeModel()
    means = [sum(column) / len(learned) for column in zip(*learned, strict=True)]
    return StepTimeModel(max(means[0], 1e-4), *means[1:])


def scrapes_of(recording: Recording, replicas: int, interval_s: float, zero_s: float) -> tuple[float, tuple[float, ...]]:
    """Seconds between scrapes, and when the first of each of the ``replicas`` comes in a world where the recording begins at ``zero_s``.

    As they came then: at the edge of a step or of a deadline, a scrape that comes at another moment decides otherwise, and what follows
    goes another way. Under a policy with another interval than was recorded they come as that says.
    """
    begun, ended = recording.head.engines, () if recording.end is None else recording.end.engines
    if len(begun) != replicas or any(one.scraped_s is None for one in begun):
        return interval_s, ()
    last = {one.name: one for one in ended}
    passed_s = [
        ((last[one.name].scraped_s or 0.0) - (one.scraped_s or 0.0), last[one.name].scrapes - one.scrapes)
        for one in begun if one.name in last
    ]  # fmt: skip
    seconds, scrapes = sum(seconds for seconds, _ in passed_s), sum(scrapes for _, scrapes in passed_s)
    told_s = seconds / scrapes if scrapes > 0 else 0.0
    period_s = told_s if interval_s <= told_s <= LATE_RATIO_MAX * interval_s else interval_s
    return period_s, tuple((zero_s + (one.scraped_s or 0.0)) % period_s or period_s for one in begun)


def recorded_figures(recording: Recording) -> Figures:
    """What was, in the simulator's figures, as far as it was written down."""
    rows = [row for row in recording.rows.values() if row.arrival_s >= 0.0]
    outcomes = [Outcome(row.outcome) for row in rows if row.outcome is not None]
    done = [row for row in rows if row.outcome == Outcome.COMPLETED]
    ttft_s = [row.ttft_seen_s for row in done if row.ttft_seen_s is not None]
    tokens = sum(row.output_tokens for row in rows)
    preemptions = None if recording.end is None else sum(one.preemptions for one in recording.end.engines)
    span_s = max((row.arrival_s + (row.total_s or 0.0) for row in rows), default=0.0) or 1.0
    waits_s = [row.queue_wait_s for row in rows if row.held and row.queue_wait_s is not None]
    return Figures(
        offered=len(rows),
        completed=len(done),
        shed=sum(outcome in REFUSED for outcome in outcomes),
        preemptions=preemptions,
        preemptions_per_1000=None if preemptions is None else 1000.0 * preemptions / max(1, len(done)),
        tokens_per_s=tokens / span_s,
        ttft_s_p50=percentile(ttft_s, 0.5),
        ttft_s_p99=percentile(ttft_s, 0.99),
        extra=_waits(sum(row.held for row in rows), waits_s),
    )


def replayed_figures(world: World, figures: Figures, recording: Recording) -> Figures:
    """The figures of a replay with those that a recording tells too; of requests that were there at its beginning none is told."""
    results = [one for name, one in world.results.items() if recording.rows[name].arrival_s >= 0.0]
    waited_s = [((one.end_s if one.forwarded_s is None else one.forwarded_s) or one.arrived_s) - one.arrived_s for one in results]
    waits_s = [wait_s for wait_s, one in zip(waited_s, results, strict=True) if one.forwarded_s is not None and wait_s > 0.0]
    held = sum(wait_s > 0.0 for wait_s in waited_s)
    done = [one for one in results if one.outcome is Outcome.COMPLETED]
    ttft_s = [one.first_s - one.arrived_s for one in done if one.first_s is not None]
    return replace(
        figures, offered=len(results), completed=len(done), shed=sum(one.outcome in REFUSED for one in results),
        ttft_s_p50=percentile(ttft_s, 0.5), ttft_s_p99=percentile(ttft_s, 0.99), extra={**figures.extra, **_waits(held, waits_s)},
    )  # fmt: skip


def _waits(held: int, waits_s: list[float]) -> dict[str, float]:
    """Of those that had to wait and got a place."""
    found = {"held": float(held)}
    for name, share in (("queue_wait_s_p50", 0.5), ("queue_wait_s_p99", 0.99)):
        wait_s = percentile(waits_s, share)
        if wait_s is not None:
            found[name] = wait_s
    return found
