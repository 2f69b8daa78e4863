"""A closed-loop load generator in one process that costs little CPU: what each request met, and a summary.

``run_load`` keeps a fixed number of requests open until a list is through; nothing is retried. Times are the event loop's (monotonic)
seconds. TTFT counts from sending to the first byte of a stream's body; TPOT is (last byte − first byte) ÷ (output tokens − 1) of one
request, for streams only.

What counts as what: *cancelled* left on purpose; *shed* was refused with 429 or 503 and an ``x-kvgate-outcome``; *completed* has status
200 and is whole (a stream ended with ``[DONE]`` and brought no error event, a plain answer is JSON with choices); all else *failed*.
"""

import asyncio
import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from proxy.adapters.upstream import HttpUpstream, UpstreamLimits
from proxy.adapters.upstream_bounds import Patience
from proxy.ports import UpstreamError, UpstreamResponse
from proxy.wire.sse import StreamObserver

SHED_STATUSES = (429, 503)
ERROR_CHARS_MAX = 400
SILENCE_S_MAX = 600.0  # a head or a chunk that takes longer is a failure


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """One request to send. ``leave_after_s``: the client closes its connection that long after sending, if it is still waiting."""

    target: str
    body: bytes
    stream: bool = True
    leave_after_s: float | None = None
    headers: tuple[tuple[bytes, bytes], ...] = ()  # beside those that every request has


class Fate(StrEnum):
    """Exactly one per request."""

    COMPLETED = "completed"
    SHED = "shed"
    CANCELLED = "cancelled"
    FAILED = "failed"


@dataclass(slots=True)
class Record:
    """What one request met. Times in seconds of the event loop's clock; None where it did not come to that."""

    sent_s: float
    first_s: float | None = None
    end_s: float = math.nan
    status: int = 0
    outcome: str = ""
    tokens: int = 0
    prompt_tokens: int = 0
    finish_reason: str = ""
    error: str = ""
    retry_after_s: float | None = None
    fate: Fate = Fate.FAILED
    stream: bool = True

    @property
    def tpot_s(self) -> float | None:
        """Seconds per output token after the first, None unless a completed stream of two or more."""
        if self.fate is not Fate.COMPLETED or not self.stream or self.first_s is None or self.tokens < 2:
            return None
        return (self.end_s - self.first_s) / (self.tokens - 1)


@dataclass(frozen=True, slots=True)
class Summary:
    """A run in a few numbers; latencies are None when no request had one."""

    requests: int
    completed: int
    failed: int
    shed: int
    cancelled: int
    elapsed_s: float
    output_tokens: int
    tokens_per_s: float
    prompt_tokens_mean: float | None
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    tpot_p50_s: float | None
    tpot_p99_s: float | None
    finish_reasons: dict[str, int]
    outcomes: dict[str, int]
    errors: dict[str, int]

    def as_json(self) -> dict[str, Any]:
        """The same as plain values."""
        return asdict(self)


def percentile(values: Iterable[float], share: float) -> float | None:
    """The value at or below which ``share`` (0..1) of the values lie (nearest rank); None of nothing."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else None


def summarise(records: Sequence[Record], elapsed_s: float) -> Summary:
    """Return the numbers of a run that took ``elapsed_s``."""
    fates = Counter(record.fate for record in records)
    tpots = [tpot for record in records if (tpot := record.tpot_s) is not None]
    done = [record for record in records if record.fate is Fate.COMPLETED]
    ttfts = [record.first_s - record.sent_s for record in done if record.stream and record.first_s is not None]
    prompts = [record.prompt_tokens for record in done if record.prompt_tokens]
    tokens = sum(record.tokens for record in records)
    return Summary(
        requests=len(records),
        completed=fates[Fate.COMPLETED],
        failed=fates[Fate.FAILED],
        shed=fates[Fate.SHED],
        cancelled=fates[Fate.CANCELLED],
        elapsed_s=elapsed_s,
        output_tokens=tokens,
        tokens_per_s=tokens / elapsed_s if elapsed_s > 0 else 0.0,
        prompt_tokens_mean=sum(prompts) / len(prompts) if prompts else None,
        ttft_p50_s=percentile(ttfts, 0.5),
        ttft_p99_s=percentile(ttfts, 0.99),
        tpot_p50_s=percentile(tpots, 0.5),
        tpot_p99_s=percentile(tpots, 0.99),
        finish_reasons=dict(Counter(record.finish_reason for record in done)),
        outcomes=dict(Counter(record.outcome for record in records if record.outcome)),
        errors=dict(Counter(record.error for record in records if record.fate is Fate.FAILED)),
    )


def new_upstream() -> HttpUpstream:
    """Return a client without bounds that a loaded engine could meet."""
    return HttpUpstream(UpstreamLimits(connect_s_max=30.0, patience=Patience(SILENCE_S_MAX, SILENCE_S_MAX)))


async def send(upstream: HttpUpstream, base_url: str, request: LoadRequest) -> Record:
    """Send one request and read its answer to the end, or until the client leaves. Never raises for what the server did."""
    loop = asyncio.get_running_loop()
    record = Record(sent_s=loop.time(), stream=request.stream)
    try:
        async with asyncio.timeout(request.leave_after_s):
            await _exchange(upstream, base_url, request, record)
    except UpstreamError as exc:
        record.error = str(exc)[:ERROR_CHARS_MAX]
    except TimeoutError:
        record.fate = Fate.CANCELLED
    record.end_s = loop.time()
    return record


async def _exchange(upstream: HttpUpstream, base_url: str, request: LoadRequest, record: Record) -> None:
    headers = [(b"content-type", b"application/json"), (b"accept", b"*/*"), *request.headers]
    response = await upstream.open(base_url, b"POST", request.target.encode(), headers, request.body)
    try:
        record.status = response.status
        fields = {name.lower(): value.decode("latin-1") for name, value in response.headers}
        record.outcome = fields.get(b"x-kvgate-outcome", "")
        if response.status != 200:
            _read_refusal(record, fields.get(b"retry-after"), await _whole(response))
        elif request.stream:
            await _read_stream(response, record)
        else:
            _read_answer(record, await _whole(response))
    finally:
        response.close()


async def _whole(response: UpstreamResponse) -> bytes:
    chunks = []
    while chunk := await response.read():
        chunks.append(chunk)
    return b"".join(chunks)


async def _read_stream(response: UpstreamResponse, record: Record) -> None:
    loop = asyncio.get_running_loop()
    observer = StreamObserver()
    tail = b""
    while chunk := await response.read():
        if record.first_s is None:
            record.first_s = loop.time()
        observer.feed(chunk)
        tail = (tail + chunk)[-ERROR_CHARS_MAX:]
        record.tokens = observer.tokens_seen
    record.finish_reason = ",".join(observer.finish_reasons)
    if observer.usage is not None:
        record.prompt_tokens = observer.usage.prompt_tokens
    if observer.done and not observer.failed:
        record.fate = Fate.COMPLETED
    else:
        record.error = f"stream {'brought an error' if observer.failed else 'ended early'}: {tail.decode(errors='replace')}"


def _read_answer(record: Record, body: bytes) -> None:
    try:
        answer = json.loads(body)
        usage, choices = answer["usage"], answer["choices"]
        record.tokens, record.prompt_tokens = usage["completion_tokens"], usage["prompt_tokens"]
        record.finish_reason = ",".join(str(choice["finish_reason"]) for choice in choices)
    except (ValueError, KeyError, TypeError) as exc:
        record.error = f"not a whole answer ({exc!r}): {body[-ERROR_CHARS_MAX:].decode(errors='replace')}"
    else:
        record.fate = Fate.COMPLETED


def _read_refusal(record: Record, retry_after: str | None, body: bytes) -> None:
    record.error = f"{record.status}: {body[:ERROR_CHARS_MAX].decode(errors='replace')}"
    if record.status in SHED_STATUSES and record.outcome:
        record.fate = Fate.SHED
    if retry_after is not None and retry_after.isdecimal():
        record.retry_after_s = float(retry_after)


async def run_load(
    base_url: str, requests: Sequence[LoadRequest], clients: int, on_end: Callable[[Record], None] | None = None
) -> tuple[list[Record], Summary]:
    """Send the requests in their order with ``clients`` of them open. ``on_end`` is told of each as it ends."""
    loop = asyncio.get_running_loop()
    upstream = new_upstream()
    left = iter(requests)
    records: list[Record] = []

    async def client() -> None:
        for request in left:
            record = await send(upstream, base_url, request)
            records.append(record)
            if on_end is not None:
                on_end(record)

    start_s = loop.time()
    try:
        async with asyncio.TaskGroup() as tasks:
            for _ in range(clients):
                tasks.create_task(client())
        elapsed_s = loop.time() - start_s
    finally:
        await upstream.aclose()
    return records, summarise(records, elapsed_s)
