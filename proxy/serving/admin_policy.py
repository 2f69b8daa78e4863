"""The policy on the inside port.

    GET  /admin/policy              which one rules, from which file, since when; the file's faults, and what waits for a restart
    POST /admin/policy?dry_run=1    what a policy would change, sent as YAML: keys old and new, replicas, faults with their lines

Nothing is changed from here: the file is the truth, for this proxy and for the others that read it.
"""

import asyncio
from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from proxy.config.nodes import FILE_BYTES_MAX
from proxy.serving.access import error_answer
from proxy.serving.admin_overrides import changing, response_of
from proxy.serving.plain_json import PlainJson
from proxy.serving.services import Services

NOT_HERE = "A policy is changed in its file, %s, and rules within a second. ?dry_run=1 tells what one would change."


class PolicyRoutes:
    """The handlers, over the process's services."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """For the admin application."""
        return [
            Route("/admin/policy", self._shown, methods=["GET"]),
            Route("/admin/policy", changing(self._services, self._judged), methods=["POST"]),
        ]

    async def _shown(self, request: Request) -> Response:
        del request
        live = self._services.live
        return PlainJson(asdict(live.state()) | {"replicas": [one.name for one in self._services.replicas.wanted]})

    async def _judged(self, request: Request) -> Response:
        live = self._services.live
        if request.query_params.get("dry_run", "0") in {"", "0"}:
            return response_of(error_answer(405, "policy_is_a_file", NOT_HERE % live.file))
        text = bytearray()
        async for part in request.stream():
            text += part
            if len(text) > FILE_BYTES_MAX:
                return response_of(error_answer(413, "policy_too_large", f"A policy has at most {FILE_BYTES_MAX} bytes."))
        judged = live.judge(bytes(text), await asyncio.to_thread(live.reviewed, bytes(text)))
        for parts in judged.parts.values():
            await parts.feed.aclose()  # nothing was opened, and nothing will be
        if judged.policy is None:
            return PlainJson({"good": False, "faults": judged.faults}, 422)
        replicas = self._services.replicas.changes_by(judged.policy.replicas)
        answer: dict[str, Any] = {"good": True, "faults": [], "warnings": judged.warnings}
        answer["changes"] = [asdict(change) for change in judged.changes]
        return PlainJson(answer | {"at_restart": judged.at_restart, "replicas": asdict(replicas)})
