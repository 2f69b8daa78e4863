"""Forwards what needs no place, as it came, to the replica with the least outstanding requests."""

from dataclasses import dataclass

from proxy.core.outcome import Outcome, Refusal
from proxy.ports import Receive, Send
from proxy.serving.relay import RelayEnd, RelayRequest, relay
from proxy.serving.services import Scope, Services, send_answer, target_of
from proxy.wire.answers import answer, error_shape


@dataclass(frozen=True, slots=True)
class PassThrough:
    """Serves any number of requests; the state is in ``Services``."""

    services: Services

    async def serve(self, scope: Scope, method: str, body: bytes, receive: Receive, send: Send) -> None:
        """Forward to one replica; once more elsewhere if that one is gone."""
        services = self.services
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
        await send_answer(
            send, answer(refusal, jitter=services.chance(), brief=services.brief, shape=error_shape(str(scope["path"])))
        )
