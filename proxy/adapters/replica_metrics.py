"""The replicas as metrics. What is not known of one is absent, never zero."""

from collections.abc import Iterator, Sequence

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from proxy.adapters.metric_families import labelled
from proxy.core.replica import ReplicaPhase
from proxy.core.saturation import Binding
from proxy.ports.replica_state import ReplicaState

GAUGES = (  # name, text, and the field it is read from
    ("kvgate_replica_usable_blocks", "KV blocks the replica can hand out", "usable_blocks"),
    ("kvgate_replica_forecast_peak_blocks", "Risk-adjusted forecast peak", "forecast_peak_blocks"),
    ("kvgate_replica_ledger_low_blocks", "Blocks our placed leases hold now", "ledger_low_blocks"),
    ("kvgate_replica_ledger_high_blocks", "Blocks with those not known to be placed", "ledger_high_blocks"),
    ("kvgate_replica_measured_blocks", "Blocks in use as the engine says", "measured_blocks"),
    ("kvgate_replica_bias_blocks", "Blocks in use that the ledger cannot explain", "bias_blocks"),
    (
        "kvgate_replica_estimate_error_blocks",
        "How far the last measurement lay outside the estimate",
        "estimate_error_blocks",
    ),
    ("kvgate_replica_expected_blocks", "Expected demand at the forecast peak", "expected_blocks"),
    ("kvgate_replica_margin_blocks", "What the forecast peak has on top of it, for the risk", "margin_blocks"),
    ("kvgate_replica_budget_blocks", "What the expected demand may come to", "budget_blocks"),
    ("kvgate_replica_headroom_blocks", "What the forecast peak leaves", "headroom_blocks"),
    ("kvgate_replica_calibration_ratio", "Factor on the margin for what forecasts were really off by", "calibration_ratio"),
    ("kvgate_replica_margin_z", "Standard deviations above the expected peak", "z"),
    ("kvgate_replica_leases", "Requests of ours on the replica", "leases"),
    ("kvgate_replica_engine_running", "Requests running, as the engine says", "running"),
    ("kvgate_replica_engine_waiting", "Requests waiting in the engine", "waiting"),
    ("kvgate_replica_sample_age_seconds", "Age of the last measurement", "sample_age_s"),
    ("kvgate_replica_steps_per_second", "Decode steps", "steps_per_s"),
    ("kvgate_replica_step_seconds", "Forecast of a step at this moment's load, prefill aside", "step_s"),
    ("kvgate_replica_prefill_token_seconds", "Learned time that one more prefill token takes", "prefill_token_s"),
    ("kvgate_replica_prefill_tokens", "Prompt tokens sent and not yet prefilled", "prefill_tokens"),
    ("kvgate_replica_prefill_tokens_max", "Bound of the prefill backlog", "prefill_tokens_max"),
    ("kvgate_replica_seats", "Sequences the engine runs at most, told or learned", "seats"),
    ("kvgate_replica_engine_queue", "Sequences that wait in the engine ahead of whoever is sent next", "engine_queue"),
    ("kvgate_replica_foreign_sequences", "Sequences there of requests that bypassed us", "foreign_sequences"),
    ("kvgate_replica_second_proxy", "1 while what bypasses us looks like another kvgate", "second_proxy"),
    ("kvgate_replica_prefix_credit", "Share of expected prefix hits that comes true", "prefix_hit_credit_ratio"),
    ("kvgate_replica_enforced", "0 where kvgate only observes", "enforced"),
)
TOTALS = (
    ("kvgate_replica_preemptions", "Preemptions as the engine counts them", "preemptions_total"),
    (
        "kvgate_replica_cache_recoveries",
        "Times that a lost prefix cache had to be brought back",
        "cache_recoveries_total",
    ),
    (
        "kvgate_replica_prefix_expected_tokens",
        "Prompt tokens expected in its prefix cache when they were sent",
        "prefix_hit_tokens_expected_total",
    ),
    (
        "kvgate_replica_prefix_hit_tokens",
        "Prompt tokens that the engine found in its prefix cache",
        "prefix_hit_tokens_counted_total",
    ),
)


def replica_metrics(replicas: Sequence[ReplicaState]) -> Iterator[Metric]:
    """Every family."""
    for name, text, attribute in GAUGES:
        values = {one.name: value for one in replicas if (value := getattr(one, attribute)) is not None}
        yield labelled(name, text, "replica", values)
    for name, text, attribute in TOTALS:
        values = {one.name: value for one in replicas if (value := getattr(one, attribute)) is not None}
        yield labelled(name, text, "replica", values, counter=True)
    yield _forecasts(replicas)
    yield from _states(replicas)


def _forecasts(replicas: Sequence[ReplicaState]) -> Metric:
    forecasts = CounterMetricFamily(
        "kvgate_replica_forecasts",
        "Forecasts whose time came, by whether their bound held",
        labels=("replica", "horizon", "covered"),
    )
    for one in replicas:
        for horizon, covered, exceeded in one.forecasts_covered:
            forecasts.add_metric((one.name, str(horizon), "yes"), covered)
            forecasts.add_metric((one.name, str(horizon), "no"), exceeded)
    return forecasts


def _states(replicas: Sequence[ReplicaState]) -> Iterator[Metric]:
    known = [one for one in replicas if one.pool]
    info = GaugeMetricFamily(
        "kvgate_replica_info", "1, by its pool and its engine's version", labels=("replica", "pool", "version")
    )
    for one in known:
        info.add_metric((one.name, one.pool, one.version), 1.0)
    yield info
    phases = GaugeMetricFamily("kvgate_replica_phase", "1 for the replica's phase", labels=("replica", "phase"))
    for one in replicas:
        for phase in ReplicaPhase:
            phases.add_metric((one.name, phase.value), float(phase.value == one.phase))
    yield phases
    bindings = GaugeMetricFamily(
        "kvgate_replica_binding", "1 for the limit that the last request looked at met", labels=("replica", "binding")
    )
    for one in replicas:
        for binding in Binding if one.binding else ():
            bindings.add_metric((one.name, binding.value), float(binding.value == one.binding))
    yield bindings
