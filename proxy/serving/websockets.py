"""WebSockets (vLLM's ``/v1/realtime``, and what plugins add): passed through to the replica with the least outstanding requests.

They hold no place: what they will take of a KV cache is not known when they open, and to know it later their frames would have to be read;
it shows as foreign traffic in the measurement, and what is admitted beside them leaves room for it. While one is open it counts as a
request under way, so ``limits.connections_max`` bounds them together with requests and a drain waits for them; and as one outstanding
on its replica.
"""

from contextlib import ExitStack
from dataclasses import dataclass
from urllib.parse import parse_qs

from proxy.core.outcome import Outcome, Refusal
from proxy.ports import Headers
from proxy.ports.tunnels import Tunnel
from proxy.serving.access import error_answer
from proxy.serving.endpoints import refused_now
from proxy.serving.request_ids import NAME, named
from proxy.serving.services import Services
from proxy.wire.answers import Answer
from proxy.wire.routes import closed_path


@dataclass(frozen=True, slots=True)
class WebSockets:
    """Implements ``ports.tunnels.Tunnels``."""

    services: Services

    def open(self, method: bytes, path: str, target: bytes, headers: Headers) -> Tunnel | Answer:
        """Least outstanding, among the replicas of the model that the query names if they are known."""
        services = self.services
        request_id, _ = services.request_ids.of(headers)
        refusal = refused_now(services, headers)
        if refusal is not None:
            return self._answer(refusal, request_id)
        if method != b"GET":
            return _named(error_answer(405, "method_not_allowed", "A WebSocket is opened with GET."), request_id)
        if closed_path(path) is not None:
            return _named(error_answer(403, "route_closed", f"{closed_path(path)} is closed to WebSockets."), request_id)
        model = parse_qs(target.partition(b"?")[2].decode("latin-1")).get("model", [None])[0]
        name = services.outstanding.least(model) or services.outstanding.least()
        if name is None:
            message = "No replica is there that could take a WebSocket."
            return self._answer(Refusal(Outcome.NO_REPLICA, gate="replicas", message=message, retry_after_s=1.0), request_id)
        held = ExitStack()
        held.enter_context(services.drain.request())
        held.enter_context(services.outstanding.sent(name))
        services.websockets += 1
        held.callback(self._ended)
        sent = named(services.upstream_headers(name, headers), request_id)
        connect_s = services.policy.relay.connect_s
        return Tunnel(name, services.watchers[name].policy.url, target, sent, request_id, connect_s, held.close)

    def _ended(self) -> None:
        self.services.websockets -= 1

    def failed(self, tunnel: Tunnel, message: str) -> Answer:
        """502; the replica is looked at anew."""
        watcher = self.services.watchers.get(tunnel.replica)
        if watcher is not None:
            watcher.suspect()
        refusal = Refusal(Outcome.UPSTREAM_FAILED, gate="replica", message=message, retry_after_s=1.0)
        return self._answer(refusal, tunnel.request_id)

    def _answer(self, refusal: Refusal, request_id: bytes) -> Answer:
        return _named(self.services.refused(refusal), request_id)


def _named(reply: Answer, request_id: bytes) -> Answer:
    return Answer(reply.status, (*reply.headers, (NAME, request_id)), reply.body)
