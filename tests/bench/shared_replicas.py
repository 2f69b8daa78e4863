"""Replicas that cost next to nothing, for measuring what a proxy adds: ``shared_replicas.py PORT…`` serves one on each port.

Every request is answered whole after ``HOLD_S``; metrics are those of vLLM 0.32 that kvgate reads, and true. No tokens are made, so this
is no model of an engine: only its price and its counters matter here.
"""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import uvloop

HOLD_S = 0.25
BLOCKS = 4001
BLOCKS_PER_REQUEST = 4
PROMPT_TOKENS, OUTPUT_TOKENS = 40, 16
MODEL = "mock"
CONTEXT_TOKENS = 4096
ANSWER = {
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1764400000, "model": MODEL,
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "words " * 16}, "finish_reason": "stop"}],
    "usage": {"prompt_tokens": PROMPT_TOKENS, "completion_tokens": OUTPUT_TOKENS, "total_tokens": PROMPT_TOKENS + OUTPUT_TOKENS},
}  # fmt: skip
MODELS = {"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": CONTEXT_TOKENS, "root": MODEL}]}
LABELS = 'engine="0",model_name="mock"'
METRICS = """\
process_start_time_seconds 1.7e+09
vllm:num_requests_running{{{labels}}} {running}
vllm:num_requests_waiting{{{labels}}} 0
vllm:kv_cache_usage_perc{{{labels}}} {usage}
vllm:num_preemptions_total{{{labels}}} 0
vllm:prompt_tokens_total{{{labels}}} {prompts}
vllm:generation_tokens_total{{{labels}}} {outputs}
vllm:prefix_cache_queries_total{{{labels}}} {prompts}
vllm:prefix_cache_hits_total{{{labels}}} 0
vllm:cache_config_info{{block_size="16",num_gpu_blocks="{blocks}",enable_prefix_caching="True",{labels}}} 1
"""


class Replica:
    """One replica's counters."""

    def __init__(self) -> None:
        self.running = self.started = 0
        self.ended = 0

    def metrics(self) -> bytes:
        """Its exposition."""
        made = self.ended * OUTPUT_TOKENS + self.running * OUTPUT_TOKENS // 2
        usage = self.running * BLOCKS_PER_REQUEST / (BLOCKS - 1)
        prompts = self.started * PROMPT_TOKENS
        return METRICS.format(
            labels=LABELS, running=self.running, usage=usage, prompts=prompts, outputs=made, blocks=BLOCKS
        ).encode()


def whole(body: bytes, kind: bytes = b"application/json", status: bytes = b"200 OK") -> bytes:
    """One HTTP answer."""
    return b"HTTP/1.1 %b\r\ncontent-type: %b\r\ncontent-length: %d\r\n\r\n%b" % (status, kind, len(body), body)


COMPLETION = whole(json.dumps(ANSWER).encode())


class Connection(asyncio.Protocol):
    """One connection, one request at a time."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._buffer = b""
        self._transport: Any = None
        self._due: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin."""
        self._transport = transport

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        """The client left; what ran for it is over."""
        if self._due is not None:
            self._due.cancel()
            self._ended()

    def data_received(self, data: bytes) -> None:
        """Answer each request once it is whole."""
        self._buffer += data
        head, mark, rest = self._buffer.partition(b"\r\n\r\n")
        if not mark:
            return
        length = 0
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        if len(rest) < length:
            return
        self._buffer = rest[length:]
        method, target = head.split(b" ", 2)[:2]
        self._answer(method, target.partition(b"?")[0])

    def _answer(self, method: bytes, path: bytes) -> None:
        if method == b"POST" and path.startswith((b"/v1/chat", b"/v1/completions")):
            self._replica.running += 1
            self._replica.started += 1
            self._due = asyncio.get_running_loop().call_later(HOLD_S, self._complete)
            return
        pages: dict[bytes, Callable[[], bytes]] = {
            b"/health": lambda: whole(b""),
            b"/version": lambda: whole(b'{"version":"0.32.0"}'),
            b"/v1/models": lambda: whole(json.dumps(MODELS).encode()),
            b"/metrics": lambda: whole(self._replica.metrics(), b"text/plain; version=0.0.4"),
        }
        page = pages.get(path)
        self._transport.write(whole(b"{}", status=b"404 Not Found") if page is None else page())

    def _ended(self) -> None:
        self._replica.running -= 1
        self._replica.ended += 1
        self._due = None

    def _complete(self) -> None:
        self._ended()
        self._transport.write(COMPLETION)


async def main(ports: list[int]) -> None:
    """Serve until killed."""
    loop = asyncio.get_running_loop()

    def factory(replica: Replica) -> Callable[[], Connection]:
        return lambda: Connection(replica)

    for port in ports:
        await loop.create_server(factory(Replica()), "127.0.0.1", port, backlog=1024)
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(main([int(word) for word in sys.argv[1:]]))
