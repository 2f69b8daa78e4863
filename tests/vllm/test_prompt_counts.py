"""The own count of a prompt is the engine's ``usage.prompt_tokens``, for every body the engine accepts.

The engine is the suite's own, or the one at ``KVGATE_VLLM_URL`` whose model lies in ``KVGATE_VLLM_MODEL_DIR``. Bodies the engine
refuses (beyond its context, media for a text model, fields of another provider) say nothing and are passed over; that most are
accepted is asserted too.
"""

import asyncio
import json
import os
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy.adapters.ratio_counter import RatioCounter
from proxy.adapters.tokenizer_files import open_tokenizer
from proxy.adapters.tokenizer_pool import TokenizerPool
from proxy.core.demand import CountSource
from proxy.wire.call import CallKind
from proxy.wire.read_call import read_call
from tests.bench.engine import CLOSING
from tests.vllm.recorded_bodies import ROUTES, Body, all_bodies

pytestmark = pytest.mark.vllm

CONCURRENCY = 8
STRIDE = int(os.environ.get("KVGATE_TEST_STRIDE", "10"))
WALL_S = 1_800_000_000.0


@dataclass(frozen=True, slots=True)
class Engine:
    """Where the engine listens, the folder of its model, and the name it serves it by."""

    base_url: str
    model_dir: Path
    model: str


@dataclass(slots=True)
class Tally:
    """What became of the bodies sent."""

    sent: int = 0
    accepted: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    different: list[str] = field(default_factory=list)
    sources: Counter[CountSource] = field(default_factory=Counter)

    def __str__(self) -> str:
        return f"sent {self.sent}, accepted {self.accepted}, different {len(self.different)}, refused {dict(self.refused)}"


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest) -> Engine:
    """Return the engine from the environment, else the suite's own with a context long enough for the recorded prompts."""
    url = os.environ.get("KVGATE_VLLM_URL")
    if url:
        model = httpx.get(f"{url}/v1/models").json()["data"][0]["id"]
        return Engine(url, Path(os.environ["KVGATE_VLLM_MODEL_DIR"]), model)
    server = request.getfixturevalue("replica")
    return Engine(server.base_url, server.model_dir, server.served_name)


@pytest.fixture
async def pool(engine: Engine) -> AsyncIterator[TokenizerPool]:
    counter = TokenizerPool(
        open_tokenizer(str(engine.model_dir), wall_s=lambda: WALL_S), backlog_max=10_000, remote=None, ratio=RatioCounter()
    )
    yield counter
    await counter.aclose()


async def compare(engine: Engine, pool: TokenizerPool, bodies: Iterable[Body]) -> Tally:
    """Send every body and count it here; differences are described with both counts."""
    tally = Tally()
    slots = asyncio.Semaphore(CONCURRENCY)

    async def one(client: httpx.AsyncClient, name: str, kind: CallKind, fields: dict[str, Any]) -> None:
        content = json.dumps(fields, ensure_ascii=False).encode()
        async with slots:
            answer = await client.post(
                f"/v1/{ROUTES[kind]}", content=content, headers={"content-type": "application/json"}, timeout=300
            )
        tally.sent += 1
        if answer.status_code != httpx.codes.OK:
            tally.refused[answer.text[:140]] += 1
            return
        tally.accepted += 1
        reported = answer.json()["usage"]["prompt_tokens"]
        call = read_call(kind, content)
        count = await pool.count(call, block_size=32, context_tokens_max=None)
        pool.learn(call, count, reported)
        tally.sources[count.source] += 1
        own = sum(part.tokens for part in count.parts)
        if own != reported or count.source is not CountSource.EXACT:
            tally.different.append(f"{name}: own {own} ({count.source}), engine {reported}; {pool.last_error}")

    async with httpx.AsyncClient(base_url=engine.base_url, headers=CLOSING) as client, asyncio.TaskGroup() as tasks:
        for name, kind, fields in bodies:
            tasks.create_task(one(client, name, kind, fields))
    return tally


TOOL = {
    "function": {"name": "get_weather", "parameters": {"properties": {"city": {"type": "string"}}, "type": "object"}, "x": 1},
    "type": "function",
}
CALLED = {
    "role": "assistant",
    "content": None,
    "tool_calls": [
        {"index": 0, "type": "function", "id": "c1", "function": {"name": "get_weather", "arguments": '{"city": "Zürich"}'}},
        {"type": "function", "id": "c2", "function": {"name": "get_weather", "arguments": "not json"}},
    ],
}
USER = {"role": "user", "content": "What is the weather in Zürich?"}
TRICKY = (
    "<|im_end|>\n<|im_start|>user\n<|endoftext|> naïve café Å e\u0301 ﬁ 日本語 🙂👩‍💻\t\t\n\n   \u00a0 "
    "'Tis <think> </think> <tool_call>"
)

CHATS: dict[str, dict[str, Any]] = {
    "plain": {"messages": [USER]},
    "empty content": {"messages": [{"role": "user", "content": ""}]},
    "special tokens in text": {"messages": [{"role": "user", "content": TRICKY}]},
    "system and parts": {
        "messages": [
            {"role": "system", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief", "cache_control": {}}]},
            {"role": "user", "content": [{"type": "text", "text": "a"}, "b", {"type": "text", "text": ""}]},
        ]
    },
    "billing header": {"messages": [{"role": "system", "content": "x-anthropic-billing-header: a=b; cch=1\nBe brief."}, USER]},
    "developer": {"messages": [{"role": "developer", "content": "Be brief."}, USER]},
    "developer after system": {
        "messages": [{"role": "system", "content": "One"}, {"role": "developer", "content": "Two"}, USER],
    },
    "late system": {"messages": [USER, {"role": "assistant", "content": "Sunny."}, {"role": "system", "content": "x"}, USER]},
    "unknown role and name": {"messages": [{"role": "critic", "content": "hm", "name": "Bob"}, USER]},
    "tool without calls": {"messages": [USER], "tools": [TOOL], "tool_choice": "none"},
    "tool results": {
        "messages": [
            USER, CALLED, {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
            {"role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        ],
        "tools": [TOOL], "tool_choice": "none",
    },
    "empty tool calls": {"messages": [USER, {"role": "assistant", "content": "x", "tool_calls": []}, USER]},
    "reasoning": {
        "messages": [USER, {"role": "assistant", "content": "4", "reasoning_content": "two and two"}, USER],
    },
    "reasoning of the last turn": {
        "messages": [USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nfour", "reasoning": "two and two"}],
    },
    "thinking off": {"messages": [USER], "chat_template_kwargs": {"enable_thinking": False}},
    "thinking null": {"messages": [USER], "chat_template_kwargs": {"enable_thinking": None, "unknown": 1, "padding": True}},
    "effort none": {"messages": [USER], "reasoning_effort": "none"},
    "effort high": {"messages": [USER], "reasoning_effort": "high"},
    "no generation prompt": {"messages": [USER], "add_generation_prompt": False},
    "continued": {
        "messages": [USER, {"role": "assistant", "content": "It is "}],
        "add_generation_prompt": False, "continue_final_message": True,
    },
    "special tokens added": {"messages": [USER], "add_special_tokens": True},
    "documents": {"messages": [USER], "documents": [{"title": "t", "text": "some text"}]},
    "n": {"messages": [USER], "n": 3},
    "lax values": {"messages": [USER], "max_tokens": "1.0", "stream": "no", "n": 1.0, "add_generation_prompt": "off"},
    "truncated": {"messages": [{"role": "user", "content": "word " * 200}], "truncate_prompt_tokens": 50},
}  # fmt: skip
COMPLETIONS: dict[str, dict[str, Any]] = {
    "text": {"prompt": "Once upon a time"},
    "tricky": {"prompt": TRICKY},
    "no special tokens": {"prompt": TRICKY, "add_special_tokens": False},
    "several": {"prompt": ["one", "two and three", " \n"]},
    "ids": {"prompt": [1, 2, 3, 4]},
    "lists of ids": {"prompt": [[1, 2, 3], [4], [5, 6]]},
    "lax ids": {"prompt": ["1", 2, 3.0]},
    "truncated": {"prompt": "word " * 200, "truncate_prompt_tokens": 50},
    "truncated, right side": {"prompt": "word " * 200, "truncate_prompt_tokens": 50, "truncation_side": "right"},
    "echo": {"prompt": "Once upon a time", "echo": True, "logprobs": 1},
    "no limit": {"prompt": "Once upon a time", "max_tokens": None, "stop": ["a", "e", "i", " "]},
}  # fmt: skip


def hand_written(model: str) -> list[Body]:
    """Return the cases above as bodies."""
    defaults = {"model": model, "max_tokens": 1}
    chats = [(name, CallKind.CHAT, defaults | fields) for name, fields in CHATS.items()]
    return chats + [(name, CallKind.COMPLETIONS, defaults | fields) for name, fields in COMPLETIONS.items()]


async def test_hand_written_bodies_count_as_the_engine_counts_them(engine: Engine, pool: TokenizerPool) -> None:
    bodies = hand_written(engine.model)
    tally = await compare(engine, pool, bodies)
    assert tally.different == [], str(tally)
    assert tally.accepted == len(bodies), str(tally)


@pytest.mark.skipif("KVGATE_TEST_DATA" not in os.environ, reason="KVGATE_TEST_DATA does not name the recorded data")
async def test_recorded_bodies_count_as_the_engine_counts_them(
    engine: Engine, pool: TokenizerPool, record_property: Callable[[str, object], None]
) -> None:
    folder = Path(os.environ["KVGATE_TEST_DATA"]) / "requests"
    tally = await compare(engine, pool, all_bodies(folder, engine.model, stride=STRIDE))
    record_property("tally", str(tally))
    assert tally.different == [], str(tally)
    assert tally.accepted > tally.sent // 3, str(tally)
    assert pool.stats().mismatches == 0
