"""What the endpoints share: one process's parts, put together by ``proxy.app``."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from proxy.core.health import Outliers
from proxy.core.outcome import Outcome, Refusal
from proxy.core.policy import AnswerHeaders, Auth, ErrorDetail, Fallback, Policy
from proxy.core.replica import ReplicaPhase
from proxy.ports import Clock, Headers, Receive, Send, Telemetry, TokenCounter, Upstream, WorkerTexts
from proxy.ports.record import RequestRecord
from proxy.ports.tracing import Tracing
from proxy.serving.access import AdminAccess
from proxy.serving.attempts import Attempts
from proxy.serving.client import NamedSend
from proxy.serving.decisions import Decisions
from proxy.serving.discovery import Discoverer
from proxy.serving.dispatcher import Dispatcher
from proxy.serving.drain import Drain
from proxy.serving.ended import Ended
from proxy.serving.exchange import Exchange
from proxy.serving.guard import Guard, StaticCap
from proxy.serving.history import History
from proxy.serving.identity import KEY_FIELDS
from proxy.serving.live_policy import LivePolicy
from proxy.serving.live_ring import LiveRing
from proxy.serving.outstanding import Outstanding
from proxy.serving.override import Switches
from proxy.serving.ranks import server_of
from proxy.serving.replica_set import ReplicaSet
from proxy.serving.request_ids import RequestIds
from proxy.serving.stored_responses import StoredResponses
from proxy.serving.uncounted import Uncounted
from proxy.serving.watcher import ReplicaWatcher
from proxy.wire.answers import Answer, ErrorShape, answer, way_headers

Scope = Mapping[str, object]


@dataclass(slots=True)
class Services:
    """Everything a request meets on its way."""

    policy: Policy
    live: LivePolicy
    clock: Clock
    dispatcher: Dispatcher
    counter: TokenCounter
    upstream: Upstream
    guard: Guard
    static_cap: StaticCap
    replicas: ReplicaSet
    attempts: Attempts
    outliers: Outliers
    discoverer: Discoverer
    watchers: Mapping[str, ReplicaWatcher]
    switches: Switches
    history: History
    ring: LiveRing
    decisions: Decisions
    outstanding: Outstanding
    telemetry: Telemetry
    drain: Drain
    credentials: Mapping[str, Headers] = field(repr=False)  # headers that go with every request to a replica
    chance: Callable[[], float]  # [0, 1), for jitter
    request_id: Callable[[], str]  # of leases, which must be unique; clients see request_ids
    request_ids: RequestIds
    loading: Callable[[], bool]  # whether a tokenizer is on its way
    fallback_headers: dict[Fallback, Headers] = field(
        default_factory=dict, repr=False
    )  # that go with every request to an API outside
    body_bytes_held: int = field(default=0)
    websockets: int = field(default=0)  # open, or being opened
    keepers: list[Callable[[RequestRecord], None]] = field(default_factory=list)  # of finished requests, beside telemetry
    access: AdminAccess = field(default_factory=AdminAccess)
    stored: StoredResponses = field(default_factory=StoredResponses)
    tracing: Tracing | None = None  # None: off
    exchange: Exchange | None = None  # with the other proxies; None: there are none
    workers: WorkerTexts | None = None  # None: there is one process
    uncounted: Uncounted = field(init=False)
    ended: Ended = field(init=False)

    def __post_init__(self) -> None:
        self.uncounted = Uncounted(self.dispatcher.gate, self.counter, self.clock)
        self.ended = Ended(self._told)

    @property
    def brief(self) -> bool:
        """Whether refusals hide their numbers."""
        return self.policy.error_detail is ErrorDetail.BRIEF

    def _told(self, record: RequestRecord) -> None:
        """Tell everybody who keeps account of a request that ended."""
        self.telemetry.request_finished(record)
        for keep in self.keepers:
            keep(record)

    def refused(
        self, refusal: Refusal, shape: ErrorShape = ErrorShape.OPENAI, *, retry_budget: bool = True, waited_s: float = 0.0,
        replica: str | None = None,
    ) -> Answer:  # fmt: skip
        """What a client is told that is refused: as much as the policy shows. ``replica`` is where it was last."""
        reply = answer(refusal, jitter=self.chance(), brief=self.brief, retry_budget=retry_budget, shape=shape)
        if self.policy.headers is AnswerHeaders.NONE:
            return replace(reply, headers=tuple(field for field in reply.headers if not field[0].startswith(b"x-kvgate-")))
        return replace(reply, headers=(*reply.headers, *way_headers(waited_s, replica)))

    def passed(self, replica: str) -> Headers:
        """What an answer tells that was relayed without a wait for a place."""
        if self.policy.headers is AnswerHeaders.NONE:
            return []
        return [(b"x-kvgate-outcome", Outcome.COMPLETED.encode()), *way_headers(0.0, replica)]

    def serving(self) -> list[ReplicaWatcher]:
        """Replicas that answer now."""
        return [watcher for watcher in self.watchers.values() if watcher.phase is ReplicaPhase.SERVING]

    def watcher_of(self, replica: str) -> ReplicaWatcher:
        """Who watches the replica, or the server that an engine belongs to."""
        return self.watchers[server_of(replica)]

    def upstream_headers(self, replica: str, headers: Headers, *, dropped: frozenset[bytes] = frozenset()) -> Headers:
        """The client's headers less ``dropped``, with the replica's own in place of any of the same name.

        A key that opened the door here (``auth: require``) goes no further.
        """
        own = self.credentials[server_of(replica)]
        if not own and not dropped and self.policy.auth is Auth.PASS:
            return headers
        gone = dropped | {name for name, _ in own}
        if self.policy.auth is Auth.REQUIRE:
            gone |= frozenset(KEY_FIELDS)
        return [field for field in headers if field[0] not in gone] + own if gone else headers


def target_of(scope: Scope) -> bytes:
    """Path and query as they came."""
    raw, query = scope["raw_path"], scope["query_string"]
    assert isinstance(raw, bytes)
    assert isinstance(query, bytes)
    return raw + b"?" + query if query else raw


async def send_answer(send: Send, reply: Answer) -> None:
    """Send a whole response of our own."""
    headers = list(reply.headers)
    if isinstance(send, NamedSend) and send.for_page is not None:
        headers += await send.for_page()
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body, "more_body": False})


class BodyTooLargeError(Exception):
    """The request's body exceeds the policy's limit."""


class BodyCutOffError(Exception):
    """The client left while it sent its body."""


def announced_bytes(scope: Scope) -> int:
    """The body's length as the head tells it; 0 where it does not."""
    headers: list[tuple[bytes, bytes]] = scope["headers"]  # type: ignore[assignment]
    return int(dict(headers).get(b"content-length", 0))


async def read_body(receive: Receive, bytes_max: int, announced: int = 0) -> bytes:
    """The whole body, of which ``announced`` bytes are to come. Raises BodyTooLargeError, BodyCutOffError."""
    if announced > bytes_max:
        raise BodyTooLargeError  # before a byte of it is read or asked for
    message = await receive()
    if message["type"] == "http.disconnect":
        raise BodyCutOffError
    first: bytes = message.get("body", b"")
    if not message.get("more_body", False):
        if len(first) > bytes_max:
            raise BodyTooLargeError
        return first
    parts, size = [first], len(first)
    while message.get("more_body", False):
        message = await receive()
        if message["type"] == "http.disconnect":
            raise BodyCutOffError
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > bytes_max:
            raise BodyTooLargeError
    return b"".join(parts)
