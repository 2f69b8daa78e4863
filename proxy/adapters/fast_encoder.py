"""``fastokens`` in the place of ``tokenizers`` where it is installed (``pip install kvgate[fast]``): a twentieth of the time.

Its ids must be those of ``tokenizers``, which is what the engine encodes with: it is held to them at start on probe texts, special tokens
between them, and text made of the whole vocabulary. Where one id differs, or it cannot read the tokenizer, it is not used. It keeps a
vocabulary of its own, 80 to 185 MB.
"""

import logging
from array import array
from collections.abc import Callable, Iterable

from tokenizers import Tokenizer

log = logging.getLogger("kvgate.tokenizer")

SAMPLE_STRIDES = (7, 11)  # through the vocabulary: a fifth of its tokens, in other neighbourhoods than their own
SAMPLE_TOKENS = 512  # of one text

Encode = Callable[[list[str]], list[bytes]]


def fast_encoder(tokenizer: Tokenizer, probes: Iterable[str]) -> Encode | None:
    """What encodes texts to packed 32-bit ids, without added special tokens; None where it is not installed, or not equal."""
    try:
        import fastokens  # noqa: PLC0415  # an extra
    except ImportError:
        return None
    try:
        fast = fastokens.Tokenizer.from_json_str(tokenizer.to_str())
    except (ValueError, TypeError, RuntimeError, OSError) as error:
        log.warning("fastokens.unused reason=%s; tokenizers counts", type(error).__name__)
        return None

    def encode(texts: list[str]) -> list[bytes]:
        return [array("I", fast.encode(text).ids).tobytes() for text in texts]

    texts = [*probes, *vocabulary_texts(tokenizer)]
    whole = [array("I", one.ids).tobytes() for one in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
    if encode(texts) != whole:
        log.warning("fastokens.unused reason=%s; tokenizers counts", "its ids differ")
        return None
    log.info("fastokens.used texts=%d", len(texts))
    return encode


def vocabulary_texts(tokenizer: Tokenizer) -> list[str]:
    """Texts in which the tokenizer's own vocabulary occurs."""
    size = tokenizer.get_vocab_size()
    ids = [token for stride in SAMPLE_STRIDES for token in range(0, size, stride)]
    return [tokenizer.decode(ids[at : at + SAMPLE_TOKENS]) for at in range(0, len(ids), SAMPLE_TOKENS)]
