"""Calls that take KV: read, count, wait for a place, relay, account.

Down once, up once. The one guarded place (``serving.guard``) stands between: a fault of tokenizer, gate or store sends the request on
under the static cap. What the engine itself must judge (a body we cannot read) is forwarded without a place: it holds no KV.
"""

from dataclasses import replace

from proxy.core.demand import Demand
from proxy.core.outcome import Mode, Outcome, Refusal
from proxy.ports import PromptTooLongError, Receive, Send
from proxy.serving.admission import Admission, Bracket, ClientGoneError, ShedError
from proxy.serving.call_ends import EXPECTED as EXPECTED_AT_ENDS
from proxy.serving.call_ends import CallEnds, Flowing
from proxy.serving.client import link_of
from proxy.serving.course import Course
from proxy.serving.fallbacks import Fallbacks
from proxy.serving.fingerprints import Fingerprints
from proxy.serving.guard import InternalFaultError, Part
from proxy.serving.intake import Intake, count, demand_of, expected_count, sized, sizes_matter
from proxy.serving.outgoing import answer_headers, relay_request
from proxy.serving.queued_stream import kept_alive
from proxy.serving.ranks import server_of
from proxy.serving.relay import Relay
from proxy.serving.relay_result import NO_HOOKS, RelayEnd, RelayHooks, RelayRequest, RelayResult
from proxy.serving.response_routes import ResponseRoutes
from proxy.serving.services import Services, send_answer
from proxy.wire.answer_forms import form_of
from proxy.wire.answers import context_overflow, model_not_found

NOBODY_ELSE = frozenset({Outcome.UPSTREAM_FAILED, Outcome.NO_REPLICA})  # why a reroute finds no place
EXPECTED = (PromptTooLongError, *EXPECTED_AT_ENDS)


class Calls:
    """Serves one call at a time for any number of tasks; the state is in ``Services``."""

    def __init__(self, services: Services, responses: ResponseRoutes) -> None:
        self._services = services
        self._responses = responses
        self._fingerprints = Fingerprints(services.dispatcher)
        self._ends = CallEnds(services, responses, self._fingerprints)
        self._fallbacks = Fallbacks(services, self._admitted)

    async def serve(self, intake: Intake, receive: Receive, send: Send) -> Flowing | None:
        """Answer a call and account for it, or begin to: the rest is then to be run by the caller."""
        services = self._services
        course = Course(intake)
        trial = services.guard.tripped
        services.decisions.began(course)
        services.ended.begun()
        if services.tracing is not None:
            course.trace = services.tracing.begin(intake.fields, intake.arrived_s)
        try:
            if intake.call.previous_response_id is not None:
                await self._find_history(course, intake.call.previous_response_id)
            if services.dispatcher.gate.mode is Mode.OFF or services.guard.bypassed():
                await self._static(course, receive, send)
                return None
            try:
                if intake.traffic_class.fallbacks or sizes_matter(services.policy):
                    await self._fallbacks.admitted_somewhere(course, receive, send)
                else:
                    await self._admitted(course, receive, send)
                if trial:
                    services.guard.succeeded()
            except InternalFaultError:
                await self._static(course, receive, course.line or send)
        except ShedError as shed:
            course.considered = shed.considered
            await self._refuse(course, shed.refusal, send)
        except ClientGoneError as gone:
            course.considered, course.outcome = gone.considered, Outcome.CANCELLED
        finally:
            if course.flowing is None:
                self._ends.over(course)
        return course.flowing

    # ---- the ordinary way

    async def _admitted(self, course: Course, receive: Receive, send: Send) -> None:
        services, intake = self._services, course.intake
        guard, dispatcher = services.guard, services.dispatcher
        books = dispatcher.gate.fleet.of_model(intake.model)
        if not books:
            await self._no_book(course, receive, send)
            return
        services.uncounted.ended(course.counted)  # of a try before this one
        course.counted = None
        try:
            counted = guard.call(Part.TOKENIZER, EXPECTED, expected_count, services, intake, books)
            if counted is None:
                counted = await guard.run(Part.TOKENIZER, count(services, intake, books), EXPECTED)
        except PromptTooLongError as error:
            if not dispatcher.gate.enforces(intake.tenant):
                await self._static(course, receive, send)
                return
            context = max(book.spec.context_tokens_max for book in books)
            raise ShedError(context_overflow(error.tokens_min, context, exact=error.exact)) from error
        course.counted, course.counted_s = counted, services.clock.now_s()
        intake = course.intake = sized(services, intake, counted)
        demand = demand_of(services, intake, counted)
        if course.home is not None:
            demand = replace(demand, kept_from=frozenset(server_of(book.spec.name) for book in books) - {course.home})
        if course.at_once:
            demand = replace(demand, may_queue=False)
        course.demand = demand
        if not intake.call.stream or services.policy.relay.keepalive_after_s is None:
            await self._in_place(course, demand, receive, send)
            return
        async with kept_alive(services, course, demand, send, form_of(intake.route)) as line:
            await self._in_place(course, demand, receive, line)
            if course.flowing is not None:
                await course.flowing.run(alone=False)

    async def _in_place(self, course: Course, demand: Demand, receive: Receive, send: Send) -> None:
        """Wait for a place and relay within it, up to where the answer flows."""
        guard = self._services.guard
        place = self._services.dispatcher.admitted(demand, receive, streaming=course.intake.call.stream, link=link_of(send))
        # Entered by hand, so that a fault of the gate is told from a fault of the relay inside the bracket.
        admission = guard.call(Part.GATE, EXPECTED, place.enter)
        if admission is None:
            admission = await guard.run(Part.GATE, place.entered(), EXPECTED)
        course.admission = admission
        try:
            await self._relay(course, admission, place, receive, send)
        finally:
            if course.flowing is None:
                self._ends.left(course, admission, place)

    async def _find_history(self, course: Course, previous_id: str) -> None:
        """Of a call that continues a stored response: where that is kept, and a bound of its length."""
        intake = course.intake
        home = await self._responses.find(previous_id, intake.headers)
        if home is not None and home.replica in self._services.watchers:
            course.home = home.replica
            course.intake = replace(intake, call=replace(intake.call, history_tokens=home.tokens))

    async def _no_book(self, course: Course, receive: Receive, send: Send) -> None:
        """No replica is known to serve the model."""
        services, intake = self._services, course.intake
        unprobed = any(watcher.facts is None for watcher in services.watchers.values())
        if unprobed:
            raise ShedError(services.dispatcher.gate.shedding.no_replica_for(intake.model))
        if services.serving() and not services.dispatcher.gate.enforces(intake.tenant):
            await self._static(course, receive, send)
            return
        raise ShedError(model_not_found(intake.model))

    async def _relay(self, course: Course, admission: Admission, place: Bracket, receive: Receive, send: Send) -> None:
        """Relay to the granted replica, and to others while nothing was sent to the client."""
        services, intake = self._services, course.intake
        unasked = intake.call.stream and not intake.call.usage_wanted
        hooks = RelayHooks(on_first_byte=course.flows, on_progress=admission.progress) if intake.call.stream else NO_HOOKS
        tried = services.attempts.begin()
        while True:
            replica = course.replica = admission.lease.replica
            lost = admission.reroutes > len(tried.refused)  # elsewhere: then a 5xx here is no sign that the request is at fault
            others = admission.untried or (lost and admission.may_go_on)
            refuse, watched = services.attempts.refused(tried, replica, others=others), services.attempts.hooked(tried, hooks)
            fingerprint = self._fingerprints.of(replica, intake.call.kind) if unasked else None
            relay, request = self._prepared(course, replica, watched, receive, send, fingerprint=fingerprint)
            result = await relay.begin(services.upstream, request, refuse) or relay
            if isinstance(result, Relay):
                course.flowing = Flowing(self._ends, course, admission, place, result, tried)
                return
            others = result.ended is RelayEnd.REFUSED or (result.ended is RelayEnd.FAILED_BEFORE_HEAD and admission.may_go_on)
            if not self._ends.answered(course, result, tried, others=others):
                break
            try:
                await services.guard.run(Part.GATE, admission.reroute(), EXPECTED)
            except ShedError as shed:
                if result.kept is None or shed.refusal.outcome not in NOBODY_ELSE:
                    raise
                break
            course.reroutes += 1
            course.tried.append((replica, result.failure or ""))
        await self._show(course, result, send, others=others)

    async def _show(self, course: Course, result: RelayResult, send: Send, *, others: bool) -> None:
        """The last attempt is over: where the client has seen nothing, it gets the replica's own answer, else ours."""
        if result.ended not in {RelayEnd.REFUSED, RelayEnd.FAILED_BEFORE_HEAD}:
            return
        if result.kept is None:
            raise ShedError(self._services.attempts.failure(result, others=others))
        own = answer_headers(self._services, course) or ()
        course.result = replace(result, ended=RelayEnd.COMPLETED, started=True, bytes_sent=len(result.kept.body))
        await send_answer(send, replace(result.kept, headers=(*result.kept.headers, *own)))

    def _prepared(
        self, course: Course, replica: str, hooks: RelayHooks, receive: Receive, send: Send, *, fingerprint: str | None = None
    ) -> tuple[Relay, RelayRequest]:  # fmt: skip
        """What relays to ``replica``, and the request that it is to begin with.

        A ``fingerprint`` (the engine's, "" for none) asks the stream for usage and takes it out again.
        """
        services, asks = self._services, fingerprint is not None
        relay = Relay(
            receive, send, services.clock, hooks, strip_usage=asks, fingerprint=fingerprint or "",
            form=form_of(course.intake.route), extra_headers=answer_headers(services, course),
        )  # fmt: skip
        return relay, relay_request(services, course, replica, asks_usage=asks)

    # ---- without a place

    async def _static(self, course: Course, receive: Receive, send: Send) -> None:
        """Forward by least outstanding requests, a fixed number per replica: what plain forwarding would do."""
        services, intake = self._services, course.intake
        attempts, asked = services.attempts, set[str]()

        def load() -> dict[str, int]:
            if course.home is not None:
                return {} if course.home in asked else {course.home: services.outstanding.on(course.home)}
            gone = frozenset(asked)
            return services.outstanding.load(intake.model or None, gone) or services.outstanding.load(excluded=gone)

        if not load():
            raise ShedError(services.dispatcher.gate.shedding.no_replica_for(intake.model))
        capped = services.dispatcher.gate.enforces(intake.tenant)
        again, tried = True, attempts.begin()
        while again:
            async with services.static_cap.place(load, services.policy.queue.wait_s_max, capped=capped) as place:
                if place is None:
                    raise ShedError(self._static_full())
                course.replica, course.reroutes = place.replica, len(asked)
                asked.add(place.replica)
                others = len(asked) <= services.policy.relay.reroutes_max and bool(load())
                refuse, hooks = attempts.refused(tried, place.replica, others=others), attempts.hooked(tried, NO_HOOKS)
                with services.outstanding.sent(place.replica):
                    relay, request = self._prepared(course, place.replica, hooks, receive, send)
                    course.result = result = await relay.begin(services.upstream, request, refuse) or await relay.rest()
                    again = attempts.again(place.replica, result, tried, others=others)
                    course.tried += [(place.replica, result.failure or "")] if again else []
        await self._show(course, result, send, others=others)
        course.conclude()

    def _static_full(self) -> Refusal:
        limits, queue = self._services.policy.limits, self._services.policy.queue
        message = f"Every replica has {limits.static_cap_per_replica} requests under the static cap; none ended in time."
        return Refusal(
            Outcome.QUEUE_TIMEOUT, gate="limits.static_cap_per_replica", message=message, limit=limits.static_cap_per_replica,
            unit="requests", policy_key="limits.static_cap_per_replica", retry_after_s=queue.wait_s_max / 2,
        )  # fmt: skip

    # ---- ends

    async def _refuse(self, course: Course, refusal: Refusal, send: Send) -> None:
        services = self._services
        course.refusal, course.outcome = refusal, refusal.outcome
        if course.line is not None and course.line.opened:
            course.status = 200
            await course.line.refuse(refusal, brief=services.brief)
            return
        shape = form_of(course.intake.route).shape
        held = course.considered is not None and course.considered.ahead is not None
        waited_s = services.clock.now_s() - course.intake.arrived_s if held else 0.0
        reply = services.refused(refusal, shape, retry_budget=services.attempts.left, waited_s=waited_s, replica=course.replica)
        course.status = reply.status
        await send_answer(send, reply)
