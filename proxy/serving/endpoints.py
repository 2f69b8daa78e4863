"""The ASGI application clients talk to: which part of kvgate serves a request.

Raw ASGI, because the route of a request decides what a proxy costs (design §8). What becomes of a path is said by ``wire.routes``:

- *own*: answered here for the fleet (``serving.own_routes``);
- *closed*: engine control, refused (``serving.control_routes``);
- *same*: relayed untouched. Calls that take KV are admitted (``serving.calls``); the rest goes to the replica with the least outstanding
  requests (``serving.pass_through``).
"""

from proxy.core.outcome import Outcome, Refusal
from proxy.ports import Headers, Receive, Send
from proxy.serving.call_ends import Flowing
from proxy.serving.calls import Calls
from proxy.serving.client import NamedSend, link_in
from proxy.serving.control_routes import ControlRoutes
from proxy.serving.cross_origin import CrossOrigin
from proxy.serving.drain import draining
from proxy.serving.identity import caller_of, key_refusal
from proxy.serving.intake import Intake, read_intake
from proxy.serving.own_routes import OwnRoutes
from proxy.serving.pass_through import PassThrough
from proxy.serving.request_ids import in_body, named
from proxy.serving.response_routes import ResponseRoutes, response_id_of
from proxy.serving.services import (
    BodyCutOffError,
    BodyTooLargeError,
    Scope,
    Services,
    announced_bytes,
    read_body,
    send_answer,
    target_of,
)
from proxy.wire.answers import Answer, error_shape
from proxy.wire.call import CallKind
from proxy.wire.lax import UnreadableCallError
from proxy.wire.read_call import CALL_ROUTES, call_route
from proxy.wire.routes import RouteKind, kind_of


class Endpoints:
    """The application."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._responses = ResponseRoutes(services)
        self._calls = Calls(services, self._responses)
        self._own = OwnRoutes(services)
        self._control = ControlRoutes(services)
        self._pass_through = PassThrough(services)
        self._cross_origin = CrossOrigin(services)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request; other scope types are refused by the server's settings."""
        assert scope["type"] == "http", scope["type"]
        path, method = str(scope["path"]), str(scope["method"])
        kind = kind_of(method, path)
        services = self._services
        headers: Headers = scope["headers"]  # type: ignore[assignment]
        request_id, given = services.request_ids.of(headers)
        named_send = NamedSend(send, request_id, self._cross_origin.of(headers), link_in(scope))
        if kind is RouteKind.OWN:
            closed = key_refusal(services.policy, headers) if path.startswith("/v1/") else None
            answer = await self._own.answer(path) if closed is None else self._refused_unread(closed, path)
            await send_answer(named_send, answer)
            return
        refused = refused_now(services, headers, keyless=method == "OPTIONS")
        if refused is not None:
            await send_answer(named_send, self._refused_unread(refused, path))
            return
        with services.drain.request():
            try:
                if kind is RouteKind.CLOSED:
                    await self._control.serve(renamed(scope, request_id), receive, named_send)
                else:
                    flowing = await self._forwarded(scope, receive, named_send, given=given)
                    if flowing is not None:
                        if named_send.link is not None:
                            named_send.link.forget_request()
                        del scope, receive, send, headers, named_send  # they would lie here as long as the stream flows
                        await flowing.run()
            except BodyCutOffError:
                return
            except BodyTooLargeError:
                await send_answer(named_send, self._refused_unread(self._too_large(), path))

    async def _forwarded(self, scope: Scope, receive: Receive, send: NamedSend, *, given: bool) -> Flowing | None:
        services, path, method = self._services, str(scope["path"]), str(scope["method"])
        arrived_s = services.clock.now_s()
        body = await read_body(receive, services.policy.limits.body_bytes_max, announced_bytes(scope))
        services.body_bytes_held += (held_bytes := len(body))
        try:
            if not given:
                send.request_id = in_body(body) or send.request_id
                scope = renamed(scope, send.request_id)
            route = call_route(path) if method == "POST" else None
            intake = None if route is None else await self._intake(CALL_ROUTES[route], scope, route, body, arrived_s)
            if intake is not None:
                del body  # the intake has it, and lets go of it once it is sent
                return await self._calls.serve(intake, receive, send)
            response_id = response_id_of(method, path)
            if response_id is not None:
                await self._responses.serve(response_id, scope, body, receive, send)
                return None
            await self._pass_through.serve(scope, method, body, receive, send)
            return None
        finally:
            services.body_bytes_held -= held_bytes

    async def _intake(self, kind: CallKind, scope: Scope, route: str, body: bytes, arrived_s: float) -> Intake | None:
        """A call as far as it is read; None when only the engine can say what is wrong with its body."""
        headers = list(scope["headers"])  # type: ignore[call-overload]
        try:
            return await read_intake(
                self._services, kind, route, target_of(scope), headers, body, arrived_s, caller=caller_of(scope)
            )
        except UnreadableCallError:
            return None

    def _refused_unread(self, refusal: Refusal, path: str) -> Answer:
        self._services.telemetry.refused_unread(refusal)
        return self._services.refused(refusal, error_shape(path))

    def _too_large(self) -> Refusal:
        limit = self._services.policy.limits.body_bytes_max
        message = f"The request's body is larger than the {limit} bytes this proxy takes."
        key = "limits.body_max"
        return Refusal(Outcome.NEVER_FITS, gate=key, message=message, limit=limit, unit="bytes", policy_key=key)

    def ready(self) -> Answer:
        """Whether load balancers should send requests here."""
        return self._own.ready()


def renamed(scope: Scope, request_id: bytes) -> Scope:
    """The same request under this id."""
    headers: Headers = scope["headers"]  # type: ignore[assignment]
    return {**scope, "headers": named(headers, request_id)}


def refused_now(services: Services, headers: Headers, *, keyless: bool = False) -> Refusal | None:
    """Why a request is not taken, whatever it asks for: nobody's is at this moment, or not with that key. None: it is.

    ``keyless``: it needs none, as browsers send none with the question what they may ask for.
    """
    if services.drain.refusing:
        return draining()
    refusal = None if keyless else key_refusal(services.policy, headers)
    if refusal is not None:
        return refusal
    limit, key = services.policy.limits.connections_max, "limits.connections_max"
    if services.drain.under_way < limit:
        return None
    message = f"This proxy has {limit} requests under way, as many as it takes."
    return Refusal(
        Outcome.QUEUE_FULL, gate=key, message=message, measured=limit + 1, limit=limit, unit="requests", policy_key=key,
        retry_after_s=1.0,
    )  # fmt: skip
