"""The process's state as one value, for metrics."""

from proxy.core.gate import Gate
from proxy.core.override import MODE
from proxy.core.shared import Answer
from proxy.ports.relay import RelayState
from proxy.ports.replica_state import ReplicaState
from proxy.ports.state import ProcessState, TenantState
from proxy.ports.store import StoreState
from proxy.serving.exchange import Exchange
from proxy.serving.services import Services
from proxy.serving.watcher import ReplicaWatcher


def process_state(services: Services) -> ProcessState:
    """Read everything once."""
    gate, policy = services.dispatcher.gate, services.policy
    counts = services.counter.stats()
    now_s = services.clock.now_s()
    queue, limits = policy.queue, policy.limits
    overrides = services.switches.overrides
    said = overrides.in_force(MODE, now_s)
    return ProcessState(
        mode=gate.mode,
        guard_tripped=services.guard.tripped,
        replicas=tuple(
            _replica_state(services, watcher, name, now_s) for watcher in services.watchers.values() for name in watcher.names
        ),
        queue_requests=len(gate.queue),
        queue_tokens=gate.queue.tokens,
        queue_bytes=gate.queue.bytes,
        queue_oldest_s=gate.queue.oldest_s(now_s),
        degraded_total=gate.counters.degraded,
        queue_by_class=tuple((name, requests, tokens) for name, (requests, tokens) in gate.queue.by_class.items()),
        tenants=tenant_states(gate, now_s),
        open_requests=gate.open_requests,
        body_bytes_held=services.body_bytes_held,
        epochs_total=gate.fleet.epochs_total,
        held_total=gate.counters.held,
        would_hold_total=gate.counters.would_hold,
        would_shed_total=gate.counters.would_shed,
        warm_waits_total=gate.placement.router.waits_total,
        counted_by_source=tuple((source.value, number) for source, number in counts.counted_by_source.items()),
        count_mismatches_total=counts.mismatches,
        count_mismatch_tokens_total=counts.mismatch_tokens_abs_sum,
        tokenizer_backlog=counts.backlog,
        tokenizer_backlog_bytes=counts.backlog_bytes,
        limits=(
            ("queue.requests_max", queue.requests_max),
            ("queue.tokens_max", queue.tokens_max),
            ("queue.bytes_max", queue.bytes_max),
            ("queue.wait_max", queue.wait_s_max),
            ("limits.head_max", limits.head_bytes_max),
            ("limits.head_timeout", limits.head_s_max),
            ("limits.body_timeout", limits.body_s_max),
            ("limits.buffer_max", limits.buffer_bytes_max),
            ("limits.tokenizer_backlog_max", limits.tokenizer_backlog_max),
            ("limits.tokenizer_backlog_bytes_max", limits.tokenizer_backlog_bytes_max),
            ("limits.responses_max", limits.responses_max),
            ("limits.background_max", limits.background_s_max),
        ),
        responses_known=len(services.stored),
        background_leases=services.stored.background,
        mode_override_left_s=None if said is None else said.until_s - now_s,
        drain_override_left_s=tuple((name, one.until_s - now_s) for name, one in overrides.drains(now_s).items()),
        policy=services.live.state(),
        discovery=services.discoverer.state(),
        store=None if services.exchange is None else store_state(services.exchange, now_s),
        relay=_relay_state(services, now_s),
    )


def _relay_state(services: Services, now_s: float) -> RelayState:
    """How replicas are spoken to."""
    attempts, ejections = services.attempts, services.outliers.ejections
    return RelayState(
        retries_left=attempts.budget.left(now_s),
        retries_refused_total=attempts.budget.refused_total,
        timeouts_total=dict(attempts.timeouts),
        buffered_bytes=services.upstream.buffered_bytes,
        ejections_total=tuple((name, reason.value, times) for name, by in ejections.items() for reason, times in by.items()),
    )


def tenant_states(gate: Gate, now_s: float) -> tuple[TenantState, ...]:
    """Tenants that use a rate, and with shares those that hold something."""
    names = dict.fromkeys([*gate.rates.tenants(), *(gate.shares.holding() if gate.shares.active else ())])
    held = (gate.shares.held_blocks(name, gate.fleet) if gate.shares.active else None for name in names)
    return tuple(
        TenantState(name, tuple(gate.rates.left(name, now_s).items()), blocks) for name, blocks in zip(names, held, strict=True)
    )


def store_state(exchange: Exchange, now_s: float) -> StoreState:
    """How this proxy stands with the store and the others."""
    sharing, member = exchange.sharing, exchange.sharing.member
    answers = dict(sharing.answers)
    return StoreState(
        shown=sharing.store.shown,
        phase=sharing.phase,
        phase_age_s=now_s - sharing.changed_s,
        proxies=exchange.proxies,
        policies_differing=len(exchange.differing()),
        errors=dict(sharing.errors),
        granted=answers.pop(Answer.GRANTED, 0),
        refused=answers,
        granted_apart=member.granted_apart_total,
        unanswered=member.unanswered_total,
        rewrites=sharing.rewrites,
        offers_made=sharing.offers_made,
        offers_claimed=sharing.offers_claimed,
        offers_passed=sharing.offers_passed,
        outages=sharing.outages,
        holds={name: name in member.holds for name in member.gate.fleet.books},
        clock_offset_s=member.clock.offset_s,
        round_trip_s=member.clock.round_trip_s,
        last_error=sharing.last_error,
    )


def _replica_state(services: Services, watcher: ReplicaWatcher, name: str, now_s: float) -> ReplicaState:
    book = services.dispatcher.gate.fleet.books.get(name)
    if book is None:
        return ReplicaState(name, watcher.phase_seen(name), enforced=False)
    low, high = book.ledger.held_interval(book.clock.steps, 0.0)
    saturation = book.saturation
    credit = services.dispatcher.gate.fleet.warmth.of(name).credit
    return ReplicaState(
        name=name,
        phase=watcher.phase_seen(name),
        enforced=book.spec.enforced,
        usable_blocks=book.spec.usable_blocks,
        forecast_peak_blocks=book.peak_blocks(None, now_s),
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
    )
