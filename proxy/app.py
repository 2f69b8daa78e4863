"""The composition root of ``kvgate serve``: builds every object, starts the loops and the two servers, ends them in order."""

import asyncio
import gc
import logging
import os
import random
import socket
import sys
import uuid
from collections.abc import Mapping

import httpx
import uvloop

from proxy import __version__
from proxy.adapters.clock import SystemClock
from proxy.adapters.http_protocol import ConnectionBounds
from proxy.adapters.kv_block_map import KvBlockMap
from proxy.adapters.kv_events import KvEventFeed, KvEventsUnavailableError, Subscription, endpoint_of, subscription
from proxy.adapters.memory_store import MemoryStore
from proxy.adapters.scraper import VllmFeed
from proxy.adapters.telemetry import PrometheusTelemetry
from proxy.adapters.tokenizer_loader import TokenizerLoader
from proxy.adapters.upstream import HttpUpstream, UpstreamLimits
from proxy.adapters.web_server import ListenError, listen, serve_until
from proxy.adapters.worker_processes import Workers
from proxy.config.credentials import request_headers
from proxy.config.redis_url import StoreAddress
from proxy.config.settings import ServeSettings, SettingsError, effective_policy
from proxy.core.events import CacheTold, Event
from proxy.core.gate import Gate
from proxy.core.member import Member
from proxy.core.policy import Policy, ReplicaPolicy, Store
from proxy.core.replica import ReplicaFacts
from proxy.ports import Headers
from proxy.ports.store import SharedStore
from proxy.serving.access import AdminAccess
from proxy.serving.admin import admin_app
from proxy.serving.dispatcher import Dispatcher
from proxy.serving.drain import Drain
from proxy.serving.endpoints import Endpoints
from proxy.serving.exchange import Exchange
from proxy.serving.guard import Guard, Part, StaticCap
from proxy.serving.outstanding import Outstanding
from proxy.serving.override import Switches
from proxy.serving.request_ids import RequestIds
from proxy.serving.services import Services
from proxy.serving.sharing import Sharing
from proxy.serving.state import process_state
from proxy.serving.watcher import ReplicaWatcher
from proxy.wire.report import describe

FIRST_PROBE_S = 5.0  # after which a replica that has not answered is named in the log

log = logging.getLogger("kvgate")


def run_serve(settings: ServeSettings) -> int:
    """Serve until SIGTERM or SIGINT. Raises SettingsError and PolicyError before anything is opened."""
    policy = effective_policy(settings)
    credentials = {replica.name: _fields(replica) for replica in policy.replicas}
    subscribed = [(one.name, one.kv_events, subscription(one.kv_events)) for one in policy.replicas if one.kv_events is not None]
    if settings.store is not None:
        redis_store(settings.store, policy.store)  # what is wrong with it is told now, not by each worker
    who = "[%(process)d] " if settings.workers > 1 else ""
    logging.basicConfig(level=settings.log_level.upper(), format=f"%(asctime)s %(levelname)s {who}%(message)s", stream=sys.stderr)
    for name in ("httpx", "httpcore", "uvicorn.error"):
        logging.getLogger(name).setLevel(logging.WARNING)  # a line per scrape says nothing

    def work(sockets: list[socket.socket], alive: int | None = None) -> int:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(_serve(settings, policy, credentials, subscribed, sockets, alive))

    try:
        main = listen(settings.host, settings.port)
        admins = [
            listen(settings.admin_host, settings.admin_port + index if settings.admin_port else 0)
            for index in range(settings.workers)
        ]
        if settings.workers == 1:
            return work([main, *admins])
        return Workers(settings.workers, lambda index, alive: work([main, admins[index]], alive), SystemClock()).run()
    except (ListenError, KvEventsUnavailableError) as error:
        sys.stderr.write(f"kvgate serve: {error}\n")
        return 1


def _fields(replica: ReplicaPolicy) -> Headers:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in request_headers(replica, os.environ)]


async def _serve(
    settings: ServeSettings, policy: Policy, credentials: Mapping[str, Headers], subscribed: list[tuple[str, str, Subscription]],
    sockets: list[socket.socket], alive: int | None,
) -> int:  # fmt: skip
    log.info("kvgate %s: mode %s, %d replica(s)", __version__, policy.mode, len(policy.replicas))
    async with httpx.AsyncClient(timeout=5.0) as control:
        addresses = _addresses(sockets)
        store = None if settings.store is None else redis_store(settings.store, policy.store)
        services, feeds = _build(policy, credentials, control, store, f"http://{addresses[2]}:{addresses[3]}")
        services.access = AdminAccess(settings.admin_token)
        tasks = [asyncio.create_task(watcher.run()) for watcher in services.watchers.values()]
        tasks += [asyncio.create_task(_follow(services, *one)) for one in subscribed]
        tasks += [asyncio.create_task(_prepare(services)), asyncio.create_task(services.switches.run())]
        if services.exchange is not None:
            tasks += [asyncio.create_task(services.exchange.sharing.run()), asyncio.create_task(services.exchange.run())]
        try:
            endpoints = Endpoints(services)
            log.info("serving on http://%s:%d, metrics and state on http://%s:%d", *addresses)
            bounds, faults = connection_bounds(policy), services.telemetry.connection_refused
            await serve_until(endpoints, admin_app(services, endpoints), sockets, services.drain, bounds, faults, alive)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if services.exchange is not None:
                await services.exchange.sharing.leave()
            services.dispatcher.close()
            await services.counter.aclose()
            await services.upstream.aclose()
            for feed in feeds:
                await feed.aclose()
            if store is not None:
                await store.aclose()
    return 0


def connection_bounds(policy: Policy) -> ConnectionBounds:
    """What the policy says of the way in."""
    limits = policy.limits
    return ConnectionBounds(limits.head_bytes_max, limits.head_s_max, limits.body_s_max)


def redis_store(address: StoreAddress, patience: Store) -> SharedStore:
    """The store at an address; nothing is connected yet. Raises SettingsError where it cannot be used."""
    try:
        from proxy.adapters.redis_store import RedisStore  # noqa: PLC0415  redis is an extra
    except ModuleNotFoundError as error:
        raise SettingsError(["--redis: needs the package redis: pip install 'kvgate[redis]'"]) from error
    if address.ca_path is not None and not address.ca_path.is_file():
        raise SettingsError([f"--redis: got ca={address.ca_path}; allowed a file; because the store's certificate is held to it"])
    return RedisStore(address, timeout_s=patience.timeout_s, lease_s=patience.lease_s)


def _addresses(sockets: list[socket.socket]) -> tuple[object, ...]:
    return tuple(part for sock in sockets for part in sock.getsockname()[:2])


def _build(
    policy: Policy,
    credentials: Mapping[str, Headers],
    control: httpx.AsyncClient,
    store: SharedStore | None = None,
    admin: str = "",
) -> tuple[Services, list[VllmFeed]]:
    """Put the parts together; nothing is started. ``store`` is what other proxies share; ``admin`` is where they find our state."""
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
    feeds, watchers = [], {}

    def report(facts: ReplicaFacts, replica: ReplicaPolicy) -> None:
        for line in describe(facts, replica.kv_blocks):
            log.info("%s", line)
        counters.found(facts)

    for replica in policy.replicas:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in credentials[replica.name]}
        feed = VllmFeed(
            replica.name, replica.url, clock, headers=headers, timeout_s=policy.scrape.timeout_s, kv_blocks=replica.kv_blocks
        )
        feeds.append(feed)
        turns = None if exchange is None else exchange.sharing
        watchers[replica.name] = ReplicaWatcher(replica, policy.scrape, feed, dispatcher, guard, report, turns)
    switches.watch_over(watchers)
    services = Services(
        policy=policy,
        clock=clock,
        dispatcher=dispatcher,
        counter=counters.counters,
        loading=counters.loading,
        upstream=HttpUpstream(UpstreamLimits(connect_s_max=policy.relay.connect_s)),
        guard=guard,
        static_cap=StaticCap(policy.limits.static_cap_per_replica),
        watchers=watchers,
        switches=switches,
        outstanding=Outstanding(dispatcher, watchers),
        telemetry=telemetry,
        drain=Drain(policy.relay.drain_accept_s, policy.relay.grace_s),
        credentials=credentials,
        chance=random.random,
        request_id=lambda: uuid.uuid4().hex,
        request_ids=RequestIds(name),
        exchange=exchange,
    )
    return services, feeds


def proxy_name() -> str:
    """A name that no other proxy has or had: numbers of reservations begin anew with it."""
    return f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"


def _replica_to_ask(services: Services, model: str | None) -> str | None:
    """Where ``/tokenize`` is asked."""
    name = services.outstanding.least(model)
    return None if name is None else services.watchers[name].policy.url


async def _follow(services: Services, replica: str, endpoint: str, source: Subscription) -> None:
    """Tell the gate what a replica's engines say of their prefix caches, from when it is known what it serves.

    ``source`` is the first engine's; those of others are opened once it is known how many there are.
    """
    watcher, guard, dispatcher = services.watchers[replica], services.guard, services.dispatcher
    await watcher.found.wait()
    facts = watcher.facts
    names = () if facts is None else tuple(name for name in facts.models if name not in facts.adapters)

    def tell(told: CacheTold) -> None:
        guard.run_now(Part.GATE, lambda: dispatcher.feed(told))

    sources = [source, *(subscription(endpoint_of(endpoint, rank)) for rank in range(1, len(watcher.names)))]
    engines = zip(sources, watcher.names, strict=True)
    await asyncio.gather(*(KvEventFeed(one, KvBlockMap(name, names), tell).run() for one, name in engines))


async def _prepare(services: Services) -> None:
    """Say what is not there after a moment, and take what was built so far out of the collector's sight."""
    waiting = [asyncio.create_task(watcher.found.wait()) for watcher in services.watchers.values()]
    _, pending = await asyncio.wait(waiting, timeout=FIRST_PROBE_S, return_when=asyncio.ALL_COMPLETED)
    for task in pending:
        task.cancel()
    for watcher in services.watchers.values():
        if watcher.facts is None:
            log.error("replica %s is not reachable yet: %s. It is used as soon as it answers.", watcher.name, watcher.fault)
    gc.collect()
    gc.freeze()  # what lives as long as the process need not be looked at again
