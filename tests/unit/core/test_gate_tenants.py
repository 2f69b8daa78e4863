"""The gate under tenants' rates and shares and under bounds of classes: who goes, who waits, who is refused, and with which words."""

from dataclasses import replace
from typing import Any

import pytest

from proxy.core.demand import Demand
from proxy.core.events import Arrive, Cancelled, Effect, Finished, Granted, Observed, ReplicaFound, Reserve, Shed, Tick
from proxy.core.gate import Gate
from proxy.core.outcome import Mode, Outcome, Refusal
from proxy.core.policy import DEFAULT_CLASS, ClassQueue, Match, Policy, TenantPolicy, Tenants, TrafficClass
from proxy.core.tenant_rates import TOKENS
from tests.support.builders import demand, engine_sample, knows_lengths, policy, scrape, spec
from tests.support.goes import whole

# 25 of 100 blocks each: four run, the fifth waits.
QUARTER: dict[str, Any] = {"prompt": 385, "cap": 15}


def quarter(name: str, tenant: str = "a", **more: Any) -> Demand:
    return demand(name, tenant=tenant, **QUARTER, **more)


def gate_of(*tenants: TenantPolicy, rules: Policy | None = None, usable: int = 100) -> Gate:
    """A gate over one empty replica."""
    gate = Gate(replace(policy() if rules is None else rules, tenants=Tenants(listed=tenants)), 0.0)
    gate.handle(ReplicaFound(spec("r0", usable=usable)), 0.0)
    gate.handle(Observed(scrape("r0", 0.0, engine_sample())), 0.0)
    knows_lengths(gate.fleet.model, demand(**QUARTER))
    return gate


def went(effects: list[Effect]) -> list[str]:
    return [one.request_id for one in effects if isinstance(one, Reserve)]


def refusals(effects: list[Effect]) -> list[Refusal]:
    return [one.refusal for one in effects if isinstance(one, Shed)]


def run(gate: Gate, name: str, now_s: float, tenant: str = "a") -> list[str]:
    """Send one and grant what goes."""
    gone = went(gate.handle(Arrive(quarter(name, tenant)), now_s))
    for request_id in gone:
        gate.handle(Granted(request_id), now_s)
    return gone


def soon(gate: Gate, now_s: float) -> list[str]:
    """Who goes within a second: beside somebody who waits, admissions are spaced."""
    gone: list[str] = []
    for step in range(10):
        for request_id in went(gate.handle(Tick(), now_s + 0.1 * step)):
            gate.handle(Granted(request_id), now_s + 0.1 * step)
            gone.append(request_id)
    return gone


def test_a_rate_is_charged_what_was_used() -> None:
    gate = gate_of(TenantPolicy("a", tokens_per_min=60.0 * 80.0, burst_s=10.0))  # 800 at once: two of 385 + 15
    assert run(gate, "q0", 0.0) == ["q0"]
    assert run(gate, "q1", 0.0) == ["q1"]
    (refusal,) = refusals(gate.handle(Arrive(quarter("q2")), 0.0))
    assert (refusal.outcome, refusal.retry_after_s) == (Outcome.TENANT_RATE, pytest.approx(5.0, abs=0.01))
    assert run(gate, "other", 0.2, tenant="b") == ["other"]
    gate.handle(Finished("q0", Outcome.COMPLETED, 5), 0.2)
    assert gate.rates.left("a", 0.2)[TOKENS] == pytest.approx(16.0 + 10.0)
    gate.handle(Finished("q1", Outcome.UPSTREAM_FAILED, 5), 0.2)  # nobody got anything for it
    assert gate.rates.left("a", 0.2)[TOKENS] == pytest.approx(26.0 + 400.0)


def test_who_is_refused_or_leaves_the_queue_has_used_nothing() -> None:
    gate = gate_of(TenantPolicy("a", tokens_per_min=60.0 * 400.0, burst_s=10.0), rules=policy(requests_max=1))
    for index in range(4):
        run(gate, f"run{index}", 0.5 * index, tenant="b")
    assert run(gate, "waits", 3.0) == []
    assert gate.rates.left("a", 3.0)[TOKENS] == pytest.approx(3600.0)
    (refusal,) = refusals(gate.handle(Arrive(quarter("full")), 3.0))
    assert refusal.outcome is Outcome.QUEUE_FULL
    assert gate.rates.left("a", 3.0)[TOKENS] == pytest.approx(3600.0)
    gate.handle(Cancelled("waits"), 3.0)
    assert gate.rates.left("a", 3.0)[TOKENS] == pytest.approx(4000.0)


def test_observing_counts_whom_a_rate_would_refuse_and_refuses_nobody() -> None:
    gate = gate_of(TenantPolicy("a", requests_per_s=1.0, burst_s=1.0), rules=policy(mode=Mode.OBSERVE))
    assert run(gate, "q0", 0.0) == ["q0"]
    assert run(gate, "q1", 0.0) == ["q1"]
    assert gate.counters.would_shed == 1


def test_a_tenant_at_its_ceiling_waits_for_its_own_and_holds_up_nobody() -> None:
    gate = gate_of(TenantPolicy("a", kv_share_max=0.5), usable=108)  # the margin grows while nothing is measured
    assert run(gate, "a0", 0.0) == ["a0"]
    assert run(gate, "a1", 0.5) == ["a1"]
    assert run(gate, "a2", 1.0) == []
    assert run(gate, "a3", 1.0) == []
    assert run(gate, "b0", 1.5, tenant="b") + soon(gate, 1.6) == ["b0"]
    gate.handle(Finished("b0", Outcome.COMPLETED, 15), 2.6)
    assert soon(gate, 2.7) == [], "there is room, but not for this tenant"
    assert went(gate.handle(Finished("a0", Outcome.COMPLETED, 15), 3.8)) + soon(gate, 3.9) == ["a2"]


def test_the_share_is_named_when_time_is_over() -> None:
    gate = gate_of(TenantPolicy("a", kv_share_max=0.25))
    run(gate, "a0", 0.0)
    assert gate.handle(Arrive(quarter("a1", deadline_s=2.0)), 0.0) == []
    (refusal,) = refusals(gate.handle(Tick(), 2.0))
    assert (refusal.outcome, refusal.gate, refusal.policy_key) == (
        Outcome.TENANT_SHARE,
        "kv_share_max",
        "tenants.list.a.kv_share_max",
    )


@pytest.mark.parametrize(("share", "refused"), [(0.26, False), (0.25, False), (0.24, True)])
def test_what_exceeds_the_share_by_its_prompt_alone_is_refused_at_once(share: float, *, refused: bool) -> None:
    """It needs 25 blocks for its prompt and a token."""
    gate = gate_of(TenantPolicy("a", kv_share_max=share))
    effects = gate.handle(Arrive(quarter("a0")), 0.0)
    assert bool(went(effects)) is not refused
    for refusal in refusals(effects):
        assert (refusal.outcome, refusal.retry_after_s, refusal.measured) == (Outcome.TENANT_SHARE, None, 25.0)


def test_one_larger_than_the_share_by_its_forecast_goes_alone() -> None:
    gate = gate_of(TenantPolicy("a", kv_share_max=0.3))
    big = demand("big", prompt=385, cap=400, tenant="a")
    knows_lengths(gate.fleet.model, big)
    assert went(gate.handle(Arrive(big), 0.0)) == ["big"]
    assert gate.handle(Arrive(quarter("a1")), 0.5) == []


def test_a_floor_is_kept_free_for_its_tenant() -> None:
    gate = gate_of(TenantPolicy("gold", kv_share_min=0.5), usable=108)
    assert run(gate, "b0", 0.0, tenant="b") == ["b0"]
    assert run(gate, "b1", 0.5, tenant="b") == ["b1"]
    assert run(gate, "b2", 1.0, tenant="b") == []
    (waiting,) = gate.queue.order()
    assert waiting.held_by == "kv_share_min"
    assert run(gate, "g0", 1.5, tenant="gold") + soon(gate, 1.6) == ["g0"]
    gate.handle(Finished("g0", Outcome.COMPLETED, 15), 2.6)
    assert soon(gate, 2.7) == [], "a quarter is free again, and kept"
    assert went(gate.handle(Finished("b0", Outcome.COMPLETED, 15), 3.8)) + soon(gate, 3.9) == ["b2"]


def test_an_empty_pool_takes_what_a_floor_leaves_no_room_for() -> None:
    gate = gate_of(TenantPolicy("gold", kv_share_min=1.0))
    assert run(gate, "b0", 0.0, tenant="b") == ["b0"]
    assert run(gate, "b1", 0.5, tenant="b") == []


def test_with_other_proxies_each_keeps_to_its_part_of_the_ceiling() -> None:
    gate = gate_of(TenantPolicy("a", kv_share_max=0.5))
    gate.shares.proxies = 2
    assert run(gate, "a0", 0.0) == ["a0"]
    assert run(gate, "a1", 0.5) == []


def test_a_tenant_without_a_ceiling_has_the_whole_pool_beside_other_proxies() -> None:
    gate = gate_of(TenantPolicy("a", kv_share_max=0.5))
    gate.shares.proxies = 4
    assert run(gate, "b0", 0.0, tenant="b") == ["b0"]
    assert run(gate, "b1", 0.5, tenant="b") == ["b1"], "a quarter of the pool each, of which it is said to have a quarter alone"
    assert run(gate, "b2", 1.0, tenant="b") == ["b2"]


def test_what_another_proxy_heard_of_a_rate_counts_here() -> None:
    here, there = (gate_of(TenantPolicy("a", tokens_per_min=60.0 * 80.0, burst_s=10.0)) for _ in range(2))
    here.share(), there.share()
    run(here, "q0", 0.0)
    run(here, "q1", 0.0)
    there.share().exchange.charged(here.share().exchange.take_charges(), {})
    (refusal,) = refusals(there.handle(Arrive(quarter("q2")), 0.0))
    assert refusal.outcome is Outcome.TENANT_RATE
    here.handle(Finished("q0", Outcome.COMPLETED, 5), 0.0)
    there.share().exchange.charged(here.share().exchange.take_charges(), {})
    assert there.rates.left("a", 0.0)[TOKENS] == pytest.approx(10.0)
    assert there.share().exchange.take_charges() == {}, "what was heard is not told again"


BULK = TrafficClass("bulk", Match(path="/bulk"), queue=ClassQueue(requests_max=2, tokens_max=1000))


def of_class(name: str, **more: Any) -> Demand:
    return replace(quarter(name), traffic_class="bulk", **more)


@pytest.mark.parametrize(
    ("bounds", "key"), [((2, None), "requests_max"), ((None, 770), "tokens_max"), ((None, 1154), "tokens_max")]
)
def test_a_class_has_its_own_bounds(bounds: tuple[int | None, int | None], key: str) -> None:
    """Each has 385 tokens: the third is over 2 requests, over 770 tokens and over one less than three have."""
    gate = gate_of(rules=replace(policy(), classes=(replace(BULK, queue=ClassQueue(*bounds)), DEFAULT_CLASS)))
    for index in range(4):
        run(gate, f"run{index}", 0.5 * index)
    assert gate.handle(Arrive(of_class("x0")), 3.0) == []
    assert gate.handle(Arrive(of_class("x1")), 3.0) == []
    (refusal,) = refusals(gate.handle(Arrive(of_class("x2")), 3.0))
    assert (refusal.outcome, refusal.policy_key) == (Outcome.QUEUE_FULL, f"classes[].queue.{key}")
    assert gate.handle(Arrive(quarter("default")), 3.0) == [], "others have room"
    gate.handle(Cancelled("x0"), 3.0)
    assert gate.handle(Arrive(of_class("x3")), 3.0) == []
    assert gate.queue.by_class["bulk"] == [2, 770]


def test_nobody_is_displaced_for_one_whose_class_is_full() -> None:
    gate = gate_of(
        rules=replace(policy(requests_max=2), classes=(replace(BULK, queue=ClassQueue(requests_max=0)), DEFAULT_CLASS))
    )
    for index in range(4):
        run(gate, f"run{index}", 0.5 * index)
    gate.handle(Arrive(quarter("low")), 3.0)
    (shed,) = gate.handle(Arrive(of_class("high", priority=5)), 3.0)
    assert isinstance(shed, Shed)
    assert shed.request_id == "high"


@pytest.mark.parametrize(
    ("more", "key"), [({"may_queue": False}, "classes[].when_saturated"), ({"deadline_s": 3.0}, "queue.wait_max")]
)
def test_who_may_not_wait_goes_at_once_or_not_at_all(more: dict[str, Any], key: str) -> None:
    gate = gate_of()
    for index in range(3):
        run(gate, f"run{index}", 0.5 * index)
    assert went(gate.handle(Arrive(replace(quarter("fits"), **more)), 3.0)) == ["fits"]
    (refusal,) = refusals(gate.handle(Arrive(replace(quarter("not"), **more)), 3.0))
    assert (refusal.outcome, refusal.policy_key) == (Outcome.QUEUE_TIMEOUT, key)
    assert refusal.retry_after_s is not None


def test_another_policy_is_adopted_while_requests_wait() -> None:
    gate = gate_of(TenantPolicy("a", kv_share_max=0.25))
    run(gate, "a0", 0.0)
    run(gate, "a1", 0.5)
    gate.adopt(replace(policy(), classes=(BULK, DEFAULT_CLASS)))
    assert went(gate.handle(Tick(), 1.0)) == ["a1"]
    assert gate.queue.class_bounds["bulk"] == BULK.queue


def test_tenants_that_are_gone_leave_nothing_behind() -> None:
    """Clients choose their names."""
    gate = gate_of(TenantPolicy("a", kv_share_max=0.5), TenantPolicy("b", kv_share_min=0.1))
    for index in range(50):
        now_s, tenant = 0.5 * index, f"t{index}"
        assert run(gate, f"q{index}", now_s, tenant=tenant) == [f"q{index}"]
        gate.handle(Finished(f"q{index}", Outcome.COMPLETED, 5), now_s)
    assert gate.shares.holding() == []
    assert not gate.shares._held


def test_what_every_tenant_holds_is_what_each_of_them_holds() -> None:
    gate = gate_of(TenantPolicy("a", kv_share_max=0.9))
    for name in ("r1", "r2"):
        gate.handle(ReplicaFound(spec(name, usable=100)), 0.0)
    for index in range(7):
        run(gate, f"q{index}", 0.1 * index, tenant="ab"[index % 2])
    held = whole(gate.shares.held_by_tenant(list(gate.fleet)))
    assert held == pytest.approx({name: gate.shares.held_blocks(name, gate.fleet) for name in ("a", "b")})
    assert min(held.values()) > 50.0
