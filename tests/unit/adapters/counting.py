"""Calls, counters and replicas for the tests that count prompts."""

import json
from collections.abc import Callable
from typing import Any

import httpx

from proxy.adapters.remote_counter import RemoteCounter
from proxy.adapters.tokenizer_files import LoadedTokenizer
from proxy.adapters.tokenizer_pool import TokenizerPool
from proxy.ports import Headers, PromptCount, UpstreamError
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


class Told:
    """An answer that has come whole."""

    at_end = False

    def __init__(self, answer: httpx.Response) -> None:
        self.status = answer.status_code
        self.headers = [(name.lower(), value) for name, value in answer.headers.raw]
        self._parts = [answer.content, b""]

    async def read(self) -> bytes:
        return self._parts.pop(0)

    async def pour(self, take: Callable[[bytes], bool]) -> None:
        raise NotImplementedError

    def close(self) -> None:
        """Nothing is held."""


class Scripted:
    """An upstream whose answers a function gives; what it raises of httpx is a replica that could not be spoken to."""

    buffered_bytes = 0

    def __init__(self, handler: Callable[[httpx.Request], httpx.Response]) -> None:
        self._handler = handler

    async def open(
        self, base_url: str, method: bytes, target: bytes, headers: Headers, body: bytes, *, once: bool = False
    ) -> Told:
        del once
        try:
            url = base_url.rstrip("/") + target.decode()
            return Told(self._handler(httpx.Request(method.decode(), url, headers=list(headers), content=body)))
        except httpx.HTTPError as error:
            raise UpstreamError("timeout", str(error)) from error

    def forget(self, base_url: str) -> None:
        """Nothing is held."""

    async def aclose(self) -> None:
        """Nothing is held."""


def replica(handler: Callable[[httpx.Request], httpx.Response], **options: Any) -> RemoteCounter:
    url, clock = options.pop("base_url", lambda: "http://replica/"), options.pop("clock", StillClock())
    return RemoteCounter(Scripted(handler), url, clock, **options)


def answering(tokens: int) -> tuple[RemoteCounter, list[dict[str, Any]]]:
    seen: list[dict[str, Any]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        assert request.url == "http://replica/tokenize"
        seen.append(json.loads(request.content))
        return httpx.Response(200, json={"count": tokens, "max_model_len": 99, "tokens": list(range(tokens)), "token_strs": None})

    return replica(handler), seen
