"""Puts the parts of one process together; nothing is started."""

import logging
import os
import random
import socket
import uuid

import httpx

from proxy.adapters.clock import SystemClock
from proxy.adapters.memory_store import MemoryStore
from proxy.adapters.telemetry import PrometheusTelemetry
from proxy.adapters.tokenizer_loader import TokenizerLoader
from proxy.adapters.upstream import HttpUpstream, UpstreamLimits
from proxy.app.replicas import replica_parts
from proxy.core.events import CacheTold, Event
from proxy.core.gate import Gate
from proxy.core.member import Member
from proxy.core.policy import Policy, ReplicaPolicy
from proxy.core.replica import ReplicaFacts
from proxy.ports import ReplicaFeed
from proxy.ports.store import SharedStore
from proxy.serving.dispatcher import Dispatcher
from proxy.serving.drain import Drain, draining
from proxy.serving.exchange import Exchange
from proxy.serving.guard import Guard, Part, StaticCap
from proxy.serving.outstanding import Outstanding
from proxy.serving.override import Switches
from proxy.serving.replica_set import ReplicaSet
from proxy.serving.request_ids import RequestIds
from proxy.serving.services import Services
from proxy.serving.sharing import Sharing
from proxy.serving.state import process_state
from proxy.serving.watcher import ReplicaWatcher
from proxy.wire.report import describe

log = logging.getLogger("kvgate")


def build_services(policy: Policy, control: httpx.AsyncClient, store: SharedStore | None = None, admin: str = "") -> Services:
    """Put the parts together. ``store`` is what other proxies share; ``admin`` is where they find our state. Raises SettingsError,
    KvEventsUnavailableError.
    """
    clock = SystemClock()
    telemetry = PrometheusTelemetry(lambda: process_state(services))
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
    counters = TokenizerLoader(policy, control, clock, lambda model: _replica_to_ask(services, model))
    upstream = HttpUpstream(UpstreamLimits(connect_s_max=policy.relay.connect_s))

    def report(facts: ReplicaFacts, replica: ReplicaPolicy) -> None:
        for line in describe(facts, replica.kv_blocks):
            log.info("%s", line)
        counters.found(facts)

    def tell_cache(told: CacheTold) -> None:
        guard.run_now(Part.GATE, lambda: dispatcher.feed(told))

    def watch(replica: ReplicaPolicy, feed: ReplicaFeed) -> ReplicaWatcher:
        turns = None if exchange is None else exchange.sharing
        return ReplicaWatcher(replica, services.policy.scrape, feed, dispatcher, guard, report, turns)

    replicas = ReplicaSet(
        lambda replica: replica_parts(replica, services.policy.scrape, clock, tell_cache),
        watch, dispatcher, guard, upstream.forget,
    )  # fmt: skip
    outstanding = Outstanding(dispatcher, replicas.watchers)
    replicas.busy = outstanding.busy
    switches.watch_over(replicas.watchers)
    services = Services(
        policy=policy,
        clock=clock,
        dispatcher=dispatcher,
        counter=counters.counters,
        loading=counters.loading,
        upstream=upstream,
        guard=guard,
        static_cap=StaticCap(policy.limits.static_cap_per_replica),
        replicas=replicas,
        watchers=replicas.watchers,
        switches=switches,
        outstanding=outstanding,
        telemetry=telemetry,
        drain=Drain(policy.relay.drain_accept_s, policy.relay.grace_s, lambda: _cut_off(services)),
        credentials=replicas.credentials,
        chance=random.random,
        request_id=lambda: uuid.uuid4().hex,
        request_ids=RequestIds(name),
        exchange=exchange,
    )
    replicas.apply(policy.replicas)
    return services


def proxy_name() -> str:
    """A name that no other proxy has or had: numbers of reservations begin anew with it."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


async def _cut_off(services: Services) -> None:
    """Answer whoever still waits or runs when the grace time is over."""
    services.dispatcher.shed_waiting(draining())
    await services.upstream.aclose()


def _replica_to_ask(services: Services, model: str | None) -> str | None:
    """Where ``/tokenize`` is asked."""
    name = services.outstanding.least(model)
    return None if name is None else services.watchers[name].policy.url
