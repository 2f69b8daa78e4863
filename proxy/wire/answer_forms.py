"""How the answers of each API are looked at and, where one must end early, ended."""

from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from proxy.core.outcome import Outcome, Refusal
from proxy.wire.answer_usage import Usage, read_usage
from proxy.wire.answers import ErrorShape, error_event, error_shape, stream_error_event
from proxy.wire.sse import StreamObserver
from proxy.wire.typed_streams import (
    MessagesObserver,
    ResponseFields,
    ResponsesObserver,
    read_message_usage,
    read_response,
    read_response_usage,
    sequence_number_after,
)

_CUT_OFF = Refusal(
    Outcome.CUT_OFF,
    gate="upstream",
    message="The replica failed while it was answering; what came so far is incomplete. Send the request again.",
)


@dataclass(frozen=True, slots=True)
class AnswerForm:
    """One API's answers. ``observer`` looks at a stream, ``read_usage`` at a whole body, ``read_kept`` at an answer the engine keeps."""

    shape: ErrorShape
    observer: type[StreamObserver]
    read_usage: Callable[[bytes], Usage | None]
    read_kept: Callable[[bytes], ResponseFields | None] = lambda _: None

    def cut_off(self, sent: bytes) -> bytes:
        """The events that end a stream after ``sent``, its last bytes."""
        return self.error_event(_CUT_OFF, sent, brief=True)

    def error_event(self, refusal: Refusal, sent: bytes = b"", *, brief: bool) -> bytes:
        """The events that end a stream with a refusal."""
        return stream_error_event(refusal, brief=brief, shape=self.shape, sequence_number=sequence_number_after(sent))

    def engine_error_event(self, status: int, body: bytes) -> bytes:
        """The events that end a stream with an answer of the engine that is no stream, in its own words where they are an error object."""
        try:
            told = msgspec.json.decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            told = None
        error = told.get("error") if isinstance(told, dict) else None
        if not isinstance(error, dict):
            error = {"message": body.decode("utf-8", "replace"), "type": "upstream_error", "param": None, "code": status}
        return error_event(error, self.shape)


OPENAI = AnswerForm(ErrorShape.OPENAI, StreamObserver, read_usage)
MESSAGES = AnswerForm(ErrorShape.ANTHROPIC, MessagesObserver, read_message_usage)
RESPONSES = AnswerForm(ErrorShape.RESPONSES, ResponsesObserver, read_response_usage, read_response)
_FORMS = {form.shape: form for form in (OPENAI, MESSAGES, RESPONSES)}


def form_of(path: str) -> AnswerForm:
    """The form of the answers to requests for ``path``."""
    return _FORMS[error_shape(path)]
