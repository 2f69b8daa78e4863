"""The load: N clients, each sending its next request when its last one ended, and what became of every request.

Streams over real HTTP/1.1 with kvgate's own upstream client, which costs little enough not to disturb what it measures (the
``openai`` client costs several times more of a CPU that replicas and kvgate share here). TTFT runs from the moment of sending to
the first event with a choice, time in any queue included; TPOT is (end − first) ÷ (tokens − 1), tokens as usage tells them.

Refusals are counted and not tried again. Fails: never for a request that fails; that is a result.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from proxy.ports import Clock, Headers, Upstream, UpstreamError, UpstreamResponse
from proxy.wire.sse import StreamObserver

TARGET = b"/v1/chat/completions"
HEADERS: Headers = [(b"content-type", b"application/json"), (b"accept", b"text/event-stream"), (b"user-agent", b"kvgate-demo")]
OUTCOME_HEADER = b"x-kvgate-outcome"
REQUEST_S_MAX = 120.0  # several times the longest wait either run has


class Fate(StrEnum):
    """What became of a request."""

    COMPLETED = "completed"
    SHED = "shed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class RequestResult:
    """One request. ``ttft_s`` and ``tpot_s`` are None where it had no first or no second token; ``reason`` only if not completed."""

    fate: Fate
    tokens: int = 0
    ttft_s: float | None = None
    tpot_s: float | None = None
    reason: str = ""


@dataclass(slots=True)
class Tally:
    """What a run has seen so far. Times in seconds of the clock."""

    total: int
    started_s: float = 0.0
    ended_s: float = 0.0
    results: list[RequestResult] = field(default_factory=list)

    def count(self, fate: Fate) -> int:
        """How many requests met it."""
        return sum(result.fate is fate for result in self.results)

    def reasons(self) -> Counter[str]:
        """Why requests were not completed."""
        return Counter(result.reason for result in self.results if result.fate is not Fate.COMPLETED)


async def run_load(
    upstream: Upstream, urls: Sequence[str], bodies: Sequence[bytes], *, clients: int, clock: Clock, tally: Tally
) -> None:
    """Send every body once, in order, to the ``urls`` in turn as a plain load balancer does."""
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
        tally.results.append(await send(upstream, urls[index % len(urls)], body, clock))


async def send(upstream: Upstream, url: str, body: bytes, clock: Clock, *, s_max: float = REQUEST_S_MAX) -> RequestResult:
    """Send one request and read its stream to the end."""
    sent_s = clock.now_s()
    try:
        async with asyncio.timeout(s_max):
            response = await upstream.open(url, b"POST", TARGET, HEADERS, body)
            try:
                return await _read(response, sent_s, clock)
            finally:
                response.close()
    except UpstreamError as error:
        return RequestResult(Fate.FAILED, reason=str(error))
    except TimeoutError:
        return RequestResult(Fate.FAILED, reason=f"no end within {s_max:g} s")


async def _read(response: UpstreamResponse, sent_s: float, clock: Clock) -> RequestResult:
    if response.status != 200:
        return await _refused(response)
    observer = StreamObserver()
    first_s: float | None = None
    while data := await response.read():
        observer.feed(data)
        if first_s is None and observer.first_content:
            first_s = clock.now_s()
    ended_s = clock.now_s()
    if observer.failed or not observer.done or first_s is None:
        return RequestResult(Fate.FAILED, reason="the stream told an error" if observer.failed else "the stream was cut off")
    tokens = observer.tokens_seen
    tpot_s = (ended_s - first_s) / (tokens - 1) if tokens > 1 else None
    return RequestResult(Fate.COMPLETED, tokens, first_s - sent_s, tpot_s)


async def _refused(response: UpstreamResponse) -> RequestResult:
    outcome = next((value.decode("latin-1") for name, value in response.headers if name == OUTCOME_HEADER), None)
    body = b""
    while data := await response.read():
        body += data
    if outcome is not None and response.status in (429, 503):
        return RequestResult(Fate.SHED, reason=f"{response.status} {outcome}")
    return RequestResult(Fate.FAILED, reason=f"{response.status} {body[:200].decode(errors='replace')}")
