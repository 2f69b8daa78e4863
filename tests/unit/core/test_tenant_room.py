"""Room beside a tenant that asks for much: who is held, and who is not."""

from dataclasses import replace

import pytest

from proxy.core.demand import LengthClass
from proxy.core.events import Arrive, Effect, Finished, Granted, Observed, ReplicaFound, Reserve
from proxy.core.gate import Gate
from proxy.core.outcome import Outcome
from proxy.core.policy import Tenants
from proxy.core.waiting import Waiting
from tests.support.builders import demand, engine_sample, knows_lengths, policy, scrape, spec

USABLE = 100  # ten requests of ten blocks


def gate_of(undisturbed_ratio: float = 0.99) -> Gate:
    gate = Gate(replace(policy(), tenants=Tenants(undisturbed_ratio=undisturbed_ratio)), 0.0)
    gate.handle(ReplicaFound(spec("r0", usable=USABLE)), 0.0)
    knows_lengths(gate.fleet.model, demand(prompt=113, cap=48))
    return gate


def arrives(gate: Gate, name: str, now_s: float, *, priority: int = 0) -> list[str]:
    """One request of ten blocks comes; the names of those who go. Its tenant is the name's first letter."""
    gate.handle(Observed(scrape("r0", now_s, engine_sample())), now_s)
    asked = demand(name, prompt=113, cap=48, tenant=name[0], arrived_s=now_s, priority=priority)
    return goes(gate, gate.handle(Arrive(asked), now_s), now_s)


def goes(gate: Gate, effects: list[Effect], now_s: float) -> list[str]:
    gone = [one.request_id for one in effects if isinstance(one, Reserve)]
    for request_id in gone:
        gate.handle(Granted(request_id), now_s)
    return gone


def with_quiet_ones(gate: Gate, per_s: float = 2.0, *, priority: int = 0) -> float:
    """Tenant q sends at a rate for a while, one after another, and each ends before the next; the time then."""
    for number in range(int(8.0 * per_s)):
        now_s = number / per_s
        assert arrives(gate, f"q{number}", now_s, priority=priority)
        goes(gate, gate.handle(Finished(f"q{number}", Outcome.COMPLETED, 48), now_s + 0.4 / per_s), now_s + 0.4 / per_s)
    return 8.0


def filled(gate: Gate, now_s: float, tenant: str = "n") -> int:
    """How many of a tenant go that sends a score within a second and a half."""
    return sum(len(arrives(gate, f"{tenant}{number}", now_s + 0.07 * number)) for number in range(20))


def test_one_tenant_may_fill_the_pool() -> None:
    assert filled(gate_of(), 0.0) == filled(gate_of(0.0), 0.0) >= 9


def test_beside_others_one_leaves_room_for_what_they_are_about_to_send() -> None:
    gate, free = gate_of(), gate_of(0.0)
    most = filled(free, with_quiet_ones(free))
    kept = filled(gate, with_quiet_ones(gate))
    assert most >= 9
    assert 5 <= kept < most, "not less than its fair half"
    held = [entry.held_by for entry in gate.queue.order()]
    assert held[0] == "undisturbed_ratio"
    assert arrives(gate, "q99", 9.6) == ["q99"], "it need not wait"


def test_who_was_not_here_for_long_has_no_room_kept() -> None:
    gate = gate_of()
    assert filled(gate, with_quiet_ones(gate) + 200.0) >= 9


def test_no_room_is_kept_for_those_of_lower_priority() -> None:
    gate, other = gate_of(), gate_of()
    assert filled(gate, with_quiet_ones(gate, priority=-1)) > filled(other, with_quiet_ones(other))


def test_who_waits_for_more_than_its_share_has_none_kept() -> None:
    gate = gate_of()
    now_s = with_quiet_ones(gate, per_s=4.0)
    for number in range(30):
        arrives(gate, f"q9{number}", now_s + 0.01 * number)
    assert len(gate.queue) > 10
    for number in range(10):
        arrives(gate, f"n{number}", now_s + 0.5 + 0.01 * number)
    running = list(gate.leases._open)
    for number, name in enumerate(running):
        at_s = now_s + 1.0 + 0.2 * number
        goes(gate, gate.handle(Finished(name, Outcome.COMPLETED, 48), at_s), at_s)
    held = {entry.held_by for entry in gate.queue.order()}
    assert held == {""}, "both ask for much, and the queue says whose turn it is"


def beside_one_who_waits(**fields: object) -> str:
    """What keeps the first of a loud tenant back where room is free and one of another tenant, of such a demand, waits as well."""
    gate = gate_of(0.01)  # nothing is kept for those who are still to come
    now_s = with_quiet_ones(gate)
    filled(gate, now_s)
    (first, *_) = [entry for entry in gate.queue.order() if entry.demand.tenant == "n"]
    for name in list(gate.leases._open)[:3]:
        gate.leases.end(name, [])
    assert gate.shares.takes(first, now_s + 1.5)
    asked = demand("q99", prompt=113, cap=48, tenant="q", arrived_s=now_s + 1.5)
    gate.queue.push(Waiting(replace(asked, **fields), now_s + 1.5, peak_blocks=10.0))  # type: ignore[arg-type]
    gate.shares.takes(first, now_s + 1.5)
    return first.held_by


def test_who_has_its_share_does_not_go_before_another_who_waits() -> None:
    """Paced at the head of the queue, it kept the other waiting for as long as nobody looked behind the head."""
    assert beside_one_who_waits() == "undisturbed_ratio"


def test_one_who_waits_for_less_urgent_work_or_another_model_holds_nobody() -> None:
    assert beside_one_who_waits(priority=-1) == ""
    assert beside_one_who_waits(length_class=LengthClass("another", "q")) == ""


@pytest.mark.parametrize("ratio", [0.9, 0.999])
def test_the_share_is_named_with_its_key(ratio: float) -> None:
    gate = gate_of(ratio)
    filled(gate, with_quiet_ones(gate))
    (first, *_) = gate.queue.order()
    assert gate.shedding._bound_by(first) == "tenants.undisturbed_ratio"
