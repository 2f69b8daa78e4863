"""The rungs of counting: which one answers, what it counts, and that none blocks, returns zero, or lets the loop wait."""

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from proxy.adapters.remote_counter import PAUSE_S
from proxy.adapters.tokenizer_files import LoadedTokenizer
from proxy.adapters.tokenizer_pool import INLINE_BYTES_MAX, TokenizerPool
from proxy.core.demand import CountSource, PromptPart
from proxy.ports import PromptCount, PromptTooLongError
from proxy.wire.call import Call
from tests.unit.adapters.counting import IMAGE, StillClock, answering, chat, completion, count, length, replica


@pytest.mark.parametrize("size", [1, INLINE_BYTES_MAX * 3])
async def test_own_tokenizer_counts_chats_and_completions(
    source: LoadedTokenizer, make_pool: Callable[..., TokenizerPool], size: int
) -> None:
    pool = make_pool(source)
    text = ("the lazy dog " * size)[: max(size, 20)]
    expected = length(source, f"<|start|>user\n{text}<|end|>\n<|start|>assistant\n")
    found = await count(pool, chat(text))
    assert found.source is CountSource.EXACT
    assert [part.tokens for part in found.parts] == [expected]
    found = await count(pool, completion([text, "fox"]))
    assert [part.tokens for part in found.parts] == [length(source, text), length(source, "fox")]
    assert pool.stats().backlog == pool.stats().backlog_bytes == 0
    assert pool.counted_by_source[CountSource.EXACT] == 2


async def test_token_ids_need_no_tokenizer(make_pool: Callable[..., TokenizerPool]) -> None:
    found = await count(make_pool(None), completion([[1, 2, 3], [4]]))
    assert found.source is CountSource.EXACT
    assert [part.tokens for part in found.parts] == [3, 1]
    found = await count(make_pool(None), completion([1, -5, 2**40]))
    assert (found.source, found.parts) == (CountSource.RATIO, (PromptPart(3),))


async def test_blocks_are_hashed_by_prefix_model_and_salt(make_pool: Callable[..., TokenizerPool]) -> None:
    pool = make_pool(None)

    async def hashes(ids: list[int], **fields: Any) -> tuple[int, ...]:
        return (await count(pool, completion([ids], **fields))).parts[0].block_hashes

    nine = list(range(1, 10))
    first = await hashes(nine)
    assert len(first) == 2
    changed = await hashes([1, 2, 3, 4, 0, 6, 7, 8])
    assert changed[0] == first[0]
    others = [changed, await hashes([0, *nine[1:]]), await hashes(nine, model="n"), await hashes(nine, cache_salt="s")]
    assert len({first[1], *(other[1] for other in others)}) == 5
    assert await hashes([1, 2, 3]) == ()
    assert await hashes(nine, prompt_logprobs=1) == ()


async def test_truncation(source: LoadedTokenizer, make_pool: Callable[..., TokenizerPool]) -> None:
    pool = make_pool(source)
    long = "fox " * 100

    async def tokens(call: Call, context: int | None = None) -> list[PromptPart]:
        return list((await count(pool, call, context=context)).parts)

    assert await tokens(completion(long, truncate_prompt_tokens=10), 20) == [PromptPart(10)]
    assert await tokens(completion(long, truncate_prompt_tokens=-1), 20) == [PromptPart(19)]
    assert await tokens(chat(long, truncate_prompt_tokens=-1, max_tokens=5), 20) == [PromptPart(19)]
    assert await tokens(chat(long, truncate_prompt_tokens=-1), 20) == [PromptPart(20)]
    whole = length(source, long)
    assert (await tokens(completion(long, truncate_prompt_tokens=10_000)))[0].tokens == whole
    assert (await tokens(completion(long, truncate_prompt_tokens=-1)))[0].tokens == whole


async def test_too_long_is_told_exactly_or_by_size(source: LoadedTokenizer, make_pool: Callable[..., TokenizerPool]) -> None:
    pool = make_pool(source)
    text = "fox " * 50
    tokens = length(source, text)
    assert (await count(pool, completion(text), context=tokens)).parts[0].tokens == tokens
    with pytest.raises(PromptTooLongError) as caught:
        await count(pool, completion(text), context=tokens - 1)
    assert (caught.value.tokens_min, caught.value.exact) == (tokens, True)
    with pytest.raises(PromptTooLongError) as caught:
        await count(pool, completion("x" * 100_000), context=100)
    assert not caught.value.exact
    assert 100 < caught.value.tokens_min <= 100_000 // source.token_chars_max + 1
    assert pool.backlog == 0


@pytest.mark.parametrize(
    "call",
    [
        chat([IMAGE, {"type": "text", "text": "what"}]),
        chat(chat_template="{{ 1 }}"),
        chat(chat_template_kwargs={"chat_template": "x"}),
        chat(messages=[]),
        chat(tools=[{"type": "odd"}]),
        chat("\ud800"),
        completion("\ud800"),
        completion(None, prompt_embeds="A" * 5000),
    ],
)
async def test_what_cannot_be_counted_here_is_estimated(
    source: LoadedTokenizer, make_pool: Callable[..., TokenizerPool], call: Call
) -> None:
    found = await count(make_pool(source), call)
    assert found.source is CountSource.RATIO
    assert all(part.tokens >= 1 for part in found.parts)
    assert found.parts


async def test_media_are_counted_by_the_replica_and_not_hashed(
    source: LoadedTokenizer, make_pool: Callable[..., TokenizerPool]
) -> None:
    remote, seen = answering(700)
    call = chat(
        [IMAGE], tools=[{"type": "function", "function": {"name": "f"}}], documents=[{"a": "b"}], reasoning_effort="low"
    )  # fmt: skip
    found = await count(make_pool(source, remote=remote), call)
    assert found == PromptCount((PromptPart(700),), CountSource.REMOTE)
    assert seen == [
        {
            "model": "m",
            "messages": [{"role": "user", "content": [IMAGE]}],
            "add_generation_prompt": True,
            "continue_final_message": False,
            "add_special_tokens": False,
            "tools": [{"type": "function", "function": {"name": "f"}}],
            "chat_template_kwargs": {"reasoning_effort": "low", "enable_thinking": True, "documents": [{"a": "b"}]},
        }
    ]


async def test_the_replica_counts_each_prompt(make_pool: Callable[..., TokenizerPool]) -> None:
    remote, seen = answering(9)
    pool = make_pool(None, remote=remote)
    found = await count(pool, completion(["a", "b"], add_special_tokens=False))
    assert found.source is CountSource.REMOTE
    assert [(part.tokens, len(part.block_hashes)) for part in found.parts] == [(9, 2), (9, 2)]
    assert seen == [{"model": "m", "prompt": text, "add_special_tokens": False} for text in ("a", "b")]
    assert (await count(pool, completion(["x"] * 9))).source is CountSource.RATIO
    with pytest.raises(PromptTooLongError):
        await count(pool, chat(), context=8)


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (httpx.Response(404, text="no such model"), "404: no such model"),
        (httpx.Response(200, text="<html>"), "something else"),
        (httpx.Response(200, json={"count": 3}), "something else"),
        (httpx.Response(200, json={"count": 0, "tokens": []}), "counted nothing"),
        (httpx.Response(200, json={"tokens": [-1]}), "out of range"),
    ],
)
async def test_a_useless_answer_is_not_a_count(
    make_pool: Callable[..., TokenizerPool], answer: httpx.Response, error: str
) -> None:
    pool = make_pool(None, remote=replica(lambda _: answer))
    assert (await count(pool, chat())).source is CountSource.RATIO
    assert pool.last_error is not None
    assert error in pool.last_error


@pytest.mark.parametrize(
    "answer",
    [None, httpx.Response(200, text="<html>"), httpx.Response(404, json={"detail": "Not Found"}), httpx.Response(405)],
    ids=["dead", "another server", "without the route", "with another method"],
)
async def test_a_replica_that_does_not_count_is_left_alone_for_a_while(
    make_pool: Callable[..., TokenizerPool], answer: httpx.Response | None
) -> None:
    asked = 0

    def handler(request: httpx.Request) -> httpx.Response:
        nonlocal asked
        asked += 1
        if answer is None:
            raise httpx.ReadTimeout("slow", request=request)
        return answer

    clock = StillClock()
    pool = make_pool(None, remote=replica(handler, clock=clock))
    for _ in range(3):
        assert (await count(pool, chat())).source is CountSource.RATIO
    assert asked == 1
    clock.now += PAUSE_S
    await count(pool, chat())
    assert asked == 2


async def test_a_replica_that_knows_another_model_is_asked_again(make_pool: Callable[..., TokenizerPool]) -> None:
    """What vLLM says of a model it does not serve concerns that request, not the next one."""
    asked: list[httpx.Request] = []

    def handler(request: httpx.Request) -> httpx.Response:
        asked.append(request)
        return httpx.Response(404, json={"error": {"message": "The model `m` does not exist.", "code": 404}})

    pool = make_pool(None, remote=replica(handler))
    for _ in range(3):
        assert (await count(pool, chat())).source is CountSource.RATIO
    assert len(asked) == 3


async def test_without_any_replica_the_ratio_answers(make_pool: Callable[..., TokenizerPool]) -> None:
    remote = replica(lambda _: httpx.Response(500), base_url=lambda: None)
    assert (await count(make_pool(None, remote=remote), chat())).source is CountSource.RATIO


class GatedEncoder:
    """Stands in for a tokenizer that is slow: it waits until the test opens the gate."""

    cache_bytes = 0
    fast = False
    words = None

    def __init__(self) -> None:
        self.gate = threading.Event()
        self.started = threading.Semaphore(0)

    def encode(self, text: str) -> bytes:
        self.started.release()
        assert self.gate.wait(10)
        return bytes(4 * len(text))


def gated(encoder: GatedEncoder) -> LoadedTokenizer:
    return LoadedTokenizer("gated", encoder, b"", b"", 1)  # type: ignore[arg-type]


async def test_a_full_backlog_goes_to_the_next_rung(make_pool: Callable[..., TokenizerPool]) -> None:
    encoder = GatedEncoder()
    pool = make_pool(gated(encoder), threads=1, backlog_max=2, backlog_bytes_max=5000)
    call = completion("x" * 1000)
    waiting = [asyncio.create_task(count(pool, call)) for _ in range(2)]
    await asyncio.to_thread(encoder.started.acquire)
    assert (pool.backlog, pool.backlog_bytes) == (2, 2000)
    assert (await count(pool, call)).source is CountSource.RATIO
    assert pool.stats().backlog_overflows == 1
    encoder.gate.set()
    assert {(await task).source for task in waiting} == {CountSource.EXACT}
    await count(pool, call)
    assert (pool.backlog, pool.backlog_bytes) == (0, 0)


async def test_too_many_bytes_go_to_the_next_rung(make_pool: Callable[..., TokenizerPool]) -> None:
    encoder = GatedEncoder()
    encoder.gate.set()
    pool = make_pool(gated(encoder), backlog_bytes_max=5000)
    assert (await count(pool, completion("x" * 5000))).source is CountSource.EXACT
    assert (await count(pool, completion("x" * 5001))).source is CountSource.RATIO


async def test_a_client_that_leaves_frees_its_place_when_the_work_ends(make_pool: Callable[..., TokenizerPool]) -> None:
    encoder = GatedEncoder()
    pool = make_pool(gated(encoder), threads=1, backlog_max=9)
    running, queued = (asyncio.create_task(count(pool, completion("x" * 1000))) for _ in range(2))
    await asyncio.to_thread(encoder.started.acquire)
    for task in (running, queued):
        task.cancel()
    await asyncio.gather(running, queued, return_exceptions=True)
    assert pool.backlog == 1  # the queued one never began, the running one still holds its thread
    encoder.gate.set()
    assert (await count(pool, completion("y" * 1000))).source is CountSource.EXACT
    assert pool.backlog == 0


async def test_learning_counts_mismatches_of_real_counts_only(make_pool: Callable[..., TokenizerPool]) -> None:
    pool = make_pool(None)
    call = completion([[1, 2, 3], [4]])
    exact = await count(pool, call)
    pool.learn(call, exact, 4)
    pool.learn(call, exact, 7)
    pool.learn(call, exact, 2)
    pool.learn(call, exact, 0)
    pool.learn(call, PromptCount(exact.parts, CountSource.RATIO), 99)
    stats = pool.stats()
    assert (stats.compared, stats.mismatches, stats.mismatch_tokens_abs_sum) == (3, 2, 5)
