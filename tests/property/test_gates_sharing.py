"""Two gates over one store: whatever order their calls and its answers come in, at every grant the sum of both fits.

Time stands still between ticks and every forecast is made anew at each, so that the judge, who adds up both gates' own ledgers, sees what
they saw; what is under test is who is told what, and when. Calls are carried to the store in any order, and so are its answers. In a
small pool every request asks the store; in a larger one most go by room that their proxy took ahead.
"""

from dataclasses import replace

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from proxy.core.events import (
    Arrive,
    Cancelled,
    Event,
    Finished,
    Forward,
    Observed,
    Offered,
    Release,
    ReplicaFound,
    Reserve,
    Shed,
    Tick,
)
from proxy.core.gate import Gate
from proxy.core.grid import FloatArray
from proxy.core.member import Member
from proxy.core.outcome import Outcome
from proxy.core.risk import Risk, peak_of
from proxy.core.shared import Answer, Load, Record, ReserveReply, curves_of, row_of
from proxy.core.shared_ledger import SharedLedger
from proxy.core.store_calls import CallReserve, StoreCall, StoreReply
from proxy.sim.shared_store import answer
from tests.support.builders import demand, engine_sample, policy, scrape, spec

CONTEXT_TOKENS = 960
STORE_AHEAD_S = 500.0
REQUESTS = st.tuples(  # proxy, prompt and cap in tokens, copies, priority, tenant, and how long it may wait
    st.integers(0, 1), st.integers(1, 300), st.integers(1, 200), st.sampled_from([1, 1, 2]), st.integers(0, 1),
    st.sampled_from("ab"), st.floats(1.0, 20.0),
)  # fmt: skip


class Proxy:
    """One gate and its member, with calls on their way out and answers on their way back."""

    def __init__(self, name: str, now_s: float, ahead_ratio: float) -> None:
        rules = policy(requests_max=8, tokens_max=8000)
        rules = replace(rules, store=replace(rules.store, ahead_ratio=ahead_ratio))
        self.gate = Gate(rules, now_s)
        self.member = Member(self.gate, name, rules, now_s)
        self.out: list[tuple[StoreCall, float]] = []
        self.back: list[tuple[StoreCall, StoreReply, float, float]] = []
        self.reserving: set[str] = set()
        self.forwarded: set[str] = set()
        self.committed: set[str] = set()  # leases that the store granted, or that needed no grant
        self.open: set[str] = set()
        self.granted_here: list[str] = []  # leases, to be judged

    def send(self, event: Event, now_s: float) -> None:
        """Tell the gate, and do what it says."""
        for effect in self.gate.handle(event, now_s):
            match effect:
                case Reserve(request_id, lease):
                    assert lease.lease_id not in self.open
                    self.open.add(lease.lease_id)
                    self.reserving.add(request_id)
                    for granted in self.member.reserve(effect, now_s):
                        self.committed.add(lease.lease_id)
                        self.granted_here.append(lease.lease_id)
                        self.send(granted, now_s)
                case Forward(request_id, lease):
                    assert lease.lease_id in self.committed, "forwarded without a grant"
                    self.reserving.discard(request_id)
                    self.forwarded.add(request_id)
                case Release(replica, lease_id):
                    self.open.remove(lease_id)  # KeyError: it ended twice
                    self.member.freed(replica, now_s)
                case Shed(request_id, _):
                    self.reserving.discard(request_id)
        self.member.waiting(now_s)
        self.out += [(call, now_s) for call in self.member.take_calls()]

    def row(self) -> FloatArray:
        """What the store has granted it, by its own ledger: curves from now on."""
        ledger = self.gate.fleet.books["r0"].ledger
        rows = [row for lease in ledger.leases.values() if lease.lease_id in self.committed for row in lease.rows]
        leases = [lease for lease in ledger.leases.values() if lease.lease_id in self.committed]
        load = Load(float(len(leases)), float(sum(lease.demand.sequences for lease in leases)))
        return row_of(load, ledger.rows.curves[:, rows].sum(axis=1))


class SharingMachine(RuleBasedStateMachine):
    """Two proxies, one replica of a few seats."""

    usable, seats, ahead_ratio = 60, 6, 0.0

    def __init__(self) -> None:
        super().__init__()
        self.now_s, self.serial = 0.0, 0
        self.ledger = SharedLedger()
        self.proxies = [Proxy(name, 0.0, self.ahead_ratio) for name in ("p0", "p1")]

    @initialize()
    def found(self) -> None:
        for proxy in self.proxies:
            proxy.send(ReplicaFound(spec("r0", usable=self.usable, context=CONTEXT_TOKENS, sequences_max=self.seats)), 0.0)
        self.tick(0.5)

    # ---- the store

    @property
    def store_s(self) -> float:
        return self.now_s + STORE_AHEAD_S

    def carry(self, proxy: Proxy, index: int) -> None:
        call, asked_s = proxy.out.pop(index)
        reply = answer(self.ledger, call, self.store_s)
        granted = isinstance(reply, ReserveReply) and reply.answer is Answer.GRANTED
        if granted and isinstance(call, CallReserve) and call.lease.lease_id in proxy.open:
            proxy.committed.add(call.lease.lease_id)
            self.judge()
        proxy.back.append((call, reply, asked_s, self.store_s))

    def hear(self, proxy: Proxy, index: int) -> None:
        call, reply, asked_s, store_s = proxy.back.pop(index)
        if isinstance(reply, ReserveReply) and isinstance(call, CallReserve) and reply.answer is not Answer.GRANTED:
            proxy.committed.discard(call.lease.lease_id)
        for event in proxy.member.answered(call, reply, store_s=store_s, asked_s=asked_s, now_s=self.now_s):
            proxy.send(event, self.now_s)
            self.judge_here()
        proxy.out += [(call, self.now_s) for call in proxy.member.take_calls()]

    def judge(self) -> None:
        """All that was granted, by the gates' own ledgers, fits under the record in force; an empty replica took anything."""
        record: Record = self.ledger.accounts["r0"].record
        total = np.sum([proxy.row() for proxy in self.proxies], axis=0)
        if total[0] == 1.0:
            return
        peak = peak_of(curves_of(total).copy(), Risk(record.z, record.sigma_blocks, record.bias_blocks))
        assert peak <= record.usable_blocks + 1e-6, (peak, self.proxies[0].gate, self.proxies[1].gate)
        assert total[1] <= self.seats

    def judge_here(self) -> None:
        """Whatever was granted without asking the store is judged as if it had been asked now; the store must count it already."""
        for proxy in self.proxies:
            if proxy.granted_here and proxy.member.touch.sharing:
                self.judge()
                account = self.ledger.accounts["r0"]
                counted = account.own(account.entries[proxy.member.name])
                assert (counted[1:2] >= proxy.row()[1:2]).all(), "fewer sequences than it has"
                assert (curves_of(counted) >= curves_of(proxy.row()) - 1e-6).all(), "less than it has"
            proxy.granted_here.clear()

    # ---- rules

    @rule(asked=st.lists(REQUESTS, min_size=1, max_size=5))
    def arrive(self, asked: list[tuple[int, int, int, int, int, str, float]]) -> None:
        for proxy, prompt, cap, copies, priority, tenant, wait_s in asked:
            self.serial += 1
            one = demand(
                f"q{self.serial}", prompt=prompt, cap=cap, copies=copies, arrived_s=self.now_s,
                deadline_s=self.now_s + wait_s, priority=priority, tenant=tenant,
            )  # fmt: skip
            self.proxies[proxy].send(Arrive(one), self.now_s)
            self.judge_here()

    @rule(data=st.data(), proxy=st.integers(0, 1))
    def carry_one(self, data: st.DataObject, proxy: int) -> None:
        if self.proxies[proxy].out:
            self.carry(self.proxies[proxy], data.draw(st.integers(0, len(self.proxies[proxy].out) - 1)))

    @rule(data=st.data(), proxy=st.integers(0, 1))
    def hear_one(self, data: st.DataObject, proxy: int) -> None:
        if self.proxies[proxy].back:
            self.hear(self.proxies[proxy], data.draw(st.integers(0, len(self.proxies[proxy].back) - 1)))

    @rule(proxy=st.integers(0, 1))
    def beat(self, proxy: int) -> None:
        one = self.proxies[proxy]
        one.member.beat(self.now_s)
        one.out += [(call, self.now_s) for call in one.member.take_calls()]

    @rule(proxy=st.integers(0, 1))
    def offers(self, proxy: int) -> None:
        for replica in self.ledger.take_offers(self.proxies[proxy].member.name):
            self.proxies[proxy].send(Offered(replica), self.now_s)

    @rule(data=st.data(), proxy=st.integers(0, 1), tokens=st.integers(1, 300), natural=st.booleans())
    def finish(self, data: st.DataObject, proxy: int, tokens: int, natural: bool) -> None:
        one = self.proxies[proxy]
        if one.forwarded:
            name = data.draw(st.sampled_from(sorted(one.forwarded)))
            one.forwarded.remove(name)
            one.send(Finished(name, Outcome.COMPLETED, tokens, natural), self.now_s)

    @rule(data=st.data(), proxy=st.integers(0, 1))
    def cancel(self, data: st.DataObject, proxy: int) -> None:
        one = self.proxies[proxy]
        names = sorted(one.forwarded | one.reserving)
        if names:
            name = data.draw(st.sampled_from(names))
            one.forwarded.discard(name)
            one.reserving.discard(name)
            one.send(Cancelled(name), self.now_s)

    @rule(wait_s=st.floats(0.5, 1.0))
    def tick(self, wait_s: float) -> None:
        """Everything under way arrives, time passes, all forecasts are made anew and told, and the first proxy scrapes."""
        self.settle()
        self.now_s += wait_s
        for proxy in self.proxies:
            proxy.gate.fleet.books["r0"].refresh(self.now_s)
            proxy.member.beat(self.now_s)
            proxy.out += [(call, self.now_s) for call in proxy.member.take_calls()]
            while proxy.out:
                self.carry(proxy, 0)
        self.settle()
        holder = self.proxies[0]
        holder.send(Observed(scrape("r0", self.now_s, engine_sample(running=None, usage=None))), self.now_s)
        holder.member.scraped("r0", self.now_s)
        self.settle()
        for proxy in self.proxies:
            proxy.send(Tick(), self.now_s)

    def settle(self) -> None:
        for _ in range(100):
            for proxy in self.proxies:
                proxy.out += [(call, self.now_s) for call in proxy.member.take_calls()]
                while proxy.out:
                    self.carry(proxy, 0)
                while proxy.back:
                    self.hear(proxy, 0)
            if not any(proxy.out for proxy in self.proxies):
                return
        raise AssertionError("calls without end")

    @invariant()
    def accounts_agree(self) -> None:
        for proxy in self.proxies:
            assert proxy.gate.open_requests == len(proxy.open)
            leases = proxy.gate.fleet.books["r0"].ledger.leases if proxy.gate.fleet.books else {}
            assert proxy.open == set(leases)


TestGatesSharing = SharingMachine.TestCase
TestGatesSharing.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
