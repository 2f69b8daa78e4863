"""Token ids of text, remembered per segment.

Special tokens are split off before anything else looks at the text, so each stretch between two of them tokenizes alone:
``ids(text) = ids(s0) + id(T1) + ids(s1) + …``. Conversations repeat their earlier segments word for word, so their ids are looked up.

This holds where no normalizer or pre-tokenizer looks across a segment's edge (byte-level BPE); where it does (a prefix space put at
the start of the text), it does not. ``SegmentEncoder`` proves it at start on probe texts, by comparing with the text encoded whole,
and encodes whole ever after where it fails. As well it looks whether bytes bound tokens from above (``bytes_bound``). A segment that is
new is encoded by its words (``adapters.word_cache``), where that is proven too.
"""

import re
import threading
from array import array
from collections import OrderedDict
from itertools import islice

from tokenizers import Tokenizer

from proxy.adapters.fast_encoder import Encode, fast_encoder, vocabulary_texts
from proxy.adapters.word_cache import TEXT_CHARS_MAX, WordEncoder, splits_words

ID_BYTES = array("I").itemsize
# What a remembered segment costs beside its characters and ids: dict slot, list links, two object headers.
_ENTRY_BYTES = 250
# Shorter segments are not worth remembering: encoding them costs about as much as the look-up.
_CACHED_CHARS_MIN = 24

PROBES = (
    "",
    " ",
    "\n",
    "Hello, world!",
    " leading and trailing ",
    "\n\nline\n\n  breaks\t\n",
    "naïve café Ångström ＡＢＣ ﬁ e\u0301",
    "日本語と한국어 и русский 🙂👩‍💻",
    "def f(x):\n    return x ** 2  # code\n",
    "1234567890 3.14 1,000,000",
    "assistant\n",
    "'s 're it's",
)
# What compatibility forms write out: three bytes that become up to eighteen characters.
EXPANDING = ("\ufdfa" * 8, "\ufdfb" * 8, "㍿㌀㋿" * 4, "ﬃ…⑴½" * 4, "\u0390\u1f82\u01c4" * 4)


class SegmentEncoder:
    """Encodes text to packed 32-bit ids. Safe from several threads."""

    def __init__(self, tokenizer: Tokenizer, *, cache_bytes_max: int) -> None:
        """``cache_bytes_max`` bounds the remembered segments (characters, ids and overhead); 0 remembers nothing."""
        self._tokenizer = tokenizer
        self._cache_bytes_max = cache_bytes_max
        self._cache: OrderedDict[str, bytes] = OrderedDict()
        self._cache_bytes = 0
        self._lock = threading.Lock()
        self._special_ids, self._cut = _plain_specials(tokenizer)
        self._fast: Encode | None = None
        self.words: WordEncoder | None = None  # not by words
        self.bytes_bound = self._is_bounded()
        self.splits = cache_bytes_max > 0 and self._cut is not None and self._proves()
        self.words = self._word_encoder() if self.splits else None
        self._fast = fast_encoder(tokenizer, [*EXPANDING, *self._probes()])

    @property
    def fast(self) -> bool:
        """Whether text is encoded so fast that the way to a thread would take longer."""
        return self._fast is not None

    @property
    def cache_bytes(self) -> int:
        """Bytes remembered now."""
        return self._cache_bytes

    def encode(self, text: str) -> bytes:
        """Ids of ``text`` without added special tokens, ``ID_BYTES`` each. Raises what the tokenizer raises on lone surrogates."""
        if not self.splits or self._cut is None:
            return self._encode_all([text])[0]
        pieces = self._cut.split(text)  # the pattern has one group: specials are at the odd places
        found: list[bytes | None] = [None] * len(pieces)
        missing: dict[str, list[int]] = {}
        with self._lock:
            for index, piece in enumerate(pieces):
                if index % 2:
                    found[index] = self._special_ids[piece]
                elif not piece:
                    found[index] = b""
                elif (ids := self._cache.get(piece)) is not None:
                    self._cache.move_to_end(piece)
                    found[index] = ids
                else:
                    missing.setdefault(piece, []).append(index)
        if missing:
            encoded = self._encode_new(list(missing))
            for ids, places in zip(encoded, missing.values(), strict=True):
                for index in places:
                    found[index] = ids
            self._remember(dict(zip(missing, encoded, strict=True)))
        return b"".join(ids for ids in found if ids is not None)

    def _encode_new(self, texts: list[str]) -> list[bytes]:
        words = self.words
        if words is None or max(map(len, texts)) > TEXT_CHARS_MAX:
            return self._encode_all(texts)
        return list(map(words.encode, texts))

    def _encode_all(self, texts: list[str]) -> list[bytes]:
        if self._fast is not None:
            return self._fast(texts)
        # encode_batch_fast releases the GIL, encode does not
        encodings = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [array("I", encoding.ids).tobytes() for encoding in encodings]

    def _remember(self, entries: dict[str, bytes]) -> None:
        with self._lock:
            for text, ids in entries.items():
                cost = _cost(text, ids)
                if len(text) < _CACHED_CHARS_MIN or cost > self._cache_bytes_max or text in self._cache:
                    continue
                self._cache[text] = ids
                self._cache_bytes += cost
            while self._cache_bytes > self._cache_bytes_max:
                text, ids = self._cache.popitem(last=False)
                self._cache_bytes -= _cost(text, ids)

    def _is_bounded(self) -> bool:
        """Whether no probe has more tokens than bytes: a normalizer could write some characters out."""
        probes = [*PROBES, *EXPANDING]
        encoded = self._encode_all(probes)
        return all(len(ids) // ID_BYTES <= len(probe.encode()) + 2 for probe, ids in zip(probes, encoded, strict=True))

    def _proves(self) -> bool:
        """Whether cutting gives the ids of the whole on the probes, between, before and after special tokens."""
        texts = self._probes()
        whole = self._encode_all(texts)
        self.splits = True
        same = all(self.encode(text) == ids for text, ids in zip(texts, whole, strict=True))
        with self._lock:
            self._cache.clear()
            self._cache_bytes = 0
        return same

    def _word_encoder(self) -> WordEncoder | None:
        """One that was shown to give the ids of the whole, on the probes and on the tokenizer's own vocabulary."""
        if self._cut is None or not splits_words(self._tokenizer):
            return None
        texts = [
            piece for text in (*PROBES, *EXPANDING, *vocabulary_texts(self._tokenizer)) for piece in self._cut.split(text)[::2]
        ]
        words = WordEncoder(self._encode_all)
        if list(map(words.encode, texts)) != self._encode_all(texts):
            return None
        words.forget()
        return words

    def _probes(self) -> list[str]:
        """The probes, alone and around special tokens."""
        specials = list(islice(self._special_ids, 4))
        texts = [first + special + second for special in specials for first in PROBES for second in (PROBES[3], first)]
        texts += [special.join(PROBES) + special for special in specials]
        return [*texts, "".join(specials), *PROBES]


def _cost(text: str, ids: bytes) -> int:
    # CPython keeps one, two or four bytes a character; UTF-8 length is close enough for a bound and needs no second pass
    return len(text) * (1 if text.isascii() else 4) + len(ids) + _ENTRY_BYTES


def _plain_specials(tokenizer: Tokenizer) -> tuple[dict[str, bytes], re.Pattern[str] | None]:
    """Tokens that cut text wherever they stand, with packed ids, and the pattern that finds them (longest first, as the tokenizer)."""
    plain: dict[str, bytes] = {}
    other: list[str] = []
    for token_id, token in tokenizer.get_added_tokens_decoder().items():
        if token.lstrip or token.rstrip or token.single_word or token.normalized or not token.content:
            other.append(token.content)
        else:
            plain[token.content] = array("I", [token_id]).tobytes()
    # a token that also eats white space, or is found only after normalising, could overlap a plain one: then nothing is cut
    if not plain or any(text in content for content in other for text in plain):
        return plain, None
    ordered = sorted(plain, key=len, reverse=True)
    return plain, re.compile("(" + "|".join(map(re.escape, ordered)) + ")")
