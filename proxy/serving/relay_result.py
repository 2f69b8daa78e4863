"""What a relay is asked for, and what it tells of how it went (``serving.relay``)."""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from proxy.ports import Headers, UpstreamError
from proxy.wire.answer_usage import Usage
from proxy.wire.answers import Answer


class RelayEnd(StrEnum):
    """How a relay ended."""

    COMPLETED = "completed"
    REFUSED = "refused"
    CLIENT_GONE = "client_gone"
    FAILED_BEFORE_HEAD = "failed_before_head"
    FAILED_MIDSTREAM = "failed_midstream"


@dataclass(slots=True)  # not frozen: that triples the price of making one, and each request makes one
class RelayRequest:
    """What is sent: ``target`` is the raw path and query, ``body`` the whole body as it came.

    ``repeatable``: no harm is done if a replica gets it twice. It may be sent anew over a fresh connection where a kept one turns out to
    be closed, and its head is held back (see the module).
    """

    base_url: str
    method: bytes
    target: bytes
    headers: Headers
    body: bytes
    repeatable: bool = False


@dataclass(frozen=True, slots=True)
class RelayHooks:
    """Called synchronously on the way; each must be cheap and must not raise.

    ``on_head`` gets the status before the client does, ``on_first_byte`` comes at the first body byte, ``on_progress`` gets the output
    tokens so far (over all choices) after each read of a stream that brought some.
    """

    on_head: Callable[[int], None] | None = None
    on_first_byte: Callable[[], None] | None = None
    on_progress: Callable[[int], None] | None = None


NO_HOOKS = RelayHooks()


@dataclass(slots=True)  # not frozen: that triples the price of making one, and each request makes one
class RelayResult:
    """What happened. Times are the injected clock's seconds, None where it did not happen.

    ``started`` says whether the client saw a response head. ``bytes_sent`` counts body bytes. ``tokens_seen`` is an estimate until
    ``usage`` is there. ``kept`` is the whole answer of a replica that refused, None where it is too long to keep.
    ``stream_done`` and ``stream_failed`` tell of ``[DONE]`` and an error event of the engine. ``first_token_s`` is
    the first event with choices, and of a body that is no stream its first byte.
    """

    ended: RelayEnd
    sent_s: float = 0.0  # when it was begun
    started: bool = False
    status: int | None = None
    bytes_sent: int = 0
    error: UpstreamError | None = None
    kept: Answer | None = None
    is_stream: bool = False
    stream_done: bool = False
    stream_failed: bool = False
    usage: Usage | None = None
    finish_reasons: tuple[str, ...] = ()
    tokens_seen: int = 0
    events_seen: int = 0  # of a stream, those that carried content
    fingerprint: str | None = None  # the engine's system_fingerprint, where a stream told it
    answer_id: str | None = None  # of an answer that the engine may keep
    unfinished: bool = False  # the engine goes on working on it
    first_byte_s: float | None = None
    first_token_s: float | None = None
    last_byte_s: float | None = None

    @property
    def failure(self) -> str | None:
        """How the replica failed, in a word or two; None where it did not."""
        if self.error is not None:
            return str(self.error)
        return f"status {self.status}" if self.ended is RelayEnd.REFUSED else None
