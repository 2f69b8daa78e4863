"""Ask a replica's ``/tokenize`` (reference vllm.md §5.3).

It counts as the replica's own chat route does, media placeholders included, except that it takes no ``documents`` and no
``reasoning_effort``: these go in as template arguments. It has no length limit and no truncation. After a time-out, a broken
connection or an answer of another kind it is left alone for a while: a dead replica, or one without the route, costs one wait and not one
for each request.

It is asked over the relay's own client: where no tokenizer is at hand every request asks, and httpx takes a millisecond of CPU for each.
"""

from array import array
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import msgspec

from proxy.adapters.control_http import USER_AGENT
from proxy.adapters.stall_proof import stall_proof_timeout
from proxy.ports import Clock, Upstream, UpstreamError
from proxy.wire.call import Call, ChatPrompt

TIMEOUT_S = 2.0
PAUSE_S = 5.0
NO_ROUTE = (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED)  # unless an engine's error says why
ANSWER_BYTES_MAX = 32 << 20  # the ids of two million tokens
_FIELDS = [
    (b"user-agent", USER_AGENT.encode()),
    (b"content-type", b"application/json"),
    (b"accept-encoding", b"identity"),  # packed an answer can be a thousand times as long
]
# One call is one prompt; a longer list is estimated rather than asked for piece by piece.
PROMPTS_MAX = 8


class RemoteCountError(Exception):
    """The replica gave no count; the message says why."""


class _Answer(msgspec.Struct):
    tokens: list[int]  # ``count`` is their number


class RemoteCounter:
    """Counts through whichever replica ``base_url`` names at the moment (None: there is none)."""

    def __init__(
        self,
        upstream: Upstream,
        base_url: Callable[[], str | None],
        clock: Clock,
        *,
        timeout_s: float = TIMEOUT_S,
        pause_s: float = PAUSE_S,
    ) -> None:
        """``upstream`` stays the caller's to close."""
        self._upstream = upstream
        self._base_url = base_url
        self._clock = clock
        self._timeout_s = timeout_s
        self._pause_s = pause_s
        self._paused_until_s = float("-inf")

    async def count(self, call: Call) -> list[bytes]:
        """Packed 32-bit ids per prompt. Raises RemoteCountError."""
        if self._clock.now_s() < self._paused_until_s:
            raise RemoteCountError("paused after a failure")
        base_url = self._base_url()
        if base_url is None:
            raise RemoteCountError("no replica to ask")
        if not call.countable or any(chat.thinking_off for chat in call.chats):
            raise RemoteCountError("/tokenize does not know how the engine makes this prompt")
        if max(len(call.chats), len(call.prompts)) > PROMPTS_MAX:
            raise RemoteCountError(f"more than {PROMPTS_MAX} prompts in one call")
        if call.chats:
            return [await self._ask(base_url, _chat_body(call.model, chat)) for chat in call.chats]
        return [await self._ids(base_url, call, prompt) for prompt in call.prompts]

    async def _ids(self, base_url: str, call: Call, prompt: str | tuple[int, ...]) -> bytes:
        if isinstance(prompt, tuple):
            return _pack(list(prompt))
        body = {"prompt": prompt, "add_special_tokens": call.add_special_tokens}
        return await self._ask(base_url, body if call.model is None else {"model": call.model, **body})

    async def _ask(self, base_url: str, body: dict[str, Any]) -> bytes:
        try:
            content = msgspec.json.encode(body)
        except (UnicodeEncodeError, TypeError, ValueError, RecursionError) as error:
            raise RemoteCountError(f"the prompt cannot be sent: {error}") from error
        try:
            async with stall_proof_timeout(self._timeout_s):
                status, told = await self._post(base_url, content)
        except (UpstreamError, TimeoutError) as error:
            self._paused_until_s = self._clock.now_s() + self._pause_s
            raise RemoteCountError(f"{type(error).__name__}: {error}") from error
        if status != HTTPStatus.OK:
            if status in NO_ROUTE and b"error" not in told:
                self._paused_until_s = self._clock.now_s() + self._pause_s
            raise RemoteCountError(f"/tokenize answered {status}: {told[:200].decode('utf-8', 'replace')}")
        try:
            answer = msgspec.json.decode(told, type=_Answer)
        except (msgspec.DecodeError, RecursionError) as error:
            self._paused_until_s = self._clock.now_s() + self._pause_s  # the route is not known there, nor for the next request
            raise RemoteCountError(f"/tokenize answered something else: {error}") from error
        if not answer.tokens:
            raise RemoteCountError("/tokenize counted nothing")
        return _pack(answer.tokens)

    async def _post(self, base_url: str, content: bytes) -> tuple[int, bytes]:
        """Status and body of the answer. Raises UpstreamError, and RemoteCountError for one that is packed or too long."""
        response = await self._upstream.open(base_url, b"POST", b"/tokenize", _FIELDS, content)
        try:
            if dict(response.headers).get(b"content-encoding", b"identity") != b"identity":
                raise RemoteCountError("/tokenize answered something else: it is compressed")
            body = bytearray()
            while part := await response.read():
                body += part
                if len(body) > ANSWER_BYTES_MAX:
                    raise RemoteCountError(f"/tokenize answered more than {ANSWER_BYTES_MAX:,} bytes")
        finally:
            response.close()
        return response.status, bytes(body)


def _chat_body(model: str | None, chat: ChatPrompt) -> dict[str, Any]:
    kwargs = dict(chat.template_kwargs)
    if chat.documents is not None:
        kwargs["documents"] = chat.documents
    body: dict[str, Any] = {
        "messages": chat.messages,
        "add_generation_prompt": chat.add_generation_prompt,
        "continue_final_message": chat.continue_final_message,
        "add_special_tokens": chat.add_special_tokens,
    }
    optional = {"model": model, "tools": chat.tools, "chat_template": chat.chat_template, "chat_template_kwargs": kwargs or None}
    return body | {key: value for key, value in optional.items() if value is not None}


def _pack(ids: list[int]) -> bytes:
    try:
        return array("I", ids).tobytes()
    except (OverflowError, TypeError) as error:
        raise RemoteCountError("token ids out of range") from error
