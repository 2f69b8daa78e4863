"""Looking at streams whose events have names: Anthropic's Messages and OpenAI's Responses.

Both tell usage in an event near the end, asked or not. As with chats, deltas are counted as an estimate of tokens until then, ordinary
reads are recognised by byte searches without parsing, and finish reasons are given in chat's words, so that whoever learns from them
knows one vocabulary. Fails as ``wire.sse`` does: what is no such stream counts nothing.
"""

from typing import TypeVar

import msgspec

from proxy.wire.answer_usage import Usage, UsageField, read_usage
from proxy.wire.sse import StreamObserver, event_data

T = TypeVar("T")

_DELTA_LINE = b"event: content_block_delta\n"
_RESPONSE_DELTA = b".delta\ndata: "
_STOP_REASONS = {"end_turn": "stop", "stop_sequence": "stop", "tool_use": "tool_calls", "max_tokens": "length"}
_BEFORE_WORK = frozenset({"response.created", "response.queued", "response.in_progress"})
_UNFINISHED = frozenset({"queued", "in_progress"})
_ENDS = frozenset({"response.completed", "response.incomplete", "response.failed"})


class _AnthropicUsage(msgspec.Struct):
    input_tokens: int = 0
    output_tokens: int = 0
    cache_creation_input_tokens: int | None = None
    cache_read_input_tokens: int | None = None

    def as_usage(self, reasons: tuple[str, ...] = ()) -> Usage:
        """The prompt is the sum: what came from the cache is not part of ``input_tokens``."""
        cached = self.cache_read_input_tokens
        prompt = self.input_tokens + (cached or 0) + (self.cache_creation_input_tokens or 0)
        return Usage(prompt, self.output_tokens, cached, reasons)


class _MessageDelta(msgspec.Struct):
    stop_reason: str | None = None


class _MessageEvent(msgspec.Struct):
    type: str = ""
    delta: _MessageDelta | None = None
    usage: _AnthropicUsage | None = None


class _MessageBody(msgspec.Struct):
    usage: _AnthropicUsage
    stop_reason: str | None = None


class _Incomplete(msgspec.Struct):
    reason: str | None = None


class ResponseFields(msgspec.Struct):
    """What is read of a response object. ``status`` is one of queued, in_progress, completed, incomplete, failed, cancelled."""

    id: str | None = None
    status: str | None = None
    incomplete_details: _Incomplete | None = None
    usage: UsageField | None = None

    @property
    def unfinished(self) -> bool:
        """Whether the engine goes on with it after this answer."""
        return self.status in _UNFINISHED

    @property
    def finish_reasons(self) -> tuple[str, ...]:
        """Chat's word for how it ended; none while it runs, and none where it failed."""
        if self.incomplete_details is not None and self.incomplete_details.reason is not None:
            return ("length" if self.incomplete_details.reason == "max_output_tokens" else self.incomplete_details.reason,)
        return ("stop",) if self.status == "completed" else ()

    def as_usage(self) -> Usage | None:
        """Usage, once it is told."""
        return self.usage.as_usage(self.finish_reasons) if self.usage is not None else None


class _ResponseEvent(msgspec.Struct):
    type: str = ""
    response: ResponseFields | None = None


_message_event = msgspec.json.Decoder(_MessageEvent)
_message_body = msgspec.json.Decoder(_MessageBody)
_response_event = msgspec.json.Decoder(_ResponseEvent)
_response_body = msgspec.json.Decoder(ResponseFields)


def _decoded(decoder: msgspec.json.Decoder[T], data: bytes) -> T | None:
    try:
        return decoder.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def read_message_usage(body: bytes) -> Usage | None:
    """Usage and stop reason of a whole message; None where there is no usage object."""
    read = _decoded(_message_body, body)
    return read_usage(body) if read is None else read.usage.as_usage(_chat_reason(read.stop_reason))


def read_response(body: bytes) -> ResponseFields | None:
    """A whole response object; None where it is none."""
    read = _decoded(_response_body, body)
    return read if read is not None and read.id is not None else None


def read_response_usage(body: bytes) -> Usage | None:
    """Usage and end of a whole response; None while it has none."""
    read = read_response(body)
    return read.as_usage() if read is not None else read_usage(body)


def _chat_reason(stop_reason: str | None) -> tuple[str, ...]:
    return () if stop_reason is None else (_STOP_REASONS.get(stop_reason, stop_reason),)


class MessagesObserver(StreamObserver):
    """What is known of a Messages stream. The first token is there with ``message_start``: the engine sends it with that token."""

    __slots__ = ()

    def _all_ordinary(self, data: bytes) -> int:
        deltas = data.count(_DELTA_LINE)
        return deltas if deltas == data.count(b"\n\n") else 0

    def _event(self, event: bytes) -> None:
        read = _decoded(_message_event, event_data(event))
        if read is None:
            return
        match read.type:
            case "message_start":
                self.first_content = True
            case "content_block_delta":
                self._opened = True
                self._estimate += 1
            case "message_delta":
                if read.usage is not None:
                    self._usage = read.usage.as_usage()
                for reason in _chat_reason(read.delta.stop_reason if read.delta is not None else None):
                    self._finish_reasons[0] = reason
            case "message_stop":
                self.done = True
            case "error":
                self.failed = True


class ResponsesObserver(StreamObserver):
    """What is known of a Responses stream. The first token is there with the first event after the opening ones."""

    __slots__ = ()

    def _all_ordinary(self, data: bytes) -> int:
        deltas = data.count(_RESPONSE_DELTA)
        return deltas if deltas == data.count(b"\n\n") else 0

    def _event(self, event: bytes) -> None:
        read = _decoded(_response_event, event_data(event))
        if read is None or not read.type:
            return
        if read.response is not None and read.response.id is not None:
            self.answer_id = read.response.id
        if read.type in _ENDS and read.response is not None:
            self.done, self.failed = True, read.type == "response.failed"
            self._usage = read.response.as_usage()
            self._finish_reasons.update(enumerate(read.response.finish_reasons))
        elif read.type == "error":
            self.failed = True
        elif read.type not in _BEFORE_WORK:
            self._opened = self.first_content = True
            self._estimate += read.type.endswith(".delta")


def sequence_number_after(sent: bytes) -> int:
    """The number that follows the last one in a stretch of a Responses stream; 0 where there is none."""
    _, found, rest = sent.rpartition(b'"sequence_number":')
    digits = rest[: len(rest) - len(rest.lstrip(b"0123456789"))] if found else b""
    return int(digits) + 1 if digits else 0
