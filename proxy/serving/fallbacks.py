"""Where else a refused request goes: another model here, or an OpenAI-compatible API outside (a class's ``fallbacks``).

Only for want of room or of a replica, and before any byte of an answer: who has used up a rate or a share is not sent elsewhere. They are
tried in the order of the policy; the first that takes the request answers, and the header ``x-kvgate-fallback`` names it. Where none does
the client gets the refusal that came first.

Outside, the client's own key is never sent: the API's stands in its place, or none. Nothing is held or counted there.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from proxy.core.outcome import Outcome, Refusal
from proxy.core.policy import Fallback, Saturated
from proxy.ports import Receive, Send
from proxy.serving.admission import ShedError
from proxy.serving.course import Course
from proxy.serving.identity import KEY_FIELDS
from proxy.serving.intake import Intake
from proxy.serving.outgoing import answer_headers
from proxy.serving.relay import relay
from proxy.serving.relay_result import RelayEnd, RelayRequest
from proxy.serving.services import Services
from proxy.wire.answer_forms import form_of
from proxy.wire.inject import with_member

FALL_BACK_ON = frozenset({Outcome.QUEUE_TIMEOUT, Outcome.QUEUE_FULL, Outcome.DISPLACED, Outcome.NO_REPLICA})
NOT_TAKEN = frozenset({401, 403, 404, 429, 500, 502, 503, 504})  # statuses by which an API outside does not serve it either
NOT_SENT = frozenset((*KEY_FIELDS, b"host", b"x-vllm-priority"))

Admitted = Callable[[Course, Receive, Send], Awaitable[None]]


@dataclass(frozen=True, slots=True)
class Fallbacks:
    """Serves any number of requests. ``admitted`` serves one here, or raises ShedError before anything was sent."""

    services: Services
    admitted: Admitted

    async def admitted_somewhere(self, course: Course, receive: Receive, send: Send) -> None:
        """Serve it here, or where its class says that it may go instead. Raises ShedError."""
        course.at_once = course.intake.traffic_class.reroutes_first
        try:
            await self.admitted(course, receive, send)
        except ShedError as shed:
            if await self._elsewhere(course, shed.refusal, receive, send):
                return
            if not course.at_once or shed.refusal.outcome is not Outcome.QUEUE_TIMEOUT:
                raise
        else:
            return
        course.at_once = False
        await self.admitted(course, receive, send)

    async def _elsewhere(self, course: Course, refusal: Refusal, receive: Receive, send: Send) -> bool:
        """Whether one of the fallbacks answered; if not, nothing was sent."""
        traffic_class, asked = course.intake.traffic_class, course.intake
        if course.line is not None and course.line.opened:
            return False  # the client has the head of an answer already
        if Saturated.REROUTE not in traffic_class.when_saturated or refusal.outcome not in FALL_BACK_ON:
            return False
        for fallback in traffic_class.fallbacks:
            course.fallback, course.intake = fallback.label, asking(asked, fallback.model)
            if await self._try(course, fallback, receive, send):
                return True
        course.fallback, course.intake = None, asked
        return False

    async def _try(self, course: Course, fallback: Fallback, receive: Receive, send: Send) -> bool:
        if fallback.url is not None:
            return await self._outside(course, fallback, fallback.url, receive, send)
        try:
            await self.admitted(course, receive, send)
        except ShedError:
            return False
        return True

    async def _outside(self, course: Course, fallback: Fallback, url: str, receive: Receive, send: Send) -> bool:
        services, intake = self.services, course.intake
        headers = [field for field in intake.headers if field[0] not in NOT_SENT]
        headers += services.fallback_headers.get(fallback, [])
        request = RelayRequest(url, b"POST", intake.target, headers, intake.body)
        result = await relay(
            receive, send, services.upstream, request, clock=services.clock, refuse_statuses=NOT_TAKEN,
            form=form_of(intake.route), extra_headers=answer_headers(services, course),
        )  # fmt: skip
        if result.ended in {RelayEnd.REFUSED, RelayEnd.FAILED_BEFORE_HEAD}:
            return False
        course.result = result
        course.conclude()
        return True


def asking(intake: Intake, model: str | None) -> Intake:
    """The request as it asks for another model; None: for the same."""
    if model is None:
        return intake
    call = replace(intake.call, model=model)
    return replace(intake, call=call, model=model, body=with_member(intake.body, "model", model))
