"""What the live feed keeps and tells: bounded rings, numbers that begin anew after a restart, and decisions in words."""

import asyncio
import json

import pytest

from proxy.core.events import Arrive, Granted, ReplicaFound, Reserve
from proxy.core.gate import Gate
from proxy.core.replica import ReplicaSpec
from proxy.core.saturation import Binding
from proxy.serving.live_decisions import BINDING_NAMES, binding_words, line
from proxy.serving.live_ring import LOOKS_MAX, SLICE, LiveRing
from proxy.wire.decision import Decision, Refused
from tests.support.builders import FakeClock, demand, policy, spec
from tests.unit.wire.test_decision import decision, held


def gate_with(*specs: ReplicaSpec) -> Gate:
    gate = Gate(policy(), 0.0)
    for one in specs:
        gate.handle(ReplicaFound(one), 0.0)
    return gate


def let_in(gate: Gate, request_id: str, **fields: object) -> None:
    for effect in gate.handle(Arrive(demand(request_id, **fields), True), 0.0):  # type: ignore[arg-type]
        if isinstance(effect, Reserve):
            gate.handle(Granted(effect.request_id), 0.0)


async def test_the_ring_keeps_so_many_looks_and_tells_those_after_a_number() -> None:
    clock, gate = FakeClock(), gate_with(spec("a"), spec("b"))
    ring = LiveRing(gate, clock)
    for _ in range(LOOKS_MAX + 3):
        await ring.look()
        clock.advance(1.0)
    looks = [json.loads(bytes(raw)) for raw in ring.after(0)]
    assert [look["seq"] for look in looks] == list(range(4, LOOKS_MAX + 4))
    assert looks[-1]["at_s"] - looks[0]["at_s"] == LOOKS_MAX - 1
    assert [json.loads(bytes(raw))["seq"] for raw in ring.after(LOOKS_MAX + 2)] == [LOOKS_MAX + 3]
    assert ring.after(LOOKS_MAX + 3) == []
    assert len(ring.after(10**9)) == LOOKS_MAX  # asked by whoever looked on before a restart


async def test_a_look_tells_blocks_and_what_waits() -> None:
    gate = gate_with(spec("a", usable=100))
    ring = LiveRing(gate, FakeClock())
    let_in(gate, "q", prompt=320, cap=160)
    let_in(gate, "r", prompt=1200, cap=160)
    await ring.look()
    look = json.loads(bytes(ring.after(0)[0]))
    measured, estimated, peak, budget, capacity = look["replicas"]["a"]
    assert (measured, estimated, capacity) == (None, 0, 100)  # never measured; sent, and not known to be placed
    assert 30 <= peak <= 40  # prompt, output, and what a replica that was never measured may hold
    assert peak - 31 <= capacity - budget <= peak  # the margin: what the peak is above the expected demand
    assert ring.unplaced["a"] >= 20
    assert (look["queued"], look["open"], look["admitted"], look["held"]) == (1, 1, 1, 1)


async def test_others_run_between_the_replicas_of_a_look() -> None:
    gate = gate_with(*(spec(f"r{index}") for index in range(64)))
    ring, turns = LiveRing(gate, FakeClock()), 0
    looking = asyncio.ensure_future(ring.look())
    while not looking.done():
        await asyncio.sleep(0)
        turns += 1
    assert turns >= 64 // SLICE
    assert len(ring.rows) == 64


def test_what_binds_is_told_by_how_often() -> None:
    gate = gate_with(spec("a"), spec("b"), spec("c"))
    for book, binding in zip(gate.fleet, (Binding.SEATS, Binding.KV, Binding.KV), strict=True):
        book.binding_last = binding
    assert binding_words(gate.fleet) == "KV cache on 2 of 3, sequence slots on 1 of 3"
    assert binding_words([]) == ""
    assert set(BINDING_NAMES) == set(Binding)


@pytest.mark.parametrize(
    ("one", "kind", "at_s"),
    [
        (decision(), "admitted", 0.0),
        (held(), "admitted", 2.54),
        (held(phase="waiting", outcome=None, placed=(), replica=None, total_s=9.0), "held", 0.0),
        (held(outcome="queue_timeout", refused=Refused("g", "m", None, None, "", None, None, None), total_s=30.0), "shed", 30.0),
        (decision(tried=(("r1", "connect"),), queue_wait_s=0.5), "rerouted", 0.5),
        (decision(outcome="cut_off", total_s=4.0), "failed", 4.0),
        (held(outcome="cancelled", replica=None, placed=(), total_s=3.0), "left", 3.0),
        (decision(outcome="cancelled", total_s=3.0), "admitted", 0.0),
    ],
)
def test_a_decision_is_of_a_kind_and_has_its_time(one: Decision, kind: str, at_s: float) -> None:
    told = line(one)
    assert told.kind == kind
    assert told.at_s - one.arrived_wall_s == pytest.approx(at_s, abs=0.001)
    assert told.words
    assert told.key == "mine 1800000000.500"
