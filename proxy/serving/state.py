"""The process's state as one value, for metrics.

It is read in goes: the generator yields where the event loop may see to something else, so that many replicas or a long queue hold nobody
up. Each replica is read at one moment, everything else at the last.
"""

import asyncio
from collections.abc import Callable, Mapping

from proxy.core.gate import Gate
from proxy.core.override import MODE
from proxy.core.pool_size import PoolDemand, PoolSizes
from proxy.core.queue_census import QueueCensus
from proxy.core.shared import Answer
from proxy.ports.relay import RelayState
from proxy.ports.replica_state import ReplicaState
from proxy.ports.state import PoolState, ProcessState, StateReading, TenantState
from proxy.ports.store import StorePhase, StoreState
from proxy.serving.exchange import Exchange
from proxy.serving.replica_state import replica_state
from proxy.serving.services import Services

ENTRIES_AT_ONCE = 1000  # about half a millisecond
BLOCK_SIZE_UNKNOWN = 16


def process_state(services: Services) -> StateReading:
    """Read everything once, a little at a time."""
    gate = services.dispatcher.gate
    replicas = []
    pools = PoolSizes(services.clock.now_s(), _counts_foreign(services))
    for watcher in list(services.watchers.values()):
        for name in watcher.names:
            replica = replica_state(services, watcher, name, services.clock.now_s())
            replicas.append(replica)
            if (book := gate.fleet.books.get(name)) is not None:
                pools.add(book, replica.margin_blocks or 0.0)
            yield
    census = QueueCensus(services.clock.now_s())
    waiting = gate.queue.entries()
    block_size = next((book.spec.block_size for book in gate.fleet), BLOCK_SIZE_UNKNOWN)
    for begin in range(0, len(waiting), ENTRIES_AT_ONCE):
        census.take(waiting[begin : begin + ENTRIES_AT_ONCE], block_size)
        yield
    pools.queued(census.wanted_by_model)
    held = (yield from gate.shares.held_by_tenant(list(gate.fleet))) if gate.shares.active else {}
    tenants = tenant_states(gate, services.clock.now_s(), census.requests_by_tenant, held)
    return _process_state(services, tuple(replicas), tenants, census, pools)


def _counts_foreign(services: Services) -> Callable[[str], bool]:
    """Whether what bypasses kvgate on a replica is ours to tell of: of several proxies it is whoever scrapes there."""
    exchange = services.exchange
    if exchange is None:
        return lambda _: True
    sharing = exchange.sharing
    if sharing.phase is not StorePhase.SHARING:
        return lambda _: False  # what the other proxies have reads as foreign then
    return lambda name: name in sharing.member.holds


def _process_state(
    services: Services,
    replicas: tuple[ReplicaState, ...],
    tenants: tuple[TenantState, ...],
    census: QueueCensus,
    pools: PoolSizes,
) -> ProcessState:
    gate, policy = services.dispatcher.gate, services.policy
    counts = services.counter.stats()
    now_s = services.clock.now_s()
    queue, limits = policy.queue, policy.limits
    overrides = services.switches.overrides
    said = overrides.in_force(MODE, now_s)
    return ProcessState(
        mode=gate.mode,
        guard_tripped=services.guard.tripped,
        replicas=replicas,
        queue_requests=len(gate.queue),
        queue_tokens=gate.queue.tokens,
        queue_bytes=gate.queue.bytes,
        queue_oldest_s=census.oldest_s,
        degraded_total=gate.counters.degraded,
        queue_by_class=tuple((name, requests, tokens) for name, (requests, tokens) in gate.queue.by_class.items()),
        queue_oldest_by_class=tuple(census.oldest_s_by_class.items()),
        tenants=tenants,
        pools=tuple(_pool_state(pool) for pool in pools.demands()),
        open_requests=gate.open_requests,
        body_bytes_held=services.body_bytes_held,
        websockets=services.websockets,
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
        tasks=len(asyncio.all_tasks()),
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


def _pool_state(pool: PoolDemand) -> PoolState:
    return PoolState(
        pool.pool, len(pool.servers), pool.running_blocks, pool.queued_blocks, pool.foreign_blocks, pool.budget_blocks,
        pool.replicas_wanted,
    )  # fmt: skip


def tenant_states(gate: Gate, now_s: float, queued: Mapping[str, int], held: Mapping[str, float]) -> tuple[TenantState, ...]:
    """Tenants that wait (``queued`` by name) or use a rate, and with shares those that hold something (``held``, blocks)."""
    shared = gate.shares.active
    return tuple(
        TenantState(
            name, tuple(gate.rates.left(name, now_s).items()), held.get(name, 0.0) if shared else None, queued.get(name, 0)
        )
        for name in dict.fromkeys([*queued, *gate.rates.tenants(), *held])
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
        granted_ahead=member.advances.granted_total,
        ahead_refused=member.advances.refused_total,
        ahead_blocks=member.advances.blocks,
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
