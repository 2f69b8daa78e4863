"""Puts the parts of one process together; nothing is started."""

import itertools
import logging
import os
import random
import socket
import uuid
from collections.abc import Callable

from proxy.adapters.clock import SystemClock
from proxy.adapters.memory_store import MemoryStore
from proxy.adapters.telemetry import PrometheusTelemetry
from proxy.adapters.tokenizer_loader import TokenizerLoader
from proxy.adapters.upstream import HttpUpstream, UpstreamLimits
from proxy.adapters.upstream_bounds import Patience
from proxy.app.replicas import replica_parts, source_of
from proxy.config.credentials import fallback_headers
from proxy.config.settings import ServeSettings, policy_file, policy_under
from proxy.core.events import CacheTold, Event, Tick
from proxy.core.gate import Gate
from proxy.core.health import Outliers
from proxy.core.member import Member
from proxy.core.policy import Policy, ReplicaPolicy, Scrape
from proxy.core.replica import ReplicaFacts
from proxy.core.retry_budget import RetryBudget
from proxy.core.shared_health import SharedHealth
from proxy.ports.replicas import ReplicaFeed
from proxy.ports.store import ScrapeTurns, SharedStore
from proxy.serving.attempts import Attempts
from proxy.serving.decisions import Decisions
from proxy.serving.discovery import Discoverer
from proxy.serving.dispatcher import Dispatcher
from proxy.serving.drain import Drain, draining
from proxy.serving.exchange import Exchange
from proxy.serving.guard import Guard, Part, StaticCap
from proxy.serving.history import History
from proxy.serving.live_policy import LivePolicy
from proxy.serving.live_ring import LiveRing
from proxy.serving.outstanding import Outstanding
from proxy.serving.override import Switches
from proxy.serving.replica_set import ReplicaParts, ReplicaSet
from proxy.serving.request_ids import RequestIds
from proxy.serving.request_log import RequestLog
from proxy.serving.services import Services
from proxy.serving.sharing import Sharing
from proxy.serving.state import process_state
from proxy.serving.watcher import ReplicaWatcher
from proxy.wire.decision_line import Line
from proxy.wire.report import describe

log = logging.getLogger("kvgate")


def build_services(
    policy: Policy, store: SharedStore | None = None, admin: str = "",
    settings: ServeSettings | None = None, lines: Callable[[Line, float], None] | None = None,
) -> Services:  # fmt: skip
    """Put the parts together. ``store`` is what other proxies share; ``admin`` is where they find our state; ``settings`` say over which
    flags a policy is read that comes later; ``lines`` takes those of finished requests, None: the log does. Raises ReplicaUnusableError.
    """
    settings = settings or ServeSettings()
    clock = SystemClock()
    telemetry = PrometheusTelemetry(lambda: process_state(services))
    telemetry.show_parts(part.value for part in Part)
    guard = Guard(clock, lambda part: telemetry.internal_error(part.value))
    gate = Gate(policy, clock.now_s())
    exchange, leases, name = None, MemoryStore(), proxy_name()

    def tell_gate(event: Event) -> None:
        dispatcher.feed(event)

    switches = Switches(gate, clock, guard, tell_gate)
    if store is not None:
        member = Member(gate, name, policy, clock.now_s())
        sharing = Sharing(member, store, clock, guard, tell_gate, telemetry.store_called)
        exchange = Exchange(sharing, policy, admin, clock, guard, switches)
    dispatcher = Dispatcher(gate, clock, leases if exchange is None else exchange.sharing, guard)
    upstream, outliers = HttpUpstream(upstream_limits(policy)), Outliers(policy.health)
    counters = TokenizerLoader(policy, upstream, clock, lambda model: _replica_to_ask(services, model))

    replicas = _replica_set(
        lambda: services.policy.scrape, dispatcher, guard, clock, upstream, counters, None if exchange is None else exchange.sharing,
        outliers,
    )  # fmt: skip
    outstanding = Outstanding(dispatcher, replicas.watchers)
    replicas.busy = outstanding.busy
    history = History(gate, clock)
    decisions = Decisions(clock, lambda: gate.mode.value, dispatcher.considered, [RequestLog(lines).keep])
    switches.watch_over(replicas.watchers)
    live = LivePolicy(
        policy, str(policy_file(settings)), lambda said: usable(policy_under(said, settings)), replicas, clock, guard,
    )  # fmt: skip
    services = Services(
        policy=policy,
        live=live,
        clock=clock,
        dispatcher=dispatcher,
        counter=counters.counters,
        loading=counters.loading,
        upstream=upstream,
        guard=guard,
        static_cap=StaticCap(policy.limits.static_cap_per_replica),
        attempts=Attempts(clock, RetryBudget.of(policy.relay), replicas.watchers, outstanding),
        outliers=outliers,
        replicas=replicas,
        discoverer=Discoverer(replicas, clock, guard, source_of),
        watchers=replicas.watchers,
        switches=switches,
        history=history,
        ring=LiveRing(gate, clock),
        decisions=decisions,
        keepers=[history.keep, decisions.keep],
        outstanding=outstanding,
        telemetry=telemetry,
        drain=Drain(policy.relay.drain_accept_s, policy.relay.grace_s, lambda: _cut_off(services)),
        credentials=replicas.credentials,
        chance=random.random,
        request_id=_lease_names(),
        request_ids=RequestIds(name),
        exchange=exchange,
    )
    _adopt(services, counters, upstream)
    return services


def _adopt(services: Services, counters: TokenizerLoader, upstream: HttpUpstream) -> None:
    """Let the policy rule what was put together."""
    if services.exchange is not None:
        services.replicas.on_gone = services.exchange.replicas_gone
        services.exchange.health = SharedHealth(services.outliers)
        services.exchange.stored, services.stored.shared = services.stored, True
        services.exchange.on_health = lambda replica: _look_at(services, replica)
    services.replicas.apply(services.policy.replicas)
    for follower in _followers(services, counters, upstream):
        services.live.follow(follower)


def _look_at(services: Services, replica: str) -> None:
    """Other proxies' word changed how it is used."""
    watcher = services.watchers.get(replica)
    if watcher is not None:
        watcher.suspect()


def _replica_set(
    scrape: Callable[[], Scrape], dispatcher: Dispatcher, guard: Guard, clock: SystemClock, upstream: HttpUpstream,
    counters: TokenizerLoader, turns: ScrapeTurns | None, outliers: Outliers,
) -> ReplicaSet:  # fmt: skip
    """None yet."""

    def report(facts: ReplicaFacts, replica: ReplicaPolicy) -> None:
        for line in describe(facts, replica.kv_blocks):
            log.info("%s", line)
        counters.found(facts)

    def tell_cache(told: CacheTold) -> None:
        guard.run_now(Part.GATE, lambda: dispatcher.feed(told))

    def make(replica: ReplicaPolicy) -> ReplicaParts:
        return replica_parts(replica, scrape(), clock, tell_cache)

    def watch(replica: ReplicaPolicy, feed: ReplicaFeed) -> ReplicaWatcher:
        return ReplicaWatcher(replica, scrape(), feed, dispatcher, guard, report, turns, outliers)

    return ReplicaSet(make, watch, dispatcher, guard, upstream.forget)


def _followers(services: Services, counters: TokenizerLoader, upstream: HttpUpstream) -> list[Callable[[Policy], None]]:
    """Whoever keeps a part of the policy; what reads ``services.policy`` for every request need not be told."""

    def gate(policy: Policy) -> None:
        services.dispatcher.gate.adopt(policy)
        services.switches.apply()  # the mode
        services.dispatcher.feed(Tick())

    def set_policy(policy: Policy) -> None:
        services.policy = policy
        services.static_cap.cap_per_replica = policy.limits.static_cap_per_replica
        services.drain.bound(policy.relay.drain_accept_s, policy.relay.grace_s)
        services.attempts.budget.follow(policy.relay)
        services.outliers.policy = policy.health
        services.fallback_headers = {
            fallback: [(name.encode("latin-1"), value.encode("latin-1")) for name, value in pairs]
            for fallback, pairs in fallback_headers(policy, os.environ).items()
        }

    found: list[Callable[[Policy], None]] = [
        set_policy,
        gate,
        counters.follow,
        lambda policy: upstream.bound(upstream_limits(policy)),
        lambda policy: services.replicas.follow(policy.scrape),
        services.discoverer.follow,
    ]
    return found if services.exchange is None else [*found, services.exchange.follow]


def usable(policy: Policy) -> Policy:
    """The policy, if what it names is there. Raises SettingsError."""
    fallback_headers(policy, os.environ)
    return policy


def upstream_limits(policy: Policy) -> UpstreamLimits:
    """What the policy says of the way to a replica."""
    said = policy.relay
    patience = Patience(said.first_byte_s, said.idle_s, said.total_s)
    return UpstreamLimits(connect_s_max=said.connect_s, patience=patience, buffer_bytes_max=policy.limits.buffer_bytes_max)


def proxy_name() -> str:
    """A name that no other proxy has or had: numbers of reservations begin anew with it."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


def _lease_names() -> Callable[[], str]:
    """Names of leases that nobody had or will have: drawn anew for each they cost more than reading a body."""
    drawn, numbers = uuid.uuid4().hex[:20], itertools.count()
    return lambda: f"{drawn}{next(numbers):012x}"


async def _cut_off(services: Services) -> None:
    """Answer whoever still waits or runs when the grace time is over."""
    services.dispatcher.shed_waiting(draining())
    await services.upstream.aclose()


def _replica_to_ask(services: Services, model: str | None) -> str | None:
    """Where ``/tokenize`` is asked."""
    name = services.outstanding.least(model)
    return None if name is None else services.watchers[name].policy.url
