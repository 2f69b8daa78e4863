"""Both ends of ``relay_peers``: an engine that answers at once or streams by the clock, and clients that drop what they read.

Plain asyncio protocols on uvloop: one process each, and no parsing beyond what tells one answer from the next.
"""

import asyncio
import random
import socket
import time
from collections.abc import Callable
from typing import Any

import uvloop

WORDS = (
    b"the of and to in is that for it as was with be by on not this are or his from at which but have an had they you were their one "
    b"all we can her has there been if more when will would who so no please explain system function return question answer because "
    b"between different important example customer document summary table value order number database request response server"
).split()
TEXT_BYTES = 1900  # with the rest of its body, a prompt of 2 KB
EVENTS = 100
EVENT = (
    b'data: {"id":"chatcmpl-0123456789abcdef0123456789abcdef","object":"chat.completion.chunk","created":1764400000,"model":"m",'
    b'"choices":[{"index":0,"delta":{"content":" some words"},"logprobs":null,"finish_reason":null}],"token_ids":null}\n\n'
)
CHUNK = b"%x\r\n%b\r\n" % (len(EVENT), EVENT)
LAST = b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n"
STREAM_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
ANSWER = (
    b'{"id":"chatcmpl-0123456789abcdef","object":"chat.completion","created":1764400000,"model":"m","choices":[{"index":0,"message":'
    b'{"role":"assistant","content":"%b"},"finish_reason":"stop"}],"usage":{"prompt_tokens":440,"total_tokens":456,"completion_tokens":16}}'
) % (b"words " * 50)
MODELS = b'{"object":"list","data":[{"id":"m","object":"model","created":1,"owned_by":"vllm","root":"m","max_model_len":8192}]}'
METRICS = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 0.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.0
# TYPE vllm:num_preemptions counter
vllm:num_preemptions_total{engine="0",model_name="m"} 0.0
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0",num_gpu_blocks="%d"} 1.0
"""


def whole(body: bytes, kind: bytes = b"application/json") -> bytes:
    """A response with a length."""
    return b"HTTP/1.1 200 OK\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (kind, len(body), body)


class Engine(asyncio.Protocol):
    """A request whose body asks for a stream gets ``EVENTS`` events, one every ``seed`` milliseconds; any other is answered after
    ``hold_s``.
    """

    def __init__(self, blocks: int, hold_s: float = 0.0) -> None:
        self._loop = asyncio.get_running_loop()
        self._buffer = b""
        self._hold_s = hold_s
        self._get = {b"/v1/models": whole(MODELS), b"/metrics": whole(METRICS % blocks, b"text/plain; version=0.0.4")}

    def connection_made(self, transport: Any) -> None:
        """The transport's side."""
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """The transport's side: one request at a time."""
        self._buffer += data
        head, end, body = self._buffer.partition(b"\r\n\r\n")
        if not end:
            return
        _, _, after = head.lower().partition(b"content-length: ")
        if after and len(body) < int(after.partition(b"\r")[0]):
            return
        self._buffer = b""
        if head.startswith(b"GET "):
            self._transport.write(self._get.get(head.split(b" ", 2)[1].partition(b"?")[0], whole(b"{}")))
        elif b'"stream":true' in body:
            self._transport.write(STREAM_HEAD)
            self._period_s = int(body.partition(b'"seed":')[2].partition(b",")[0]) / 1e3
            self._due_s, self._left = self._loop.time(), EVENTS
            self._emit()
        elif self._hold_s:
            self._loop.call_later(self._hold_s, self._answer)
        else:
            self._answer()

    def _answer(self) -> None:
        if not self._transport.is_closing():
            self._transport.write(whole(ANSWER))

    def _emit(self) -> None:
        if self._transport.is_closing():
            return
        self._left -= 1
        self._transport.write(CHUNK if self._left else CHUNK + LAST)
        if self._left:
            self._due_s += self._period_s
            self._loop.call_at(self._due_s, self._emit)


def run_engine(listener: socket.socket, blocks: int, hold_s: float = 0.0) -> None:
    """Serve until killed."""

    async def main() -> None:
        server = await asyncio.get_running_loop().create_server(lambda: Engine(blocks, hold_s), sock=listener)
        await server.serve_forever()

    uvloop.run(main())


class Client(asyncio.Protocol):
    """Sends one request after another, each with fresh words.

    ``period_ms`` of the events it asks for, 0: no stream. ``rate_per_s`` None: the next as soon as one is answered.
    """

    def __init__(self, period_ms: int, seen: "Seen", rate_per_s: float | None, chance: random.Random) -> None:
        self._period_ms, self._seen, self._rate_per_s, self._chance = period_ms, seen, rate_per_s, chance
        self._tail = b""

    def connection_made(self, transport: Any) -> None:
        """The transport's side."""
        self._transport = transport
        self._next()

    def _send(self) -> None:
        if self._transport.is_closing():
            return
        text = b" ".join(self._chance.choices(WORDS, k=TEXT_BYTES // 5))[:TEXT_BYTES]
        body = b'{"model":"m","messages":[{"role":"user","content":"%b"}],"max_tokens":%d%b}' % (
            text, EVENTS if self._period_ms else 16,
            b',"seed":%d,"stream":true' % self._period_ms if self._period_ms else b"",
        )  # fmt: skip
        self._sent_s, self._waits = time.perf_counter(), True
        self._transport.write(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: bench\r\nuser-agent: bench\r\nauthorization: Bearer sk-1\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body)
        )

    def _next(self) -> None:
        if self._rate_per_s is None:
            self._send()
        else:
            asyncio.get_running_loop().call_later(self._chance.expovariate(self._rate_per_s), self._send)

    def data_received(self, data: bytes) -> None:
        """The transport's side: count events, and notice the first byte of a body and the end of an answer."""
        tail = self._tail + data
        self._seen.chunks += data.count(b"data: {")
        if self._waits and (b"data: {" in tail or b'"usage"' in tail):
            self._waits = False
            self._seen.first_s.append(time.perf_counter() - self._sent_s)
            self._seen.failed += b"HTTP/1.1 200" not in tail
        self._tail = tail[-4096:] if self._waits else tail[-64:]
        if tail.endswith(b"\r\n0\r\n\r\n") or (not self._period_ms and tail.endswith(b"}}")):
            self._seen.done += 1
            self._tail = b""
            self._next()

    def connection_lost(self, exc: Exception | None) -> None:
        """The transport's side."""
        self._seen.lost += exc is not None or not self._seen.over


class Seen:
    """What all clients saw since it was last cleared."""

    def __init__(self) -> None:
        self.over = False
        self.clear()

    def clear(self) -> None:
        """Begin anew."""
        self.done = self.chunks = self.lost = self.failed = 0
        self.first_s: list[float] = []


async def load(
    port: int,
    clients: int,
    *,
    period_ms: int,
    rate_per_s: float | None,
    warm_s: float,
    window_s: float,
    cpu_s: Callable[[], float],
) -> dict[str, float]:
    """Figures of one window: requests and events per second, their CPU in microseconds by ``cpu_s``, milliseconds to the first byte."""
    loop, seen, chance = asyncio.get_running_loop(), Seen(), random.Random(1)
    each = None if rate_per_s is None else rate_per_s / clients
    links = [
        await loop.create_connection(lambda: Client(period_ms, seen, each, chance), "127.0.0.1", port) for _ in range(clients)
    ]
    await asyncio.sleep(warm_s)
    burst_ms = percentile_ms(seen.first_s[:clients], 0.5)
    before_s = cpu_s()
    seen.clear()
    began_s = time.perf_counter()
    await asyncio.sleep(window_s)
    used_s, passed_s = cpu_s() - before_s, time.perf_counter() - began_s
    figures = {
        "requests_per_s": seen.done / passed_s,
        "chunks_per_s": seen.chunks / passed_s,
        "cpu_us_per_request": 1e6 * used_s / max(1, seen.done),
        "cpu_us_per_chunk": 1e6 * used_s / max(1, seen.chunks),
        "p50_ms": percentile_ms(seen.first_s, 0.5),
        "p99_ms": percentile_ms(seen.first_s, 0.99),
        "first_of_burst_ms": burst_ms,
        "failed": float(seen.lost + seen.failed),
    }
    seen.over = True
    for transport, _ in links:
        transport.abort()
    return figures


def percentile_ms(seconds: list[float], ratio: float) -> float:
    """Milliseconds at ``ratio`` of the sorted times; NaN without any."""
    return 1e3 * sorted(seconds)[int(ratio * (len(seconds) - 1))] if seconds else float("nan")
