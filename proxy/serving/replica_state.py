"""One replica's state as a value, for metrics."""

from proxy.core.calibration import HORIZONS_STEPS
from proxy.core.pool_size import pool_of
from proxy.ports.replica_state import ReplicaState
from proxy.serving.services import Services
from proxy.serving.watcher import ReplicaWatcher


def replica_state(services: Services, watcher: ReplicaWatcher, name: str, now_s: float) -> ReplicaState:
    """One replica, or one engine of a data-parallel server, at this moment."""
    book = services.dispatcher.gate.fleet.books.get(name)
    if book is None:
        return ReplicaState(name, watcher.phase_seen(name), enforced=False)
    # Beside a measurement, what was held at its instant, others' included: that is what it is to be compared with.
    low, high = book.ledger.held_interval(book.clock.steps, 0.0) if book.measured_blocks is None else book.interval_blocks
    saturation = book.saturation
    outlook, calibration = book.outlook(now_s), book.calibration
    credit = services.dispatcher.gate.fleet.warmth.of(name).credit
    return ReplicaState(
        name=name,
        phase=watcher.phase_seen(name),
        enforced=book.spec.enforced,
        usable_blocks=book.spec.usable_blocks,
        forecast_peak_blocks=outlook.peak_blocks,
        ledger_low_blocks=low,
        ledger_high_blocks=high,
        measured_blocks=book.measured_blocks,
        bias_blocks=book.reconciler.bias_blocks,
        z=book.feedback.z,
        leases=len(book.ledger.leases),
        running=book.running,
        waiting=book.waiting,
        preemptions_total=book.feedback.preemptions_total,
        cache_recoveries_total=book.saturation.guard.recoveries_total,
        sample_age_s=book.sample_age_s(now_s),
        steps_per_s=book.clock.rate_per_s,
        step_s=saturation.step_s(0.0) if saturation.step_time.learned else None,
        prefill_token_s=saturation.step_time.prefill_token_s if saturation.step_time.learned else None,
        prefill_tokens=saturation.backlog_tokens(now_s),
        prefill_tokens_max=saturation.backlog_tokens_max(),
        seats=saturation.seats(now_s),
        engine_queue=saturation.queue_debt,
        foreign_sequences=saturation.foreign_sequences,
        second_proxy=watcher.second_proxy(name),
        binding=book.binding_last,
        prefix_hit_tokens_expected_total=credit.expected_tokens_total,
        prefix_hit_tokens_counted_total=credit.counted_tokens_total,
        prefix_hit_credit_ratio=credit.ratio,
        pool=pool_of(book),
        version="" if watcher.facts is None or watcher.facts.version is None else watcher.facts.version,
        expected_blocks=outlook.expected_blocks,
        margin_blocks=outlook.margin_blocks,
        estimate_error_blocks=None if book.measured_blocks is None else book.reconciler.outside_blocks,
        calibration_ratio=calibration.scale,
        forecasts_covered=tuple(
            zip(map(int, HORIZONS_STEPS), calibration.covered_total, calibration.exceeded_total, strict=True)
        ),
    )
