"""Forwards what needs no place, as it came, to the replica with the least outstanding requests.

Where replicas serve different models, only those that serve the one named in the body take it; whoever is there says 404 to a model that
nobody serves.
"""

import asyncio
from dataclasses import dataclass

import msgspec

from proxy.core.outcome import Outcome, Refusal
from proxy.ports import Headers, Receive, Send
from proxy.serving.intake import PARSE_INLINE_BYTES_MAX
from proxy.serving.relay import relay
from proxy.serving.relay_result import RelayEnd, RelayRequest
from proxy.serving.services import Scope, Services, send_answer, target_of
from proxy.wire.answers import error_shape
from proxy.wire.form_fields import read_form


class _Body(msgspec.Struct):
    model: str | None = None


SAFE = frozenset({"GET", "HEAD", "OPTIONS"})  # RFC 9110: they change nothing, so they may be sent again


@dataclass(frozen=True, slots=True)
class PassThrough:
    """Serves any number of requests; the state is in ``Services``."""

    services: Services

    async def _model(self, headers: Headers, body: bytes) -> str | None:
        """The model that decides on the replica; None where any will do."""
        facts = [watcher.facts for watcher in self.services.watchers.values() if watcher.facts is not None]
        if not body or all(one.models == facts[0].models for one in facts):
            return None
        form = any(name == b"content-type" and value.startswith(b"multipart/form-data") for name, value in headers)
        read = model_of_form if form else model_of_json
        model = read(body) if len(body) <= PARSE_INLINE_BYTES_MAX else await asyncio.to_thread(read, body)
        return model if any(model in one.models for one in facts) else None

    async def serve(self, scope: Scope, method: str, body: bytes, receive: Receive, send: Send) -> None:
        """Forward to one replica; once more elsewhere if that one is gone."""
        services = self.services
        headers = list(scope["headers"])  # type: ignore[call-overload]
        tried: set[str] = set()
        error = ""
        model = await self._model(headers, body)
        while len(tried) <= services.policy.relay.reroutes_max:
            name = services.outstanding.least(model, frozenset(tried))
            if name is None:
                break
            tried.add(name)
            watcher = services.watchers[name]
            sent = services.upstream_headers(name, headers)
            request = RelayRequest(watcher.policy.url, method.encode(), target_of(scope), sent, body, repeatable=method in SAFE)
            with services.outstanding.sent(name):
                own = services.passed(name)
                result = await relay(receive, send, services.upstream, request, clock=services.clock, extra_headers=own)
            if result.ended is not RelayEnd.FAILED_BEFORE_HEAD:
                return
            watcher.suspect()
            error = str(result.error)
            if result.error is not None and result.error.kind != "connect" and method not in SAFE:
                break  # it may have been acted on: not ours to repeat
        if not tried:
            message = "There is no replica that could take this at the moment."
            refusal = Refusal(Outcome.NO_REPLICA, gate="replicas", message=message, retry_after_s=1.0)
            await send_answer(send, services.refused(refusal, error_shape(str(scope["path"]))))
            return
        message = f"No replica could be spoken to: {error}"
        refusal = Refusal(Outcome.UPSTREAM_FAILED, gate="reroutes", message=message, policy_key="relay.reroutes_max")
        await send_answer(send, services.refused(refusal, error_shape(str(scope["path"]))))


def model_of_json(body: bytes) -> str | None:
    """The model that a JSON body names; None where it names none."""
    try:
        return msgspec.json.decode(body, type=_Body).model
    except (msgspec.DecodeError, RecursionError):
        return None


def model_of_form(body: bytes) -> str | None:
    """The model that a form with files names; None where it names none."""
    form = read_form(body)
    return None if form is None else form.texts.get("model")
