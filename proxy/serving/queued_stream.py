"""Comments on the line of a stream that waits for its place, so that nobody between takes it for dead (``relay.keepalive_after``).

The first comment takes the response's head with it: status 200 and an event stream, whatever comes of the request. So it is sent only
while the forecast still fits the deadline, and what comes later than it is told inside the stream: a refusal, or an answer of the engine
that is no stream, becomes an error event in the form of the route's API. Reroutes go on as before, for nothing of a replica was sent.
SSE comments are skipped by every client that follows the standard. Once a replica answers, its bytes pass through untouched.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from proxy.core.demand import Demand
from proxy.core.outcome import Refusal
from proxy.core.waiting import Waiting
from proxy.ports import ClientLink, Clock, Headers, Message, Send
from proxy.serving.client import after_head, after_head_now, begin_now, link_of
from proxy.serving.course import Course
from proxy.serving.dispatcher import Dispatcher
from proxy.serving.services import Services
from proxy.wire.answer_forms import AnswerForm

HEADERS = [(b"content-type", b"text/event-stream; charset=utf-8"), (b"cache-control", b"no-cache")]
ERROR_BYTES_MAX = 64 * 1024  # of an engine's error, to be told inside the stream


class QueuedStream:
    """A ``send`` whose head may be out before the replica's. ``opened`` tells that it is, ``relaying`` that a replica has answered."""

    def __init__(self, send: Send, form: AnswerForm) -> None:
        self.opened = False
        self.relaying = False
        self._send = send
        self._form = form
        self._status = 200
        self._error: bytearray | None = None  # an answer that is no stream, collected

    @property
    def rest(self) -> Send:
        """What sends the body of the answer whose head has come."""
        return self if self._error is not None else after_head(self._send)

    @property
    def rest_now(self) -> Callable[[bytes], bool] | None:
        """What writes a piece of it at once."""
        return None if self._error is not None else after_head_now(self._send)

    @property
    def link(self) -> ClientLink | None:
        """The server's shorter way."""
        return link_of(self._send)

    def begin_now(self, status: int, headers: Headers, piece: bytes, *, whole: bool) -> bool:
        """Write the head and the first piece at once, where no comment has taken the head's place."""
        if self.opened:
            return False
        self.relaying = True
        return begin_now(self._send, status, headers, piece, whole=whole)

    async def __call__(self, message: Message) -> None:
        """Pass a replica's answer on, in the place of the head that is out already."""
        self.relaying = True
        if not self.opened:
            await self._send(message)
        elif message["type"] == "http.response.start":
            self._status = message["status"]
            if self._status != 200 or not dict(message["headers"]).get(b"content-type", b"").startswith(b"text/event-stream"):
                self._error = bytearray()
        elif self._error is None:
            await self._send(message)
        else:
            self._error += message.get("body", b"")[: ERROR_BYTES_MAX - len(self._error)]
            if not message.get("more_body", False):
                await self._end(self._form.engine_error_event(self._status, bytes(self._error)))

    async def comment(self, text: str) -> None:
        """Send a comment, and the head before the first one."""
        if not self.opened:
            self.opened = True
            await self._send({"type": "http.response.start", "status": 200, "headers": list(HEADERS)})
        await self._send({"type": "http.response.body", "body": b": kvgate %b\n\n" % text.encode(), "more_body": True})

    async def refuse(self, refusal: Refusal, *, brief: bool) -> None:
        """End the stream with a refusal."""
        await self._end(self._form.error_event(refusal, brief=brief))

    async def _end(self, events: bytes) -> None:
        await self._send({"type": "http.response.body", "body": events, "more_body": False})


@asynccontextmanager
async def kept_alive(services: Services, course: Course, demand: Demand, send: Send, form: AnswerForm) -> AsyncIterator[Send]:
    """Comment on the line from ``relay.keepalive_after`` on while ``demand`` waits; yields what its answer is to be sent with."""
    after_s = services.policy.relay.keepalive_after_s
    assert after_s is not None
    line = course.line = QueuedStream(send, form)
    first_s = max(0.0, course.intake.arrived_s + after_s - services.clock.now_s())
    task = asyncio.get_running_loop().create_task(
        _comment(line, services.dispatcher, services.clock, demand.request_id, first_s, after_s)
    )
    try:
        yield line
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _comment(
    line: QueuedStream, dispatcher: Dispatcher, clock: Clock, request_id: str, first_s: float, every_s: float
) -> None:
    await asyncio.sleep(first_s)
    while not line.relaying:
        queue = dispatcher.gate.queue
        found = next(((place, one) for place, one in enumerate(queue.order(), 1) if one.demand.request_id == request_id), None)
        if found is not None:
            place, entry = found
            left_s = _left_s(entry, clock.now_s())
            if line.opened or (entry.promised and clock.now_s() + left_s <= entry.start_by_s):
                try:
                    await line.comment(f"queued position={place} estimate_s={left_s:.1f}")
                except OSError:
                    return  # the client has left, which whoever waits for its place is told too
        await asyncio.sleep(every_s)


def _left_s(entry: Waiting, now_s: float) -> float:
    """What is left of the wait that was forecast for it; 0 when that is over."""
    return max(0.0, entry.forecast_at_s + (entry.forecast_s or 0.0) - now_s)
