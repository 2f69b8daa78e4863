"""Calls that generate nothing on the real engine: embeddings count as it counts them, pairs are estimated high, and every lease ends.

The engine is the suite's own, or the one at ``KVGATE_VLLM_POOLING_URL``, which must be started as ``FLAGS`` say.
"""

import json
import os
from collections.abc import AsyncIterator
from typing import Any

import pytest

from proxy.core.demand import CountSource
from proxy.core.outcome import Outcome
from tests.integration.serving.harness import RunningProxy, proxying
from tests.vllm.call_bodies import ASKS
from tests.vllm.conftest import CONTEXT_TOKENS, KV_BLOCKS, VllmFactory

pytestmark = pytest.mark.vllm

FLAGS = ("--runner", "pooling", "--convert", "embed")
SAYS = {"role": "assistant", "content": "x"}
EXACT: dict[str, tuple[str, dict[str, Any]]] = {
    "text": ("/v1/embeddings", {"input": "Hello there"}),
    "several": ("/v1/embeddings", {"input": ["Hello", "two words 🙂"]}),
    "ids": ("/v1/embeddings", {"input": [1, 2, 3]}),
    "lists of ids": ("/v1/embeddings", {"input": [[1, 2], [3]]}),
    "a conversation": ("/v1/embeddings", {"messages": [ASKS]}),
    "with a generation prompt": ("/v1/embeddings", {"messages": [ASKS], "add_generation_prompt": True}),
    "a conversation as input": ("/v1/embeddings", {"input": [ASKS]}),
    "conversations": ("/v1/embeddings", {"messages": [[ASKS], [ASKS, SAYS]]}),
    "truncated": ("/v1/embeddings", {"input": "word " * 50, "truncate_prompt_tokens": 20}),
    "truncated to the context": ("/v1/embeddings", {"input": "x " * 5000, "truncate_prompt_tokens": -1}),
    "a full context": ("/v1/embeddings", {"input": [7] * CONTEXT_TOKENS}),
    "more than the pool holds": ("/v1/embeddings", {"input": [[7] * 1000] * 20}),
    "pooling": ("/pooling", {"input": "Hello"}),
}
PAIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "scores": ("/v1/score", {"text_1": "a query", "text_2": ["one", "two words"]}),
    "ranks": ("/rerank", {"query": "a query", "documents": ["one", "two words"]}),
}


@pytest.fixture
async def proxy(request: pytest.FixtureRequest) -> AsyncIterator[RunningProxy]:
    url = os.environ.get("KVGATE_VLLM_POOLING_URL")
    if not url:
        serve: VllmFactory = request.getfixturevalue("vllm_server")
        url = serve(KV_BLOCKS, *FLAGS).base_url
    async with proxying(url, tokenizer=False) as running:
        yield running
        await running.until_idle()


@pytest.mark.parametrize("name", [*EXACT, *PAIRS])
async def test_prompts_are_counted_and_answered(proxy: RunningProxy, name: str) -> None:
    path, fields = (EXACT | PAIRS)[name]
    reply = await proxy.wire.request("POST", path, json.dumps({"model": "tiny"} | fields).encode())
    assert reply.status == 200, reply
    (record,) = proxy.records
    assert record.outcome is Outcome.COMPLETED
    assert record.prompt_tokens is not None
    assert record.prompt_tokens_reported is not None
    if name in EXACT:
        assert (record.prompt_tokens, record.count_source) == (record.prompt_tokens_reported, CountSource.EXACT)
    else:
        assert record.prompt_tokens >= record.prompt_tokens_reported
        assert record.count_source is CountSource.RATIO
