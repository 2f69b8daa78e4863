"""What became of single requests: ``GET /admin/requests/ID`` and ``GET /admin/requests?last=N&tenant=…&outcome=…``.

Both answer with the newest first (``wire.decision.shown``); an outcome of ``open`` are those that have not ended. An id that another
proxy made is answered with which: ids that kvgate makes name their maker (``serving.request_ids``).
"""

import asyncio
from collections.abc import Mapping

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from proxy.core.outcome import Outcome
from proxy.ports.store import ProxyCard
from proxy.serving.access import error_answer
from proxy.serving.admin_overrides import response_of
from proxy.serving.decisions import KEPT_MAX, found_in
from proxy.serving.packed_ring import PackedRing
from proxy.serving.services import Services
from proxy.wire.decision import Decision, shown
from proxy.wire.log_text import json_plain

LAST = 50
LAST_MAX = 1000
OPEN = "open"


def request_routes(services: Services) -> list[Route]:
    """Where requests are asked about."""

    async def told(matching: Mapping[str, str], last: int, outcome: str | None) -> Response:
        opened = [] if outcome not in {None, OPEN} else services.decisions.open(last, matching)
        packed = None if outcome == OPEN else services.decisions.packed()
        words = matching if outcome is None else {**matching, "outcome": outcome}
        proxy = services.request_ids.proxy
        body = await asyncio.to_thread(_body, proxy, opened, packed, words, last)
        return Response(body, media_type="application/json")

    async def one(request: Request) -> Response:
        matching = {"request_id": request.path_params["id"]}
        found = await told(matching, LAST, None)
        if b'"requests":[]' not in found.body:
            return found
        return response_of(error_answer(404, "request_not_found", not_found(services, matching["request_id"])))

    async def several(request: Request) -> Response:
        asked = request.query_params
        text, outcome, tenant = asked.get("last", str(LAST)), asked.get("outcome"), asked.get("tenant")
        if not (text.isascii() and text.isdigit() and 1 <= int(text[:9]) <= LAST_MAX):
            return response_of(error_answer(400, "last_wrong", f"last: a whole number from 1 to {LAST_MAX}"))
        if outcome not in {None, OPEN, *Outcome}:
            names = ", ".join((OPEN, *Outcome))
            return response_of(error_answer(400, "outcome_wrong", f"outcome: one of {names}"))
        return await told({} if tenant is None else {"tenant": tenant}, int(text), outcome)

    return [Route("/admin/requests", several, methods=["GET"]), Route("/admin/requests/{id:path}", one, methods=["GET"])]


def _body(proxy: str, opened: list[Decision], packed: PackedRing | None, matching: Mapping[str, str], last: int) -> bytes:
    """What is told; in a thread, since a search through everything and a thousand records take some ten milliseconds."""
    found = opened if packed is None else opened + found_in(packed, matching, last - len(opened))
    return json_plain(msgspec.json.encode({"proxy": proxy, "requests": [shown(one) for one in found]}))


def not_found(services: Services, request_id: str) -> str:
    """What to say of an id that nobody here knows."""
    maker = services.request_ids.maker_of(request_id)
    if maker is None or maker == services.request_ids.shown:
        return (
            f"No request of this id is open, nor among the last {KEPT_MAX} that ended at this proxy since it started. Ids that clients give"
            " do not tell which proxy served them: ask the others too (/admin/proxies)."
        )
    cards: tuple[ProxyCard, ...] = () if services.exchange is None else services.exchange.proxies
    admin = next((card.admin for card in cards if services.request_ids.name_in(card.proxy) == maker), None)
    where = f"ask there, at {admin}" if admin else "it is none of those that share this proxy's replicas now"
    return f"This id was made by the proxy {maker}, not by this one: {where}."
