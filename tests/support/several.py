"""A gate among several, in few words: what others have and tell, what it reserves, and its account."""

from dataclasses import replace

import numpy as np

from proxy.core.demand import Demand
from proxy.core.events import (
    Arrive,
    Effect,
    Granted,
    Observed,
    PeersTold,
    RecordTold,
    ReplicaFound,
    Reserve,
)
from proxy.core.gate import Gate
from proxy.core.shared import LOAD_FIELDS, Others
from proxy.core.shared_book import SharedBook
from tests.support.builders import book, demand, engine_sample, knows_lengths, lease_of, policy, scrape, spec

STORE_AHEAD_S = 1000.0  # the store's clock


def quarter(name: str, *, priority: int = 0, tenant: str = "default", deadline_s: float = 1e9) -> Demand:
    """25 of 100 blocks."""
    return demand(name, prompt=385, cap=15, priority=priority, tenant=tenant, deadline_s=deadline_s)


def gate_of(*replicas: str, shared: bool = True) -> Gate:
    """A gate that knows its lengths, over empty replicas just scraped."""
    gate = Gate(policy(), 0.0)
    if shared:
        gate.share()
    for name in replicas or ("r0",):
        gate.handle(ReplicaFound(spec(name)), 0.0)
        gate.handle(Observed(scrape(name, 0.0, engine_sample())), 0.0)
    knows_lengths(gate.fleet.model, quarter("any"))
    return gate


def reserves(effects: list[Effect]) -> list[Reserve]:
    return [effect for effect in effects if isinstance(effect, Reserve)]


def names(effects: list[Effect]) -> list[str]:
    return [effect.request_id for effect in reserves(effects)]


def record(gate: Gate, replica: str = "r0", *, now_s: float = 0.0) -> RecordTold:
    """What another proxy that scrapes the replica publishes, its engine being as this gate's."""
    told = SharedBook(gate.fleet.books[replica]).record_now("other", now_s, now_s + STORE_AHEAD_S)
    return RecordTold(told, now_s + STORE_AHEAD_S)


def theirs(count: int, replica: str = "r0") -> Others:
    """What others have: so many quarters."""
    there = book(knows_lengths(gate_of().fleet.model, quarter("any")))
    for index in range(count):
        lease_of(quarter(f"theirs{index}"), there).placed = True
    row = SharedBook(there).row(0.0)
    return Others(replica, np.zeros(LOAD_FIELDS + 4 * len(there.grid)) if row is None else row, 0.0)


def tell(gate: Gate, count: int, now_s: float) -> list[Effect]:
    """The store says that others have so many quarters, sent just now."""
    others, steps = theirs(count), gate.fleet.books["r0"].steps_now(now_s)
    return gate.handle(PeersTold(replace(others, anchor_steps=steps), steps), now_s)


def account(gate: Gate) -> tuple[dict[str, float], int, list[np.ndarray]]:
    """Tenants' virtual times, open leases and every ledger's sums."""
    virtual = {name: line.virtual for band in gate.queue.bands.values() for name, line in band.tenants.items()}
    return virtual, gate.open_requests, [one.ledger.totals.copy() for one in gate.fleet]


def filled(gate: Gate, count: int = 4) -> Gate:
    for index in range(count):
        assert names(gate.handle(Arrive(quarter(f"run{index}")), 0.2 * index)) == [f"run{index}"]
        gate.handle(Granted(f"run{index}"), 0.2 * index)
    return gate
