"""Which routes take KV, and how the body of each is read.

``/invocations`` is what its body's fields make it, as in the engine. Every other route passes without a lease: either it runs nothing on
the engine (``/tokenize``, ``/v1/messages/count_tokens``, ``…/render``), or only the engine knows what it runs (plugins), and then its
blocks show as foreign traffic in the measurement.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from proxy.wire.call import Call, CallKind
from proxy.wire.lax import UnreadableCallError, parse_object
from proxy.wire.messages import read_messages
from proxy.wire.openai import read_chat, read_chat_batch, read_completions, read_generate
from proxy.wire.pooling import read_decisions, read_pooling, read_ranking, read_scoring
from proxy.wire.responses import read_responses
from proxy.wire.routes import plain_path, under_any_prefix
from proxy.wire.speech import read_speech

CALL_ROUTES = {
    "/v1/chat/completions": CallKind.CHAT,
    "/v1/chat/completions/batch": CallKind.CHAT_BATCH,
    "/v1/completions": CallKind.COMPLETIONS,
    "/v1/responses": CallKind.RESPONSES,
    "/v1/messages": CallKind.MESSAGES,
    "/inference/v1/generate": CallKind.GENERATE,
    "/generative_scoring": CallKind.SCORING,
    "/v1/systemone": CallKind.DECISIONS,
    "/cohere/v2/chat": CallKind.COHERE_CHAT,
    "/invocations": CallKind.INVOCATION,
    "/v1/audio/transcriptions": CallKind.SPEECH,
    "/v1/audio/translations": CallKind.SPEECH,
    "/v1/embeddings": CallKind.POOLING,
    "/v2/embed": CallKind.POOLING,
    "/pooling": CallKind.POOLING,
    "/classify": CallKind.POOLING,
    "/score": CallKind.RANKING,
    "/v1/score": CallKind.RANKING,
    "/rerank": CallKind.RANKING,
    "/v1/rerank": CallKind.RANKING,
    "/v2/rerank": CallKind.RANKING,
}


def call_route(path: str) -> str | None:
    """The route above that a server on the way, or the engine itself, might read ``path`` as; None where it is none.

    The engine takes a line end after a path for nothing at all (its router's patterns end in ``$``), and any prefix that it was started
    with (``--root-path``); a balancer may take out doubled slashes and the like. The path is sent on as it came.
    """
    return path if path in CALL_ROUTES else under_any_prefix(plain_path(path), CALL_ROUTES)


def read_cohere_chat(fields: dict[str, Any]) -> Call:
    """Read a chat in Cohere's form, whose stream takes no ``stream_options``. Raises UnreadableCallError."""
    return replace(read_chat(fields), kind=CallKind.COHERE_CHAT, countable=False, usage_wanted=True)


def read_invocation(fields: dict[str, Any]) -> Call:
    """Read a body as the first of the engine's request types that it fits. Raises UnreadableCallError."""
    for names, read in _INVOCATIONS:
        if any(fields.get(name) is not None for name in names):
            return read(fields)
    raise UnreadableCallError("it fits no request type")


_INVOCATIONS: tuple[tuple[tuple[str, ...], Callable[[dict[str, Any]], Call]], ...] = (
    (("messages",), read_chat),
    (("prompt", "prompt_embeds"), read_completions),
    (("documents", "queries", "data_1", "text_1"), read_ranking),
    (("input",), read_pooling),
)
_READERS: dict[CallKind, Callable[[dict[str, Any]], Call]] = {
    CallKind.CHAT: read_chat,
    CallKind.CHAT_BATCH: read_chat_batch,
    CallKind.COMPLETIONS: read_completions,
    CallKind.RESPONSES: read_responses,
    CallKind.MESSAGES: read_messages,
    CallKind.GENERATE: read_generate,
    CallKind.SCORING: read_scoring,
    CallKind.DECISIONS: read_decisions,
    CallKind.COHERE_CHAT: read_cohere_chat,
    CallKind.INVOCATION: read_invocation,
    CallKind.POOLING: read_pooling,
    CallKind.RANKING: read_ranking,
}


def read_call(kind: CallKind, body: bytes) -> Call:
    """Read a body. Raises UnreadableCallError (and nothing else, whatever the bytes)."""
    try:
        return read_speech(body) if kind is CallKind.SPEECH else _READERS[kind](parse_object(body))
    except RecursionError as error:  # it was just shallow enough to be parsed
        raise UnreadableCallError("the body is nested too deep") from error
