"""What is answered without being forwarded, and when a retry is worth its while.

As early as it is certain: what can never fit (its prompt exceeds the context, or its prompt and one token every pool), what a full queue
has no room for, what a higher band displaces, what will not start before its deadline, and what waited until it.

Promises. A request that must wait gets a promise when, at the end of the promised line (``core.wait_forecast``: ``W`` seconds ahead, ``s``
the margin that the gate's own past forecasts ask for), it will start in time:

    W + s <= latest start - now

Promised ones go first, in the order of their promises, so none is taken back for another; one that cannot be made at once is looked for
again for ``STANDBY_RATIO`` of the time it has, and then the request is shed. (Without the difference nobody's fate is certain under
overload: in one line for all, ordered by arrival, each head has come to its last moment, and whoever is shed would have been served about
as likely as whoever is kept.)

Whoever waited in vain while no replica served its model at all is told so (503), not that there was no room (429): what was missing is not
capacity that others have.

Fails: with a cold step clock the rate is a guess; nothing is shed as too late until it was measured, and everybody is promised a place.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from math import inf

from proxy.core.book import Book
from proxy.core.demand import Demand
from proxy.core.outcome import Outcome, Refusal
from proxy.core.policy_tenants import Tenants
from proxy.core.queue_bounds import NO_QUEUE, NO_WAIT
from proxy.core.replica import AWAITED_PHASES, ReplicaPhase
from proxy.core.wait_forecast import WaitForecast
from proxy.core.wait_queue import Waiting, WaitQueue

START_STEPS = 3.0  # the step under way, the one that takes it in, and what the token needs to come back
STANDBY_RATIO = 0.05  # of the time it has: a burst that ends within it is weathered, and who is refused learns so at once
RETRY_NO_REPLICA_S = 2.0  # health checks come every second or so
TTFT_KEY = "classes[].ttft"


class Shedding:
    """Builds refusals; decides those that follow from the request, the pools and the queue alone."""

    def __init__(self, queue: WaitQueue, reroutes_max: int) -> None:
        self.forecast = WaitForecast(queue)
        self.spared: frozenset[str] = (
            frozenset()
        )  # never shed before their deadline: for replays that ask what would have become of them
        self.promised_before: frozenset[str] = frozenset()  # by a gate that this one goes on from: for replays too
        self.tenants = Tenants()
        self._queue = queue
        self.reroutes_max = reroutes_max

    def at_once(self, demand: Demand, books: list[Book]) -> Refusal | None:
        """What no waiting can cure; None when the request can be served some time."""
        for book in books:  # mostly the first
            if book.phase in AWAITED_PHASES and book.fits_alone(demand):
                return None
        awaited = [book for book in books if book.phase in AWAITED_PHASES]
        if not awaited:
            return self.no_replica(demand)
        context = max(book.spec.context_tokens_max for book in awaited)
        longest = demand.prompt_tokens_longest
        if longest >= context and demand.count_is_exact:
            # The engine stops counting one token past its context, and says so; wire.answers words it alike.
            return Refusal(
                Outcome.NEVER_FITS,
                gate="context" if longest == context else "context.bound",
                message=f"The prompt has {longest} tokens; the model's maximum context length is {context} tokens.",
                measured=min(longest, context + 1),
                limit=context,
                unit="tokens",
            )
        need = min(book.ledger.shape.least(longest + 1) for book in awaited)
        limit = max(book.spec.usable_blocks for book in awaited)
        message = f"The prompt needs {need} KV blocks; the largest replica has {limit}. It can never be served here."
        return Refusal(
            Outcome.NEVER_FITS, gate="kv", message=message, measured=need, limit=limit, unit="blocks",
            policy_key="replicas[].kv_blocks",
        )  # fmt: skip

    def no_replica(self, demand: Demand) -> Refusal:
        """No replica serves the demand's model now."""
        return self.no_replica_for(demand.length_class.model)

    @staticmethod
    def no_replica_for(model: str) -> Refusal:
        """No replica serves the model now."""
        message = f"No replica serves the model {model!r} at the moment."
        return Refusal(Outcome.NO_REPLICA, gate="replicas", message=message, retry_after_s=RETRY_NO_REPLICA_S)

    def nobody_serves(self, entry: Waiting, books: Sequence[Book], now_s: float) -> Refusal | None:
        """What to answer one that has waited for replicas of which none serves now; None where one does."""
        able = [book for book in books if not book.spec.among(entry.demand.kept_from)]
        if any(book.phase is ReplicaPhase.SERVING and not book.saturation.wedge.wedged for book in able):
            return None
        counts = Counter(ReplicaPhase.WEDGED if book.phase is ReplicaPhase.SERVING else book.phase for book in able)
        how = ", ".join(f"{count} {phase}" for phase, count in sorted(counts.items())) or "none is left"
        waited_s, model = now_s - entry.enqueued_s, entry.demand.length_class.model
        message = f"The request waited {waited_s:.1f} s, and no replica serves the model {model!r} now: {how}."
        return Refusal(
            Outcome.NO_REPLICA, gate="replicas", message=message, measured=round(waited_s, 3), unit="s",
            queue_position=self._queue.position(entry.demand.request_id), retry_after_s=RETRY_NO_REPLICA_S,
        )  # fmt: skip

    def queue_full(self, exceeded: tuple[str, int, int], entry: Waiting, books: Iterable[Book], now_s: float) -> Refusal:
        """A bound of the queue would be broken."""
        key, value, limit = exceeded
        if key in {NO_QUEUE, NO_WAIT}:
            because = "its class does not wait" if key == NO_QUEUE else "its deadline leaves no time to wait"
            message = f"No replica has room for the request now, and {because}."
            return Refusal(
                Outcome.QUEUE_TIMEOUT, gate=key, message=message, policy_key=key,
                retry_after_s=self.forecast.return_s(entry, books, now_s),
            )  # fmt: skip
        message = f"The queue is full: {key} is {limit} and this request would make it {value}."
        return Refusal(
            Outcome.QUEUE_FULL, gate=key, message=message, measured=value, limit=limit, policy_key=key,
            queue_position=len(self._queue) + 1, retry_after_s=self.forecast.return_s(entry, books, now_s),
        )  # fmt: skip

    def displaced(self, entry: Waiting, by: Demand, books: Iterable[Book], now_s: float) -> Refusal:
        """A request of a higher band took the place in a full queue."""
        message = f"A request of priority {by.priority} took this request's place in a full queue."
        return Refusal(
            Outcome.DISPLACED, gate="queue", message=message, policy_key="classes[].priority",
            retry_after_s=self.forecast.return_s(entry, books, now_s),
        )  # fmt: skip

    @staticmethod
    def start_by_s(demand: Demand, books: Sequence[Book], now_s: float) -> float:
        """Latest start at which the first token can come within the demand's target; infinite where it has none.

        What is ahead in the engine now is not counted, since it will have changed by then: until this moment nothing is certain, and
        nobody is sent where the backlog would make it late (``core.saturation``). A target that is missed whatever we do does not bound
        the wait: the deadline does.
        """
        if demand.ttft_s is None:
            return inf
        due_s = demand.arrived_s + demand.ttft_s
        forecasts_s = [
            book.saturation.ttft_s_forecast(demand, now_s, backlog=False) for book in books if book.phase in AWAITED_PHASES
        ]
        steps_s = max((START_STEPS / book.clock.rate_per_s for book in books), default=0.0)
        prefill_s = min(forecasts_s, default=0.0) - (now_s - demand.arrived_s) + steps_s
        return inf if now_s + prefill_s > due_s else due_s - prefill_s

    def promises(self, entry: Waiting, books: Iterable[Book], now_s: float) -> bool:
        """Whether a request that must wait can be promised to start in time. Notes the forecast, and how long it stands by if not."""
        pool = list(books)
        if entry.forecast_s is None:
            entry.bound(self.start_by_s(entry.demand, pool, now_s))
        wait_s = self.forecast.wait_s(entry, pool, now_s)
        left_s = entry.start_by_s - now_s
        measured = any(book.clock.measured for book in pool)
        # Its promise was made when it was told to come. A TTFT target is often shorter than the margin that deadlines of many seconds
        # need; it is shed at its latest start anyway.
        sure = entry.returning or self._bound_by(entry) == TTFT_KEY
        margin_s = 0.0 if sure else self.forecast.margin_s(wait_s)
        promised = not measured or entry.demand.request_id in self.promised_before or wait_s + margin_s <= left_s
        entry.forecast_s, entry.forecast_at_s = wait_s, now_s
        if entry.standby_until_s == inf:
            entry.standby_until_s = now_s + STANDBY_RATIO * left_s
        return promised

    def too_late(self, entry: Waiting, books: Sequence[Book], now_s: float) -> Refusal | None:
        """It stood by for long enough and no promise could be made."""
        kept = entry.promised or entry.demand.request_id in self.spared
        if kept or now_s < entry.standby_until_s or entry.forecast_s is None:
            return None
        if (refusal := self.nobody_serves(entry, books, now_s)) is not None:
            return refusal
        wait_s, left_s, key = entry.forecast_s, entry.start_by_s - now_s, self._bound_by(entry)
        message = f"The forecast wait of {wait_s:.1f} s leaves no certainty of a start before the deadline, {left_s:.1f} s away."
        return Refusal(
            _outcome(entry), gate=entry.held_by or key, message=message, measured=round(wait_s, 3), limit=round(left_s, 3),
            unit="s", policy_key=key, queue_position=len(self._queue),
            retry_after_s=self.forecast.return_s(entry, books, now_s),
        )  # fmt: skip

    def timed_out(self, entry: Waiting, books: Sequence[Book], now_s: float) -> Refusal:
        """Its deadline came while it waited."""
        if (refusal := self.nobody_serves(entry, books, now_s)) is not None:
            return refusal
        waited_s = now_s - entry.enqueued_s
        limit_s, key = entry.start_by_s - entry.demand.arrived_s, self._bound_by(entry)
        message = f"The request waited {waited_s:.1f} s for room in the KV cache, as long as its deadline allows."
        if key == TTFT_KEY:
            message = (
                f"The request waited {waited_s:.1f} s; with its prefill it can no longer meet its target for the first token."
            )
        if entry.tries:
            message = f"Replicas failed the request {entry.tries} time(s) before the first byte; then none had room for {waited_s:.1f} s."
        if entry.held_by:
            message = f"The request waited {waited_s:.1f} s for its tenant's share of the KV cache ({entry.held_by})."
        return Refusal(
            _outcome(entry), gate=entry.held_by or key, message=message, measured=round(waited_s, 3), limit=round(limit_s, 3),
            unit="s", policy_key=key, queue_position=self._queue.position(entry.demand.request_id),
            retry_after_s=self.forecast.return_s(entry, books, now_s),
        )  # fmt: skip

    def _bound_by(self, entry: Waiting) -> str:
        """The policy key that bounds the wait of ``entry``."""
        if entry.held_by:
            return self.tenants.key_of(entry.demand.tenant, entry.held_by)
        if entry.start_by_s < entry.demand.deadline_s:
            return TTFT_KEY
        bounds = self._queue.class_bounds.get(entry.demand.traffic_class)
        return "queue.wait_max" if bounds is None or bounds.wait_s_max is None else "classes[].queue.wait_max"

    def not_again(self, tried: int, *, elsewhere: bool) -> Refusal | None:
        """What to answer one that was failed ``tried`` times; None: it is to be tried again, since one ``elsewhere`` could take it."""
        return None if tried <= self.reroutes_max and elsewhere else self.upstream_failed(tried)

    @staticmethod
    def upstream_failed(tried: int) -> Refusal:
        """Every replica that could take it failed it before the first byte."""
        message = f"Replicas failed this request {tried} time(s) before the first byte, and no other can take it."
        return Refusal(
            Outcome.UPSTREAM_FAILED, gate="reroutes", message=message, measured=tried, policy_key="relay.reroutes_max",
            retry_after_s=RETRY_NO_REPLICA_S,
        )  # fmt: skip


def _outcome(entry: Waiting) -> Outcome:
    """What it waited for in vain: room, or its tenant's share."""
    return Outcome.TENANT_SHARE if entry.held_by else Outcome.QUEUE_TIMEOUT
