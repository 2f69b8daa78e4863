"""How a call ends: what its replica, the gate, metrics and log are told, once each.

``Flowing`` is a call whose answer has begun. All that it took to begin lies in a dozen frames of coroutines by then, which would lie
there as long as the stream lasts; so they return, and the task ends with them (``flow_on``). What is left to do has a task of its own.
"""

import asyncio
from dataclasses import replace

from proxy.core.outcome import Outcome
from proxy.serving.admission import Admission, Bracket, ClientGoneError, ShedError
from proxy.serving.attempts import Tried
from proxy.serving.course import Course
from proxy.serving.fingerprints import Fingerprints
from proxy.serving.guard import InternalFaultError, Part
from proxy.serving.ranks import server_of
from proxy.serving.relay import Relay
from proxy.serving.relay_result import RelayResult
from proxy.serving.response_routes import ResponseRoutes
from proxy.serving.services import Services

EXPECTED = (ShedError, ClientGoneError, InternalFaultError)


class CallEnds:
    """Ends any number of calls; the state is in ``Services``."""

    def __init__(self, services: Services, responses: ResponseRoutes, fingerprints: Fingerprints) -> None:
        self._services = services
        self._responses = responses
        self._fingerprints = fingerprints
        self.drain = services.drain
        self._background: set[asyncio.Task[None]] = set()

    def answered(self, course: Course, result: RelayResult, tried: Tried, *, others: bool) -> bool:
        """An attempt at ``course.replica`` is over; True when the request is to be tried elsewhere."""
        course.result, replica = result, course.replica
        assert replica is not None
        self._fingerprints.learn(replica, course.intake.call.kind, result)
        return self._services.attempts.again(replica, result, tried, others=others)

    def left(self, course: Course, admission: Admission, place: Bracket) -> None:
        """It needs its place no more, unless the engine works on."""
        course.conclude()
        self._keep_response(course)
        if course.goes_on:
            self._go_on(course, admission, place)
        else:
            self._account(course, admission)
            self._leave(place)

    def over(self, course: Course) -> None:
        """Nothing more happens to it."""
        services = self._services
        services.decisions.left(course)
        services.uncounted.ended(course.counted)
        services.ended.add(record := course.record(services.clock.now_s()))
        if course.trace is not None:
            course.trace.ended(record)

    def _leave(self, place: Bracket) -> None:
        self._services.guard.run_now(Part.GATE, place.leave)  # the answer is out

    def _keep_response(self, course: Course) -> None:
        """Remember where a response that may be asked for lives."""
        result = course.result
        if result is None or result.status != 200 or result.answer_id is None or course.replica is None:
            return
        self._responses.remember(result.answer_id, server_of(course.replica), result.usage)

    def _go_on(self, course: Course, admission: Admission, place: Bracket) -> None:
        """The answer is out, and the engine works on: its place is held until the end is seen."""
        task = asyncio.get_running_loop().create_task(self._until_finished(course, admission, place))
        self._background.add(task)
        task.add_done_callback(self._background.discard)

    async def _until_finished(self, course: Course, admission: Admission, place: Bracket) -> None:
        assert course.result is not None
        assert course.result.answer_id is not None
        assert course.replica is not None
        server, response_id = server_of(course.replica), course.result.answer_id
        try:
            end = await self._responses.finished(response_id, server, course.intake.headers)
            usage = end.as_usage() if end is not None else None
            if usage is None:  # failed, cancelled, or never seen to end: nothing to learn from
                admission.finish(Outcome.COMPLETED, None, natural=False)
                return
            course.result = replace(course.result, usage=usage, finish_reasons=usage.finish_reasons)
            self._keep_response(course)
            self._account(course, admission)
        finally:
            self._leave(place)

    def _account(self, course: Course, admission: Admission) -> None:
        """Tell the gate how the request ended, and the counter what the engine counted."""
        result, services = course.result, self._services
        if result is None:
            return
        admission.finish(course.outcome, course.output_tokens, natural=course.natural)
        usage, counted = result.usage, course.counted
        if course.answered and usage is not None and counted is not None:
            prompt_tokens = usage.prompt_tokens
            services.guard.run_now(Part.LEARNING, lambda: services.counter.learn(course.intake.call, counted, prompt_tokens))


class Flowing:
    """The rest of a call whose answer has begun."""

    __slots__ = ("_admission", "_course", "_ends", "_link", "_place", "_relay", "_tried")

    def __init__(
        self, ends: CallEnds, course: Course, admission: Admission, place: Bracket, relay: Relay, tried: Tried
    ) -> None:  # fmt: skip
        self._ends = ends
        self._course = course
        self._admission = admission
        self._place = place
        self._relay = relay
        self._tried = tried

    def flow_on(self) -> bool:
        """Have the answer flow on without a task, which its end then gets; False: it cannot, and ``run`` is to be awaited."""
        link = self._relay.flow(self._go_on)
        if link is None:
            return False
        self._course.flowing = None  # each would keep the other
        self._ends.drain.begun()
        link.flow_on()
        self._link = link
        return True

    def _go_on(self) -> None:
        self._link.go_on(self._end)

    async def _end(self, *_: object) -> None:
        try:
            await self.run()
        finally:
            self._ends.drain.ended()

    async def run(self, *, alone: bool = True) -> None:
        """Relay the rest, leave the place, and account for the call; not ``alone``: somebody waits who will account for it."""
        ends, course = self._ends, self._course
        course.flowing = None  # each would keep the other
        try:
            try:
                ends.answered(course, await self._relay.rest(), self._tried, others=False)
            finally:
                ends.left(course, self._admission, self._place)
        finally:
            if alone:
                ends.over(course)
