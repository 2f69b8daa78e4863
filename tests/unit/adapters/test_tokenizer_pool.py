"""The rungs of counting: which one answers, what it counts, and that none blocks, returns zero, or lets the loop wait."""

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.adapters.ratio_counter import SAMPLES_MIN, RatioCounter
from proxy.adapters.remote_counter import PAUSE_S, RemoteCounter
from proxy.adapters.tokenizer_files import LoadedTokenizer, open_tokenizer
from proxy.adapters.tokenizer_pool import INLINE_BYTES_MAX, TokenizerPool
from proxy.core.demand import CountSource, PromptPart
from proxy.ports import PromptCount, PromptTooLongError
from proxy.wire.call import Call, CallKind
from proxy.wire.openai import UnreadableCallError, read_call
from tests.support.tiny_tokenizer import write_model

IMAGE = {"type": "image_url", "image_url": {"url": "data:,"}}


class StillClock:
    """A clock the test moves."""

    def __init__(self) -> None:
        self.now = 100.0

    def now_s(self) -> float:
        return self.now

    def wall_s(self) -> float:
        return 1_800_000_000.0


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> LoadedTokenizer:
    return open_tokenizer(str(write_model(tmp_path_factory.mktemp("model"))), wall_s=lambda: 0.0)


@pytest.fixture
async def make_pool() -> AsyncIterator[Callable[..., TokenizerPool]]:
    pools: list[TokenizerPool] = []

    def make(source: LoadedTokenizer | None, **options: Any) -> TokenizerPool:
        pools.append(TokenizerPool(source, **({"remote": None, "ratio": RatioCounter()} | options)))
        return pools[-1]

    yield make
    for pool in pools:
        await pool.aclose()


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


async def test_a_dead_replica_is_left_alone_for_a_while(make_pool: Callable[..., TokenizerPool]) -> None:
    asked = 0

    def handler(request: httpx.Request) -> httpx.Response:
        nonlocal asked
        asked += 1
        raise httpx.ReadTimeout("slow", request=request)

    clock = StillClock()
    pool = make_pool(None, remote=replica(handler, clock=clock))
    for _ in range(3):
        assert (await count(pool, chat())).source is CountSource.RATIO
    assert asked == 1
    clock.now += PAUSE_S
    await count(pool, chat())
    assert asked == 2


async def test_without_any_replica_the_ratio_answers(make_pool: Callable[..., TokenizerPool]) -> None:
    remote = replica(lambda _: httpx.Response(500), base_url=lambda: None)
    assert (await count(make_pool(None, remote=remote), chat())).source is CountSource.RATIO


class GatedEncoder:
    """Stands in for a tokenizer that is slow: it waits until the test opens the gate."""

    cache_bytes = 0

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
