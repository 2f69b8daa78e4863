"""What a request gives to the chat template: it makes no forecast too low, neither by a bound nor by an estimate."""

from pathlib import Path
from typing import Any

import pytest

from proxy.adapters.local_counter import ARGUMENT_BYTES_MAX, LocalCounter
from proxy.adapters.ratio_counter import LEARNT_BYTES_MIN, SAMPLES_MIN, RatioCounter
from proxy.adapters.tokenizer_files import LoadedTokenizer, open_tokenizer
from tests.support.tiny_tokenizer import write_model
from tests.unit.adapters.counting import chat

TALKATIVE = "{% for message in messages %}<|{{ message.role }}|>{{ effort }}{{ message.content }}{% endfor %}{{ rules }}"
TALK = [{"role": "user", "content": "hi"}] * 20


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> LoadedTokenizer:
    folder: Path = tmp_path_factory.mktemp("model")
    return open_tokenizer(str(write_model(folder, chat_template=TALKATIVE)), wall_s=lambda: 0.0)


ARGUMENTS: list[dict[str, Any]] = [
    {},
    {"effort": "high"},
    {"effort": "x" * ARGUMENT_BYTES_MAX},
    {"effort": "x" * (ARGUMENT_BYTES_MAX + 1)},
    {"effort": "🙂" * ARGUMENT_BYTES_MAX},  # as many characters, four times the bytes
    {"effort": "\ud800" * ARGUMENT_BYTES_MAX},
    {"effort": 0.1, "rules": True},
    {"effort": 10**300},
    {"effort": ["x" * 9] * 50},
    {"effort": {"a": "x" * 500}},
    {"rules": "the quick brown fox " * 500},
    {"rules": None, "unknown": "y" * 9000},
]


@pytest.mark.parametrize("arguments", ARGUMENTS)
def test_no_argument_leads_below_what_the_prompt_takes(arguments: dict[str, Any], source: LoadedTokenizer) -> None:
    """Either it sets no bound, so that the prompt is counted, or no more than the bound is what the engine counts."""
    call, counter = chat(messages=TALK, chat_template_kwargs=arguments), LocalCounter(source)
    bound = counter.bound_tokens(call)
    if bound is not None:
        assert len(counter.encode(call, None)[0]) // 4 <= bound
    long = any(len(str(value).encode("utf-8", "replace")) > 2 * ARGUMENT_BYTES_MAX for value in arguments.values())
    assert not (long and bound is not None)


def test_arguments_and_templates_are_estimated_by_their_bytes() -> None:
    ratio, plain = RatioCounter(), chat(messages=TALK)
    least = ratio.estimate(plain, None)[0].tokens
    for fields in ({"chat_template": "x" * 8000}, {"chat_template_kwargs": {"rules": "x" * 8000}}):
        assert ratio.estimate(chat(messages=TALK, **fields), None)[0].tokens >= least + 4000
        assert ratio.estimate(chat(messages=TALK, **fields), 999)[0].tokens == 999, "no more than the context"


def test_nobody_teaches_others_rates_by_arguments() -> None:
    """Tokens that stand in arguments are not those of the text, and who has another's model could make his prompts look long."""
    ratio, text = RatioCounter(), "x" * (2 * LEARNT_BYTES_MIN)
    before = ratio.estimate(chat(text), None)
    for _ in range(2 * SAMPLES_MIN):
        ratio.learn(chat(text, chat_template_kwargs={"rules": "y" * 9000}), 9000)
    assert ratio.estimate(chat(text), None) == before
