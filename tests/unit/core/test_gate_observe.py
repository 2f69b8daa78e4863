"""Observing changes nothing: no hold, no refusal for capacity, least outstanding requests, and counts of what would have been."""

import pytest

from proxy.core.demand import Demand
from proxy.core.events import (
    Arrive,
    Effect,
    Finished,
    Granted,
    Observed,
    ReplicaChanged,
    ReplicaFound,
    Reroute,
    Reserve,
    Shed,
    Tick,
)
from proxy.core.gate import Gate
from proxy.core.outcome import Mode, Outcome
from proxy.core.replica import ReplicaPhase
from tests.support.builders import demand, engine_sample, knows_lengths, policy, scrape, spec


def gate_of(mode: Mode, *replicas: str, enforced: bool = True) -> Gate:
    gate = Gate(policy(mode=mode), 0.0)
    for name in replicas:
        gate.handle(ReplicaFound(spec(name, usable=100, enforced=enforced)), 0.0)
        gate.handle(Observed(scrape(name, 0.0, engine_sample())), 0.0)
    knows_lengths(gate.fleet.model, quarter("x"))
    return gate


def quarter(name: str, deadline_s: float = 1e9) -> Demand:
    return demand(name, prompt=385, cap=15, deadline_s=deadline_s)


def reserved(effects: list[Effect]) -> list[tuple[str, str]]:
    return [(one.request_id, one.lease.replica) for one in effects if isinstance(one, Reserve)]


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.OFF])
def test_nobody_is_held_or_shed_however_full(mode: Mode) -> None:
    gate = gate_of(mode, "r0", "r1")
    for index in range(50):
        effects = gate.handle(Arrive(quarter(f"q{index}", deadline_s=0.0)), 1.0)
        assert reserved(effects) == [(f"q{index}", f"r{index % 2}")]
    assert len(gate.queue) == 0
    assert gate.counters.shed == 0
    assert gate.handle(Tick(), 2.0) == []


@pytest.mark.parametrize(("mode", "held"), [(Mode.OBSERVE, 6), (Mode.OFF, 0)])
def test_what_enforcing_would_have_held_is_counted(mode: Mode, held: int) -> None:
    gate = gate_of(mode, "r0")
    for index in range(10):
        gate.handle(Arrive(quarter(f"q{index}")), 1.0)
    assert gate.counters.would_hold == held


def test_what_enforcing_would_have_refused_is_forwarded_and_counted() -> None:
    gate = gate_of(Mode.OBSERVE, "r0")
    assert reserved(gate.handle(Arrive(demand("huge", prompt=9999)), 1.0)) == [("huge", "r0")]
    assert (gate.counters.would_shed, gate.counters.shed) == (1, 0)


def test_least_outstanding_rules() -> None:
    gate = gate_of(Mode.OBSERVE, "r0", "r1")
    for index in range(4):
        gate.handle(Arrive(quarter(f"q{index}")), 1.0)
        gate.handle(Granted(f"q{index}"), 1.0)
    for name in ("q0", "q2"):  # both on r0
        gate.handle(Finished(name, Outcome.COMPLETED, 15), 2.0)
    assert [reserved(gate.handle(Arrive(quarter(f"n{index}")), 3.0))[0][1] for index in range(2)] == ["r0", "r0"]


def test_a_replica_that_is_several_is_only_observed() -> None:
    gate = gate_of(Mode.ENFORCE, "r0", enforced=False)
    for index in range(20):
        assert reserved(gate.handle(Arrive(quarter(f"q{index}")), 1.0))


def test_without_any_replica_there_is_nothing_to_forward_to() -> None:
    (shed,) = gate_of(Mode.OBSERVE).handle(Arrive(quarter("q")), 1.0)
    assert isinstance(shed, Shed)
    assert shed.refusal.outcome is Outcome.NO_REPLICA


def test_unreachable_replicas_alone_are_tried_anyway() -> None:
    gate = gate_of(Mode.OFF, "r0")
    gate.handle(ReplicaChanged("r0", ReplicaPhase.UNREACHABLE), 1.0)
    assert reserved(gate.handle(Arrive(quarter("q")), 1.0)) == [("q", "r0")]


def test_a_rerouted_request_is_not_held_either() -> None:
    gate = gate_of(Mode.OBSERVE, "r0", "r1")
    for index in range(20):
        gate.handle(Arrive(quarter(f"q{index}")), 1.0)
        gate.handle(Granted(f"q{index}"), 1.0)
    assert reserved(gate.handle(Reroute("q0"), 1.1)) == [("q0", "r1")]


def test_switching_to_observe_lets_everybody_go() -> None:
    gate = gate_of(Mode.ENFORCE, "r0")
    for index in range(8):
        gate.handle(Arrive(quarter(f"q{index}")), 0.2 * index)
    assert len(gate.queue) > 0
    gate.mode = Mode.OBSERVE
    gate.handle(Tick(), 2.0)
    assert len(gate.queue) == 0
