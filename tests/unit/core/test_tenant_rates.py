"""Rates of tenants: what a bucket lets through, what it is charged, and what is told to who comes too early."""

import pytest

from proxy.core.outcome import Outcome, Refusal
from proxy.core.policy import TenantPolicy, Tenants
from proxy.core.tenant_rates import REQUESTS, TOKENS, TenantRates
from tests.support.builders import demand

SIXTY = TenantPolicy("a", tokens_per_min=3600.0, burst_s=10.0)  # 60 a second, 600 at once


def rates(*tenants: TenantPolicy) -> TenantRates:
    return TenantRates(Tenants(listed=tenants or (SIXTY,)))


def asked(
    buckets: TenantRates, name: str, now_s: float, *, prompt: int = 100, out: float = 100.0, fingerprint: int = 0
) -> Refusal | None:
    return buckets.refusal(demand(name, prompt=prompt, tenant="a", fingerprint=fingerprint), out, now_s)


def test_a_burst_goes_and_the_rest_is_told_when() -> None:
    one = rates()
    assert [asked(one, f"q{index}", 0.0) for index in range(3)] == [None] * 3
    refusal = asked(one, "late", 0.0)
    assert refusal is not None
    assert (refusal.outcome, refusal.gate, refusal.policy_key) == (Outcome.TENANT_RATE, TOKENS, "tenants.list.a.tokens_per_min")
    assert refusal.retry_after_s == pytest.approx(200.0 / 60.0, abs=0.01)
    assert (refusal.measured, refusal.limit) == (200.0, 3600.0)
    assert asked(one, "early", refusal.retry_after_s - 0.05) is not None
    assert asked(one, "back", refusal.retry_after_s) is None


@pytest.mark.parametrize(("prompt", "taken"), [(599, True), (600, True), (601, True), (6000, True)])
def test_a_single_request_larger_than_the_bucket_goes_when_it_is_full(prompt: int, *, taken: bool) -> None:
    one = rates()
    assert (asked(one, "big", 0.0, prompt=prompt, out=0.0) is None) is taken
    assert asked(one, "next", 0.0, prompt=2, out=0.0) is not None
    debt_s = (prompt - 600.0) / 60.0
    assert (asked(one, "after", debt_s + 1.0, prompt=60, out=0.0) is None) == (debt_s >= 0.0 or prompt == 599)


def test_what_was_not_used_is_given_back_and_what_was_used_besides_is_owed() -> None:
    one = rates()
    assert asked(one, "a", 0.0, out=500.0) is None
    assert one.left("a", 0.0)[TOKENS] == pytest.approx(0.0)
    one.end("a", 150.0, 0.0)
    assert one.left("a", 0.0)[TOKENS] == pytest.approx(450.0)
    one.end("a", 150.0, 0.0)  # a second end is none
    assert asked(one, "b", 0.0, out=0.0) is None
    one.end("b", 1000.0, 0.0)
    assert one.left("a", 0.0)[TOKENS] == pytest.approx(-550.0)
    refusal = asked(one, "c", 0.0, out=0.0)
    assert refusal is not None
    assert refusal.retry_after_s == pytest.approx(650.0 / 60.0, abs=0.01)


def test_a_bucket_that_lets_nothing_through_is_used_up() -> None:
    one = rates(TenantPolicy("a", requests_per_s=1.0, tokens_per_min=3600.0, burst_s=1.0))
    assert not one.used_up("a", 0.0), "nobody has asked yet"
    assert asked(one, "first", 0.0, prompt=10, out=10.0) is None
    assert one.used_up("a", 0.5)
    assert not one.used_up("a", 1.0)
    assert not one.used_up("nobody", 0.5)


def test_what_was_not_served_does_not_count() -> None:
    one = rates(TenantPolicy("a", requests_per_s=1.0, tokens_per_min=3600.0, burst_s=1.0))
    assert asked(one, "a", 0.0, out=-60.0) is None
    one.end("a", 999.0, 0.0, served=False)
    assert one.left("a", 0.0) == {REQUESTS: pytest.approx(1.0), TOKENS: pytest.approx(60.0)}


@pytest.mark.parametrize(("rate", "burst_s", "at_once"), [(0.01, 10.0, 1), (1.0, 0.5, 1), (2.0, 1.0, 2), (2.5, 1.0, 2)])
def test_requests_are_counted_and_one_always_fits(rate: float, burst_s: float, at_once: int) -> None:
    one = rates(TenantPolicy("a", requests_per_s=rate, burst_s=burst_s))
    taken = [asked(one, f"q{index}", 0.0) is None for index in range(4)]
    assert taken == [True] * at_once + [False] * (4 - at_once)
    assert asked(one, "later", 1.0 / rate) is None


def test_a_tenant_without_a_rate_has_no_account() -> None:
    one = rates()
    assert one.refusal(demand("q", tenant="b"), 1e9, 0.0) is None
    assert one.tenants() == []
    assert not TenantRates(Tenants()).active
    assert one.active


def test_those_not_listed_have_each_their_own() -> None:
    one = TenantRates(Tenants(others=TenantPolicy(requests_per_s=1.0, burst_s=1.0)))
    assert one.refusal(demand("x", tenant="x"), 0.0, 0.0) is None
    assert one.refusal(demand("y", tenant="y"), 0.0, 0.0) is None
    refusal = one.refusal(demand("x2", tenant="x"), 0.0, 0.0)
    assert refusal is not None
    assert refusal.policy_key == "tenants.others.requests_per_s"


def test_an_account_that_is_full_is_forgotten() -> None:
    one = rates()
    asked(one, "a", 0.0)
    one.forget_idle(100.0)
    assert one.tenants() == ["a"], "one of its requests is under way"
    one.end("a", 700.0, 100.0)
    one.forget_idle(104.0)
    one.forget_idle(105.0)
    assert one.tenants() == ["a"], "its bucket is not full again"
    one.forget_idle(110.0)
    assert one.tenants() == []


def test_a_seat_is_kept_for_who_was_told_to_return() -> None:
    one = rates()
    for index in range(3):
        asked(one, f"q{index}", 0.0)
    told = asked(one, "told", 0.0, fingerprint=7)
    assert told is not None
    assert told.retry_after_s is not None
    due_s = told.retry_after_s
    assert asked(one, "told again", due_s + 2.0, fingerprint=7) is None


def test_what_others_used_is_charged_here() -> None:
    one = rates()
    one.charged_elsewhere(TOKENS, "a", 700.0, 0.0)
    one.charged_elsewhere(REQUESTS, "a", 5.0, 0.0)  # of which it has no rate
    one.charged_elsewhere(TOKENS, "b", 5.0, 0.0)
    assert one.left("a", 0.0) == {TOKENS: pytest.approx(-100.0)}
    assert one.left("b", 0.0) == {}


def test_another_policy_keeps_what_was_used() -> None:
    one = rates()
    asked(one, "a", 0.0)
    one.adopt(Tenants(listed=(TenantPolicy("a", tokens_per_min=7200.0, requests_per_s=5.0, burst_s=10.0),)))
    assert one.left("a", 0.0)[TOKENS] == pytest.approx(1000.0)
    assert asked(one, "b", 0.0) is None
    one.end("a", 0.0, 0.0)
    one.adopt(Tenants())
    assert one.tenants() == []
    one.end("b", 5.0, 0.0)
