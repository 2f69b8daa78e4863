"""A process, its replicas and a request of it, and what is read of them in its metrics."""

from prometheus_client.parser import text_string_to_metric_families

from proxy.adapters.telemetry import PrometheusTelemetry
from proxy.core.demand import CountSource
from proxy.core.outcome import Mode, Outcome
from proxy.core.replica import ReplicaPhase
from proxy.ports.record import RequestRecord
from proxy.ports.replica_state import ReplicaState
from proxy.ports.state import ProcessState, StateReading

RECORD = RequestRecord(
    request_id="r1", route="/v1/chat/completions", outcome=Outcome.COMPLETED, gate=None, traffic_class="default", tenant="t",
    model="m", replica="a:1", status=200, queue_wait_s=0.25, ttft_s=0.5, tpot_s=0.02, total_s=2.0, prompt_tokens=10,
    prompt_tokens_reported=12, output_tokens=7, output_tokens_forecast=9.0, count_source=CountSource.EXACT, reroutes=2,
)  # fmt: skip
KNOWN = ReplicaState(
    name="a:1", phase=ReplicaPhase.SERVING, enforced=True, usable_blocks=511, forecast_peak_blocks=300.5, ledger_low_blocks=10.0,
    ledger_high_blocks=12.0, measured_blocks=11.0, bias_blocks=-1.0, z=1.5, leases=3, running=2, waiting=1, preemptions_total=4,
    sample_age_s=0.1, steps_per_s=50.0, pool="m", version="0.32.0", expected_blocks=250.5, margin_blocks=51.0,
    estimate_error_blocks=-2.0, calibration_ratio=1.25, forecasts_covered=((64, 9, 1), (256, 4, 0)),
    prefix_hit_tokens_expected_total=600, prefix_hit_tokens_counted_total=500.0,
    prefix_hit_credit_ratio=0.8,
)  # fmt: skip
UNKNOWN = ReplicaState(name="b:2", phase=ReplicaPhase.PROBING, enforced=False)
STATE = ProcessState(
    mode=Mode.OBSERVE, guard_tripped=True, replicas=(KNOWN, UNKNOWN), queue_requests=1, queue_tokens=2, queue_bytes=3,
    queue_oldest_s=4.5, open_requests=5, body_bytes_held=6,
    websockets=3, epochs_total=7, held_total=8, would_hold_total=9, would_shed_total=10,
    warm_waits_total=17,
    counted_by_source=(("exact", 11), ("ratio", 12)), count_mismatches_total=13, count_mismatch_tokens_total=14,
    tokenizer_backlog=15, tokenizer_backlog_bytes=16, tasks=18, limits=(("queue.requests_max", 512.0),),
)  # fmt: skip


def telling(state: ProcessState) -> PrometheusTelemetry:
    """Of a process in this state, which is read in two goes."""

    def read() -> StateReading:
        yield
        return state

    telemetry = PrometheusTelemetry(read)
    telemetry.show_parts(("gate", "store", "tokenizer"))
    return telemetry


def values(telemetry: PrometheusTelemetry) -> dict[tuple[str, tuple[str, ...]], float]:
    """Return every sample by name and label values, as a Prometheus would read it."""
    assert telemetry.content_type.startswith(b"text/plain; version=")
    text = b"".join(telemetry.exposition_parts()).decode()
    families = [family for family in text_string_to_metric_families(text) if family.name.startswith("kvgate_")]
    samples = [sample for family in families for sample in family.samples]
    keys = [(sample.name, tuple(sample.labels.values())) for sample in samples]
    assert len(keys) == len(set(keys))
    return {key: sample.value for key, sample in zip(keys, samples, strict=True)}
