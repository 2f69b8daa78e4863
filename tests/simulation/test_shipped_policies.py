"""What the shipped policies promise, kept in virtual time: each beside the default, which does not promise it."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from proxy.config.policy_file import load
from proxy.core.outcome import Outcome
from proxy.core.policy import Policy
from proxy.core.policy_classes import Facts
from proxy.serving.intake import wait_s_max
from proxy.sim.admission import GateAdmission
from proxy.sim.sim_request import SimRequest, SimResult
from proxy.sim.world import Listed, World, WorldSettings
from tests.support.worlds import pool

pytestmark = pytest.mark.slow

POLICIES = Path(__file__).parents[2] / "policies"
CHAT = "/v1/chat/completions"


def shipped(name: str) -> Policy:
    """Return a shipped policy."""
    return load(POLICIES / f"{name}.yaml")


def request(
    policy: Policy,
    name: str,
    prompt: int,
    length: int,
    at_s: float,
    headers: Mapping[str, str] | None = None,
    tenant: str = "default",
) -> SimRequest:
    """A request as the policy takes it in: its class's priority and longest wait. Its length is honest."""
    fields = dict(headers or {})
    one = policy.class_of(Facts(CHAT, "m", fields, tenant))
    priority = one.priority + policy.tenants.policy_of(tenant).priority
    wait_s = wait_s_max(policy, one, fields)
    return SimRequest(name, prompt, length + 1, length, at_s, tenant, priority, wait_s_max=wait_s, ttft_s=one.ttft_s)


def played(policy: Policy, requests: list[SimRequest], blocks: int = 256) -> dict[str, SimResult]:
    """Play them on one engine."""
    requests.sort(key=lambda one: one.arrival_s)
    return World(WorldSettings(engine=pool(blocks=blocks)), GateAdmission(policy), Listed(requests)).run().results


def waits_s(results: Mapping[str, SimResult], start: str) -> list[float]:
    """Return how long each of the requests waited for its place; infinite where it was refused."""
    chosen = [result for name, result in results.items() if name.startswith(start)]
    return [float("inf") if one.forwarded_s is None else one.forwarded_s - one.arrived_s for one in chosen]


def flood(policy: Policy) -> list[SimRequest]:
    """A hundred batch jobs at once, three quarters of a minute of work, and a person every second."""
    jobs = [request(policy, f"job{n}", 400, 400, 0.01 * n, {"x-class": "batch"}) for n in range(100)]
    return jobs + [request(policy, f"person{n}", 200, 100, 1.0 + n) for n in range(20)]


def test_people_do_not_feel_the_batch_and_the_batch_is_done() -> None:
    policy = shipped("interactive-and-batch")
    results = played(policy, flood(policy))
    assert max(waits_s(results, "person")) < 2.0
    assert [one.outcome for one in results.values() if one.outcome is not Outcome.COMPLETED] == []


def test_under_the_default_they_would() -> None:
    results = played(Policy(), flood(Policy()))
    assert max(waits_s(results, "person")) > 5.0


def test_a_burst_of_long_answers_waits_rather_than_fails() -> None:
    def answered(policy: Policy) -> int:
        results = played(policy, [request(policy, f"think{n}", 200, 2000, 0.05 * n) for n in range(15)])
        return sum(one.outcome is Outcome.COMPLETED for one in results.values())

    assert answered(shipped("reasoning")) == 15
    assert answered(Policy()) < 10


def test_turns_of_agents_wait_rather_than_fail_and_people_go_first() -> None:
    def played_with(policy: Policy) -> dict[str, SimResult]:
        turns = [request(policy, f"turn{n}", 2000, 300, 0.02 * n) for n in range(60)]
        return played(
            policy, turns + [request(policy, f"person{n}", 200, 100, 2.0 + n, {"x-class": "interactive"}) for n in range(10)]
        )

    found = played_with(shipped("agents"))
    assert max(waits_s(found, "person")) < 3.0
    assert float("inf") not in waits_s(found, "turn")
    assert float("inf") in waits_s(played_with(Policy()), "turn")


def test_observe_holds_and_refuses_nothing() -> None:
    policy = shipped("observe")
    assert set(waits_s(played(policy, flood(policy)), "")) == {0.0}


def waits_beside_a_loud_tenant_s(policy: Policy, tenant: str) -> list[float]:
    """Return a tenant's waits while another, whose lengths were learned before, sends all it has."""
    loud = [request(policy, f"learned{n}", 400, 400, 2.0 * n, tenant="key-loud") for n in range(20)]
    loud += [request(policy, f"loud{n}", 400, 400, 50.0 + 0.05 * n, tenant="key-loud") for n in range(60)]
    quiet = [request(policy, f"quiet{n}", 200, 100, 53.0 + n, tenant=tenant) for n in range(12)]
    return waits_s(played(policy, loud + quiet), "quiet")


def test_a_tenant_hardly_feels_another_that_sends_all_it_has_and_gold_not_at_all() -> None:
    policy = shipped("multi-tenant")
    assert waits_beside_a_loud_tenant_s(policy, "gold") == [0.0] * 12
    quiet_s, default_s = (sum(waits_beside_a_loud_tenant_s(one, "key-quiet")) for one in (policy, Policy()))
    assert quiet_s < 0.5 * default_s
