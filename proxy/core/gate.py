"""The gate: a sans-IO state machine. Events in, effects out, and the time of its next deadline.

Decides for every request: reserve a place on a replica, hold, or shed. It composes the parts: forecasts and ledgers (``core.fleet``,
``core.book``), the queue (``core.wait_queue``), whom and where (``core.placement``), and what cannot be served (``core.shedding``).

A request is *waiting* (in the queue), *reserving* (its lease is booked here and being committed in the store), or *forwarded*. Its lease
ends exactly once, by whichever comes first of Finished, Reroute, Refused, Cancelled or a new engine epoch.

Invariants (design §0): every grant fits under the forecast in force; an empty replica takes anything whose prompt and one token fit; no
request waits past its deadline. One writer: each call runs to its end, and nothing here awaits.
"""

from typing import assert_never

from proxy.core.book import Book
from proxy.core.choice import Choice
from proxy.core.demand import Demand
from proxy.core.events import (
    Arrive,
    CacheTold,
    Cancelled,
    Effect,
    Event,
    Finished,
    Forward,
    Granted,
    Observed,
    Offered,
    PeersTold,
    RecordTold,
    Refused,
    ReplicaChanged,
    ReplicaEvent,
    ReplicaFound,
    ReplicaGone,
    Reroute,
    Reserve,
    Shed,
    StoreEvent,
    Tick,
)  # fmt: skip
from proxy.core.fleet import forwardable
from proxy.core.gate_parts import GateParts
from proxy.core.lease import Lease
from proxy.core.newcomers import Newcomer, Undrawn
from proxy.core.open_leases import used_block_steps
from proxy.core.outcome import Mode, Outcome, Refusal, Would
from proxy.core.replica import AWAITED_PHASES
from proxy.core.retrying import may_go_on, retried
from proxy.core.several import Ask
from proxy.core.tick import tick_s
from proxy.core.wait_queue import Waiting

UPKEEP = (Tick, Observed)  # events that may take their time
USED = frozenset({Outcome.COMPLETED, Outcome.CUT_OFF, Outcome.CANCELLED})  # ends at which the engine has worked for the client


class Gate(GateParts):
    """Admission for one pool of replicas. ``mode`` may be changed while it runs."""

    def handle(self, event: Event, now_s: float) -> list[Effect]:
        """Take in one event; return what is to be done about it, in order."""
        effects = self._effects
        self.leases.now_s = self.queue.now_s = now_s
        match event:
            case Arrive():
                self._arrive(event, now_s, effects)
            case Granted():
                self._granted(event.request_id, now_s, effects)
            case Finished():
                self._finished(event, effects)
            case Refused() | Reroute() | Cancelled():
                self._request_event(event, now_s, effects)
            case PeersTold() | RecordTold() | Offered():
                self._store_event(event, now_s, effects)
            case CacheTold():  # several a second from each replica, and none makes room
                self.fleet.warmth.told(event)
                return self.take_effects()
            case Observed() | ReplicaFound() | ReplicaChanged() | ReplicaGone():
                self._replica_event(event, now_s, effects)
            case Tick():
                self._review(now_s, effects)
                self.fleet.refresh_due(now_s)
            case _:
                assert_never(event)
        if self.fleet.rebuild_when_due(now_s, deciding=not isinstance(event, UPKEEP)):
            self.forget_idle(now_s)
        self._schedule(now_s, effects, look_behind=isinstance(event, Tick))
        return self.take_effects()

    def deadline_s_next(self, now_s: float) -> float:
        """When the driver should send the next Tick; infinite when there is nothing to wait for."""
        due_s = self.fleet.refresh_due_s_next()
        if not self.queue.requests:
            return due_s
        return min(due_s, now_s + tick_s(self.fleet.rate_per_s_max()), self.queue.deadline_s_next())

    def _request_event(self, event: Refused | Reroute | Cancelled, now_s: float, effects: list[Effect]) -> None:
        match event:
            case Refused(request_id, None):
                self._place_anew(request_id, now_s, effects, alone=True)
            case Refused(request_id, _, retry_s):
                self._back_to_queue(request_id, retry_s, now_s, effects)
            case Reroute(request_id):
                self.counters.rerouted += 1
                self._place_anew(request_id, now_s, effects)
            case Cancelled(request_id):
                if self.queue.remove(request_id) is None and (opened := self.leases.end(request_id, effects)) is not None:
                    self.leases.settle_so_far(opened)
                self.rates.end(request_id, 0.0, now_s, served=False)
            case _:
                assert_never(event)

    def _replica_event(self, event: ReplicaEvent, now_s: float, effects: list[Effect]) -> None:
        if self.several is not None:
            self.several.before(event, now_s)
        void = self.fleet.told(event, now_s)
        if void is not None:
            self.leases.void(void, effects)
        if isinstance(event, ReplicaGone | ReplicaChanged):
            self.queue.unreserve(frozenset(book.spec.name for book in self.fleet if book.phase in AWAITED_PHASES))
        if self.several is not None:
            self.several.after(event, now_s)

    def _store_event(self, event: StoreEvent, now_s: float, effects: list[Effect]) -> None:
        if self.share().told(event, now_s) and isinstance(event, RecordTold):
            self.leases.void(event.record.replica, effects)
        if isinstance(event, Offered) and self.mode is Mode.ENFORCE and (choice := self.share().taken_up(event.replica, now_s)):
            self._admit(choice, effects)

    # ---- arrivals

    def _arrive(self, event: Arrive, now_s: float, effects: list[Effect]) -> None:
        demand = event.demand
        books = self.fleet.of_model(demand.length_class.model)
        if not self.enforces(demand.tenant) or not self.fleet.enforced(demand.length_class.model):
            self._observe_only(event, books, now_s, effects)
            return
        refusal = self.shedding.at_once(demand, books) or self._tenant_refusal(demand, books, now_s)
        if refusal is not None:
            self._shed(demand.request_id, refusal, effects)
            return
        entry = Waiting(demand, now_s, event.streaming)
        exceeded = self.queue.exceeds(demand)
        entry.may_wait = exceeded is None
        entry.returning = self.shedding.forecast.promises.claim(demand, now_s)
        held = self.queue.takes is not None and not self.queue.takes(entry)
        if not held:  # who is held adds nothing to a wave
            self.placement.burst.arrived(now_s, demand.tenant)
        pool = self.fleet.fresh(now_s)
        choice = None if held else self.placement.at_once(entry, pool, now_s)
        found: Choice | Waiting = choice or (entry if held else self.degrading.at_once(entry, books, pool, now_s))
        if isinstance(found, Choice):
            self._reserve(found, effects)
            return
        self._enqueue(found, exceeded, books, now_s, effects)

    def _tenant_refusal(self, demand: Demand, books: list[Book], now_s: float) -> Refusal | None:
        """What the tenant may not; else its rate is charged for the request."""
        refusal = self.shares.refusal(demand, books) if self.queue.takes is not None else None
        if refusal is not None or not self.rates.active:
            return refusal
        cap = books[0].output_tokens_max(demand)
        expected = self.queue.output_tokens_expected(demand, self.fleet.model.output_tokens_expected(demand, cap))
        return self.rates.refusal(demand, min(expected, cap) * demand.sequences, now_s)

    def _enqueue(
        self, entry: Waiting, exceeded: tuple[str, int, int] | None, books: list[Book], now_s: float, effects: list[Effect]
    ) -> None:
        demand = entry.demand
        if not books:  # the last of them went while the store was asked
            self._shed(demand.request_id, self.shedding.no_replica(demand), effects)
            return
        book = books[0]
        curves = book.newcomer(demand, now_s, entry.curves).curves
        entry.charge_block_steps, entry.peak_blocks = book.block_steps(curves), float(curves.mean.max())
        entry.considered.forecast(curves)
        displaced = None if exceeded is None else self.queue.displaceable(demand)
        if exceeded is not None and displaced is None and demand.request_id not in self.shedding.spared:
            self._shed(demand.request_id, self.shedding.queue_full(exceeded, entry, books, now_s), effects, entry)
            return
        for worse in displaced or ():
            self._shed(worse.demand.request_id, self.shedding.displaced(worse, demand, books, now_s), effects)
        self.counters.held += 1
        entry.considered.hold(len(self.queue), entry.held_by)
        entry.promised = self.shedding.promises(entry, books, now_s)
        self.queue.push(entry)

    def _observe_only(self, event: Arrive, books: list[Book], now_s: float, effects: list[Effect]) -> None:
        """Forward at once by least outstanding requests; note what enforcing would have done on the shadow ledger."""
        demand, serving = event.demand, forwardable(books, now_s)
        would = None
        if serving and self.mode is not Mode.OFF:
            refused = self._tenant_refusal(demand, books, now_s) is not None
            would = self.observing.look(demand, books, serving, now_s, refused=refused)
        self._book_least(Waiting(demand, now_s, event.streaming), serving, effects, would)

    def _book_least(self, entry: Waiting, books: list[Book], effects: list[Effect], would: Would | None = None) -> None:
        """Forward by least outstanding requests, whatever the forecast says."""
        if not books:
            self._shed(entry.demand.request_id, self.shedding.no_replica(entry.demand), effects)
            return
        usable = [book for book in books if not book.spec.among(entry.barred(entry.enqueued_s))] or books
        book = min(usable, key=lambda book: len(book.ledger.leases))
        cap = book.output_tokens_max(entry.demand)
        expected = self.fleet.model.output_tokens_expected(entry.demand, cap)
        self._book_lease(entry, book, cap, expected, effects).would = would

    def _release_all(self, now_s: float, effects: list[Effect]) -> None:
        """Nobody is held outside of enforce: who waits when the mode changes goes now."""
        for entry in list(self.queue.order()):
            self.queue.remove(entry.demand.request_id)
            self._book_least(entry, self.fleet.forwardable(entry.demand.length_class.model, now_s), effects)

    # ---- admissions

    def _schedule(self, now_s: float, effects: list[Effect], *, look_behind: bool) -> None:
        """Admit whoever can go, one at a time, until nobody can."""
        if not self.queue.requests:
            return
        if self.mode is not Mode.ENFORCE:
            self._release_all(now_s, effects)
            return
        books = self.fleet.fresh(now_s)
        for choice in self.placement.choices(books, now_s, look_behind=look_behind):
            self._admit(choice, effects)

    def _admit(self, choice: Choice, effects: list[Effect]) -> None:
        """One who waits goes."""
        self.queue.remove(choice.entry.demand.request_id, admitted=True)
        self._reserve(choice, effects)

    def _reserve(self, choice: Choice, effects: list[Effect]) -> None:
        demand, book = choice.entry.demand, choice.book
        choice.note()
        cap = book.output_tokens_max(demand)
        expected = self.fleet.model.output_tokens_expected(demand, cap)
        tokens = self.queue.output_tokens_expected(demand, expected)
        forecast = choice.block_steps
        charge = used_block_steps(book.ledger, demand, min(tokens, cap))
        ask = (None, None) if self.several is None else self.several.ask(choice)
        self.queue.charge_ahead_of_end(demand, charge, forecast)
        self._book_lease(
            choice.entry, book, cap, expected, effects, charge=(charge, forecast), newcomer=choice.verdict.newcomer, ask=ask
        )

    def _book_lease(
        self, entry: Waiting, book: Book, output_tokens_max: int, output_tokens_forecast: float, effects: list[Effect], *,
        charge: tuple[float, float] = (0.0, 0.0), newcomer: Newcomer | Undrawn | None = None, ask: Ask = (None, None),
    ) -> Lease:  # fmt: skip
        lease = self.leases.start(entry, book, output_tokens_max, output_tokens_forecast, charge=charge, newcomer=newcomer)
        effects.append(Reserve(entry.demand.request_id, lease, *ask))
        return lease

    # ---- ends

    def _granted(self, request_id: str, now_s: float, effects: list[Effect]) -> None:
        opened = self.leases.get(request_id)
        if opened is None:
            return
        if opened.voided:  # the engine restarted while the store was asked
            self._place_anew(request_id, now_s, effects)
            return
        self.counters.admitted += 1
        self.counters.degraded += opened.entry.degraded
        self.shedding.forecast.learn(opened.entry, now_s)
        effects.append(Forward(request_id, opened.lease))

    def _finished(self, event: Finished, effects: list[Effect]) -> None:
        known = self.leases.get(event.request_id)
        if known is not None:
            if event.output_tokens is not None:
                known.lease.output_tokens = event.output_tokens
            used_tokens = known.lease.demand.prompt_tokens + known.lease.output_tokens
            self.rates.end(event.request_id, used_tokens, self.queue.now_s, served=event.outcome in USED)
        opened = self.leases.end(event.request_id, effects)
        if opened is None or opened.voided:
            return
        lease, demand = opened.lease, opened.lease.demand
        tokens = lease.output_tokens if event.output_tokens is None else event.output_tokens
        per_sequence = tokens / demand.sequences
        if per_sequence > 0:
            self.fleet.model.learn(demand, per_sequence, natural=event.natural)
        book = self.fleet.books.get(lease.replica)
        if self.several is not None:
            self.several.exchange.ended(lease, event, tokens, kv_limited=book is not None and book.kv_limited)
        self.leases.settle(opened, per_sequence)
        if book is not None and event.outcome is Outcome.COMPLETED:
            book.feedback.completed(demand.prompt_tokens, tokens, kv_limited=book.kv_limited)
            book.kv_limited = book.kv_limited and self.queue.requests > 0

    def _place_anew(self, request_id: str, now_s: float, effects: list[Effect], *, alone: bool = False) -> None:
        """Not taken: queue it before everybody else of its tenant, and keep it from that replica, unless ``alone`` from its server."""
        opened = self.leases.end(request_id, effects)
        if opened is None:
            return
        demand = opened.lease.demand
        self.queue.charge(demand, -opened.charge)
        failed = opened.lease.replica if alone else self.fleet.server_of(opened.lease.replica)
        entry = retried(opened, failed, now_s)
        elsewhere = may_go_on(self.fleet, demand, {*entry.avoided}, failed, held=self.enforces(demand.tenant) and not alone)
        refusal = self.shedding.not_again(entry.tries, elsewhere=elsewhere)
        if refusal is not None:
            self._shed(request_id, refusal, effects)
            return
        if not self.enforces(demand.tenant):
            self._book_least(entry, self.fleet.forwardable(demand.length_class.model, now_s), effects, opened.lease.would)
            return
        self.queue.push(entry, front=True)

    def _back_to_queue(self, request_id: str, retry_s: float, now_s: float, effects: list[Effect]) -> None:
        """The store has no room for it: nothing is charged, and it waits in its place, or takes one if it had not waited yet."""
        opened = self.leases.end(request_id, effects)
        if opened is None:
            return
        entry, demand = opened.entry, opened.lease.demand
        self.queue.take_back(demand, opened.charge, opened.forecast)
        if entry.sequence:
            self.queue.put_back(entry)
        else:
            self._enqueue(entry, self.queue.exceeds(demand), self.fleet.of_model(demand.length_class.model), now_s, effects)
        self.placement.refusals.refused(entry, opened.lease.replica, now_s, retry_s)

    def _review(self, now_s: float, effects: list[Effect]) -> None:
        """Shed whose deadline has come; promise a place to those standing by where that can be done by now, or shed them too."""
        for entry in self.queue.expired(now_s):
            self.shedding.forecast.learn(entry, now_s)
            books = self.fleet.of_model(entry.demand.length_class.model)
            self._shed_at_last(entry, books, self.shedding.timed_out(entry, books, now_s), now_s, effects)
        for entry in self.queue.standing_by():
            books = self.fleet.of_model(entry.demand.length_class.model)
            if self.shedding.promises(entry, books, now_s):
                self.queue.promise(entry)
            elif (refusal := self.shedding.too_late(entry, books, now_s)) is not None:
                self._shed_at_last(entry, books, refusal, now_s, effects)

    def _shed_at_last(self, entry: Waiting, books: list[Book], refusal: Refusal, now_s: float, effects: list[Effect]) -> None:
        """Shed one that has waited, unless less than it asked for fits now."""
        degradable = entry.demand.degrade_tokens_min is not None
        choice = self.degrading.at_last(entry, books, self.fleet.fresh(now_s), now_s) if degradable else None
        if choice is None:
            self._shed(entry.demand.request_id, refusal, effects)
        else:
            self._admit(choice, effects)

    def _shed(self, request_id: str, refusal: Refusal, effects: list[Effect], entry: Waiting | None = None) -> None:
        entry = self.queue.remove(request_id) or entry
        self.rates.end(request_id, 0.0, self.queue.now_s, served=False)
        self.counters.shed += 1
        effects.append(Shed(request_id, refusal, None if entry is None else entry.considered))
