"""The ASGI application clients talk to: routes, own answers, pass-through.

Raw ASGI, because the route of a request decides what a proxy costs (design §8). Three kinds of path:

- calls that take KV: chat and text completions, admitted (``serving.calls``);
- kvgate's own: ``/health`` (alive), ``/ready``, ``/metrics``;
- everything else goes to the replica with the least outstanding requests, untouched.
"""

import msgspec

from proxy.core.outcome import Outcome, Refusal
from proxy.core.replica import ReplicaPhase
from proxy.ports import Receive, Send
from proxy.ports.store import StorePhase
from proxy.serving.calls import Calls
from proxy.serving.drain import DrainPhase
from proxy.serving.intake import read_intake
from proxy.serving.relay import RelayEnd, RelayRequest, relay
from proxy.serving.services import BodyCutOffError, BodyTooLargeError, Scope, Services, read_body, send_answer
from proxy.wire.answers import Answer, answer
from proxy.wire.call import CallKind
from proxy.wire.openai import UnreadableCallError

CALLS = {"/v1/chat/completions": CallKind.CHAT, "/v1/completions": CallKind.COMPLETIONS}
JSON = (b"content-type", b"application/json")


def json_answer(status: int, value: object) -> Answer:
    """An answer of our own."""
    body = msgspec.json.encode(value)
    return Answer(status, (JSON, (b"content-length", b"%d" % len(body))), body)


class Endpoints:
    """The application."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._calls = Calls(services)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request; other scope types are refused by the server's settings."""
        assert scope["type"] == "http", scope["type"]
        path, method = str(scope["path"]), str(scope["method"])
        own = self._own(path, method)
        if own is not None:
            await send_answer(send, own)
            return
        services = self._services
        if services.drain.refusing:
            message = "This proxy is shutting down."
            refusal = Refusal(Outcome.DRAINING, gate="drain", message=message, policy_key="relay.drain_accept", retry_after_s=1.0)
            await send_answer(send, answer(refusal, jitter=services.chance(), brief=services.brief))
            return
        if services.drain.under_way >= services.policy.limits.connections_max:
            await send_answer(send, answer(self._too_many(), jitter=services.chance(), brief=services.brief))
            return
        with services.drain.request():
            await self._forwarded(scope, path, method, receive, send)

    async def _forwarded(self, scope: Scope, path: str, method: str, receive: Receive, send: Send) -> None:
        services = self._services
        arrived_s = services.clock.now_s()
        try:
            body = await read_body(receive, services.policy.limits.body_bytes_max)
        except BodyCutOffError:
            return
        except BodyTooLargeError:
            await send_answer(send, answer(self._too_large(), jitter=0.0, brief=services.brief))
            return
        services.body_bytes_held += len(body)
        try:
            kind = CALLS.get(path) if method == "POST" else None
            if kind is not None and await self._call(kind, scope, path, body, arrived_s, receive, send):
                return
            await self._pass(scope, method, body, receive, send)
        finally:
            services.body_bytes_held -= len(body)

    async def _call(
        self, kind: CallKind, scope: Scope, path: str, body: bytes, arrived_s: float, receive: Receive, send: Send
    ) -> bool:
        """Serve a call; False when only the engine can say what is wrong with its body."""
        headers = list(scope["headers"])  # type: ignore[call-overload]
        try:
            intake = await read_intake(self._services, kind, path, target_of(scope), headers, body, arrived_s)
        except UnreadableCallError:
            return False
        await self._calls.serve(intake, receive, send)
        return True

    async def _pass(self, scope: Scope, method: str, body: bytes, receive: Receive, send: Send) -> None:
        """Forward as it came to the replica with the least outstanding requests; once more elsewhere if that one is gone."""
        services = self._services
        headers = list(scope["headers"])  # type: ignore[call-overload]
        tried: set[str] = set()
        error = "none is configured"
        while len(tried) <= services.policy.relay.reroutes_max:
            name = services.outstanding.least(excluded=frozenset(tried))
            if name is None:
                break
            tried.add(name)
            watcher = services.watchers[name]
            sent = services.upstream_headers(name, headers)
            request = RelayRequest(watcher.policy.url, method.encode(), target_of(scope), sent, body)
            with services.outstanding.sent(name):
                result = await relay(receive, send, services.upstream, request, clock=services.clock)
            if result.ended is not RelayEnd.FAILED_BEFORE_HEAD:
                return
            watcher.suspect()
            error = str(result.error)
            if result.error is not None and result.error.kind != "connect":
                break  # it may have been acted on: not ours to repeat
        message = f"No replica could be spoken to: {error}"
        refusal = Refusal(Outcome.UPSTREAM_FAILED, gate="reroutes", message=message, policy_key="relay.reroutes_max")
        await send_answer(send, answer(refusal, jitter=services.chance(), brief=services.brief))

    def _too_many(self) -> Refusal:
        limit, key = self._services.policy.limits.connections_max, "limits.connections_max"
        message = f"This proxy has {limit} requests under way, as many as it takes."
        return Refusal(
            Outcome.QUEUE_FULL, gate=key, message=message, measured=limit + 1, limit=limit, unit="requests", policy_key=key,
            retry_after_s=1.0,
        )  # fmt: skip

    def _too_large(self) -> Refusal:
        limit = self._services.policy.limits.body_bytes_max
        message = f"The request's body is larger than the {limit} bytes this proxy takes."
        key = "limits.body_max"
        return Refusal(Outcome.NEVER_FITS, gate=key, message=message, limit=limit, unit="bytes", policy_key=key)

    # ---- own

    def _own(self, path: str, method: str) -> Answer | None:
        if method not in {"GET", "HEAD"}:
            return None
        if path == "/health":
            return json_answer(200, {"status": "alive"})
        if path == "/ready":
            return self.ready()
        if path == "/metrics":
            content_type, body = self._services.telemetry.exposition()
            return Answer(200, ((b"content-type", content_type), (b"content-length", b"%d" % len(body))), body)
        if path == "/v1/models" and not self._services.serving():
            return self._models_last_known()
        return None

    def ready(self) -> Answer:
        """200 from the first probe until drain; saturation and dead replicas show in the body, not in the status."""
        services = self._services
        probed = any(watcher.facts is not None for watcher in services.watchers.values())
        phase = services.drain.phase
        gate = services.dispatcher.gate
        state = {
            "ready": probed and not services.loading() and phase is DrainPhase.SERVING,
            "drain": phase,
            "mode": gate.mode,
            "guard_tripped": services.guard.tripped,
            "queued": len(gate.queue),
            "replicas": {name: {"phase": watcher.phase, "fault": watcher.fault} for name, watcher in services.watchers.items()},
        }
        if services.exchange is not None:
            sharing = services.exchange.sharing
            state["store"] = {
                "phase": sharing.phase,
                "error": None if sharing.phase is StorePhase.SHARING else sharing.last_error,
                "proxies": len(services.exchange.proxies),
                "policies_differ": [card.proxy for card in services.exchange.differing()],
            }
        return json_answer(200 if state["ready"] else 503, state)

    def _models_last_known(self) -> Answer | None:
        """During an outage clients still learn which models exist."""
        cards = {}
        for watcher in self._services.watchers.values():
            if watcher.facts is not None and watcher.phase is not ReplicaPhase.PROBING:
                for model in watcher.facts.models:
                    length = watcher.facts.context_tokens_max
                    cards[model] = {"id": model, "object": "model", "owned_by": "vllm", "max_model_len": length}
        return json_answer(200, {"object": "list", "data": list(cards.values())}) if cards else None


def target_of(scope: Scope) -> bytes:
    """Path and query as they came."""
    raw, query = scope["raw_path"], scope["query_string"]
    assert isinstance(raw, bytes)
    assert isinstance(query, bytes)
    return raw + b"?" + query if query else raw
