"""Model folders with a small tokenizer trained on the spot, for tests of counting."""

import json
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

SPECIALS = ("<|end|>", "<|start|>", "<|end|>x")
CHATML = (
    "{% for message in messages %}<|start|>{{ message.role }}\n{{ message.content }}"
    "{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}<|end|>\n{% endfor %}"
    "{% if tools %}{{ tools | tojson }}{% endif %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)
CORPUS = [
    "the quick brown fox jumps over the lazy dog",
    "def f(x): return x + 1",
    "naïve café 日本語 🙂",
    "  spaces\n\nlines\t tabs",
] * 20


def train_byte_level() -> Tokenizer:
    """Return a byte-level BPE with special tokens, like those of most served models."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=400, initial_alphabet=alphabet, show_progress=False))
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    return tokenizer


def train_prefix_space() -> Tokenizer:
    """Return a tokenizer that puts a space before the whole text: its segments do not tokenize alone."""
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    tokenizer.train_from_iterator(CORPUS, trainers.BpeTrainer(vocab_size=300, special_tokens=["<unk>"], show_progress=False))
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in SPECIALS])
    return tokenizer


def write_model(folder: Path, tokenizer: Tokenizer | None = None, **config: Any) -> Path:
    """Write ``tokenizer.json`` and ``tokenizer_config.json`` and return the folder. ``config`` lies over a ChatML default."""
    folder.mkdir(parents=True, exist_ok=True)
    (tokenizer or train_byte_level()).save(str(folder / "tokenizer.json"))
    defaults = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end|>", "chat_template": CHATML}
    (folder / "tokenizer_config.json").write_text(json.dumps(defaults | config), encoding="utf-8")
    return folder
