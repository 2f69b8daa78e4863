"""What the drivers need of the world. Adapters implement these; serving knows nothing else of them."""

from collections.abc import Awaitable, Callable, Iterator, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from proxy.core.demand import CountSource, PromptPart
from proxy.core.events import Event, Reserve
from proxy.core.outcome import Refusal
from proxy.ports.record import RequestRecord
from proxy.wire.call import Call
from proxy.wire.connection_faults import ConnectionFault

Headers = list[tuple[bytes, bytes]]
Message = MutableMapping[str, Any]  # one ASGI event
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]

CLIENT_LINK = "kvgate.link"  # among the extensions of an ASGI scope


class ClientLink(Protocol):
    """A shorter way to the client than ASGI's, where the server offers one."""

    def write_now(self, piece: bytes) -> bool:
        """Write a piece of a body of unknown length whose head is out; False: nothing was written, and ``send`` is the way."""
        ...

    def begin_now(self, status: int, headers: Headers, piece: bytes, *, whole: bool) -> bool:
        """Write a head (names in lower case) and the first piece of its body, ``whole`` where that is all; False: nothing was written."""
        ...

    def forget_request(self) -> None:
        """Nobody reads the request any more whose answer has begun: let go of its head, which lies here as long as the answer lasts."""
        ...

    def flow_on(self) -> None:
        """The application returns before its answer is whole, of which a part is out: it flows by ``write_now``, up to ``go_on``."""
        ...

    def go_on(self, rest: Callable[..., Awaitable[None]]) -> None:
        """Run the ``rest`` of an answer that flowed on as its application (scope, receive, send), in a task of its own."""
        ...

    def on_leave(self, call: Callable[[], None]) -> None:
        """Call it once when the client leaves, soon where it has already. The request's body was read."""
        ...

    def forget(self, call: Callable[[], None]) -> None:
        """Nobody needs to know any more."""
        ...


class Clock(Protocol):
    """Monotonic seconds for decisions, wall seconds for people."""

    def now_s(self) -> float:
        """Monotonic seconds."""
        ...

    def wall_s(self) -> float:
        """Seconds since the Unix epoch."""
        ...


@dataclass(frozen=True, slots=True)
class PromptCount:
    """Token counts of a call's prompts, one part per prompt, and how they were found.

    ``slack_tokens``: by how much its bound exceeds what is expected of a prompt that was not counted.
    """

    parts: tuple[PromptPart, ...]
    source: CountSource
    slack_tokens: int = 0


class PromptTooLongError(Exception):
    """The prompt is certain to exceed the context limit; ``tokens_min`` is a lower bound of its length in tokens."""

    def __init__(self, tokens_min: int, exact: bool) -> None:
        super().__init__(f"prompt of at least {tokens_min} tokens")
        self.tokens_min = tokens_min
        self.exact = exact


@dataclass(frozen=True, slots=True)
class TokenizerStats:
    """Counters since the start. ``compared`` counts were checked against the engine's usage, of which ``mismatches`` differed."""

    counted_by_source: dict[CountSource, int]
    compared: int
    mismatches: int
    mismatch_tokens_abs_sum: int
    backlog: int
    backlog_bytes: int
    backlog_overflows: int
    cache_bytes: int
    last_error: str | None


class TokenCounter(Protocol):
    """Counts prompts as the engine will."""

    async def count(self, call: Call, *, block_size: int, context_tokens_max: int | None) -> PromptCount:
        """Count every prompt of ``call``; blocks of ``block_size`` are hashed. Never counts zero for a failure.

        Raises PromptTooLongError when the prompt is certain to exceed ``context_tokens_max``.
        """
        ...

    def expect(self, call: Call, bound_tokens_max: int) -> PromptCount | None:
        """What to expect of the call's one prompt without counting it.

        None where that is not known, or the bound that its bytes set may be above ``bound_tokens_max``.
        """
        ...

    def learn(self, call: Call, count: PromptCount, prompt_tokens: int) -> None:
        """Compare with the engine's ``usage.prompt_tokens`` (total over prompts) of the finished call."""
        ...

    def stats(self) -> TokenizerStats:
        """A snapshot for metrics."""
        ...

    async def aclose(self) -> None:
        """Drop what waits."""
        ...


class UpstreamError(Exception):
    """The replica could not be spoken to. ``kind`` is one of connect, timeout, reset, protocol, request (the request's own fault).

    ``answered`` is True once any byte of the response head was received; ``reused`` when an idle kept-alive connection failed before
    the first response byte, so that the same request may be sent again on a fresh one. ``limit`` is the policy key of the patience that
    ended, of kind timeout; "" for any other.
    """

    def __init__(self, kind: str, detail: str, *, answered: bool = False, reused: bool = False, limit: str = "") -> None:
        super().__init__(f"{kind}: {detail}")
        self.kind = kind
        self.limit = limit
        self.answered = answered
        self.reused = reused


class UpstreamResponse(Protocol):
    """An open response. ``read`` hands out body bytes as they arrive; ``close`` aborts what is not finished."""

    status: int
    headers: Headers

    @property
    def at_end(self) -> bool:
        """Whether all of the body was read."""
        ...

    async def read(self) -> bytes:
        """Body bytes available now, waiting for some; b"" at the end. Raises UpstreamError when the replica fails."""
        ...

    def pour(self, take: Callable[[bytes], bool]) -> Awaitable[None]:
        """Hand body bytes to ``take`` in the callback that brings them. Awaited until it says that it has no room for more, or the body
        ends or fails, which the next ``read`` tells; or for no reason. Who gives up waiting closes the response."""
        ...

    def flow(self, take: Callable[[bytes], bool], over: Callable[[], None]) -> bool:
        """As ``pour``, but ``over`` is called once in its stead; False: it is over already, and ``over`` is not called."""
        ...

    def close(self) -> None:
        """Give the connection back when the response was read to its end, else close it at once. Idempotent."""
        ...


class Upstream(Protocol):
    """The client side of the relay."""

    async def open(
        self, base_url: str, method: bytes, target: bytes, headers: Headers, body: bytes, *, once: bool = False
    ) -> UpstreamResponse:
        """Send a request and wait for the response head. Raises UpstreamError.

        ``once``: it goes over a connection of its own, for one that was kept may be closed just then, and sending anew is not allowed.
        """
        ...

    @property
    def buffered_bytes(self) -> int:
        """Bytes of answers that lie here because their clients read slowly."""
        ...

    def forget(self, base_url: str) -> None:
        """Nobody is sent there any more: close what is idle, and the rest as it ends."""
        ...

    async def aclose(self) -> None:
        """Close every connection."""
        ...


class LeaseStore(Protocol):
    """Where reservations are committed. The callback form lets a local store answer at once and a remote one later."""

    def reserve(self, effect: Reserve, done: Callable[[Sequence[Event]], None]) -> None:
        """Commit a reservation; ``done`` is called exactly once, with what the gate is to be told: Granted or Refused comes last."""
        ...

    def release(self, replica: str, lease_id: str) -> None:
        """End a reservation; unknown ids are ignored."""
        ...

    def looked(self) -> None:
        """The gate has taken in an event."""
        ...

    def leases_held(self) -> int:
        """Reservations not yet released."""
        ...


class Telemetry(Protocol):
    """Where finished requests and faults are told. Nothing here may raise or wait."""

    def request_finished(self, record: RequestRecord) -> None:
        """One request ended."""
        ...

    def internal_error(self, part: str) -> None:
        """A part of kvgate failed."""
        ...

    def connection_refused(self, fault: ConnectionFault) -> None:
        """A connection was given up before a whole request had come."""
        ...

    def store_called(self, call: str, seconds: float) -> None:
        """The shared store answered a call of that kind."""
        ...

    def loop_lag(self, seconds: float) -> None:
        """The event loop was so late."""
        ...

    def refused_unread(self, refusal: Refusal) -> None:
        """One was refused whatever it asked for."""
        ...

    @property
    def content_type(self) -> bytes:
        """Of the exposition."""
        ...

    def exposition_parts(self) -> Iterator[bytes]:
        """Everything measured, as text in parts, each of which takes a fraction of a millisecond to make."""
        ...


class WorkerTexts(Protocol):
    """The other workers of this process's parent, as far as their metrics go."""

    own: int  # our number among them

    async def others(self) -> dict[int, bytes | None]:
        """Their metrics by number; None of one that did not answer."""
        ...
