"""Where a request goes that a replica has failed before its first byte, when again to one that did, and when it is given up."""

from itertools import pairwise

import pytest

from proxy.core.events import Arrive, Effect, Granted, Refused, ReplicaChanged, Reroute, Reserve, Shed, Tick
from proxy.core.gate import Gate
from proxy.core.outcome import Mode, Outcome
from proxy.core.replica import ReplicaPhase
from proxy.core.retrying import AVOID_S, AVOID_S_MAX
from tests.support.builders import policy
from tests.unit.core.test_gate import gate_of, quarter


def gone_to(effects: list[Effect]) -> str | None:
    """The replica that a place is asked of; None: none is."""
    return next((one.lease.replica for one in effects if isinstance(one, Reserve)), None)


def refused_as(effects: list[Effect]) -> Outcome | None:
    return next((one.refusal.outcome for one in effects if isinstance(one, Shed)), None)


def sent(gate: Gate, now_s: float, **more: float) -> str | None:
    where = gone_to(gate.handle(Arrive(quarter("a", **more)), now_s))
    gate.handle(Granted("a"), now_s)
    return where


def failed(gate: Gate, now_s: float) -> str | None:
    where = gone_to(gate.handle(Reroute("a"), now_s))
    if where is not None:
        gate.handle(Granted("a"), now_s)
    return where


def test_one_that_did_not_fail_it_comes_first_and_one_that_did_a_second_later() -> None:
    gate = gate_of("r0", "r1", rules=policy(reroutes_max=9))
    first = sent(gate, 0.0)
    second = failed(gate, 0.1)
    assert {first, second} == {"r0", "r1"}
    assert failed(gate, 0.2) is None  # the first is left alone for a second, the other for two
    assert gate.queue.position("a") == 1
    assert gone_to(gate.handle(Tick(), 0.1 + AVOID_S - 0.01)) is None
    assert gone_to(gate.handle(Tick(), 0.1 + AVOID_S)) == first


def test_each_failure_doubles_the_time_up_to_a_bound() -> None:
    gate, now_s = gate_of("r0", "r1", rules=policy(reroutes_max=99)), 0.0
    sent(gate, now_s)
    gate.handle(ReplicaChanged("r1", ReplicaPhase.UNREACHABLE), now_s)
    gate.handle(ReplicaChanged("r0", ReplicaPhase.SERVING), now_s)
    if gate.leases._open["a"].lease.replica == "r1":
        assert failed(gate, now_s) == "r0"
    waits: list[float] = []
    for _ in range(6):
        assert failed(gate, now_s) is None
        entry = next(iter(gate.queue.order()))
        waits.append(entry.avoided["r0"] - now_s)
        now_s = entry.avoided["r0"]
        assert gone_to(gate.handle(Tick(), now_s)) == "r0"
        gate.handle(Granted("a"), now_s)
    assert waits[-1] == AVOID_S_MAX
    assert all(later in {2 * wait, AVOID_S_MAX} for wait, later in pairwise(waits))


def test_its_deadline_ends_it() -> None:
    gate = gate_of("r0", "r1", rules=policy(reroutes_max=9))
    sent(gate, 0.0, deadline_s=0.5)
    failed(gate, 0.1)
    assert failed(gate, 0.2) is None
    effects = gate.handle(Tick(), 0.5)
    assert refused_as(effects) is Outcome.QUEUE_TIMEOUT
    (shed,) = effects
    assert isinstance(shed, Shed)
    assert "failed the request 2 time(s)" in shed.refusal.message


@pytest.mark.parametrize("phase", [ReplicaPhase.UNREACHABLE, ReplicaPhase.EJECTED])
def test_while_the_others_are_away_it_waits_for_whichever_can_be_had_first(phase: ReplicaPhase) -> None:
    for back in ("r0", "r1"):
        gate = gate_of("r0", "r1", rules=policy(reroutes_max=9))
        gate.handle(ReplicaChanged("r1", phase), 0.0)
        assert sent(gate, 0.0) == "r0"
        assert failed(gate, 0.1) is None
        if back == "r1":
            assert gone_to(gate.handle(ReplicaChanged("r1", ReplicaPhase.SERVING), 0.2)) == "r1"
        else:
            assert gone_to(gate.handle(Tick(), 0.1 + AVOID_S)) == "r0"


def test_it_is_given_up_where_nobody_is_worth_waiting_for() -> None:
    alone = gate_of("r0", rules=policy(reroutes_max=9))
    sent(alone, 0.0)
    assert refused_as(alone.handle(Reroute("a"), 0.1)) is Outcome.UPSTREAM_FAILED
    gate = gate_of("r0", "r1", rules=policy(reroutes_max=9))
    gate.handle(ReplicaChanged("r1", ReplicaPhase.UNREACHABLE), 0.0)
    sent(gate, 0.0)
    gate.handle(ReplicaChanged("r0", ReplicaPhase.UNREACHABLE), 0.1)
    assert refused_as(gate.handle(Reroute("a"), 0.1)) is Outcome.UPSTREAM_FAILED


def test_where_nobody_is_held_each_replica_is_tried_once() -> None:
    gate = gate_of("r0", "r1", rules=policy(reroutes_max=9, mode=Mode.OBSERVE))
    first = sent(gate, 0.0)
    assert {first, failed(gate, 0.1)} == {"r0", "r1"}
    assert refused_as(gate.handle(Reroute("a"), 0.2)) is Outcome.UPSTREAM_FAILED


def test_a_replica_that_cannot_be_had_after_all_is_not_asked_again() -> None:
    gate = gate_of("r0", "r1", rules=policy(reroutes_max=9))
    first = gone_to(gate.handle(Arrive(quarter("a")), 0.0))
    second = gone_to(gate.handle(Refused("a"), 0.1))
    assert {first, second} == {"r0", "r1"}
    assert refused_as(gate.handle(Refused("a"), 0.2)) is Outcome.UPSTREAM_FAILED
