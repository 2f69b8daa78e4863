"""Copies one request to a replica and its response back, and looks on.

One write per read of the upstream socket, no task, no await (where the server offers a ``ClientLink``) and no parsing per chunk beyond a
byte search. One watcher per request hears of the client's leaving and then cancels the copying in whatever phase it is (connecting,
waiting for the head, mid-body, a slow reader), which closes the upstream connection at once, so that the engine frees the request's
blocks. Nothing is read ahead of a slow client beyond the upstream client's bounded buffer.

The relay neither retries nor builds error answers. How it ends is a closed list (``RelayEnd``), with what the caller must do:

- ``completed``: nothing.
- ``refused``: the status is one of ``refuse_statuses``; the client has seen nothing; send it elsewhere, or answer with ``kept``.
- ``failed_before_head``: the client has seen nothing; reroute or answer. Of a ``repeatable`` request the head waits for the first byte of
  the body: engines send the head of a stream before its prefill, and a replica that dies in it could not be made good any more.
- ``failed_midstream``: of an event stream the client got an error event and the end. Of any other body the client must not take the
  part for the whole: return from the ASGI callable without another send, and the server drops the connection.
- ``client_gone``: nothing; there is nobody to answer.
"""

from collections.abc import Callable

from proxy.ports import ClientLink, Clock, Headers, Receive, Send, Upstream, UpstreamError, UpstreamResponse
from proxy.serving.client import ClientWatch, after_head, after_head_now, link_of, send_first
from proxy.serving.relay_result import NO_HOOKS, RelayEnd, RelayHooks, RelayRequest, RelayResult
from proxy.serving.whole_answer import kept
from proxy.wire.answer_forms import OPENAI, AnswerForm
from proxy.wire.answer_usage import BodyTail
from proxy.wire.answers import Answer
from proxy.wire.sse import StreamObserver, UsageStripper

_NO_FIELDS: Headers = []  # of all whose heads are out


class Relay:
    """One request and its answer: ``begin``, and ``rest`` where that leaves something. See ``relay`` for what it is made of.

    Two steps, so that whoever waits for the rest of a stream can first let go of all that it took to begin it.
    """

    __slots__ = (
        "_body", "_bytes_sent", "_clock", "_error", "_extra_headers", "_first_byte_s", "_first_token_s", "_form", "_is_stream", "_kept",
        "_last_byte_s", "_last_sent", "_on_first_byte", "_on_head", "_on_progress", "_over", "_response", "_send", "_sent_s", "_started",
        "_status", "_stream", "_strip", "_stripper", "_unsent", "_watch", "_write_now",
    )  # fmt: skip

    def __init__(
        self, receive: Receive, send: Send, clock: Clock, hooks: RelayHooks = NO_HOOKS, *,
        strip_usage: bool = False, fingerprint: str = "", extra_headers: Headers | None = None, form: AnswerForm = OPENAI,
    ) -> None:  # fmt: skip
        self._send = send
        self._watch = ClientWatch(receive, link_of(send))
        self._clock = clock
        self._sent_s = clock.now_s()
        self._on_head, self._on_first_byte, self._on_progress = hooks.on_head, hooks.on_first_byte, hooks.on_progress
        self._strip = UsageStripper(fingerprint) if strip_usage else None
        self._extra_headers = extra_headers or []
        self._form = form
        self._status: int | None = None
        self._started = self._is_stream = False
        self._bytes_sent = 0
        self._error: UpstreamError | None = None
        self._kept: Answer | None = None
        self._stream: StreamObserver | None = None
        self._body: BodyTail | None = None
        self._stripper: UsageStripper | None = None
        self._last_sent = self._unsent = b""  # ``_unsent``: looked at, and waiting for room
        self._response: UpstreamResponse | None = None  # of which more is to be copied
        self._write_now: Callable[[bytes], bool] | None = None
        self._over: Callable[[], None] | None = None  # while it flows without a task
        self._first_byte_s: float | None = None
        self._first_token_s: float | None = None
        self._last_byte_s: float | None = None

    async def begin(
        self, upstream: Upstream, request: RelayRequest, refuse_statuses: frozenset[int] = frozenset()
    ) -> RelayResult | None:  # fmt: skip
        """Open, and send the head with the first piece; None: ``rest`` has to copy the rest."""
        ended: RelayEnd | None = RelayEnd.CLIENT_GONE
        with self._watch:
            try:
                ended = await self._begin(upstream, request, refuse_statuses)
            except OSError:  # what ASGI servers of spec 2.4 raise from send once the client has left
                ended = RelayEnd.CLIENT_GONE
        return None if ended is None else self._result(ended)

    async def _begin(self, upstream: Upstream, request: RelayRequest, refuse_statuses: frozenset[int]) -> RelayEnd | None:
        once = not request.repeatable
        try:
            response = await upstream.open(
                request.base_url, request.method, request.target, request.headers, request.body, once=once
            )
        except UpstreamError as exc:
            self._error = exc
            return RelayEnd.FAILED_BEFORE_HEAD
        try:
            if response.status in refuse_statuses:
                self._status, self._kept = response.status, await kept(response)
                return RelayEnd.REFUSED
            try:
                first = None if once else await response.read()
            except UpstreamError as exc:
                self._error = exc
                return RelayEnd.FAILED_BEFORE_HEAD
            self._status = response.status
            headers = self._head_of(response, request.base_url.encode())
            request.body = b""  # it is sent to nobody else any more, and a stream may last
            if first is not None and response.at_end:
                await self._send_whole(response, headers, first)
                return RelayEnd.COMPLETED
            data = self._look(first) if first else b""
            await send_first(self._send, response.status, headers, data, whole=False)
            self._response = response
            response.headers = self._extra_headers = _NO_FIELDS  # they would lie here as long as the stream lasts
            self._write_now = after_head_now(self._send) if self._is_stream else None
            self._send = after_head(self._send)
            return None
        finally:
            if self._response is None:
                response.close()

    def flow(self, over: Callable[[], None]) -> ClientLink | None:
        """Pass on the pieces of a stream without a task, in the callbacks that bring them, up to where it ends or fails, the client leaves
        or is slow: then ``over`` is called once, and ``rest`` has to go on. Returns the way to the client; None: ``rest`` has to at once.
        """
        response, link, stop = self._response, self._watch.link, self._stop_flowing
        assert response is not None
        if link is None or self._write_now is None or not response.flow(self._pass_now, stop):
            return None
        self._over = over
        link.on_leave(stop)
        return link

    def _stop_flowing(self) -> None:
        over, self._over = self._over, None
        if over is not None:  # else the client has left, and the replica fails
            assert self._watch.link is not None
            self._watch.link.forget(self._stop_flowing)
            over()

    async def rest(self) -> RelayResult:
        """Copy the rest, and close. The pieces of a stream are passed on in the callback that brings them, while the client takes them."""
        response, ended = self._response, RelayEnd.CLIENT_GONE
        assert response is not None
        with self._watch:
            try:
                try:
                    while True:
                        if self._write_now is not None and not self._unsent:
                            await response.pour(self._pass_now)
                        data, self._unsent = self._unsent, b""
                        if not data:
                            data = await response.read()
                            if not data:
                                break
                            data = self._look(data)
                        if data:  # the stripper may have taken all of it
                            await self._send({"type": "http.response.body", "body": data, "more_body": True})
                except UpstreamError as exc:
                    self._error = exc
                finally:
                    response.close()
                if self._error is None or self._is_stream:  # any other answer is left unfinished
                    self._watch.disarm()
                    await self._end()
                ended = RelayEnd.COMPLETED if self._error is None else RelayEnd.FAILED_MIDSTREAM
            except OSError:
                pass
        return self._result(ended)

    def _head_of(self, response: UpstreamResponse, base_url: bytes) -> Headers:
        """See what the answer is; returns the fields that the client gets."""
        status, headers = response.status, response.headers
        fields = dict(headers)
        content_type = fields.get(b"content-type", b"").lower()
        readable = fields.get(b"content-encoding", b"identity").lower() == b"identity"  # compressed bytes are copied unseen
        self._is_stream = content_type.startswith(b"text/event-stream") and readable
        if self._is_stream:
            self._stream = self._form.observer()
            self._stripper = self._strip
        elif status == 200 and content_type.startswith(b"application/json") and readable:
            self._body = BodyTail()
        if self._stripper is not None or status in (204, 304):  # uvicorn takes a 304's length for a body that must follow
            headers = [field for field in headers if field[0] != b"content-length"]
        if 300 <= status < 400:  # a redirect to the replica itself must not lead the client past us
            headers = [(name, value.removeprefix(base_url) if name == b"location" else value) for name, value in headers]
        if self._extra_headers:
            headers = [*headers, *self._extra_headers]
        if self._on_head is not None:
            self._on_head(status)
        self._started = True
        return headers

    async def _send_whole(self, response: UpstreamResponse, headers: Headers, body: bytes) -> None:
        """Send an answer of which everything is here."""
        data = self._look(body) if body else b""
        if self._stripper is not None:
            tail = self._stripper.flush()
            data, self._bytes_sent = data + tail, self._bytes_sent + len(tail)
        response.close()
        self._watch.disarm()
        await send_first(self._send, response.status, headers, data, whole=True)

    def _look(self, data: bytes) -> bytes:
        """Look at a read and note what it tells; returns what the client gets of it."""
        self._last_byte_s = self._clock.now_s()
        if self._first_byte_s is None:
            self._note_first_byte()
        stream = self._stream
        if stream is not None:
            stream.feed(data)
            if stream.first_content:
                if self._first_token_s is None:
                    self._first_token_s = self._last_byte_s
                if self._on_progress is not None:
                    self._on_progress(stream.tokens_seen)
            if self._stripper is not None:
                data = self._stripper.feed(data)
        elif self._body is not None:
            self._body.feed(data)
        if data:
            self._last_sent = data
            self._bytes_sent += len(data)
        return data

    def _pass_now(self, data: bytes) -> bool:
        """Pass a read on from the callback that brought it; False where the client has no room for more."""
        assert self._write_now is not None
        data = self._look(data)
        if not data or self._write_now(data):
            return True
        self._unsent = data
        return False

    def _note_first_byte(self) -> None:
        self._first_byte_s = self._last_byte_s
        if not self._is_stream:
            self._first_token_s = self._first_byte_s
        told, self._on_head, self._on_first_byte = self._on_first_byte, None, None
        if told is not None:
            told()

    async def _end(self) -> None:
        """Send the end, and where the stream is cut off tell the client."""
        tail = self._stripper.flush() if self._stripper is not None else b""
        if self._error is not None:
            whole = (self._last_sent + tail).endswith((b"\n\n", b"\r\n\r\n")) or not self._bytes_sent + len(tail)
            tail += (b"" if whole else b"\n\n") + self._form.cut_off(self._last_sent)  # half an event must not run into ours
        await self._send({"type": "http.response.body", "body": tail, "more_body": False})
        self._bytes_sent += len(tail)

    def _result(self, ended: RelayEnd) -> RelayResult:
        """The state as a value."""
        stream = self._stream
        usage, kept = (stream.usage, None) if stream is not None else (None, None)
        if self._body is not None and ended is RelayEnd.COMPLETED:
            usage, kept = self._form.read_usage(self._body.collected()), self._form.read_kept(self._body.collected())
        if stream is not None:
            tokens_seen, reasons = stream.tokens_seen, stream.finish_reasons
        else:
            tokens_seen, reasons = (usage.completion_tokens, usage.finish_reasons) if usage is not None else (0, ())
        return RelayResult(
            ended=ended, sent_s=self._sent_s, started=self._started, status=self._status, bytes_sent=self._bytes_sent,
            error=self._error, kept=self._kept, is_stream=self._is_stream,
            stream_done=stream is not None and stream.done, stream_failed=stream is not None and stream.failed,
            usage=usage, finish_reasons=reasons, tokens_seen=tokens_seen, events_seen=stream.events_seen if stream is not None else 0,
            fingerprint=stream.fingerprint if stream is not None else None,
            answer_id=stream.answer_id if stream is not None else kept.id if kept is not None else None,
            unfinished=kept is not None and kept.unfinished,
            first_byte_s=self._first_byte_s, first_token_s=self._first_token_s, last_byte_s=self._last_byte_s,
        )  # fmt: skip


async def relay(
    receive: Receive,
    send: Send,
    upstream: Upstream,
    request: RelayRequest,
    *,
    clock: Clock,
    hooks: RelayHooks = NO_HOOKS,
    strip_usage: bool = False,
    fingerprint: str = "",
    extra_headers: Headers | None = None,
    refuse_statuses: frozenset[int] = frozenset(),
    form: AnswerForm = OPENAI,
) -> RelayResult:
    """Relay one request whose body was already received; see the module for how it ends and what is then to be done.

    ``strip_usage``: we asked the stream for usage and the client did not; the usage event is taken out, and the engine's
    ``fingerprint`` goes where it would have been. Send such a request without ``accept-encoding``, for a compressed stream is copied as
    it is. ``extra_headers`` are added to the response head. ``form`` says how answers of this route are read, and how a cut-off stream
    ends. A cancellation from outside passes through, with upstream closed.
    """
    one = Relay(
        receive, send, clock, hooks, strip_usage=strip_usage, fingerprint=fingerprint, extra_headers=extra_headers, form=form
    )  # fmt: skip
    result = await one.begin(upstream, request, refuse_statuses)
    return result if result is not None else await one.rest()
