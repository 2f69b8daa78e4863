"""A replica that answers nothing for a while: waited for where nobody else serves, and sent to only where nothing is decided."""

import pytest

from proxy.core.demand import Demand
from proxy.core.events import Arrive, Effect, Observed, ReplicaChanged, ReplicaFound, Reserve, Shed, Tick
from proxy.core.gate import Gate
from proxy.core.outcome import Mode, Outcome
from proxy.core.replica import ReplicaPhase
from tests.support.builders import demand, engine_sample, knows_lengths, policy, scrape, spec


def gate_of(mode: Mode, *replicas: str) -> Gate:
    """A gate that knows its lengths, over empty replicas just scraped: four requests fill one."""
    gate = Gate(policy(mode=mode), 0.0)
    for name in replicas:
        gate.handle(ReplicaFound(spec(name, usable=100)), 0.0)
        gate.handle(Observed(scrape(name, 0.0, engine_sample())), 0.0)
    knows_lengths(gate.fleet.model, quarter("x"))
    return gate


def quarter(name: str, deadline_s: float = 1e9) -> Demand:
    return demand(name, prompt=385, cap=15, deadline_s=deadline_s)


def reserved(effects: list[Effect]) -> list[tuple[str, str]]:
    return [(one.request_id, one.lease.replica) for one in effects if isinstance(one, Reserve)]


def test_who_comes_while_its_replica_is_stalled_waits_and_goes_when_it_answers() -> None:
    gate = gate_of(Mode.ENFORCE, "r0")
    gate.handle(ReplicaChanged("r0", ReplicaPhase.STALLED), 1.0)
    assert gate.handle(Arrive(quarter("short", deadline_s=5.0)), 1.0) == []
    assert gate.handle(Arrive(quarter("long")), 1.0) == []
    (shed,) = gate.handle(Tick(), 5.0)
    assert isinstance(shed, Shed)
    assert (shed.request_id, shed.refusal.outcome) == ("short", Outcome.NO_REPLICA)
    assert reserved(gate.handle(ReplicaChanged("r0", ReplicaPhase.SERVING), 30.0)) == [("long", "r0")]


def test_nobody_waits_for_a_stalled_replica_while_another_has_room() -> None:
    gate = gate_of(Mode.ENFORCE, "r0", "r1")
    gate.handle(ReplicaChanged("r0", ReplicaPhase.STALLED), 1.0)
    for index in range(4):
        assert reserved(gate.handle(Arrive(quarter(f"q{index}")), 1.0 + 0.2 * index)) == [(f"q{index}", "r1")]
    assert gate.handle(Arrive(quarter("late")), 2.0) == []
    assert reserved(gate.handle(ReplicaChanged("r0", ReplicaPhase.SERVING), 3.0)) == [("late", "r0")]


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.OFF])
def test_a_stalled_replica_comes_after_serving_ones_and_before_unreachable_ones(mode: Mode) -> None:
    gate = gate_of(mode, "r0", "r1", "r2")
    gate.handle(ReplicaChanged("r0", ReplicaPhase.UNREACHABLE), 1.0)
    gate.handle(ReplicaChanged("r1", ReplicaPhase.STALLED), 1.0)
    assert [reserved(gate.handle(Arrive(quarter(f"a{index}")), 1.0))[0][1] for index in range(3)] == ["r2"] * 3
    gate.handle(ReplicaChanged("r2", ReplicaPhase.UNREACHABLE), 1.0)
    assert [reserved(gate.handle(Arrive(quarter(f"b{index}")), 1.0))[0][1] for index in range(3)] == ["r1"] * 3


@pytest.mark.parametrize("mode", Mode)
def test_a_draining_replica_gets_nobody_though_it_is_found_again(mode: Mode) -> None:
    gate = gate_of(mode, "r0", "r1")
    gate.handle(ReplicaChanged("r0", ReplicaPhase.DRAINING), 1.0)
    gate.handle(ReplicaFound(spec("r0", usable=100), ReplicaPhase.DRAINING), 1.0)
    for index in range(4):
        assert reserved(gate.handle(Arrive(quarter(f"q{index}")), 1.0 + 0.2 * index)) == [(f"q{index}", "r1")]
    gate.handle(ReplicaChanged("r1", ReplicaPhase.UNREACHABLE), 2.0)
    gate.handle(ReplicaChanged("r0", ReplicaPhase.SERVING), 3.0)
    assert reserved(gate.handle(Arrive(quarter("back")), 3.0)) == [("back", "r0")]


def test_a_replica_that_comes_back_different_is_still_draining() -> None:
    gate = gate_of(Mode.ENFORCE, "r0")
    gate.handle(ReplicaFound(spec("r0", usable=200), ReplicaPhase.DRAINING), 1.0)
    assert gate.fleet.books["r0"].phase is ReplicaPhase.DRAINING
    (shed,) = gate.handle(Arrive(quarter("q")), 1.0)
    assert isinstance(shed, Shed)


@pytest.mark.parametrize("mode", [Mode.OBSERVE, Mode.OFF])
def test_who_waits_when_enforcing_ends_and_every_replica_drains_is_told(mode: Mode) -> None:
    gate = gate_of(Mode.ENFORCE, "r0")
    gate.handle(ReplicaChanged("r0", ReplicaPhase.STALLED), 1.0)
    assert gate.handle(Arrive(quarter("q")), 1.0) == []
    gate.handle(ReplicaChanged("r0", ReplicaPhase.DRAINING), 1.0)
    gate.mode = mode
    (shed,) = gate.handle(Tick(), 1.1)
    assert isinstance(shed, Shed)
    assert shed.refusal.outcome is Outcome.NO_REPLICA
