"""The learned ratio: safe at first, learned per model, bounded; and every readable call gets a count."""

import asyncio
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.adapters.ratio_counter import (
    SAFETY,
    SAMPLES_MIN,
    TEMPLATE_TOKENS,
    TOKENS_PER_MEDIA_ITEM_FIRST,
    RatioCounter,
)
from proxy.adapters.tokenizer_files import LoadedTokenizer
from proxy.adapters.tokenizer_pool import TokenizerPool
from proxy.core.demand import PromptPart
from proxy.ports import PromptCount
from proxy.wire.call import CallKind
from proxy.wire.openai import UnreadableCallError
from proxy.wire.read_call import read_call
from tests.unit.adapters.counting import IMAGE, chat, completion


def test_the_ratio_starts_safe_and_learns_per_model() -> None:
    ratio = RatioCounter()
    call = completion("x" * 4000)
    (before,) = ratio.estimate(call, None)
    assert before.tokens >= 2000
    for _ in range(SAMPLES_MIN):
        ratio.learn(call, 1000)
    (after,) = ratio.estimate(call, None)
    assert 1000 < after.tokens < 1300
    other = completion("x" * 4000, model="other")
    assert ratio.estimate(other, None) == (before,)
    # one dense prompt in twenty is enough to move a high quantile, one in a hundred is not
    for _ in range(100):
        ratio.learn(call, 1000)
    ratio.learn(call, 4000)
    assert ratio.estimate(call, None) == (after,)
    for _ in range(10):
        ratio.learn(call, 4000)
    assert ratio.estimate(call, None)[0].tokens > 4000
    assert ratio.estimate(call, 500) == (PromptPart(500),)


def test_the_ratio_of_media_and_embeddings() -> None:
    ratio = RatioCounter()
    call = chat([IMAGE, IMAGE])
    (before,) = ratio.estimate(call, None)
    assert before.tokens >= 2048
    for _ in range(SAMPLES_MIN):
        ratio.learn(call, 680)
    (after,) = ratio.estimate(call, None)
    assert 680 <= after.tokens < 900
    embeds = completion(None, prompt_embeds=["A" * 100_000, "A" * 10])
    assert [part.tokens for part in ratio.estimate(embeds, None)] == [88, 1]
    for _ in range(SAMPLES_MIN):
        ratio.learn(embeds, 10)
    assert [part.tokens for part in ratio.estimate(embeds, None)] == [12, 1]


def test_truncated_prompts_teach_nothing_and_names_are_bounded() -> None:
    ratio = RatioCounter()
    cut = completion("x" * 4000, truncate_prompt_tokens=10)
    for _ in range(SAMPLES_MIN * 2):
        ratio.learn(cut, 10)
    assert ratio.estimate(completion("x" * 4000), None)[0].tokens >= 2000
    for index in range(2000):
        ratio.learn(completion("x" * 4000, model=f"m{index}"), 1000)
    assert len(ratio._quantiles) <= 512


NAMES = st.sampled_from(
    ["role", "content", "type", "text", "tool_calls", "function", "name", "arguments", "messages", "tools", "chat_template_kwargs",
     "documents", "prompt", "image_url", "reasoning", "continue_final_message", "add_generation_prompt", "prompt_embeds"]
)  # fmt: skip
SCALARS = st.none() | st.booleans() | st.integers() | st.text(max_size=6) | st.sampled_from(["user", "tool", "developer", "text"])
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4))
MESSAGES = st.lists(st.dictionaries(NAMES, VALUES, max_size=4).map(lambda fields: {"role": "user"} | fields), max_size=3)


@given(kind=st.sampled_from(CallKind), fields=st.dictionaries(NAMES, VALUES, max_size=5), messages=MESSAGES)
def test_every_readable_call_gets_a_count(
    source: LoadedTokenizer, kind: CallKind, fields: dict[str, Any], messages: list[dict[str, Any]]
) -> None:
    body = json.dumps({"prompt": "hi"} | fields | {"messages": messages}).encode()

    async def counted() -> PromptCount | None:
        try:
            call = read_call(kind, body)
        except UnreadableCallError:
            return None
        pool = TokenizerPool(source, threads=1, remote=None, ratio=RatioCounter())
        try:
            found = await pool.count(call, block_size=16, context_tokens_max=None)
        finally:
            await pool.aclose()
        pool.learn(call, found, 10)
        return found

    found = asyncio.run(counted())
    assert found is None or (found.parts and all(part.tokens >= 1 for part in found.parts))


def test_each_kind_of_media_has_its_own_size() -> None:
    counter = RatioCounter()
    audio = {"type": "input_audio", "input_audio": {}}
    first_image = counter.estimate(chat([IMAGE]), None)[0].tokens
    for _ in range(SAMPLES_MIN):
        counter.learn(chat([IMAGE, IMAGE]), 2 * 300 + TEMPLATE_TOKENS)
    assert counter.estimate(chat([IMAGE]), None)[0].tokens < first_image
    assert counter.estimate(chat([audio]), None)[0].tokens > SAFETY * TOKENS_PER_MEDIA_ITEM_FIRST["audio"]


def test_of_mixed_media_nobody_knows_which_took_what() -> None:
    counter = RatioCounter()
    mixed = chat([IMAGE, {"type": "video_url", "video_url": {}}])
    before = counter.estimate(mixed, None)
    for _ in range(SAMPLES_MIN):
        counter.learn(mixed, 100)
    assert counter.estimate(mixed, None) == before


@pytest.mark.parametrize(
    "fields",
    [
        {"content": "x" * 4000},
        {"content": [{"type": "text", "text": "x" * 500}, IMAGE]},
        {"content": [{"type": "text", "text": "x"}, IMAGE], "tools": [{"type": "function", "function": {"name": "f" * 300}}]},
        {"content": "x" * 4000, "chat_template_kwargs": {"a": "b" * 50}},
    ],
)
def test_as_much_is_learned_of_a_call_whose_text_was_let_go(fields: dict[str, Any]) -> None:
    kept, forgotten, asked = RatioCounter(), RatioCounter(), dict(fields)
    body = {"model": "m", "messages": [{"role": "user", "content": asked.pop("content")}] * 3, **asked}
    for _ in range(2 * SAMPLES_MIN):
        call, other = (read_call(CallKind.CHAT, json.dumps(body).encode()) for _ in range(2))
        other.forget_text()
        assert "xxx" not in repr(other)
        kept.learn(call, 900)
        forgotten.learn(other, 900)
    fresh = read_call(CallKind.CHAT, json.dumps(body).encode())
    assert forgotten.estimate(fresh, None) == kept.estimate(fresh, None)
    assert forgotten.expected(fresh) == kept.expected(fresh)


def test_as_much_is_learned_of_a_completion_whose_text_was_let_go() -> None:
    kept, forgotten = RatioCounter(), RatioCounter()
    for _ in range(2 * SAMPLES_MIN):
        call, other = completion("x" * 4000), completion("x" * 4000)
        other.forget_text()
        assert other.prompts == ("",)
        kept.learn(call, 900)
        forgotten.learn(other, 900)
    fresh = completion("x" * 2000)
    assert forgotten.estimate(fresh, None) == kept.estimate(fresh, None)
