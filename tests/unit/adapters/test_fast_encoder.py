"""fastokens counts only where it gives the ids that tokenizers gives; a stand-in that wraps tokenizers plays it, right and wrong."""

import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from tokenizers import Tokenizer

from proxy.adapters.fast_encoder import fast_encoder, vocabulary_texts
from proxy.adapters.segment_cache import SegmentEncoder
from proxy.sim.mock_text import TOKENIZER_DIRECTORY

TEXT = "The quiet harbour, at night.<|im_end|>\n"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TOKENIZER_DIRECTORY / "tokenizer.json"))


class Standing:
    """Encodes as tokenizers does, but for one ``odd`` text."""

    odd: str | None = None
    refusal: Exception | None = None
    encoded = 0

    def __init__(self, source: str) -> None:
        self._tokenizer = Tokenizer.from_str(source)

    @classmethod
    def from_json_str(cls, source: str) -> "Standing":
        if cls.refusal is not None:
            raise cls.refusal
        return cls(source)

    def encode(self, text: str) -> Any:
        type(self).encoded += 1
        ids = self._tokenizer.encode(text, add_special_tokens=False).ids
        return SimpleNamespace(ids=[*ids, 0] if text == self.odd else ids)


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> type[Standing]:
    module: Any = ModuleType("fastokens")
    module.Tokenizer = type("Tokenizer", (Standing,), {})
    monkeypatch.setitem(sys.modules, "fastokens", module)
    found: type[Standing] = module.Tokenizer
    return found


def test_without_it_tokenizers_encodes(tokenizer: Tokenizer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fastokens", None)
    assert fast_encoder(tokenizer, [TEXT]) is None
    assert not SegmentEncoder(tokenizer, cache_bytes_max=1 << 20).fast


def test_where_it_is_equal_it_encodes(tokenizer: Tokenizer, installed: type[Standing], monkeypatch: pytest.MonkeyPatch) -> None:
    encoder = SegmentEncoder(tokenizer, cache_bytes_max=0)
    before = installed.encoded
    found = encoder.encode(TEXT)
    assert encoder.fast
    assert installed.encoded == before + 1
    monkeypatch.setitem(sys.modules, "fastokens", None)
    assert found == SegmentEncoder(tokenizer, cache_bytes_max=0).encode(TEXT)


def test_one_other_id_rules_it_out(tokenizer: Tokenizer, installed: type[Standing], caplog: pytest.LogCaptureFixture) -> None:
    installed.odd = vocabulary_texts(tokenizer)[-1]
    assert fast_encoder(tokenizer, [TEXT]) is None
    assert "its ids differ" in caplog.text


def test_one_that_cannot_read_it_is_not_used(
    tokenizer: Tokenizer, installed: type[Standing], caplog: pytest.LogCaptureFixture
) -> None:
    installed.refusal = ValueError("a model it does not know")
    assert fast_encoder(tokenizer, [TEXT]) is None
    assert "fastokens.unused reason=ValueError" in caplog.text


def test_the_vocabulary_is_looked_at(tokenizer: Tokenizer) -> None:
    texts = vocabulary_texts(tokenizer)
    size = tokenizer.get_vocab_size()
    seen = {token for text in texts for token in tokenizer.encode(text, add_special_tokens=False).ids}
    assert len(seen) > size // 10
