"""What the gate keeps of a decision: the one that placed a request and the one that first held it, and no other."""

import pytest

from proxy.core.considered import LOOKS_MAX
from proxy.core.events import Arrive, Finished, Granted, Reserve, Shed, Tick
from proxy.core.outcome import Outcome
from proxy.core.saturation import Binding
from tests.support.builders import policy
from tests.unit.core.test_gate import filled, gate_of, quarter


def test_a_place_is_told_with_the_forecast_and_the_headroom() -> None:
    gate = gate_of("r0")
    (reserve,) = gate.handle(Arrive(quarter("a")), 0.0)
    assert isinstance(reserve, Reserve)
    seen = reserve.lease.considered
    assert seen is not None
    assert seen.placed is not None
    (look,) = seen.placed.replicas
    assert (look.replica, look.binding, look.usable_blocks) == ("r0", Binding.NONE, 100)
    assert seen.mean_blocks == seen.ceiling_blocks == 25.0
    assert look.headroom_ratio == pytest.approx(0.75, abs=0.05)
    assert (seen.held, seen.ahead) == (None, None)


def test_who_is_held_keeps_the_first_look_and_gets_the_last() -> None:
    gate = filled()
    gate.handle(Arrive(quarter("late")), 1.0)
    waiting = gate.queue.get("late")
    assert waiting is not None
    seen = waiting.considered
    first = seen.held
    assert first is not None
    assert first.replicas[0].binding is Binding.KV
    assert first.replicas[0].headroom_ratio < 0.0
    assert (seen.ahead, seen.placed) == (0, None)
    for index in range(20):
        gate.handle(Tick(), 1.2 + index / 10)
    assert seen.held is first, "looked at again, and kept once"
    effects = gate.handle(Finished("run0", Outcome.COMPLETED, 15), 4.0)
    (reserve,) = (one for one in effects if isinstance(one, Reserve))
    assert reserve.lease.considered is seen
    assert seen.placed is not None
    assert seen.placed.replicas[0].replica == "r0"
    gate.handle(Granted("late"), 4.0)


def test_who_comes_behind_others_is_held_unseen() -> None:
    gate = filled()
    for name in ("late", "later"):
        gate.handle(Arrive(quarter(name)), 1.0)
    waiting = gate.queue.get("later")
    assert waiting is not None
    assert (waiting.considered.ahead, waiting.considered.held) == (1, None)
    assert waiting.considered.mean_blocks == 25.0


def test_a_refusal_tells_what_was_seen() -> None:
    gate = filled(policy(requests_max=0))
    (shed,) = gate.handle(Arrive(quarter("late")), 1.0)
    assert isinstance(shed, Shed)
    assert shed.considered is not None
    assert shed.considered.held is not None
    assert shed.considered.held.replicas[0].binding is Binding.KV


def test_a_deadline_tells_what_held_it() -> None:
    gate = filled()
    gate.handle(Arrive(quarter("late", arrived_s=1.0, deadline_s=2.0)), 1.0)
    (shed,) = gate.handle(Tick(), 2.0)
    assert isinstance(shed, Shed)
    assert shed.considered is not None
    assert shed.considered.held is not None


def test_of_many_replicas_the_nearest_are_told() -> None:
    names = [f"r{index}" for index in range(LOOKS_MAX + 4)]
    gate = gate_of(*names, usable=26)
    for index in range(len(names)):
        gate.handle(Arrive(quarter(f"run{index}")), 0.2 * index)
        gate.handle(Granted(f"run{index}"), 0.2 * index)
    gate.handle(Arrive(quarter("late")), 3.0)
    waiting = gate.queue.get("late")
    assert waiting is not None
    held = waiting.considered.held
    assert held is not None
    assert (len(held.replicas), held.others) == (LOOKS_MAX, 4)
    headrooms = [look.headroom_ratio for look in held.replicas]
    assert headrooms == sorted(headrooms, reverse=True)
