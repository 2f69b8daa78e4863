"""Which routes take KV, and how the body of each is read.

Every other route passes without a lease: either it runs nothing on the engine (``/tokenize``, ``/v1/messages/count_tokens``), or only the
engine knows what it runs (``/invocations``, plugins), and then its blocks show as foreign traffic in the measurement.
"""

from collections.abc import Callable
from typing import Any

from proxy.wire.call import Call, CallKind
from proxy.wire.lax import parse_object
from proxy.wire.messages import read_messages
from proxy.wire.openai import read_chat, read_chat_batch, read_completions, read_generate
from proxy.wire.pooling import read_pooling, read_ranking, read_scoring
from proxy.wire.responses import read_responses

CALL_ROUTES = {
    "/v1/chat/completions": CallKind.CHAT,
    "/v1/chat/completions/batch": CallKind.CHAT_BATCH,
    "/v1/completions": CallKind.COMPLETIONS,
    "/v1/responses": CallKind.RESPONSES,
    "/v1/messages": CallKind.MESSAGES,
    "/inference/v1/generate": CallKind.GENERATE,
    "/generative_scoring": CallKind.SCORING,
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

_READERS: dict[CallKind, Callable[[dict[str, Any]], Call]] = {
    CallKind.CHAT: read_chat,
    CallKind.CHAT_BATCH: read_chat_batch,
    CallKind.COMPLETIONS: read_completions,
    CallKind.RESPONSES: read_responses,
    CallKind.MESSAGES: read_messages,
    CallKind.GENERATE: read_generate,
    CallKind.SCORING: read_scoring,
    CallKind.POOLING: read_pooling,
    CallKind.RANKING: read_ranking,
}


def read_call(kind: CallKind, body: bytes) -> Call:
    """Read a body. Raises UnreadableCallError (and nothing else, whatever the bytes)."""
    return _READERS[kind](parse_object(body))
