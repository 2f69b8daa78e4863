"""``GET /admin/report?since_s=86400``: this proxy's account of its last hours (``serving.history``), for ``kvgate report``."""

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from proxy.serving.admin_overrides import seconds_asked
from proxy.serving.history import MINUTE_S, MINUTES_MAX, History
from proxy.wire.log_text import json_plain

SINCE_S_MIN, SINCE_S_MAX = MINUTE_S, MINUTES_MAX * MINUTE_S
SINCE_S = 86_400.0


def report_routes(history: History) -> list[Route]:
    """Where the report is had."""

    async def report(request: Request) -> Response:
        since_s = seconds_asked(request, "since_s", SINCE_S, SINCE_S_MIN, SINCE_S_MAX)
        if isinstance(since_s, Response):
            return since_s
        history.look()
        return Response(json_plain(msgspec.json.encode(history.report(since_s))), media_type="application/json")

    return [Route("/admin/report", report, methods=["GET"])]
