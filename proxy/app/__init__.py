"""The composition root of ``kvgate serve``: builds every object, starts the loops and the two servers, ends them in order."""

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import lru_cache, partial

import httpx
import uvloop

from proxy import __version__
from proxy.adapters.clock import SystemClock
from proxy.adapters.control_http import USER_AGENT
from proxy.adapters.file_watch import FileWatch
from proxy.adapters.freed_memory import collect_regularly
from proxy.adapters.http_protocol import ConnectionRules
from proxy.adapters.kv_events import KvEventsUnavailableError
from proxy.adapters.log_output import open_log
from proxy.adapters.loop_lag import LoopLag
from proxy.adapters.web_server import ListenError, listen, serve_until
from proxy.adapters.worker_metrics import WorkerMetrics
from proxy.adapters.worker_processes import Workers
from proxy.app.building import build_services, usable
from proxy.app.replicas import check_replica
from proxy.app.tracing import tracing_of
from proxy.config.redis_url import StoreAddress
from proxy.config.settings import LogFormat, ServeSettings, SettingsError, effective_policy, policy_file
from proxy.core.policy import Limits, Policy, Store
from proxy.ports.store import SharedStore
from proxy.serving.access import AdminAccess
from proxy.serving.admin import admin_app
from proxy.serving.admin_host import LocalNames
from proxy.serving.drain import Drain, DrainPhase
from proxy.serving.endpoints import Endpoints
from proxy.serving.policy_watch import PolicyWatch
from proxy.serving.services import Services
from proxy.serving.websockets import WebSockets
from proxy.wire.connection_faults import ConnectionFault
from proxy.wire.decision_line import Line

FIRST_PROBE_S = 5.0  # after which a replica that has not answered is named in the log
GC_THRESHOLDS = 10_000, 20, 50  # a request leaves next to no cycles: looking for them every few requests finds nothing

# How long a thread that counts a long prompt may keep the event loop from going on: Python's own 5 ms is what every stream beside it would
# wait, again and again. At 1 ms the counting costs a tenth more.
SWITCH_S = 0.001

log = logging.getLogger("kvgate")


def run_serve(settings: ServeSettings) -> int:
    """Serve until SIGTERM or SIGINT. Raises SettingsError and PolicyError before anything is opened."""
    policy = usable(effective_policy(settings))
    if settings.store is not None:
        redis_store(settings.store, policy.store)  # what is wrong with it is told now, not by each worker
    form = settings.log_format or (LogFormat.CONSOLE if sys.stderr.isatty() else LogFormat.JSON)
    output = open_log(settings.log_level, form, several=settings.workers > 1)
    lines = output.take if output.as_json else None

    try:
        for replica in policy.replicas:
            check_replica(replica)
        main = listen(settings.host, settings.port)
        admins = [
            listen(settings.admin_host, settings.admin_port + index if settings.admin_port else 0)
            for index in range(settings.workers)
        ]

        def work(index: int, alive: int | None) -> int:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                return runner.run(
                    _serve(settings, policy, [main, admins[index]], alive, dict(enumerate(map(url_here, admins))), index, lines)
                )

        return work(0, None) if settings.workers == 1 else Workers(settings.workers, work, SystemClock()).run()
    except (ListenError, KvEventsUnavailableError) as error:
        sys.stderr.write(f"kvgate serve: {error}\n")
        return 1


def url_here(listening: socket.socket) -> str:
    """Where a process of this machine reaches what listens there."""
    host, port = listening.getsockname()[:2]
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104  any address: the loopback will do
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


async def _serve(
    settings: ServeSettings, policy: Policy, sockets: list[socket.socket], alive: int | None, admins: dict[int, str], index: int,
    lines: Callable[[Line, float], None] | None,
) -> int:  # fmt: skip
    """``admins`` are the admin ports of all workers by number, of which we are ``index``; ``lines`` takes those of finished requests."""
    log.info("kvgate %s: mode %s, %d replica(s)", __version__, policy.mode, len(policy.replicas))
    async with httpx.AsyncClient(timeout=5.0, headers={"user-agent": USER_AGENT}) as control:
        addresses = _addresses(sockets)
        store = None if settings.store is None else redis_store(settings.store, policy.store)
        file = FileWatch(policy_file(settings))
        services = build_services(policy, store, f"http://{addresses[2]}:{addresses[3]}", settings, lines)
        watch = PolicyWatch(file, services.live, services.guard)
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, watch.reload)
        services.access = AdminAccess(settings.admin_token)
        services.tracing = tracing_of(os.environ, services.clock)
        services.workers = WorkerMetrics(admins, index, control) if len(admins) > 1 else None
        services.replicas.start()
        lag = LoopLag(asyncio.get_running_loop(), services.telemetry.loop_lag)
        tasks = [
            asyncio.create_task(_prepare(services)),
            asyncio.create_task(services.switches.run()),
            asyncio.create_task(services.history.run()),
            asyncio.create_task(services.ring.run()),
            asyncio.create_task(watch.run()),
            asyncio.create_task(services.discoverer.run()),
            asyncio.create_task(collect_regularly()),
        ]
        if services.exchange is not None:
            tasks += [asyncio.create_task(services.exchange.sharing.run()), asyncio.create_task(services.exchange.run())]
        try:
            endpoints = Endpoints(services)
            log.info("serving on http://%s:%d, metrics and state on http://%s:%d", *addresses)
            rules = partial(connection_rules, services)
            await serve_until(
                endpoints, LocalNames(admin_app(services, endpoints)), sockets, services.drain, rules, WebSockets(services), alive
            )
        finally:
            lag.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            if services.exchange is not None:
                await services.exchange.sharing.leave()
            services.dispatcher.close()
            await services.counter.aclose()
            await services.replicas.aclose()
            await services.upstream.aclose()
            services.ended.tell()
            if services.tracing is not None:
                await asyncio.to_thread(services.tracing.close)
            if store is not None:
                await store.aclose()
    return 0


def connection_rules(services: Services) -> ConnectionRules:
    """What holds for a connection that is made now, to either port."""
    return _rules(services.policy.limits, services.telemetry.connection_refused, services.drain)


@lru_cache(maxsize=1)
def _rules(limits: Limits, on_fault: Callable[[ConnectionFault], None], drain: Drain) -> ConnectionRules:
    """The same for all connections until a policy says otherwise."""
    return ConnectionRules(
        head_bytes_max=limits.head_bytes_max,
        head_s_max=limits.head_s_max,
        body_s_max=limits.body_s_max,
        on_fault=on_fault,
        ending=lambda: drain.phase is not DrainPhase.SERVING,
    )


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


async def _prepare(services: Services) -> None:
    """Say what is not there after a moment, and take what was built so far out of the collector's sight."""
    with suppress(TimeoutError):
        async with asyncio.timeout(FIRST_PROBE_S):
            await asyncio.gather(*(watcher.found.wait() for watcher in services.watchers.values()))
    for watcher in services.watchers.values():
        if watcher.facts is None:
            log.error("replica %s is not reachable yet: %s. It is used as soon as it answers.", watcher.name, watcher.fault)
    sys.setswitchinterval(SWITCH_S)
    gc.collect()
    gc.freeze()  # what lives as long as the process need not be looked at again
    gc.set_threshold(*GC_THRESHOLDS)
