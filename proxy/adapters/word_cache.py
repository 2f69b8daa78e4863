"""Token ids of text, remembered word by word: a text that nobody sent before is made of words that somebody did.

Byte-level tokenizers split a text before they encode it, and encode what lies between two splits alone. One of these splits comes wherever
an ASCII letter is followed by an ASCII character that is neither a letter nor an apostrophe (which may begin 's or 'll). Cut there, a text
falls into short pieces, a word with the blank or the marks before it; the ids of most of them are known, and only the rest is encoded.

Where the tokenizer does split so is shown at start: its pre-tokenizer is asked around every such pair of characters, and texts made of the
whole vocabulary must have the same ids cut as whole. Else nothing is cut.

Bounds: pieces of at most ``WORD_CHARS_MAX`` characters are remembered, in two generations of ``WORDS_MAX``: once the newer is full the
older is forgotten, which is what nobody has used since. Texts longer than ``TEXT_CHARS_MAX`` are not cut, since that holds Python's lock.
"""

import re
from collections.abc import Callable, Iterable
from itertools import compress, product
from string import ascii_letters

from tokenizers import Tokenizer

WORD_CHARS_MAX = 24  # longer ones hardly come again
WORDS_MAX = 16_384  # some 3 MB each generation; a quarter of it are the words of most conversations
TEXT_CHARS_MAX = 16 * 1024  # a third of a millisecond
FORGETS = 0.02  # how much of what share was missing the next text replaces
FOUND_COST = 1 / 6  # finding a piece, of what it costs to encode it: 50 of 340 us for 2 KB of Qwen3's
_WORD_BYTES = 150  # dict slot, string and ids of a short word

# As little as ends with an ASCII letter before what is no letter, nor may be part of what came; or the rest. Without possessive
# quantifiers: with those Python 3.11.2, which Debian 12 has, takes two words for one.
_PIECES = re.compile(r"[^A-Za-z]*[A-Za-z]+(?:['\x80-\U0010ffff][^A-Za-z]*[A-Za-z]+)*(?=[\x00-&(-@\[-`{-\x7f]|\Z)|.+", re.DOTALL)
# The same pieces of a text all of ASCII without an apostrophe, in three quarters of the time: every word ends before what is no letter.
_PIECES_OF_ASCII = re.compile(r"[^A-Za-z]*[A-Za-z]+|.+", re.DOTALL)
_BETWEEN = [char for char in map(chr, range(128)) if char not in ascii_letters and char != "'"]
_AROUND = ("", " ", "\n", "7", "\u00e9s")
_LETTERS = ("am", "zS", "Qd", "EV")  # in both cases, before each other


class WordEncoder:
    """Encodes texts by their words. Safe from several threads: each look-up and each entry is one step of Python."""

    def __init__(self, encode_all: Callable[[list[str]], list[bytes]]) -> None:
        """``encode_all`` encodes what is not known."""
        self.missing_ratio = 1.0  # of characters lately, those that had to be encoded
        self._encode_all = encode_all
        self._new: dict[str, bytes] = {}
        self._old: dict[str, bytes] = {}

    @property
    def cost_ratio(self) -> float:
        """What a text like those of late costs, of what it costs to encode it whole."""
        return FOUND_COST + self.missing_ratio

    @property
    def cache_bytes(self) -> int:
        """Bytes remembered now, about."""
        return (len(self._new) + len(self._old)) * _WORD_BYTES

    def forget(self) -> None:
        """Begin anew."""
        self._new, self._old, self.missing_ratio = {}, {}, 1.0

    def encode(self, text: str) -> bytes:
        """Ids of ``text``, packed."""
        pieces = pieces_of(text)
        found = list(map(self._new.get, pieces))
        missing_chars = 0
        if None in found:
            known = self._more(set(compress(pieces, [ids is None for ids in found])))
            missing = [piece for piece in known if not known[piece]]
            if missing:
                missing_chars = sum(map(len, missing))
                known.update(zip(missing, self._encode_all(missing), strict=True))
            self._remember(known)
            found = [known[piece] if ids is None else ids for piece, ids in zip(pieces, found, strict=True)]
        self.missing_ratio += FORGETS * (missing_chars / max(1, len(text)) - self.missing_ratio)
        return b"".join(found)  # type: ignore[arg-type]

    def _more(self, pieces: Iterable[str]) -> dict[str, bytes]:
        """What the older generation knows of them; b"" where it knows nothing."""
        old = self._old
        return {piece: old.get(piece, b"") for piece in pieces}

    def _remember(self, entries: dict[str, bytes]) -> None:
        if len(self._new) + len(entries) > WORDS_MAX:
            self._old, self._new = self._new, {}
        new = self._new
        for piece, ids in entries.items():
            if len(piece) <= WORD_CHARS_MAX:
                new[piece] = ids


def pieces_of(text: str) -> list[str]:
    """Words with the blank or the marks before them."""
    pattern = _PIECES_OF_ASCII if text.isascii() and "'" not in text else _PIECES
    return pattern.findall(text)


def splits_words(tokenizer: Tokenizer) -> bool:
    """Whether its pre-tokenizer splits after each letter that is followed by something else, whatever stands around them."""
    splitter = tokenizer.pre_tokenizer
    if splitter is None:
        return False
    for before, char, after in product(_AROUND, _BETWEEN, _AROUND):
        text = "".join(f"{before}{letters}{char}{after}" for letters in _LETTERS)
        ends = {end for _, (_, end) in splitter.pre_tokenize_str(text)}
        step = len(before) + len(char) + len(after) + 2
        if not ends.issuperset(range(len(before) + 2, len(text), step)):
            return False
    return True
