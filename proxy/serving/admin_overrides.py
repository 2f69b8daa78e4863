"""``/admin/mode`` and ``/admin/drains``: what is said by hand over HTTP (``core.override``, ``serving.override``).

    GET    /admin/mode                            what rules, what the policy says, and every override in force
    POST   /admin/mode    {"mode", "for_s", "reason", "by", "all"}
    DELETE /admin/mode    ?all=1&reason=&by=      the policy rules again
    POST   /admin/drains  {"replica", "for_s", "reason", "by", "all"}
    DELETE /admin/drains  ?replica=NAME&all=1&reason=&by=

Every answer is the same as GET's, with ``told_all``: false, and ``fault``, where the others could not be told; then it holds here. All but
GET need the admin token (``serving.access``).
"""

from collections.abc import Awaitable, Callable
from math import nan
from typing import Annotated, Any, Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from proxy.core.override import LASTS_S_MAX, LASTS_S_MIN, MODE, TEXT_CHARS_MAX, Override, drain_of
from proxy.serving.access import error_answer
from proxy.serving.plain_json import PlainJson
from proxy.serving.services import Services
from proxy.wire.answers import Answer

Lasting = Annotated[float, msgspec.Meta(ge=LASTS_S_MIN, le=LASTS_S_MAX)]
Reason = Annotated[str, msgspec.Meta(min_length=1, max_length=TEXT_CHARS_MAX)]
By = Annotated[str, msgspec.Meta(max_length=TEXT_CHARS_MAX)]


class ModeAsk(msgspec.Struct, forbid_unknown_fields=True):
    """A mode for a while."""

    mode: Literal["enforce", "observe", "off"]
    for_s: Lasting
    reason: Reason
    by: By = ""
    all: bool = False


class DrainAsk(msgspec.Struct, forbid_unknown_fields=True):
    """A drain for a while."""

    replica: str
    for_s: Lasting
    reason: Reason
    by: By = ""
    all: bool = False


class OverrideRoutes:
    """The switches over HTTP."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def routes(self) -> list[Route]:
        """What answers where."""

        def guarded(act: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
            return changing(self._services, act)

        return [
            Route("/admin/mode", self._shown, methods=["GET"]),
            Route("/admin/mode", guarded(self._set_mode), methods=["POST"]),
            Route("/admin/mode", guarded(self._clear_mode), methods=["DELETE"]),
            Route("/admin/drains", self._shown, methods=["GET"]),
            Route("/admin/drains", guarded(self._set_drain), methods=["POST"]),
            Route("/admin/drains", guarded(self._clear_drain), methods=["DELETE"]),
        ]

    async def _shown(self, request: Request) -> Response:
        del request
        return PlainJson(overrides_state(self._services))

    async def _set_mode(self, request: Request) -> Response:
        ask = msgspec.json.decode(await request.body(), type=ModeAsk)
        return await self._say(MODE, ask.mode, ask, request)

    async def _set_drain(self, request: Request) -> Response:
        ask = msgspec.json.decode(await request.body(), type=DrainAsk)
        if ask.replica not in self._services.watchers:
            return _unknown_replica(self._services, ask.replica)
        return await self._say(drain_of(ask.replica), "drain", ask, request)

    async def _say(self, subject: str, word: str, ask: ModeAsk | DrainAsk, request: Request) -> Response:
        services = self._services
        until_s = services.clock.now_s() + ask.for_s
        said = Override(subject, word, _line(ask.reason), _by(ask.by, request), until_s, services.request_id())
        return _done(services, await services.switches.say(said, everywhere=ask.all))

    async def _clear_mode(self, request: Request) -> Response:
        return await self._take_back(MODE, request)

    async def _clear_drain(self, request: Request) -> Response:
        services, replica = self._services, request.query_params.get("replica", "")
        if replica not in services.watchers and replica not in services.switches.overrides.drains(services.clock.now_s()):
            return _unknown_replica(services, replica)
        return await self._take_back(drain_of(replica), request)

    async def _take_back(self, subject: str, request: Request) -> Response:
        services, asked = self._services, request.query_params
        reason, by = _line(asked.get("reason", ""))[:TEXT_CHARS_MAX], _by(asked.get("by", "")[:TEXT_CHARS_MAX], request)
        everywhere = asked.get("all", "0") not in {"", "0"}
        serial = services.request_id()
        fault = await services.switches.take_back(subject, reason=reason, by=by, serial=serial, everywhere=everywhere)
        return _done(services, fault)


def changing(services: Services, act: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
    """An act that changes something: who may not is told so, and what is wrong with the body in one sentence."""

    async def checked(request: Request) -> Response:
        refusal = services.access.refusal(dict(request.headers))
        if refusal is not None:
            return response_of(refusal)
        try:
            return await act(request)
        except msgspec.DecodeError as error:  # ValidationError is one
            return response_of(error_answer(400, "invalid_body", f"The body cannot be read: {error}"))

    return checked


def seconds_asked(request: Request, name: str, default_s: float, least_s: float, most_s: float) -> float | Response:
    """The query's number of that name; 400 where it is none, or out of bounds."""
    asked = request.query_params.get(name, str(default_s))
    try:
        seconds = float(asked)
    except ValueError:
        seconds = nan
    if least_s <= seconds <= most_s:
        return seconds
    message = f"{name}: got {asked!r}; allowed {least_s:g} to {most_s:g} seconds"
    return response_of(error_answer(400, "invalid_value", message))


def response_of(answer: Answer) -> Response:
    """Starlette's form of an answer."""
    return Response(answer.body, answer.status, media_type="application/json")


def overrides_state(services: Services) -> dict[str, Any]:
    """What rules and why; ``left_s`` counts down."""
    now_s, overrides = services.clock.now_s(), services.switches.overrides

    def told(one: Override | None) -> dict[str, Any] | None:
        if one is None:
            return None
        left_s = round(one.until_s - now_s, 3)
        return {"word": one.word, "reason": one.reason, "by": one.by, "left_s": left_s, "all": overrides.shared(one)}

    gate = services.dispatcher.gate
    return {
        "mode": gate.mode,
        "policy_mode": gate.policy.mode,
        "override": told(overrides.in_force(MODE, now_s)),
        "drains": {replica: told(one) for replica, one in overrides.drains(now_s).items()},
        "proxies": 1 if services.exchange is None else max(1, len(services.exchange.proxies)),
    }


def _done(services: Services, fault: str | None) -> Response:
    state = overrides_state(services)
    return PlainJson(state if fault is None else state | {"told_all": False, "fault": fault})


def _unknown_replica(services: Services, replica: str) -> Response:
    names = ", ".join(services.watchers)
    return response_of(error_answer(404, "no_such_replica", f"No replica {replica!r}; the replicas are {names}"))


def _line(text: str) -> str:
    """One line: it stands in the log."""
    return " ".join(text.split())


def _by(text: str, request: Request) -> str:
    """Who says so, by their own word and by where they call from."""
    host = request.client.host if request.client is not None else "?"
    return f"{_line(text)} from {host}" if text.strip() else f"somebody from {host}"
