"""The gate's life of a request: every way in, every way out, and what each does to leases and accounts."""

import pytest

from proxy.core.demand import Demand
from proxy.core.events import (
    Arrive,
    Cancelled,
    Effect,
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
from proxy.core.outcome import Outcome
from proxy.core.policy import Policy
from proxy.core.replica import ReplicaPhase
from tests.support.builders import demand, engine_sample, knows_lengths, policy, promised, scrape, spec, tenants_remembered

# 25 of 100 blocks each: four run, the fifth waits.
QUARTER = {"prompt": 385, "cap": 15}


def gate_of(*replicas: str, rules: Policy | None = None, usable: int = 100) -> Gate:
    """A gate that knows its lengths, over empty replicas just scraped."""
    gate = Gate(policy() if rules is None else rules, 0.0)
    for name in replicas:
        gate.handle(ReplicaFound(spec(name, usable=usable)), 0.0)
        gate.handle(Observed(scrape(name, 0.0, engine_sample())), 0.0)
    knows_lengths(gate.fleet.model, demand(**QUARTER))  # type: ignore[arg-type]
    return gate


def quarter(name: str, **more: object) -> Demand:
    return demand(name, **QUARTER, **more)  # type: ignore[arg-type]


def kinds(effects: list[Effect]) -> list[tuple[str, str]]:
    return [(type(one).__name__, one.lease_id if isinstance(one, Release) else one.request_id) for one in effects]


def filled(rules: Policy | None = None, *replicas: str) -> Gate:
    """A gate whose replicas run four requests each."""
    gate = gate_of(*(replicas or ("r0",)), rules=rules)
    for index in range(4 * len(gate.fleet.books)):
        now_s = 0.2 * index  # no burst
        assert kinds(gate.handle(Arrive(quarter(f"run{index}")), now_s)) == [("Reserve", f"run{index}")]
        gate.handle(Granted(f"run{index}"), now_s)
    return gate


def test_the_usual_life() -> None:
    gate = gate_of("r0")
    (reserve,) = gate.handle(Arrive(quarter("a")), 0.0)
    assert isinstance(reserve, Reserve)
    assert reserve.lease.replica == "r0"
    (forward,) = gate.handle(Granted("a"), 0.0)
    assert forward == Forward("a", reserve.lease)
    assert gate.open_requests == 1
    assert kinds(gate.handle(Finished("a", Outcome.COMPLETED, 15), 1.0)) == [("Release", reserve.lease.lease_id)]
    assert reserve.lease.ended
    assert (gate.open_requests, gate.leases.started, gate.leases.ended, gate.counters.admitted) == (0, 1, 1, 1)


def test_who_does_not_fit_waits_and_goes_when_room_comes() -> None:
    gate = filled()
    assert gate.handle(Arrive(quarter("late")), 1.0) == []
    assert (len(gate.queue), gate.counters.held) == (1, 1)
    assert kinds(gate.handle(Finished("run0", Outcome.COMPLETED, 15), 2.0))[1:] == [("Reserve", "late")]
    assert len(gate.queue) == 0


def test_a_lease_ends_once() -> None:
    gate = gate_of("r0")
    gate.handle(Arrive(quarter("a")), 0.0)
    gate.handle(Granted("a"), 0.0)
    assert len(gate.handle(Finished("a", Outcome.COMPLETED, 15), 1.0)) == 1
    for event in (Finished("a", Outcome.COMPLETED, 15), Cancelled("a"), Reroute("a"), Refused("a"), Granted("a")):
        assert gate.handle(event, 1.0) == []
    assert gate.leases.ended == 1


def test_events_of_strangers_do_nothing() -> None:
    gate = gate_of("r0")
    for event in (Finished("x", Outcome.CANCELLED), Cancelled("x"), Reroute("x"), Refused("x"), Granted("x"), Tick()):
        assert gate.handle(event, 0.0) == []
    assert gate.handle(ReplicaChanged("x", ReplicaPhase.DRAINING), 0.0) == []


@pytest.mark.parametrize("state", ["waiting", "reserving", "forwarded"])
def test_a_client_may_leave_at_any_moment(state: str) -> None:
    gate = filled() if state == "waiting" else gate_of("r0")
    before = gate.open_requests
    gate.handle(Arrive(quarter("a")), 2.0)
    if state == "forwarded":
        gate.handle(Granted("a"), 2.0)
    effects = gate.handle(Cancelled("a"), 2.0)
    assert kinds(effects) == ([] if state == "waiting" else [("Release", "a.0")])
    assert (len(gate.queue), gate.open_requests) == (0, before)


def test_deadlines_are_met_to_the_tick() -> None:
    gate = filled()
    gate.handle(Arrive(quarter("a", arrived_s=2.0, deadline_s=5.0)), 2.0)
    assert gate.handle(Tick(), 4.99) == []
    assert gate.deadline_s_next(4.99) == 5.0
    (shed,) = gate.handle(Tick(), 5.0)
    assert isinstance(shed, Shed)
    assert (shed.request_id, shed.refusal.outcome) == ("a", Outcome.QUEUE_TIMEOUT)
    assert len(gate.queue) == 0


def test_a_refused_reservation_goes_elsewhere_first_of_its_tenant() -> None:
    gate = filled(None, "r0", "r1")
    gate.handle(Arrive(quarter("waits")), 4.0)
    where = gate.leases._open["run0"].lease.replica
    gate.handle(Reroute("run0"), 4.0)
    other = next(name for name, opened in gate.leases._open.items() if opened.lease.replica != where)
    effects = gate.handle(Finished(other, Outcome.COMPLETED, 15), 4.1)
    reserved = [one for one in effects if isinstance(one, Reserve)]
    assert reserved[0].request_id == "run0"
    assert reserved[0].lease.replica != where
    assert reserved[0].lease.lease_id != "run0.0"


def test_when_nobody_else_can_take_it_the_failure_is_told() -> None:
    gate = gate_of("r0")
    gate.handle(Arrive(quarter("a")), 0.0)
    gate.handle(Granted("a"), 0.0)
    effects = gate.handle(Reroute("a"), 0.1)
    assert kinds(effects) == [("Release", "a.0"), ("Shed", "a")]
    assert isinstance(effects[1], Shed)
    assert effects[1].refusal.outcome is Outcome.UPSTREAM_FAILED


def test_reroutes_are_bounded() -> None:
    gate = gate_of("r0", "r1", "r2", rules=policy(reroutes_max=1))
    gate.handle(Arrive(quarter("a")), 0.0)
    assert kinds(gate.handle(Reroute("a"), 0.1)) == [("Release", "a.0"), ("Reserve", "a")]
    assert kinds(gate.handle(Reroute("a"), 0.2)) == [("Release", "a.1"), ("Shed", "a")]


def test_a_new_epoch_voids_its_leases_once_and_only_its_own() -> None:
    gate = filled(None, "r0", "r1")
    here = {name for name, opened in gate.leases._open.items() if opened.lease.replica == "r0"}
    effects = gate.handle(Observed(scrape("r0", 4.0, engine_sample(), new_epoch=True)), 4.0)
    assert {one.lease_id for one in effects if isinstance(one, Release)} == {f"{name}.0" for name in here}
    assert gate.leases.ended == 4
    assert gate.open_requests == 4
    for name in here:
        assert gate.handle(Finished(name, Outcome.CUT_OFF), 4.1) == []
    assert gate.leases.ended == 4


def test_changed_facts_void_leases_too() -> None:
    gate = filled()
    effects = gate.handle(ReplicaFound(spec("r0", usable=200)), 4.0)
    assert len([one for one in effects if isinstance(one, Release)]) == 4
    assert gate.handle(ReplicaFound(spec("r0", usable=200)), 4.0) == []


def test_a_reroute_after_the_engine_restarted_is_placed_anew() -> None:
    """The usual order in a crash: a scrape sees the new engine, then the relay's connection breaks before the first byte."""
    gate = gate_of("r0", "r1")
    gate.handle(Arrive(quarter("a")), 0.0)
    gate.handle(Granted("a"), 0.0)
    gate.handle(Observed(scrape("r0", 0.1, engine_sample(), new_epoch=True)), 0.1)
    assert [name for name in kinds(gate.handle(Reroute("a"), 0.2)) if name[0] in {"Reserve", "Shed"}] == [("Reserve", "a")]


@pytest.mark.parametrize("answer", [Granted("a"), Refused("a")])
def test_an_answer_of_the_store_after_the_engine_restarted_is_not_lost(answer: Granted | Refused) -> None:
    gate = gate_of("r0", "r1")
    gate.handle(Arrive(quarter("a")), 0.0)
    effects = gate.handle(Observed(scrape("r0", 0.1, engine_sample(), new_epoch=True)), 0.1)
    effects += gate.handle(answer, 0.2)
    assert any(isinstance(one, Forward | Shed) or (isinstance(one, Reserve) and one.request_id == "a") for one in effects)


# ---- bounds and displacement


@pytest.mark.parametrize(("waiting", "outcome"), [(1, None), (2, None), (3, Outcome.QUEUE_FULL)])
def test_the_queues_bound_at_its_edge(waiting: int, outcome: Outcome | None) -> None:
    gate = filled(policy(requests_max=2))
    effects: list[Effect] = []
    for index in range(waiting):
        effects = gate.handle(Arrive(quarter(f"w{index}")), 2.0)
    sheds = [one for one in effects if isinstance(one, Shed)]
    assert [one.refusal.outcome for one in sheds] == ([] if outcome is None else [outcome])
    assert len(gate.queue) == min(waiting, 2)


def test_a_higher_band_displaces_the_worst_of_the_lowest() -> None:
    gate = filled(policy(requests_max=2))
    gate.handle(Arrive(quarter("soon", deadline_s=50.0)), 2.0)
    gate.handle(Arrive(quarter("late", deadline_s=60.0)), 2.0)
    (shed,) = gate.handle(Arrive(quarter("vip", priority=1)), 2.0)
    assert isinstance(shed, Shed)
    assert (shed.request_id, shed.refusal.outcome) == ("late", Outcome.DISPLACED)
    assert [entry.demand.request_id for entry in gate.queue.order()] == ["vip", "soon"]


def test_equals_displace_nobody() -> None:
    gate = filled(policy(requests_max=1))
    gate.handle(Arrive(quarter("first", priority=1)), 2.0)
    (shed,) = gate.handle(Arrive(quarter("second", priority=1)), 2.0)
    assert isinstance(shed, Shed)
    assert (shed.request_id, shed.refusal.outcome) == ("second", Outcome.QUEUE_FULL)


def test_nobody_is_displaced_for_one_that_is_refused_anyway() -> None:
    gate = filled(policy(tokens_max=1000))
    for index in range(2):
        gate.handle(Arrive(quarter(f"low{index}")), 2.0)
    effects = gate.handle(Arrive(demand("huge", prompt=1001, cap=10, priority=1)), 2.0)
    assert kinds(effects) == [("Shed", "huge")]
    assert len(gate.queue) == 2


def test_a_high_band_is_not_too_late_because_low_ones_queue() -> None:
    """Forty low requests wait about ten seconds' worth; the high one goes first and has five seconds."""
    gate = filled()
    gate.fleet.books["r0"].clock.counted(1.0, 1.0, 1.0)
    for index in range(40):
        gate.handle(Arrive(quarter(f"low{index}", deadline_s=1e6)), 2.0)
    assert promised(gate.queue) / gate.shedding.forecast.rate_per_s(gate.fleet) > 10.0
    assert gate.handle(Arrive(quarter("vip", priority=1, arrived_s=2.0, deadline_s=7.0)), 2.0) == []


def test_accounts_of_tenants_that_are_gone_are_dropped() -> None:
    gate = gate_of("r0")
    for index in range(300):
        gate.handle(Arrive(quarter(f"q{index}", tenant=f"t{index}")), float(index))
        gate.handle(Granted(f"q{index}"), float(index))
        gate.handle(Finished(f"q{index}", Outcome.COMPLETED, 15), index + 0.5)
    assert tenants_remembered(gate) < 300


def overrun(fingerprint: int = 0) -> tuple[Gate, Shed]:
    """A gate whose line is far too long for one that has five seconds, and what it was told when it had stood by for a twentieth."""
    gate = filled()
    gate.fleet.books["r0"].clock.counted(10.0, 1.0, 1.0)
    for index in range(40):
        gate.handle(Arrive(quarter(f"high{index}", priority=1)), 2.0)
    assert gate.handle(Arrive(quarter("late", arrived_s=2.0, deadline_s=7.0, fingerprint=fingerprint)), 2.0) == []
    assert not any(one.request_id == "late" for one in gate.handle(Tick(), 2.24) if isinstance(one, Shed))
    (shed,) = [one for one in gate.handle(Tick(), 2.25) if isinstance(one, Shed) and one.request_id == "late"]
    return gate, shed


def test_who_cannot_be_promised_a_place_is_shed_long_before_its_deadline() -> None:
    gate, shed = overrun()
    assert (shed.refusal.outcome, shed.refusal.gate) == (Outcome.QUEUE_TIMEOUT, "queue.wait_max")
    assert shed.refusal.retry_after_s is not None
    assert gate.queue.position("late") is None


def test_who_comes_back_when_told_finds_its_seat() -> None:
    gate, shed = overrun(fingerprint=7)
    promises = gate.shedding.forecast.promises
    assert shed.refusal.retry_after_s is not None
    assert len(promises) == 1
    back_s = 2.25 + shed.refusal.retry_after_s
    gate.handle(Arrive(quarter("late~1", arrived_s=back_s, deadline_s=back_s + 5.0, fingerprint=7)), back_s)
    assert len(promises) == 0


def test_forecasts_are_kept_current_by_ticks_while_anything_runs() -> None:
    gate = gate_of("r0")
    assert gate.deadline_s_next(1.0) == float("inf")
    gate.handle(Arrive(quarter("a")), 1.0)
    due_s = gate.deadline_s_next(1.0)
    assert 1.0 < due_s < 2.0
    gate.handle(Tick(), due_s)
    assert due_s < gate.deadline_s_next(due_s) < due_s + 1.0
    gate.handle(Finished("a", Outcome.COMPLETED, 15), due_s)
    assert gate.deadline_s_next(due_s) == float("inf")


def test_a_failure_is_the_servers_and_a_refusal_the_engines_own() -> None:
    for event, expected in ((Reroute("a"), "b"), (Refused("a"), "a#1")):
        gate = gate_of()
        for name, usable in (("a#0", 100), ("a#1", 90), ("b", 80)):  # the roomiest first
            gate.handle(ReplicaFound(spec(name, usable=usable, server=name[:-2])), 0.0)
        (reserve,) = gate.handle(Arrive(quarter("a")), 0.0)
        assert isinstance(reserve, Reserve)
        assert reserve.lease.replica == "a#0"
        gate.handle(Granted("a"), 0.0)
        assert [one.lease.replica for one in gate.handle(event, 0.1) if isinstance(one, Reserve)] == [expected]
