"""The shipped mock tokenizer: what its users rely on."""

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from proxy.sim import train_tokenizer

DIRECTORY = train_tokenizer.DIRECTORY

TEXTS = (
    "The server admits a request when its blocks fit.",
    "def admit(self, request: int) -> bool:\n    return True\n",
    json.dumps({"role": "user", "content": "hello"}),
    "Grüße, 世界 🙂\n\n\ttabs  and   spaces ",
    "",
)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(DIRECTORY / "tokenizer.json"))


@pytest.fixture(scope="module")
def transformers_tokenizer() -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(str(DIRECTORY))


@pytest.mark.slow
def test_training_writes_the_shipped_files_again(tmp_path: Path) -> None:
    assert train_tokenizer.main([str(tmp_path)]) == 0
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_bytes() == (DIRECTORY / name).read_bytes()


def test_it_is_small(tokenizer: Tokenizer) -> None:
    assert sum(file.stat().st_size for file in DIRECTORY.iterdir()) < 300_000
    assert tokenizer.get_vocab_size() == train_tokenizer.VOCABULARY_SIZE


@pytest.mark.parametrize("text", TEXTS)
def test_round_trip(tokenizer: Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text).ids) == text


def test_english_takes_about_a_token_a_word(tokenizer: Tokenizer) -> None:
    assert len(tokenizer.encode(TEXTS[0]).ids) <= 1.5 * len(TEXTS[0].split())


def test_special_tokens_are_one_token_each(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("".join(train_tokenizer.SPECIAL_TOKENS)).ids == [0, 1, 2]


@pytest.mark.parametrize("text", TEXTS)
def test_transformers_agrees(tokenizer: Tokenizer, transformers_tokenizer: Any, text: str) -> None:
    assert transformers_tokenizer.encode(text, add_special_tokens=True) == tokenizer.encode(text).ids


def test_chat_template(transformers_tokenizer: Any) -> None:
    def render(**changes: Any) -> str:
        arguments: dict[str, Any] = {"conversation": [{"role": "user", "content": "hi"}], "tokenize": False, **changes}
        text = transformers_tokenizer.apply_chat_template(**arguments)
        assert isinstance(text, str)
        return text

    assert render() == "<|im_start|>user\nhi<|im_end|>\n"
    assert render(add_generation_prompt=True) == render() + "<|im_start|>assistant\n"
    call = {"type": "function", "function": {"name": "weather", "arguments": {"town": "Ulm"}}}
    turns = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "content": "sunny"},
    ]
    tool = {"type": "function", "function": {"name": "weather", "description": "d", "parameters": {}}}
    text = render(conversation=turns, tools=[tool], documents=[{"title": "Atlas", "text": "Ulm lies on the Danube."}])
    assert text.count("<|im_start|>") == 4
    for part in ("Be brief.", '"name": "weather"', "## Atlas\nUlm lies", "<tool_call>\n", "<tool_response>\nsunny\n"):
        assert part in text
