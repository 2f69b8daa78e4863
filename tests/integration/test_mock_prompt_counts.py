"""What the mock counts as prompt tokens and what kvgate counts by itself: two implementations, one answer."""

import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from proxy.adapters.local_counter import LocalCounter
from proxy.adapters.tokenizer_files import open_tokenizer
from proxy.sim.mock_text import TOKENIZER_DIRECTORY
from proxy.wire.call import CallKind
from proxy.wire.read_call import read_call
from tests.integration.mock_harness import RunningMock, running, settings

pytestmark = pytest.mark.asyncio(loop_scope="module")

USER = {"role": "user", "content": "What is the weather in Ulm?"}
TOOL = {
    "type": "function",
    "function": {"parameters": {"type": "object", "properties": {"town": {"type": "string"}}}, "name": "weather"},
}
CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"town": "Ulm"}'}}
BROKEN = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"town": '}}

BODIES: dict[str, dict[str, Any]] = {
    "plain": {"messages": [USER]},
    "system": {"messages": [{"role": "system", "content": "Be brief."}, USER]},
    "developer": {"messages": [{"role": "developer", "content": "Be kind."}, USER]},
    "developer and system": {"messages": [{"role": "system", "content": "A"}, USER, {"role": "developer", "content": "B"}, USER]},
    "parts": {"messages": [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]},
    "no generation prompt": {"messages": [USER], "add_generation_prompt": False},
    "tools": {"messages": [USER], "tools": [TOOL]},
    "tool turns": {
        "messages": [
            USER,
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "content": "sunny", "tool_call_id": "1"},
        ],
        "tools": [TOOL],
    },
    "broken tool call": {"messages": [USER, {"role": "assistant", "content": "", "tool_calls": [BROKEN]}, USER]},
    "documents": {"messages": [USER], "documents": [{"title": "Atlas", "text": "Ulm lies on the Danube."}, {"text": "untitled"}]},
    "template arguments": {
        "messages": [USER],
        "chat_template_kwargs": {"add_generation_prompt": False, "unknown": 1, "other": "auto"},
    },
    "empty content": {"messages": [{"role": "user", "content": ""}]},
    "unicode": {"messages": [{"role": "user", "content": "Grüße 世界 🙂 <|im_start|>"}]},
}
PROMPTS: dict[str, Any] = {
    "text": "one two three",
    "texts": ["one", "two <|im_end|> three"],
    "ids": [5, 6, 7],
    "id lists": [[5, 6], [7]],
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def mock() -> AsyncIterator[RunningMock]:
    async with running(settings()) as server:
        yield server


@pytest.fixture(scope="module")
def counter() -> LocalCounter:
    return LocalCounter(open_tokenizer(str(TOKENIZER_DIRECTORY), wall_s=time.time))


def counted(counter: LocalCounter, kind: CallKind, body: dict[str, Any]) -> int:
    return sum(len(packed) // 4 for packed in counter.encode(read_call(kind, json.dumps(body).encode()), 4096))


@pytest.mark.parametrize("name", BODIES)
async def test_chat(mock: RunningMock, counter: LocalCounter, name: str) -> None:
    answer = await mock.post("/v1/chat/completions", **BODIES[name], max_tokens=1)
    assert answer.status == 200, answer.body
    assert answer.json()["usage"]["prompt_tokens"] == counted(counter, CallKind.CHAT, BODIES[name])


async def test_documents_may_come_as_a_template_argument(mock: RunningMock) -> None:
    documents = [{"title": "Atlas", "text": "Ulm lies on the Danube."}]
    prompts = []
    for changes in ({"documents": documents}, {"chat_template_kwargs": {"documents": documents}}, {}):
        answer = await mock.post("/v1/chat/completions", messages=[USER], max_tokens=1, **changes)
        prompts.append(answer.json()["usage"]["prompt_tokens"])
    assert prompts[0] == prompts[1] > prompts[2]


@pytest.mark.parametrize("name", PROMPTS)
async def test_completions(mock: RunningMock, counter: LocalCounter, name: str) -> None:
    body = {"prompt": PROMPTS[name]}
    answer = await mock.post("/v1/completions", **body, max_tokens=1)
    assert answer.json()["usage"]["prompt_tokens"] == counted(counter, CallKind.COMPLETIONS, body)


async def test_a_text_that_cannot_fit_is_refused_by_its_length(mock: RunningMock) -> None:
    answer = await mock.post("/v1/completions", prompt="x" * 200_000)
    assert answer.status == 400
    assert answer.json()["error"]["param"] == "input_text"
    assert "contains 200000 characters (more than " in answer.json()["error"]["message"]
