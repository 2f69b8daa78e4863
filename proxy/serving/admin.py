"""The inside port: metrics, health, and the state of every replica for people and tests.

``GET /admin/replicas`` tells per replica, and of a data-parallel server per engine, what the gate believes beside what the engine says;
``?history=1`` adds the last comparisons, each made at the instant of its scrape. ``GET /admin/proxies`` tells who shares the
replicas, by which policy, and how this proxy stands with the store. ``GET /admin/state`` is the gate's own account of itself.
What changes something is in modules of its own (``serving.admin_overrides``, ``serving.admin_record``) and needs the admin token.
"""

from dataclasses import asdict
from math import isfinite
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.serving.admin_live import live_routes
from proxy.serving.admin_overrides import OverrideRoutes, overrides_state, response_of
from proxy.serving.admin_policy import PolicyRoutes
from proxy.serving.admin_record import record_routes
from proxy.serving.admin_report import report_routes
from proxy.serving.admin_requests import request_routes
from proxy.serving.admin_snapshot import snapshot_routes
from proxy.serving.ended import Ended
from proxy.serving.endpoints import Endpoints
from proxy.serving.exposition import exposition
from proxy.serving.plain_json import PlainJson
from proxy.serving.services import Services
from proxy.serving.state import store_state
from proxy.serving.watcher import ReplicaWatcher


def admin_app(services: Services, endpoints: Endpoints) -> Starlette:
    """Build the admin application."""

    async def metrics(_: Request) -> Response:
        return response_of(await exposition(services.telemetry, services.clock))

    async def workers_metrics(_: Request) -> Response:
        return response_of(await exposition(services.telemetry, services.clock, services.workers))

    async def health(_: Request) -> Response:
        return PlainJson({"status": "alive"})

    async def ready(_: Request) -> Response:
        return response_of(endpoints.ready())

    async def replicas(request: Request) -> Response:
        history = request.query_params.get("history") not in {None, "", "0"}
        watchers = services.watchers.values()
        return PlainJson([replica_state(services, one, name, history=history) for one in watchers for name in one.names])

    async def proxies(_: Request) -> Response:
        if services.exchange is None:
            return PlainJson({"store": None, "proxies": []})
        found = asdict(store_state(services.exchange, services.clock.now_s()))
        cards, member = found.pop("proxies"), services.exchange.sharing.member
        store_s = member.store_s(services.clock.now_s())
        for card in cards:
            card |= {"this": card["proxy"] == member.name, "seen_s_ago": max(0.0, store_s - card.pop("seen_s"))}
        return PlainJson(
            _finite({"proxy": member.name, "policy_digest": services.exchange.digest, "store": found, "proxies": cards})
        )

    async def state(_: Request) -> Response:
        gate = services.dispatcher.gate
        return PlainJson(
            {
                **overrides_state(services),
                "counters": asdict(gate.counters),
                "queue": {"requests": len(gate.queue), "tokens": gate.queue.tokens, "bytes": gate.queue.bytes},
                "open": gate.open_requests,
                "body_bytes_held": services.body_bytes_held,
                "guard_tripped": services.guard.tripped,
                "repr": repr(services.dispatcher),
            }
        )

    return Starlette(
        routes=[
            Route("/metrics", metrics),
            Route("/metrics/workers", workers_metrics),
            Route("/health", health),
            Route("/ready", ready),
            Route("/admin/replicas", replicas),
            Route("/admin/proxies", proxies),
            Route("/admin/state", state),
            *OverrideRoutes(services).routes(),
            *PolicyRoutes(services).routes(),
            *record_routes(services),
            *report_routes(services.history),
            *live_routes(services),
            *request_routes(services),
            *snapshot_routes(services),
        ],
        middleware=[Middleware(_UpToDate, services.ended)],
    )


class _UpToDate:
    """The application, which shows all that ended until it is asked."""

    def __init__(self, app: ASGIApp, ended: Ended) -> None:
        self._app = app
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._ended.tell()
        await self._app(scope, receive, send)


def _finite(value: Any) -> Any:
    """The same with null for what JSON has no number for: a bound that does not bind is infinite."""
    if isinstance(value, dict):
        return {key: _finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(one) for one in value]
    return None if isinstance(value, float) and not isfinite(value) else value


def replica_state(services: Services, watcher: ReplicaWatcher, name: str, *, history: bool) -> dict[str, Any]:
    """One replica, or one engine of a data-parallel server, as a JSON object; what is not known is null."""
    now_s = services.clock.now_s()
    book = services.dispatcher.gate.fleet.books.get(name)
    found: dict[str, Any] = {
        "name": name,
        "url": watcher.policy.url,
        "phase": watcher.phase_seen(name),
        "fault": watcher.fault,
        "facts": None if watcher.facts is None else _finite(asdict(watcher.facts)),
    }
    if book is not None:
        low, high = book.ledger.held_interval(book.clock.steps, 0.0)
        leases = book.ledger.leases.values()
        found |= {
            "usable_blocks": book.spec.usable_blocks,
            "block_size": book.spec.block_size,
            "enforced": book.spec.enforced,
            "placed_blocks": low,
            "unplaced_blocks": high - low,
            "measured_blocks": book.measured_blocks,
            "forecast_peak_blocks": book.peak_blocks(None, now_s),
            "bias_blocks": book.reconciler.bias_blocks,
            "z": book.feedback.z,
            "preemptions": book.feedback.preemptions_total,
            "leases": len(leases),
            "prefilling": sum(not lease.placed for lease in leases),
            "sequences": book.ledger.sequences,
            "running": book.running,
            "waiting": book.waiting,
            "steps_per_s": book.clock.rate_per_s,
            "seats": book.saturation.seats(now_s),
            "engine_queue": book.saturation.queue_debt,
            "prefill_tokens": book.saturation.backlog_tokens(now_s),
            "prefill_tokens_max": book.saturation.backlog_tokens_max(),
            "step_time": repr(book.saturation.step_time),
            "moved_s_ago": None if book.saturation.wedge.moved_s is None else now_s - book.saturation.wedge.moved_s,
            "binding": book.binding_last,
            "age_s": book.sample_age_s(now_s),
        }
    if history:
        found["history"] = [asdict(comparison) for comparison in watcher.history[name]]
    return found
