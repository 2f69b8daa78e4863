"""``GET /admin/report?since_s=86400``: this proxy's account of its last hours (``serving.history``), for ``kvgate report``."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from proxy.serving.access import error_answer
from proxy.serving.admin_overrides import response_of
from proxy.serving.history import MINUTE_S, MINUTES_MAX, History

SINCE_S_MIN, SINCE_S_MAX = MINUTE_S, MINUTES_MAX * MINUTE_S
SINCE_S = 86_400.0


def report_routes(history: History) -> list[Route]:
    """Where the report is had."""

    async def report(request: Request) -> Response:
        asked = request.query_params.get("since_s", str(SINCE_S))
        try:
            since_s = float(asked)
        except ValueError:
            since_s = 0.0
        if not SINCE_S_MIN <= since_s <= SINCE_S_MAX:
            message = f"since_s: got {asked!r}; allowed {SINCE_S_MIN:g} to {SINCE_S_MAX:g} seconds"
            return response_of(error_answer(400, "invalid_value", message))
        history.look()
        return Response(msgspec.json.encode(history.report(since_s)), media_type="application/json")

    return [Route("/admin/report", report, methods=["GET"])]
