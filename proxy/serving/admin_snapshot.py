"""``GET /admin/snapshot``: everything about this process that a ticket needs, as one JSON object, for ``kvgate snapshot``.

Policy in force, health, what is measured and believed of every replica, each lease and each request that waits, the metrics, and the
decisions on the last requests; nothing of content, no keys. ``?tenant_names=1`` leaves tenants their names (``wire.snapshot``).

State is read in one go, so that it is of one moment; the decisions, some ten megabytes, are put into words in a thread. One at a time.
"""

import asyncio
import platform
from dataclasses import asdict
from datetime import UTC, datetime
from secrets import token_bytes
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from proxy import __version__
from proxy.core.lease import Lease
from proxy.core.waiting import Waiting
from proxy.serving.access import error_answer
from proxy.serving.admin_overrides import overrides_state, response_of
from proxy.serving.decisions import unpacked
from proxy.serving.exposition import exposition
from proxy.serving.own_routes import OwnRoutes
from proxy.serving.packed_ring import PackedRing
from proxy.serving.replica_state import replica_state
from proxy.serving.services import Services
from proxy.serving.state import store_state
from proxy.wire.decision import Decision
from proxy.wire.log_text import json_plain
from proxy.wire.snapshot import Names, decision_shown, hashing, metrics_shown, policy_shown

FORMAT = 1
OPEN_MAX = 10_000


def snapshot_routes(services: Services) -> list[Route]:
    """Where a snapshot is had."""
    under_way: list[None] = []

    async def snapshot(request: Request) -> Response:
        if under_way:
            return response_of(error_answer(409, "snapshot_under_way", "A snapshot is being made; one is made at a time."))
        under_way.append(None)
        try:
            named = request.query_params.get("tenant_names", "0") not in {"", "0"}
            names = None if named else hashing(token_bytes(32))
            state = _state(services, names)
            opened, ended = services.decisions.open(OPEN_MAX), services.decisions.packed()
            text = (await exposition(services.telemetry, services.clock)).body.decode()
            body = await asyncio.to_thread(_body, state, opened, ended, text, names)
        finally:
            under_way.clear()
        return Response(body, media_type="application/json")

    return [Route("/admin/snapshot", snapshot, methods=["GET"])]


def _body(state: dict[str, Any], opened: list[Decision], ended: PackedRing, metrics: str, names: Names | None) -> bytes:
    state["policy"]["in_force"] = policy_shown(state["policy"]["in_force"], names)
    state["metrics"] = metrics_shown(metrics, names).splitlines()
    state["open"] = [decision_shown(one, names) for one in opened]
    state["decisions"] = [decision_shown(unpacked(one), names) for one in reversed(ended)]
    return json_plain(msgspec.json.encode(state, enc_hook=str))  # networks of trusted callers


def _state(services: Services, names: Names | None) -> dict[str, Any]:
    """Everything but decisions and metrics, of this moment."""
    gate, now_s = services.dispatcher.gate, services.clock.now_s()
    own = OwnRoutes(services)
    live = services.live.state()
    return {
        "snapshot": FORMAT,
        "taken": datetime.fromtimestamp(services.clock.wall_s(), UTC).isoformat(timespec="seconds"),
        "proxy": services.request_ids.proxy,
        "tenants": "named" if names is None else "hashed",
        "versions": msgspec.Raw(own.version().body),
        "python": platform.python_version(),
        "kvgate": __version__,
        "health": msgspec.Raw(own.ready().body),
        "policy": asdict(live) | {"in_force": asdict(services.policy)},
        "state": {**overrides_state(services), "counters": asdict(gate.counters), "repr": repr(services.dispatcher)},
        "store": None if services.exchange is None else asdict(store_state(services.exchange, now_s)),
        "replicas": [
            asdict(replica_state(services, watcher, name, now_s))
            | {"url": watcher.policy.url, "facts": watcher.facts and asdict(watcher.facts), "fault": watcher.fault}
            | {"observations": [asdict(one) for one in watcher.history[name]]}
            for watcher in services.watchers.values()
            for name in watcher.names
        ],
        "leases": [_lease(lease, now_s, names) for book in gate.fleet for lease in book.ledger.leases.values()],
        "queue": [_waiting(entry, now_s, names) for entry in gate.queue.order()],
    }


def _lease(lease: Lease, now_s: float, names: Names | None) -> dict[str, Any]:
    demand = lease.demand
    return {
        "lease": lease.lease_id, "replica": lease.replica, "class": demand.traffic_class,
        "tenant": demand.tenant if names is None else names(demand.tenant), "sent_s_ago": now_s - lease.sent_s, "placed": lease.placed,
        "prompt_tokens": demand.prompt_tokens, "cached_tokens": lease.cached_tokens, "output_tokens": lease.output_tokens,
        "output_tokens_max": lease.output_tokens_max, "output_tokens_forecast": lease.output_tokens_forecast,
        "sequences": demand.sequences, "held": lease.held,
    }  # fmt: skip


def _waiting(entry: Waiting, now_s: float, names: Names | None) -> dict[str, Any]:
    demand = entry.demand
    return {
        "class": demand.traffic_class, "tenant": demand.tenant if names is None else names(demand.tenant), "priority": demand.priority,
        "waits_s": now_s - entry.enqueued_s, "start_by_s": entry.start_by_s - now_s, "promised": entry.promised,
        "forecast_s": entry.forecast_s, "prompt_tokens": demand.prompt_tokens, "peak_blocks": entry.peak_blocks,
        "reserved_on": None if entry.reservation is None else entry.reservation.replica, "held_by": entry.held_by or None,
    }  # fmt: skip
