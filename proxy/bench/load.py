"""Sends requests over real HTTP/1.1 and says what became of each: the one load generator, of ``kvgate demo`` and ``kvgate bench``.

It uses kvgate's own upstream client, which costs little enough not to disturb what it measures (the ``openai`` client costs several
times more of a CPU that replicas and kvgate share). Times are the clock's seconds since ``origin_s``. Latencies count from ``planned_s``,
when the load wanted to send, queues of any kind and a client that fell behind included. The first token is the first event with a
choice, an answer ends with its last one; how many tokens it has is what usage tells. Nothing is tried again.

Outcomes: *completed* has status 200 and a whole stream (``[DONE]``, no error event); *shed* is 429, or 503 with advice to come back;
*cancelled* was left on purpose; *unfinished* was still open when the run was over; all else *failed*. Fails: never for a request that
fails; that is a result.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import inf

from proxy.advise.result_figures import itl_counts
from proxy.advise.result_file import Outcome, RequestSample
from proxy.ports import Clock, Headers, Upstream, UpstreamError, UpstreamResponse
from proxy.wire.sse import StreamObserver

CHAT = b"/v1/chat/completions"
HEADERS: Headers = [(b"content-type", b"application/json"), (b"accept", b"text/event-stream"), (b"user-agent", b"kvgate-load")]
OUTCOME_HEADER = b"x-kvgate-outcome"
RETRY_HEADER = b"retry-after"
REQUEST_S_MAX = 120.0  # several times the longest wait of the demo's runs
ERROR_CHARACTERS_MAX = 200
CHOICE = b'"choices":[{'  # as vLLM writes it


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """What to send. ``leave_after_s``: the client closes its connection so long after sending, if it still waits for its end."""

    body: bytes
    target: bytes = CHAT
    headers: Headers = field(default_factory=list)
    tenant: str = "default"
    leave_after_s: float = inf
    prompt_tokens: int = 0  # as counted here, where that was done


@dataclass(slots=True)
class Tally:
    """What a run has seen so far. Times in seconds of the clock."""

    total: int
    started_s: float = 0.0
    ended_s: float = 0.0
    results: list[RequestSample] = field(default_factory=list)

    def count(self, outcome: Outcome) -> int:
        """How many requests met it."""
        return sum(result.outcome == outcome for result in self.results)

    def reasons(self) -> Counter[str]:
        """Why requests were not completed."""
        return Counter(result.error or result.outcome for result in self.results if result.outcome != "completed")


async def run_load(
    upstream: Upstream, urls: Sequence[str], bodies: Sequence[bytes], *, clients: int, clock: Clock, tally: Tally
) -> None:
    """Send every body once, in order, to the ``urls`` in turn as a plain load balancer does, ``clients`` of them at a time."""
    waiting = iter(enumerate(bodies))
    tally.started_s = clock.now_s()
    async with asyncio.TaskGroup() as group:
        for _ in range(min(clients, len(bodies))):
            group.create_task(_client(upstream, urls, waiting, clock, tally))
    tally.ended_s = clock.now_s()


async def _client(
    upstream: Upstream, urls: Sequence[str], waiting: Iterator[tuple[int, bytes]], clock: Clock, tally: Tally
) -> None:
    for index, body in waiting:
        request = LoadRequest(body)
        tally.results.append(
            await send(upstream, urls[index % len(urls)], request, clock, origin_s=tally.started_s, s_max=REQUEST_S_MAX)
        )


async def send(
    upstream: Upstream,
    url: str,
    request: LoadRequest,
    clock: Clock,
    *,
    origin_s: float = 0.0,
    planned_s: float | None = None,
    s_max: float = inf,
    until_s: float = inf,
) -> RequestSample:
    """Send one request and read its answer to the end.

    It is given up ``s_max`` after sending (failed), and ``until_s`` after ``origin_s`` (unfinished).
    """
    trip = _Trip(request, clock, origin_s)
    limits: list[tuple[float, Outcome, str | None]] = [
        (request.leave_after_s, "cancelled", None),
        (s_max, "failed", f"no end within {s_max:g} s"),
        (max(0.0, until_s - trip.sent_s), "unfinished", None),
    ]
    limit_s, outcome, reason = min(limits, key=lambda limit: limit[0])
    try:
        async with asyncio.timeout(None if limit_s == inf else limit_s):
            response = await upstream.open(url, b"POST", request.target, [*HEADERS, *request.headers], request.body)
            try:
                outcome, reason = await trip.read(response)
            finally:
                response.close()
    except UpstreamError as error:
        outcome, reason = "failed", str(error)
    except TimeoutError:
        pass
    return trip.sample(outcome, reason, planned_s)


class _Trip:
    """One request under way."""

    def __init__(self, request: LoadRequest, clock: Clock, origin_s: float) -> None:
        self._request = request
        self._clock = clock
        self._origin_s = origin_s
        self._first_s: float | None = None
        self._last_s: float | None = None
        self._gaps_s: list[float] = []
        self._observer = StreamObserver()
        self._status: int | None = None
        self.sent_s = self._now_s()

    def _now_s(self) -> float:
        return self._clock.now_s() - self._origin_s

    async def read(self, response: UpstreamResponse) -> tuple[Outcome, str | None]:
        """Read to the end."""
        self._status = response.status
        if response.status != 200:
            return await _refused(response)
        observer = self._observer
        while data := await response.read():
            events, usage = observer.tokens_seen, observer.usage
            observer.feed(data)
            # Until usage is told, tokens seen are events with content; usage itself mostly comes in an event that carries none.
            told = observer.usage is not None
            events = 0 if usage is not None else data.count(CHOICE) if told else observer.tokens_seen - events
            self._chunks(max(events, int(self._first_s is None and observer.first_content)))
        if observer.failed or not observer.done or self._first_s is None:
            return "failed", "the stream told an error" if observer.failed else "the stream was cut off"
        return "completed", None

    def _chunks(self, count: int) -> None:
        """So many events with content came just now: all but the first without a gap."""
        if not count:
            return
        now_s = self._now_s()
        if self._last_s is None:
            self._first_s = now_s
        else:
            self._gaps_s.append(now_s - self._last_s)
        self._gaps_s += [0.0] * (count - 1)
        self._last_s = now_s

    def sample(self, outcome: Outcome, reason: str | None, planned_s: float | None) -> RequestSample:
        """What is known at the end."""
        usage = self._observer.usage
        whole = outcome == "completed" and self._last_s is not None
        return RequestSample(
            planned_s=self.sent_s if planned_s is None else planned_s,
            sent_s=self.sent_s,
            ended_s=self._last_s if whole and self._last_s is not None else self._now_s(),
            outcome=outcome,
            first_token_s=self._first_s,
            prompt_tokens=0 if usage is None else usage.prompt_tokens,
            output_tokens=self._observer.tokens_seen,
            tenant=self._request.tenant,
            status=self._status,
            error=reason,
            itl_counts=itl_counts(self._gaps_s),
        )


async def _refused(response: UpstreamResponse) -> tuple[Outcome, str]:
    fields = {name.lower(): value.decode("latin-1") for name, value in response.headers}
    body = b""
    while data := await response.read():
        body += data
    if response.status == 429 or (response.status == 503 and RETRY_HEADER in fields):
        return "shed", f"{response.status} {fields.get(OUTCOME_HEADER, '')}".rstrip()
    return "failed", f"{response.status} {body[:ERROR_CHARACTERS_MAX].decode(errors='replace')}"
