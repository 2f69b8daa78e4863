"""What is exposed can be read back, says what happened, and does not grow with what clients send."""

from dataclasses import replace

import pytest

from proxy import __version__
from proxy.adapters.telemetry import PrometheusTelemetry
from proxy.core.outcome import Mode, Outcome
from proxy.core.saturation import Binding
from proxy.core.shared import Answer
from proxy.ports.state import TenantState
from proxy.ports.store import ProxyCard, StoreFault, StorePhase, StoreState
from tests.unit.adapters.telling import KNOWN, RECORD, STATE, telling, values


@pytest.fixture
def telemetry() -> PrometheusTelemetry:
    return telling(STATE)


def test_a_finished_request_moves_what_it_should(telemetry: PrometheusTelemetry) -> None:
    telemetry.request_finished(RECORD)
    refused = replace(
        RECORD, outcome=Outcome.QUEUE_FULL, gate="queue.requests_max", replica=None, status=429, queue_wait_s=None, ttft_s=None,
        tpot_s=None, prompt_tokens_reported=None, output_tokens=None, reroutes=0,
    )  # fmt: skip
    telemetry.request_finished(refused)
    seen = values(telemetry)
    assert seen["kvgate_requests_total", ("completed", "default")] == 1.0
    assert seen["kvgate_requests_total", ("queue_full", "default")] == 1.0
    assert seen["kvgate_refusals_total", ("queue.requests_max", "default")] == 1.0
    assert seen["kvgate_reroutes_total", ()] == 2.0
    assert seen["kvgate_tokens_total", ("prompt",)] == 12.0
    assert seen["kvgate_tokens_total", ("output",)] == 7.0
    for name, total in (("queue_wait", 0.25), ("ttft", 0.5), ("tpot", 0.02)):
        assert seen[f"kvgate_{name}_seconds_count", ("default",)] == 1.0
        assert seen[f"kvgate_{name}_seconds_sum", ("default",)] == total
    assert seen["kvgate_request_seconds_count", ("default",)] == 2.0


def test_targets_are_counted_met_and_missed(telemetry: PrometheusTelemetry) -> None:
    for ttft_target_s, tpot_target_s in ((0.5, 0.02), (0.4, 0.01), (None, None)):
        telemetry.request_finished(replace(RECORD, ttft_target_s=ttft_target_s, tpot_target_s=tpot_target_s))
    seen = values(telemetry)
    for name in ("ttft", "tpot"):
        assert {met: seen[f"kvgate_{name}_targets_total", (met, "default")] for met in ("yes", "no")} == {"yes": 1.0, "no": 1.0}


def test_one_limit_binds_at_a_time() -> None:
    telemetry = telling(replace(STATE, replicas=(replace(KNOWN, binding="tpot", seats=8),)))
    seen = values(telemetry)
    bound = {labels[0]: value for (name, labels), value in seen.items() if name == "kvgate_replica_binding"}
    assert {binding for binding, value in bound.items() if value} == {"tpot"}
    assert set(bound) == {binding.value for binding in Binding}
    assert seen["kvgate_replica_seats", ("a:1",)] == 8.0


def test_the_state_is_read_when_it_is_asked_for(telemetry: PrometheusTelemetry) -> None:
    seen = values(telemetry)
    assert {mode: seen["kvgate_mode", (mode,)] for mode in Mode} == {"enforce": 0.0, "observe": 1.0, "off": 0.0}
    assert seen["kvgate_guard_tripped", ()] == 1.0
    assert seen["kvgate_queue_oldest_seconds", ()] == 4.5
    assert seen["kvgate_held_total", ()] == 8.0
    assert seen["kvgate_token_counts_total", ("ratio",)] == 12.0
    assert seen["kvgate_limit", ("queue.requests_max",)] == 512.0
    assert seen["kvgate_build_info", (__version__,)] == 1.0
    assert seen["kvgate_replica_measured_blocks", ("a:1",)] == 11.0
    assert seen["kvgate_replica_bias_blocks", ("a:1",)] == -1.0
    assert seen["kvgate_replica_preemptions_total", ("a:1",)] == 4.0
    assert seen["kvgate_replica_phase", ("serving", "a:1")] == 1.0
    assert seen["kvgate_replica_phase", ("serving", "b:2")] == 0.0
    assert seen["kvgate_replica_phase", ("probing", "b:2")] == 1.0


def test_what_is_not_known_is_absent_not_zero(telemetry: PrometheusTelemetry) -> None:
    of_unknown = {name for name, labels in values(telemetry) if "b:2" in labels}
    assert of_unknown == {
        "kvgate_replica_phase", "kvgate_replica_enforced", "kvgate_replica_leases", "kvgate_replica_preemptions_total",
        "kvgate_replica_cache_recoveries_total",
    }  # fmt: skip


def test_faults_are_counted_by_part(telemetry: PrometheusTelemetry) -> None:
    for part in ("gate", "gate", "store"):
        telemetry.internal_error(part)
    seen = values(telemetry)
    assert seen["kvgate_internal_errors_total", ("gate",)] == 2.0
    assert seen["kvgate_internal_errors_total", ("store",)] == 1.0


def test_series_do_not_grow_with_what_clients_send(telemetry: PrometheusTelemetry) -> None:
    for index in range(101):  # tenants are shown up to a hundred
        telemetry.request_finished(replace(RECORD, tenant=f"first{index}"))
    before = set(values(telemetry))
    for index in range(200):
        telemetry.request_finished(
            replace(RECORD, request_id=f"r{index}", tenant=f"t{index}", model=f"m{index}", route=f"/{index}")
        )
    assert set(values(telemetry)) == before


ODD_NAMES = ['a"b', "a\\b", "a\nb", "ä日本", ""]


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_can_be_read_back(name: str) -> None:
    telemetry = telling(replace(STATE, replicas=(replace(KNOWN, name=name),)))
    telemetry.request_finished(replace(RECORD, traffic_class=name))
    seen = values(telemetry)
    assert seen["kvgate_replica_usable_blocks", (name,)] == 511.0
    assert seen["kvgate_requests_total", ("completed", name)] == 1.0


STORE = StoreState(
    shown="redis://h:6379", phase=StorePhase.DEGRADED, phase_age_s=1.0,
    proxies=(ProxyCard("a", "p", "1", "enforce", ""), ProxyCard("b", "q", "1", "enforce", "")), policies_differing=1,
    errors={StoreFault.TIMEOUT: 3}, refused={Answer.ROOM: 4}, granted=5, granted_ahead=61, ahead_refused=62, ahead_blocks=63.0,
    granted_apart=6, unanswered=7, rewrites=8, offers_made=9,
    offers_claimed=10, offers_passed=11, outages=12, holds={"a:1": True, "b:2": False}, clock_offset_s=13.5, round_trip_s=0.001,
    last_error=None,
)  # fmt: skip


def test_a_proxy_among_several_shows_how_it_stands_with_the_store() -> None:
    telemetry = telling(replace(STATE, store=STORE))
    telemetry.store_called("reserve", 0.0004)
    seen = values(telemetry)
    assert seen["kvgate_store_phase", ("degraded",)] == 1.0
    assert seen["kvgate_store_phase", ("sharing",)] == 0.0
    assert seen["kvgate_store_errors_total", ("timeout",)] == 3.0
    assert seen["kvgate_store_errors_total", ("noperm",)] == 0.0
    assert seen["kvgate_store_refused_total", ("room",)] == 4.0
    assert {end: seen["kvgate_store_offers_total", (end,)] for end in ("made", "claimed", "passed")} == {
        "made": 9.0, "claimed": 10.0, "passed": 11.0,
    }  # fmt: skip
    plain = (
        "granted_total",
        "granted_ahead_total",
        "ahead_refused_total",
        "ahead_blocks",
        "granted_apart_total",
        "unanswered_total",
        "rewrites_total",
        "outages_total",
        "proxies",
        "policies_differing",
    )
    assert [seen[f"kvgate_store_{name}", ()] for name in plain] == [5.0, 61.0, 62.0, 63.0, 6.0, 7.0, 8.0, 12.0, 2.0, 1.0]
    assert seen["kvgate_store_holds_scrape", ("a:1",)] == 1.0
    assert seen["kvgate_store_holds_scrape", ("b:2",)] == 0.0
    assert seen["kvgate_store_clock_offset_seconds", ()] == 13.5
    assert seen["kvgate_store_seconds_bucket", ("reserve", "0.0005")] == 1.0


def test_a_proxy_that_is_alone_shows_nothing_of_a_store(telemetry: PrometheusTelemetry) -> None:
    assert not [name for name, _ in values(telemetry) if name.startswith("kvgate_store_")]


def test_tenants_are_shown_up_to_a_hundred() -> None:
    tenants = TenantState("t0", (("tokens_per_min", -5.0),), 12.0), TenantState("t100", (("requests_per_s", 1.0),))
    state = replace(STATE, tenants=tenants, queue_by_class=(("bulk", 3, 900),))
    telemetry = telling(state)
    for index in range(102):
        telemetry.request_finished(replace(RECORD, tenant=f"t{index}"))
    refused = replace(RECORD, outcome=Outcome.TENANT_RATE, gate="tokens_per_min", prompt_tokens_reported=None, output_tokens=None)
    telemetry.request_finished(replace(refused, tenant="t99"))
    telemetry.request_finished(replace(refused, tenant="t101"))
    seen = values(telemetry)
    assert seen["kvgate_tenant_tokens_total", ("t99",)] == 19.0
    assert seen["kvgate_tenant_tokens_total", ("other",)] == 38.0
    assert ("kvgate_tenant_tokens_total", ("t100",)) not in seen
    assert seen["kvgate_tenant_refusals_total", ("tokens_per_min", "t99")] == 1.0
    assert seen["kvgate_tenant_refusals_total", ("tokens_per_min", "other")] == 1.0
    assert seen["kvgate_tenant_left", ("tokens_per_min", "t0")] == -5.0
    assert seen["kvgate_tenant_kv_blocks", ("t0",)] == 12.0
    assert ("kvgate_tenant_left", ("requests_per_s", "t100")) not in seen
    assert seen["kvgate_queue_class_requests", ("bulk",)] == 3.0
    assert seen["kvgate_queue_class_tokens", ("bulk",)] == 900.0
