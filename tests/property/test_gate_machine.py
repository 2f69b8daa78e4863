"""Random events at the gate: every request ends once, every lease ends once, no sum goes astray, nobody overstays, every grant fits.

The driver here is simple on purpose: it does what the effects say and keeps its own plain account of who is where.
"""

from enum import Enum, auto

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from proxy.core.book import Book
from proxy.core.events import (
    Arrive,
    Cancelled,
    Effect,
    Event,
    Finished,
    Forward,
    Granted,
    Observed,
    Refused,
    Release,
    ReplicaChanged,
    ReplicaFound,
    Reroute,
    Reserve,
    Shed,
    Tick,
)
from proxy.core.gate import Gate
from proxy.core.ledger import Lease
from proxy.core.outcome import Outcome
from proxy.core.replica import ReplicaPhase
from tests.support.builders import demand, engine_sample, policy, promised, scrape, spec

NAMES = ("r0", "r1", "r2")
USABLE = 60
RATIOS = st.one_of(st.none(), st.just(0.0), st.floats(0.0, 1.0))
COUNTS = st.one_of(st.none(), st.just(0), st.integers(0, 30))


class At(Enum):
    """Where the driver thinks a request is."""

    WAITING = auto()
    RESERVING = auto()
    FORWARDED = auto()
    ENDED = auto()


def peak_from_scratch(book: Book, now_s: float) -> float:
    """Q's maximum from the rows alone, by the formula of the book's header. Nobody shares prefixes here."""
    ledger = book.ledger
    rows = [row for lease in ledger.leases.values() for row in lease.rows]
    mean, variance, ceiling, common = ledger.rows.curves[:, rows].sum(axis=1)
    sigma = book.reconciler.sigma_blocks(book.spec.usable_blocks, book.sample_age_s(now_s), 5.0)
    risky = mean + book.feedback.z * np.sqrt(variance + common**2 + sigma**2)
    return float((np.minimum(risky, ceiling + sigma) + book.reconciler.bias_blocks).max())


class GateMachine(RuleBasedStateMachine):
    """Up to three replicas, a short queue, three tenants, two bands."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self.serial = 0
        self.gate = Gate(policy(requests_max=6, tokens_max=4000, reroutes_max=1), 0.0)
        self.at: dict[str, At] = {}
        self.lease_of: dict[str, Lease] = {}
        self.leases_open: set[str] = set()
        self.leases_seen: set[str] = set()
        self.deadlines: dict[str, float] = {}
        self.counters: dict[str, float] = dict.fromkeys(NAMES, 0.0)

    # ---- the driver

    def send(self, event: Event) -> list[Effect]:
        effects = self.gate.handle(event, self.now_s)
        granted: set[str] = set()
        for effect in effects:
            match effect:
                case Reserve(request_id, lease):
                    assert self.at[request_id] is not At.ENDED
                    assert lease.lease_id not in self.leases_seen
                    self.leases_seen.add(lease.lease_id)
                    self.leases_open.add(lease.lease_id)
                    self.at[request_id], self.lease_of[request_id] = At.RESERVING, lease
                    granted.add(lease.replica)
                case Forward(request_id, lease):
                    assert self.lease_of[request_id] is lease
                    self.at[request_id] = At.FORWARDED
                case Shed(request_id, _):
                    assert self.at[request_id] in {At.WAITING, At.RESERVING, At.FORWARDED}
                    self.at[request_id] = At.ENDED
                case Release(_, lease_id):
                    self.leases_open.remove(lease_id)  # KeyError: a lease ended twice
        self.grants_fit(granted)
        return effects

    def grants_fit(self, granted: set[str]) -> None:
        for name in granted:
            book = self.gate.fleet.books[name]
            alone = len(book.ledger.leases) == 1  # it found an empty replica
            assert alone or peak_from_scratch(book, self.now_s) <= book.spec.usable_blocks + 1e-6

    def those(self, *states: At) -> list[str]:
        return [name for name, state in self.at.items() if state in states]

    def some(self, data: st.DataObject, *states: At) -> str:
        return data.draw(st.sampled_from(self.those(*states)))

    # ---- rules

    @initialize()
    def first_replica(self) -> None:
        self.send(ReplicaFound(spec("r0", usable=USABLE, context=USABLE * 16)))

    @rule(
        prompt=st.integers(1, 1100),
        cap=st.one_of(st.none(), st.integers(1, 300)),
        copies=st.sampled_from([1, 1, 1, 3]),
        wait_s=st.floats(0.0, 20.0),
        tenant=st.sampled_from("abc"),
        priority=st.integers(0, 1),
        streaming=st.booleans(),
    )
    def arrive(
        self, prompt: int, cap: int | None, copies: int, wait_s: float, tenant: str, priority: int, streaming: bool
    ) -> None:
        self.serial += 1
        name = f"q{self.serial}"
        self.at[name] = At.WAITING
        self.deadlines[name] = self.now_s + wait_s
        one = demand(
            name, prompt=prompt, cap=cap, copies=copies, arrived_s=self.now_s, deadline_s=self.now_s + wait_s, tenant=tenant,
            priority=priority, body_bytes=prompt,
        )  # fmt: skip
        self.send(Arrive(one, streaming))

    @precondition(lambda self: self.those(At.RESERVING))
    @rule(data=st.data(), event=st.sampled_from([Granted, Granted, Granted, Refused]))
    def answer(self, data: st.DataObject, event: type[Granted] | type[Refused]) -> None:
        name = self.some(data, At.RESERVING)
        if event is Refused or self.lease_of[name].lease_id not in self.leases_open:
            self.at[name] = At.WAITING  # a grant of a lease that ended with its engine is none
        self.send(event(name))

    @precondition(lambda self: self.those(At.FORWARDED))
    @rule(data=st.data())
    def reroute(self, data: st.DataObject) -> None:
        name = self.some(data, At.FORWARDED)
        self.at[name] = At.WAITING
        self.send(Reroute(name))

    @precondition(lambda self: self.those(At.FORWARDED))
    @rule(data=st.data(), tokens=st.integers(1, 100))
    def progress(self, data: st.DataObject, tokens: int) -> None:
        lease = self.lease_of[self.some(data, At.FORWARDED)]
        if lease.streaming:
            lease.output_tokens += tokens
            lease.placed = True

    @precondition(lambda self: self.those(At.FORWARDED))
    @rule(
        data=st.data(),
        outcome=st.sampled_from([Outcome.COMPLETED, Outcome.CUT_OFF, Outcome.CANCELLED]),
        tokens=st.one_of(st.none(), st.integers(0, 400)),
        natural=st.booleans(),
    )
    def finish(self, data: st.DataObject, outcome: Outcome, tokens: int | None, natural: bool) -> None:
        name = self.some(data, At.FORWARDED)
        self.at[name] = At.ENDED
        self.send(Finished(name, outcome, tokens, natural))

    @precondition(lambda self: self.those(At.WAITING, At.RESERVING, At.FORWARDED))
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        name = self.some(data, At.WAITING, At.RESERVING, At.FORWARDED)
        self.at[name] = At.ENDED
        self.send(Cancelled(name))

    @rule(
        name=st.sampled_from(NAMES),
        usage=RATIOS,
        running=COUNTS,
        waiting=COUNTS,
        preempted=st.sampled_from([None, 0, 0, 1, 5]),
        age_s=st.sampled_from([0.0, 0.0, 0.3, 10.0]),
        new_epoch=st.sampled_from([False, False, False, True]),
    )
    def observe(
        self, name: str, usage: float | None, running: int | None, waiting: int | None, preempted: int | None, age_s: float,
        new_epoch: bool,
    ) -> None:  # fmt: skip
        self.counters[name] += preempted or 0
        total = None if preempted is None else self.counters[name]
        engine = engine_sample(usage=usage, running=running, waiting=waiting, preemptions=total, generated=total)
        self.send(Observed(scrape(name, self.now_s - age_s, engine, new_epoch=new_epoch)))

    @rule(name=st.sampled_from(NAMES), usable=st.sampled_from([USABLE, USABLE, USABLE, USABLE // 2]))
    def found(self, name: str, usable: int) -> None:
        self.send(ReplicaFound(spec(name, usable=usable, context=USABLE * 16)))

    @rule(name=st.sampled_from(NAMES), phase=st.sampled_from(ReplicaPhase))
    def changed(self, name: str, phase: ReplicaPhase) -> None:
        self.send(ReplicaChanged(name, phase))

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.02, 0.5, 3.0, 30.0]))
    def tick(self, seconds: float) -> None:
        self.now_s += seconds
        self.send(Tick())
        overdue = [name for name in self.those(At.WAITING) if self.deadlines[name] <= self.now_s]
        assert overdue == []

    # ---- judges

    @invariant()
    def the_gate_agrees_who_waits_and_who_is_open(self) -> None:
        waiting = {entry.demand.request_id for entry in self.gate.queue.order()}
        assert waiting == set(self.those(At.WAITING))
        assert len(self.leases_open) == self.gate.open_requests
        assert self.gate.leases.started - self.gate.leases.ended == len(self.leases_open)

    @invariant()
    def queue_counters_are_a_recount(self) -> None:
        queue = self.gate.queue
        entries = list(queue.order())
        assert len(queue) == len(entries)
        assert queue.tokens == sum(entry.demand.prompt_tokens for entry in entries)
        assert queue.bytes == sum(entry.demand.body_bytes for entry in entries)
        assert abs(promised(queue) - sum(entry.charge_block_steps for entry in entries if entry.promised)) < 1e-3
        assert abs(queue.peak_blocks - sum(entry.peak_blocks for entry in entries)) < 1e-3

    @invariant()
    def nothing_is_negative(self) -> None:
        for book in self.gate.fleet:
            assert all((curve > -1e-6).all() for curve in book.ledger.total.arrays())
            assert book.reconciler.bias_blocks >= 0.0
            assert book.ledger.sequences >= 0
            assert book.feedback.z_min <= book.feedback.z <= book.feedback.z_max

    def teardown(self) -> None:
        """Everybody leaves; then nothing is left."""
        for name in self.those(At.WAITING, At.RESERVING, At.FORWARDED):
            if self.at[name] is not At.ENDED:
                self.at[name] = At.ENDED
                self.send(Cancelled(name))
        for name in self.those(At.RESERVING, At.FORWARDED):  # who was admitted because somebody left
            self.send(Cancelled(name))
        assert "held=0 open=0" in repr(self.gate)
        assert self.gate.leases.started == self.gate.leases.ended
        assert self.leases_open == set()
        assert all(book.ledger.leases == {} for book in self.gate.fleet)


GateMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestGate = GateMachine.TestCase
