"""``GET /admin/record?for_s=600``: a recording (``serving.recording``) as it grows, JSON lines.

It needs the admin token: it costs memory, and tells who sends how much and when.
"""

from collections.abc import AsyncIterator

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from proxy.serving.access import error_answer
from proxy.serving.admin_overrides import changing, response_of, seconds_asked
from proxy.serving.recording import TAPS_MAX, Tap
from proxy.serving.services import Services

LASTS_S_MIN, LASTS_S_MAX = 1.0, 7 * 86_400.0
LASTS_S = 600.0


def record_routes(services: Services) -> list[Route]:
    """Where recordings are had."""
    under_way: list[Tap] = []

    async def record(request: Request) -> Response:
        lasts_s = seconds_asked(request, "for_s", LASTS_S, LASTS_S_MIN, LASTS_S_MAX)
        if isinstance(lasts_s, Response):
            return lasts_s
        if len(under_way) >= TAPS_MAX:
            return response_of(
                error_answer(409, "too_many_recordings", f"{TAPS_MAX} recordings are under way, as many as may be.")
            )
        tap = Tap(services, lasts_s)
        under_way.append(tap)

        async def lines() -> AsyncIterator[bytes]:
            try:
                async for line in tap.lines():
                    yield line
            finally:
                under_way.remove(tap)

        return StreamingResponse(lines(), media_type="application/jsonl")

    return [Route("/admin/record", changing(services, record), methods=["GET"])]
