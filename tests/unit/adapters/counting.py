"""Calls, counters and replicas for the tests that count prompts."""

import json
from collections.abc import Callable
from typing import Any

import httpx

from proxy.adapters.remote_counter import RemoteCounter
from proxy.adapters.tokenizer_files import LoadedTokenizer
from proxy.adapters.tokenizer_pool import TokenizerPool
from proxy.ports import PromptCount
from proxy.wire.call import Call, CallKind
from proxy.wire.read_call import read_call

IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


class StillClock:
    """A clock the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def now_s(self) -> float:
        return self.now

    def wall_s(self) -> float:
        return 1_800_000_000.0


def chat(content: Any = "the quick brown fox", **fields: Any) -> Call:
    return read_call(
        CallKind.CHAT, json.dumps({"model": "m", "messages": [{"role": "user", "content": content}]} | fields).encode()
    )


def completion(prompt: Any, **fields: Any) -> Call:
    return read_call(CallKind.COMPLETIONS, json.dumps({"model": "m", "prompt": prompt} | fields).encode())


async def count(pool: TokenizerPool, call: Call, *, block_size: int = 4, context: int | None = None) -> PromptCount:
    return await pool.count(call, block_size=block_size, context_tokens_max=context)


def length(source: LoadedTokenizer, text: str) -> int:
    return len(source.encode(text, add_special_tokens=False)) // 4


def replica(handler: Callable[[httpx.Request], httpx.Response], **options: Any) -> RemoteCounter:
    client = httpx.AsyncClient(transport=httpx.MockTransport(handler))
    return RemoteCounter(
        client, options.pop("base_url", lambda: "http://replica/"), options.pop("clock", StillClock()), **options
    )


def answering(tokens: int) -> tuple[RemoteCounter, list[dict[str, Any]]]:
    seen: list[dict[str, Any]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        assert request.url == "http://replica/tokenize"
        seen.append(json.loads(request.content))
        return httpx.Response(200, json={"count": tokens, "max_model_len": 99, "tokens": list(range(tokens)), "token_strs": None})

    return replica(handler), seen
