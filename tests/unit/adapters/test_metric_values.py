"""What on-call asks of forecasts, pools, tenants and kvgate itself can be read in the metrics."""

from dataclasses import replace

import pytest

from proxy.adapters.metric_families import SAMPLES_AT_ONCE
from proxy.adapters.telemetry import PrometheusTelemetry
from proxy.core.outcome import Outcome, Refusal
from proxy.ports.state import PoolState, TenantState
from tests.unit.adapters.telling import KNOWN, RECORD, STATE, telling, values


@pytest.fixture
def telemetry() -> PrometheusTelemetry:
    return telling(STATE)


def test_the_forecast_peak_and_what_it_is_made_of(telemetry: PrometheusTelemetry) -> None:
    seen = values(telemetry)
    part = {name: seen[f"kvgate_replica_{name}_blocks", ("a:1",)] for name in ("expected", "margin", "bias", "forecast_peak")}
    assert part["expected"] + part["margin"] + part["bias"] == part["forecast_peak"]
    assert seen["kvgate_replica_budget_blocks", ("a:1",)] == 511.0 - 51.0 + 1.0
    assert seen["kvgate_replica_headroom_blocks", ("a:1",)] == 511.0 - 300.5
    assert seen["kvgate_replica_estimate_error_blocks", ("a:1",)] == -2.0
    assert seen["kvgate_replica_calibration_ratio", ("a:1",)] == 1.25
    assert seen["kvgate_replica_forecasts_total", ("yes", "64", "a:1")] == 9.0
    assert seen["kvgate_replica_forecasts_total", ("no", "64", "a:1")] == 1.0
    assert seen["kvgate_replica_info", ("m", "a:1", "0.32.0")] == 1.0


def test_a_pool_tells_this_proxys_share() -> None:
    pool = PoolState("m", 2, running_blocks=70.0, queued_blocks=30.0, foreign_blocks=8.0, budget_blocks=90.0, replicas_wanted=1.2)
    seen = values(telling(replace(STATE, pools=(pool,))))
    assert seen["kvgate_pool_replicas_wanted", ("m",)] == 1.2
    assert seen["kvgate_pool_replicas_known", ("m",)] == 2.0
    assert seen["kvgate_pool_budget_blocks", ("m",)] == 90.0
    parts = {part: seen["kvgate_pool_demand_blocks", (part, "m")] for part in ("running", "queued", "foreign")}
    assert parts == {"running": 70.0, "queued": 30.0, "foreign": 8.0}


def test_what_a_forecast_came_to(telemetry: PrometheusTelemetry) -> None:
    telemetry.request_finished(RECORD)
    telemetry.request_finished(replace(RECORD, outcome=Outcome.CUT_OFF))
    seen = values(telemetry)
    assert seen["kvgate_output_forecast_tokens_total", ("default",)] == 9.0
    assert seen["kvgate_output_outcome_tokens_total", ("default",)] == 7.0
    assert seen["kvgate_output_forecast_ratio_sum", ("default",)] == pytest.approx(7.0 / 9.0)
    assert seen["kvgate_output_forecast_ratio_count", ("default",)] == 1.0


def test_how_a_request_came_and_went(telemetry: PrometheusTelemetry) -> None:
    full = Refusal(Outcome.QUEUE_FULL, gate="queue.requests_max", message="", queue_position=7)
    telemetry.request_finished(replace(RECORD, own_s=0.002, itl_s=0.03, client_retry="x-stainless-retry-count"))
    telemetry.request_finished(replace(RECORD, outcome=full.outcome, gate=full.gate, refusal=full))
    telemetry.refused_unread(Refusal(Outcome.DRAINING, gate="drain", message="no more"))
    telemetry.loop_lag(0.004)
    seen = values(telemetry)
    assert seen["kvgate_overhead_seconds_sum", ()] == 0.002
    assert seen["kvgate_itl_seconds_sum", ("default",)] == 0.03
    assert seen["kvgate_client_retries_total", ("x-stainless-retry-count",)] == 1.0
    assert seen["kvgate_refusal_position_requests_sum", ("default",)] == 7.0
    assert seen["kvgate_requests_total", ("draining", "")] == 1.0
    assert seen["kvgate_refusals_total", ("drain", "")] == 1.0
    assert seen["kvgate_event_loop_lag_seconds_bucket", ("0.005",)] == 1.0
    assert seen["kvgate_event_loop_lag_seconds_bucket", ("0.0025",)] == 0.0


def test_outcomes_and_parts_are_told_before_they_happen(telemetry: PrometheusTelemetry) -> None:
    telemetry.request_finished(RECORD)
    seen = values(telemetry)
    assert {seen["kvgate_requests_total", (outcome.value, "default")] for outcome in Outcome} == {0.0, 1.0}
    assert {seen["kvgate_internal_errors_total", (part,)] for part in ("gate", "store", "tokenizer")} == {0.0}


def test_the_oldest_of_each_class_is_zero_while_nobody_waits() -> None:
    state = replace(STATE, queue_by_class=(("chat", 2, 10), ("bulk", 0, 0)), queue_oldest_by_class=(("chat", 3.5),))
    seen = values(telling(state))
    assert {name: seen["kvgate_queue_class_oldest_seconds", (name,)] for name in ("chat", "bulk")} == {"chat": 3.5, "bulk": 0.0}


def test_what_tenants_hold_and_how_many_of_theirs_wait() -> None:
    telemetry = telling(replace(STATE, tenants=(TenantState("t", queue_requests=3), TenantState("t100", queue_requests=2))))
    for index in range(100):
        telemetry.request_finished(replace(RECORD, tenant=f"t{index}"))
    telemetry.request_finished(replace(RECORD, tenant="t", prompt_tokens_reported=100, output_tokens=10))
    seen = values(telemetry)
    assert seen["kvgate_tenant_queue_requests", ("other",)] == 5.0
    assert seen["kvgate_tenant_kv_token_steps_total", ("other",)] == 10 * (100 + 5)
    assert seen["kvgate_tenant_requests_total", ("completed", "other")] == 1.0
    assert seen["kvgate_tenant_requests_total", ("completed", "t99")] == 1.0


def test_a_family_is_whole_however_many_samples_it_has() -> None:
    many = tuple(replace(KNOWN, name=f"r{index}") for index in range(SAMPLES_AT_ONCE + 1))
    telemetry = telling(replace(STATE, replicas=many))
    text = b"".join(telemetry.exposition_parts()).decode()
    assert text.count("# TYPE kvgate_replica_usable_blocks gauge\n") == 1
    assert text.count("\nkvgate_replica_usable_blocks{") == SAMPLES_AT_ONCE + 1
    assert "_created" not in text
    assert values(telemetry)["kvgate_replica_usable_blocks", (f"r{SAMPLES_AT_ONCE}",)] == 511.0
