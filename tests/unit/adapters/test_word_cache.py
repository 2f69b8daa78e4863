"""Ids put together from those of words are those of the whole, whatever the text, and what is remembered is bounded."""

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from proxy.adapters.segment_cache import SegmentEncoder
from proxy.adapters.word_cache import _PIECES, TEXT_CHARS_MAX, WORD_CHARS_MAX, WORDS_MAX, WordEncoder, pieces_of, splits_words
from proxy.sim.mock_text import TOKENIZER_DIRECTORY

QWEN = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
WORDY = st.text(st.one_of(st.sampled_from(list("abZ '.,\n\t(7_\u00e9\u0301\u4e2d")), st.characters(codec="utf-8")), max_size=60)


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return Tokenizer.from_file(str(TOKENIZER_DIRECTORY / "tokenizer.json"))


def whole(tokenizer: Tokenizer, texts: list[str]) -> list[bytes]:
    return [array("I", one.ids).tobytes() for one in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]


@pytest.fixture(scope="module")
def encoder(tokenizer: Tokenizer) -> WordEncoder:
    return WordEncoder(lambda texts: whole(tokenizer, texts))


@given(text=WORDY)
def test_any_text_has_the_ids_of_the_whole(tokenizer: Tokenizer, encoder: WordEncoder, text: str) -> None:
    assert encoder.encode(text) == whole(tokenizer, [text])[0]
    assert encoder.encode(text) == whole(tokenizer, [text])[0]  # known by now


@given(text=st.one_of(WORDY, st.text(st.characters(max_codepoint=127)), st.text("aZ 1'.\n")))
def test_text_of_ascii_falls_into_the_same_pieces(text: str) -> None:
    assert pieces_of(text) == _PIECES.findall(text)
    assert "".join(pieces_of(text)) == text


def test_what_came_before_is_not_encoded_again() -> None:
    asked: list[str] = []

    def encode_all(texts: list[str]) -> list[bytes]:
        asked.extend(texts)
        return [text.encode("utf-32-le") for text in texts]

    words = WordEncoder(encode_all)
    assert words.encode("It's one, two and\n three") == "It's one, two and\n three".encode("utf-32-le")
    assert sorted(asked) == sorted(["It's", " one", ", two", " and", "\n three"])
    asked.clear()
    words.encode("It's, two three and one")
    assert asked == [" three"]
    assert words.cache_bytes > 0
    words.forget()
    assert words.cache_bytes == 0


def test_how_much_is_missing_tells_what_a_text_costs() -> None:
    words = WordEncoder(lambda texts: [b"1234"] * len(texts))
    fresh = words.cost_ratio
    for _ in range(200):
        words.encode("the same words again")
    assert fresh > 1.0
    assert words.cost_ratio < 0.2


def test_two_generations_of_words_are_remembered() -> None:
    asked: list[str] = []

    def encode_all(texts: list[str]) -> list[bytes]:
        asked.extend(texts)
        return [b"1234"] * len(texts)

    def letters(number: int) -> str:
        return "".join(chr(97 + int(digit)) for digit in str(number))

    words = WordEncoder(encode_all)
    words.encode("kept " + "x" * (WORD_CHARS_MAX + 1))
    for number in range(3 * WORDS_MAX // 2):
        words.encode(letters(number))
        words.encode("kept")
    assert asked.count("kept") == 1
    assert words.cache_bytes <= 2 * 150 * WORDS_MAX
    asked.clear()
    words.encode(letters(0))  # of the older generation
    words.encode("kept " + "x" * (WORD_CHARS_MAX + 1))
    assert asked == [" " + "x" * (WORD_CHARS_MAX + 1)]
    for number in range(10**5, 10**5 + 2 * WORDS_MAX):
        words.encode(letters(number))
    words.encode("kept")
    assert asked[-1] == "kept"


@pytest.mark.parametrize(
    ("pre_tokenizer", "splits"),
    [
        (None, False),
        (pre_tokenizers.Metaspace(), False),
        (pre_tokenizers.WhitespaceSplit(), False),  # type: ignore[no-untyped-call]
        (pre_tokenizers.ByteLevel(add_prefix_space=False), True),
        (pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False), False),
        (pre_tokenizers.Split(Regex(QWEN), "isolated"), True),
        (pre_tokenizers.Split(Regex(r"\w+|."), "isolated"), False),  # an underscore goes on with a word
        (pre_tokenizers.Split(Regex(r"[a-z]+ ?|."), "isolated"), False),
    ],
)  # fmt: skip
def test_only_what_splits_behind_letters_is_cut(pre_tokenizer: pre_tokenizers.PreTokenizer | None, splits: bool) -> None:
    tokenizer = Tokenizer(models.BPE())
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    assert splits_words(tokenizer) is splits


def test_segments_are_encoded_by_words_where_they_are_short(tokenizer: Tokenizer) -> None:
    segments = SegmentEncoder(tokenizer, cache_bytes_max=1 << 20)
    assert segments.words is not None
    long = "word " * (TEXT_CHARS_MAX // 5 + 1)
    assert segments.encode(long) == whole(tokenizer, [long])[0]
    assert segments.words.cache_bytes == 0
    assert segments.encode("Some words.") == whole(tokenizer, ["Some words."])[0]
    assert segments.words.cache_bytes > 0
    assert SegmentEncoder(tokenizer, cache_bytes_max=0).words is None
