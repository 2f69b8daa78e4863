"""Engine control behind kvgate: refused with 403, or, where ``passthrough.allow`` opens the path, sent to the replicas that are named.

An opened path takes the admin token (``serving.access``) and a target in the header ``x-kvgate-replica``: a replica's name, whose answer
is relayed as it is, or ``all``, which is answered with one JSON object of every replica's status and body. Neither header reaches an
engine. Only the path as the engine itself spells it can be opened; its other spellings stay closed.
"""

import asyncio
import json
import logging
from dataclasses import dataclass
from typing import Any

from proxy.core.outcome import Outcome, Refusal
from proxy.ports import Headers, Receive, Send, UpstreamError
from proxy.serving.access import HEADER as TOKEN_HEADER
from proxy.serving.access import error_answer
from proxy.serving.intake import header_fields
from proxy.serving.own_routes import json_answer
from proxy.serving.relay import relay
from proxy.serving.relay_result import RelayEnd, RelayRequest
from proxy.serving.services import Scope, Services, announced_bytes, read_body, send_answer, target_of
from proxy.serving.whole_answer import read_answer
from proxy.wire.answers import Answer
from proxy.wire.routes import closed_path, opened

TARGET_HEADER = "x-kvgate-replica"
ALL = "all"
ANSWER_BYTES_MAX = 1024 * 1024  # of each replica where all are asked: their answers are held together
KEY = "passthrough.allow"

log = logging.getLogger("kvgate.control")


@dataclass(frozen=True, slots=True)
class ControlRoutes:
    """Serves the closed paths."""

    services: Services

    def refusal(self, path: str, fields: dict[str, str]) -> Answer | None:
        """What to answer instead of forwarding; None where the caller may and has said where to. ``fields`` has lower-case names."""
        if not opened(path, self.services.policy.passthrough.allow):
            message = f"{closed_path(path)} controls the engine itself and is closed. An operator can open it with {KEY}."
            return error_answer(403, "route_closed", message)
        refused = self.services.access.refusal(fields)
        if refused is not None:
            return refused
        names = [*self.services.watchers, ALL]
        if fields.get(TARGET_HEADER) not in names:
            message = f"Say in the header {TARGET_HEADER} which replica is meant: one of {', '.join(names)}."
            return error_answer(400, "replica_not_named", message)
        return None

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Refuse or forward. Raises what ``read_body`` raises."""
        path, method = str(scope["path"]), str(scope["method"])
        headers: Headers = list(scope["headers"])  # type: ignore[call-overload]
        fields = header_fields(headers)
        refused = self.refusal(path, fields)
        if refused is not None:
            await send_answer(send, refused)
            return
        target = fields[TARGET_HEADER]
        body = await read_body(receive, self.services.policy.limits.body_bytes_max, announced_bytes(scope))
        log.warning("control.sent method=%s path=%s replica=%s", method, path, target)
        if target == ALL:
            await self._to_all(scope, method, headers, body, send)
            return
        request = self._request(target, scope, method, headers, body)
        with self.services.outstanding.sent(target):
            own = self.services.passed(target)
            result = await relay(receive, send, self.services.upstream, request, clock=self.services.clock, extra_headers=own)
        if result.ended is RelayEnd.FAILED_BEFORE_HEAD:  # sent once: whether it was acted on is not known
            message = f"Replica {target} could not be spoken to: {result.error}"
            refusal = Refusal(Outcome.UPSTREAM_FAILED, gate="replica", message=message)
            await send_answer(send, self.services.refused(refusal, retry_budget=False, replica=target))

    def _request(self, name: str, scope: Scope, method: str, headers: Headers, body: bytes) -> RelayRequest:
        services = self.services
        dropped = {TARGET_HEADER.encode(), TOKEN_HEADER.encode()}
        if services.access.refusal({"authorization": header_fields(headers).get("authorization", "")}) is None:
            dropped.add(b"authorization")  # it was the admin token, which is no engine's business
        sent = services.upstream_headers(name, headers, dropped=frozenset(dropped))
        return RelayRequest(services.watchers[name].policy.url, method.encode(), target_of(scope), sent, body)

    async def _to_all(self, scope: Scope, method: str, headers: Headers, body: bytes, send: Send) -> None:
        names = list(self.services.watchers)
        requests = [self._request(name, scope, method, headers, body) for name in names]
        answers = dict(zip(names, await asyncio.gather(*(self._ask(request) for request in requests)), strict=True))
        well = bool(answers) and all(200 <= (one["status"] or 0) < 300 for one in answers.values())
        await send_answer(send, json_answer(200 if well else 502, answers))

    async def _ask(self, request: RelayRequest) -> dict[str, Any]:
        """One replica's status and body; status null, and why, where it gave none."""
        upstream = self.services.upstream
        try:
            response = await upstream.open(request.base_url, request.method, request.target, request.headers, request.body)
            try:
                return {
                    "status": response.status,
                    "body": _readable((await read_answer(response, ANSWER_BYTES_MAX))[:ANSWER_BYTES_MAX]),
                }
            finally:
                response.close()
        except UpstreamError as error:
            return {"status": None, "error": str(error)}


def _readable(body: bytes) -> Any:
    """JSON as such, anything else as text."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return body.decode("utf-8", "replace")
