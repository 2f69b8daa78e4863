"""A replica that is none of ours any more: what ran there, what waited for it, and what was being asked about it."""

from proxy.core.events import Arrive, Finished, Forward, Granted, Refused, Release, ReplicaChanged, ReplicaGone, Shed, Tick
from proxy.core.outcome import Mode, Outcome
from proxy.core.replica import ReplicaPhase
from proxy.core.shared import Answer
from tests.support.builders import demand
from tests.unit.core.test_gate import gate_of, kinds, quarter


def test_what_runs_there_loses_its_place_and_ends_in_peace() -> None:
    gate = gate_of("a", "b")
    gate.handle(ReplicaChanged("b", ReplicaPhase.DRAINING), 0.0)
    gate.handle(Arrive(quarter("x")), 0.0)
    gate.handle(Granted("x"), 0.0)
    effects = gate.handle(ReplicaGone("a"), 1.0)
    assert [effect for effect in effects if isinstance(effect, Release)] == [Release("a", "x.0")]
    assert list(gate.fleet.books) == ["b"]
    assert (gate.leases.on({"a"}), len(gate.leases)) == (1, 0)
    assert gate.handle(Finished("x", Outcome.COMPLETED, 5, natural=True), 2.0) == []
    assert gate.leases.on({"a"}) == 0
    assert gate.fleet.epochs_total == 0
    assert gate.handle(ReplicaGone("a"), 3.0) == []


def test_who_waits_for_a_model_that_is_gone_is_answered_at_its_deadline() -> None:
    gate = gate_of("a")
    for index in range(4):
        gate.handle(Arrive(quarter(f"x{index}", deadline_s=10.0)), 0.0)
    assert len(gate.queue) == 1
    gate.handle(ReplicaGone("a"), 1.0)
    gate.handle(Tick(), 2.0)
    assert len(gate.queue) == 1
    (effect,) = gate.handle(Tick(), 10.0)
    assert isinstance(effect, Shed)
    assert effect.refusal.outcome is Outcome.NO_REPLICA
    (effect,) = gate.handle(Arrive(demand("late", arrived_s=11.0, deadline_s=20.0)), 11.0)
    assert isinstance(effect, Shed)
    assert effect.refusal.outcome is Outcome.NO_REPLICA


def test_who_waits_is_refused_when_enforcing_ends_and_nobody_is_left() -> None:
    gate = gate_of("a")
    for index in range(4):
        gate.handle(Arrive(quarter(f"x{index}")), 0.0)
    gate.handle(ReplicaGone("a"), 1.0)
    gate.mode = Mode.OBSERVE
    (effect,) = gate.handle(Tick(), 2.0)
    assert isinstance(effect, Shed)
    assert (effect.request_id, effect.refusal.outcome, len(gate.queue)) == ("x3", Outcome.NO_REPLICA, 0)


def test_one_whom_the_store_refuses_when_its_replica_is_gone() -> None:
    gate = gate_of("a")
    assert kinds(gate.handle(Arrive(quarter("x")), 0.0)) == [("Reserve", "x")]
    gate.handle(ReplicaGone("a"), 1.0)
    (effect,) = gate.handle(Refused("x", Answer.ROOM, 0.1), 1.0)
    assert isinstance(effect, Shed)
    assert effect.refusal.outcome is Outcome.NO_REPLICA


def test_one_that_is_granted_when_its_replica_is_gone_is_placed_elsewhere() -> None:
    gate = gate_of("a", "b")
    (reserved,) = [effect for effect in gate.handle(Arrive(quarter("x")), 0.0) if not isinstance(effect, Forward)]
    name = reserved.lease.replica  # type: ignore[union-attr]
    gate.handle(ReplicaGone(name), 1.0)
    (again,) = gate.handle(Granted("x"), 1.0)
    assert again.lease.replica == ({"a", "b"} - {name}).pop()  # type: ignore[union-attr]


def test_nobody_keeps_a_place_reserved_where_nobody_is_sent() -> None:
    gate = gate_of("a")
    for index in range(5):
        gate.handle(Arrive(quarter(f"x{index}")), 0.0)
    gate.handle(Tick(), 0.2)
    entry = next(gate.queue.order())
    assert entry.reservation is not None
    gate.handle(ReplicaChanged("a", ReplicaPhase.DRAINING), 0.3)
    assert entry.reservation is None
