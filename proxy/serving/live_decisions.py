"""The decisions that the live page shows: of requests that are open, and of those that ended since the reader last asked.

What was decided and why is kept by ``serving.decisions``; here each becomes one line. A request has one line, told anew as it goes on:
held, then let in, then, where it comes to that, refused or failed. ``at_s`` is when it came to what it is. Cut at so many of either kind.
"""

from collections import Counter
from collections.abc import Callable, Iterable

from proxy.core.book import Book
from proxy.core.outcome import Outcome
from proxy.core.saturation import Binding
from proxy.serving.decisions import Decisions
from proxy.wire.decision import Decision, reason
from proxy.wire.live_report import DecisionLine

ENDED_MAX = 100  # more a second than anybody reads
OPEN_MAX = 40  # each is told anew every time
FAILED = frozenset({Outcome.CUT_OFF, Outcome.UPSTREAM_FAILED, Outcome.INTERNAL})

BINDING_NAMES = {
    Binding.NONE: "nothing",
    Binding.KV: "KV cache",
    Binding.SEATS: "sequence slots",
    Binding.PREFILL: "prefill backlog",
    Binding.TPOT: "the TPOT target",
    Binding.ENGINE_QUEUE: "requests waiting inside the engine",
    Binding.PACING: "pacing: too many would end together",
    Binding.BURST: "preemptions a moment ago",
    Binding.RECOVERY: "a prefix cache that is being brought back",
    Binding.PEERS: "another proxy's request, which goes first",
    Binding.WEDGED: "a standstill",
    Binding.SLOW_START: "a slow start after its return",
    Binding.UNAVAILABLE: "not available",
}


def binding_words(books: Iterable[Book]) -> str:
    """What bound when these replicas were last looked at, the most frequent first; "" where nothing did."""
    bindings = [book.binding_last for book in books]
    bound = Counter(binding for binding in bindings if binding is not Binding.NONE)
    return ", ".join(f"{BINDING_NAMES[binding]} on {count} of {len(bindings)}" for binding, count in bound.most_common())


def ended_lines(decisions: Decisions, ended_after: int) -> list[DecisionLine]:
    """Lines of those that ended after the first ``ended_after`` of all that ever did, the oldest first."""
    return [line(one) for one in decisions.since(max(ended_after, decisions.ended_total - ENDED_MAX))]


def open_lines(decisions: Decisions, bound: Callable[[str], str]) -> list[DecisionLine]:
    """Lines of the newest that are open and have come as far as a decision. ``bound`` tells what binds now for a model."""
    opened = [one for one in decisions.open(OPEN_MAX) if one.phase != "reading"]
    now = {model: bound(model) for model in {one.model for one in opened if one.phase == "waiting"}}
    return [line(one, now.get(one.model, "")) for one in opened]


def line(one: Decision, bound: str = "") -> DecisionLine:
    """One of them; ``bound`` is added where it waits for others to go first."""
    kind, after_s = _kind(one)
    return DecisionLine(
        key=f"{one.request_id} {one.arrived_wall_s:.3f}",
        at_s=round(one.arrived_wall_s + after_s, 3),
        kind=kind,
        request_id=one.request_id,
        traffic_class=one.traffic_class,
        tenant=one.tenant,
        model=one.model,
        replica=one.replica or "",
        words=f"{reason(one)} What binds now: {bound}." if bound and one.phase == "waiting" and not one.held else reason(one),
    )


def _kind(one: Decision) -> tuple[str, float]:
    """What it came to, and how long after its arrival."""
    if one.refused is not None:
        return "shed", one.total_s
    if one.outcome in FAILED:
        return "failed", one.total_s
    if one.phase == "waiting":
        return "held", 0.0
    if one.outcome == Outcome.CANCELLED and one.replica is None:
        return "left", one.total_s
    return "rerouted" if one.tried else "admitted", one.queue_wait_s or 0.0
