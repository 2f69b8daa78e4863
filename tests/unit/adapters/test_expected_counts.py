"""What is expected of prompts that are not counted: the mean of what came before, within a bound that no count exceeds."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

from proxy.adapters.local_counter import LocalCounter
from proxy.adapters.ratio_counter import SAMPLES_MAX, SAMPLES_MIN, RatioCounter
from proxy.adapters.tokenizer_files import LoadedTokenizer, open_tokenizer
from proxy.adapters.tokenizer_pool import TokenizerPool
from proxy.core.demand import CountSource, PromptPart
from proxy.ports import PromptCount
from tests.support.tiny_tokenizer import CHATML, CORPUS, write_model
from tests.unit.adapters.counting import IMAGE, chat, completion, count

TEXT = "the quick brown fox " * 40
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {'"\n"': {}}}}}


def taught(pool: TokenizerPool, tokens_per_byte: float) -> None:
    for _ in range(SAMPLES_MIN):
        call = chat(TEXT)
        pool.learn(call, PromptCount((PromptPart(1),), CountSource.EXACT), round(tokens_per_byte * call.prompt_bytes) + 8)


async def test_nothing_is_expected_before_enough_was_seen(
    source: LoadedTokenizer, make_pool: Callable[..., TokenizerPool]
) -> None:
    pool = make_pool(source)
    assert pool.expect(chat(TEXT), 10**6) is None
    taught(pool, 0.25)
    found = pool.expect(chat(TEXT), 10**6)
    assert found is not None
    assert (found.source, found.parts) == (CountSource.BOUND, (PromptPart(round(0.25 * len(TEXT + "user")) + 8),))
    assert pool.counted_by_source[CountSource.BOUND] == 1


async def test_the_bound_is_what_decides(source: LoadedTokenizer, make_pool: Callable[..., TokenizerPool]) -> None:
    pool = make_pool(source)
    taught(pool, 0.25)
    found = pool.expect(chat(TEXT), 10**6)
    assert found is not None
    bound = found.parts[0].tokens + found.slack_tokens
    assert bound >= len(TEXT)
    assert pool.expect(chat(TEXT), bound) is not None
    assert pool.expect(chat(TEXT), bound - 1) is None


@pytest.mark.parametrize(
    "call",
    [
        chat(TEXT),
        chat('"\n' * 200, tools=[TOOL] * 20),
        chat("é日🙂\u0001" * 50),
        chat("x", messages=[{"role": "user", "content": ""}] * 50),
        completion("日本語🙂" * 30),
    ],
)
async def test_no_count_exceeds_the_bound(call: Any, source: LoadedTokenizer, make_pool: Callable[..., TokenizerPool]) -> None:
    bound = LocalCounter(source).bound_tokens(call)
    assert bound is not None
    assert (await count(make_pool(source), call)).parts[0].tokens <= bound


@pytest.mark.parametrize(
    "call",
    [
        chat([IMAGE]),
        completion([1, 2, 3]),
        completion(["a", "b"]),
        chat(TEXT, truncate_prompt_tokens=5),
        chat(TEXT, chat_template="x"),
    ],
)
def test_what_has_no_bound_is_counted(call: Any, source: LoadedTokenizer) -> None:
    assert LocalCounter(source).bound_tokens(call) is None


def test_a_normalizer_that_writes_characters_out_gives_no_bound(tmp_path: Path) -> None:
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.normalizer = normalizers.NFKC()
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    corpus = [*CORPUS, "\ufdfa"]
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(vocab_size=120, special_tokens=["<unk>"], show_progress=False))
    source = open_tokenizer(str(write_model(tmp_path / "nfkc", tokenizer)), wall_s=lambda: 0.0)
    assert not source.encoder.bytes_bound
    assert LocalCounter(source).bound_tokens(chat(TEXT)) is None


def test_a_template_that_adds_a_page_gives_no_bound(tmp_path: Path) -> None:
    page = " ".join(f"rule {number}" for number in range(400))
    source = open_tokenizer(str(write_model(tmp_path / "page", chat_template=page + CHATML)), wall_s=lambda: 0.0)
    assert source.encoder.bytes_bound
    assert LocalCounter(source).bound_tokens(chat(TEXT)) is None


def test_the_mean_is_of_the_latest() -> None:
    ratio, call = RatioCounter(), chat(TEXT)
    for tokens in [800] * 100 + [400] * SAMPLES_MAX:
        ratio.learn(call, tokens)
    assert ratio.expected(call) == 400
