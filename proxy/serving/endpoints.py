"""The ASGI application clients talk to: which part of kvgate serves a request.

Raw ASGI, because the route of a request decides what a proxy costs (design §8). What becomes of a path is said by ``wire.routes``:

- *own*: answered here for the fleet (``serving.own_routes``);
- *closed*: engine control, refused (``serving.control_routes``);
- *same*: relayed untouched. Calls that take KV are admitted (``serving.calls``); the rest goes to the replica with the least outstanding
  requests (``serving.pass_through``).
"""

import asyncio

from proxy.core.outcome import Outcome, Refusal
from proxy.ports import Headers, Receive, Send
from proxy.serving.call_ends import Flowing
from proxy.serving.calls import Calls
from proxy.serving.client import NamedSend, link_in
from proxy.serving.control_routes import ControlRoutes
from proxy.serving.cross_origin import CrossOrigin
from proxy.serving.drain import draining
from proxy.serving.identity import caller_of, key_refusal
from proxy.serving.intake import PARSE_INLINE_BYTES_MAX, intake_of, readable
from proxy.serving.own_routes import OwnRoutes
from proxy.serving.pass_through import PassThrough
from proxy.serving.request_ids import NAME, in_body, named
from proxy.serving.response_routes import ResponseRoutes, response_id_of
from proxy.serving.services import (
    BodyCutOffError,
    BodyTooLargeError,
    Scope,
    Services,
    read_body,
    send_answer,
    target_of,
)
from proxy.wire.answers import Answer, error_shape
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
        told = dict(headers)  # of repeated ones the last: who needs them all asks for them
        request_id, given = services.request_ids.of(headers) if NAME in told else (services.request_ids.made(), False)
        page = self._cross_origin.of(headers) if b"origin" in told else None
        named_send = NamedSend(send, request_id, page, link_in(scope))
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
                    announced = int(told.get(b"content-length", 0))
                    flowing = await self._forwarded(scope, receive, named_send, announced, given=given)
                    if flowing is not None:
                        if named_send.link is not None:
                            named_send.link.forget_request()
                        if flowing.flow_on():
                            return
                        del scope, receive, send, headers, told, named_send  # they would lie here as long as the stream flows
                        await flowing.run()
            except BodyCutOffError:
                return
            except BodyTooLargeError:
                await send_answer(named_send, self._refused_unread(self._too_large(), path))

    async def _forwarded(self, scope: Scope, receive: Receive, send: NamedSend, announced: int, *, given: bool) -> Flowing | None:
        services, path, method = self._services, str(scope["path"]), str(scope["method"])
        arrived_s = services.clock.now_s()
        body = await read_body(receive, services.policy.limits.body_bytes_max, announced)
        services.body_bytes_held += (held_bytes := len(body))
        try:
            if not given:
                send.request_id = in_body(body) or send.request_id
            route = call_route(path) if method == "POST" else None
            if route is not None:
                kind, read_s = CALL_ROUTES[route], services.clock.now_s()
                short = len(body) <= PARSE_INLINE_BYTES_MAX
                call = readable(kind, body) if short else await asyncio.to_thread(readable, kind, body)
                if call is not None:
                    headers: Headers = scope["headers"]  # type: ignore[assignment]
                    headers = list(headers) if given else named(headers, send.request_id)
                    caller = caller_of(scope)
                    intake = intake_of(services, call, route, target_of(scope), headers, body, arrived_s, read_s, caller=caller)
                    del body  # the intake has it, and lets go of it once it is sent
                    return await self._calls.serve(intake, receive, send)
            scope = scope if given else renamed(scope, send.request_id)
            response_id = response_id_of(method, path)
            if response_id is not None:
                await self._responses.serve(response_id, scope, body, receive, send)
                return None
            await self._pass_through.serve(scope, method, body, receive, send)
            return None
        finally:
            services.body_bytes_held -= held_bytes

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
