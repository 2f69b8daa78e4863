"""What layers a model has, from its ``config.json`` (transformers' fields, as vLLM 0.32 reads them). Fetches nothing.

Only what is certain is read. A model with signs of several kinds of layers that this module cannot place, or with kinds of unequal size
(the engine then gives them blocks of different lengths), is *not understood*: its cost in blocks is fitted from measurements instead.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from proxy.core.kv_shape import Attention, LayerKind

FULL = LayerKind(Attention.FULL)
STATE = LayerKind(Attention.STATE)
_NESTED = ("text_config", "llm_config", "language_config")
_TYPES_FULL = frozenset({"full_attention", "attention"})
_TYPES_STATE = frozenset({"linear_attention", "mamba", "mamba2", "conv"})
_WINDOW_EVERYWHERE = frozenset({"mistral", "mixtral", "phi3"})  # one window for all layers
_PATTERNS = {"gemma2": 2, "gemma3_text": 6, "gemma3": 6, "cohere2": 4}  # every n-th layer is full, where the file does not say it
_INTERVALS = {"qwen3_next": 4}  # every n-th layer is full, the others linear
_NO_ROPE_INTERVAL = 4  # Llama 4: every fourth layer sees everything
# Present and not zero: kinds of unequal size, layers without a cache of their own, caches of other kinds, drafts.
_UNPLACED = (
    "num_kv_shared_layers", "global_head_dim", "num_global_key_value_heads", "is_encoder_decoder", "compress_ratios",
    "attn_layer_period", "attn_layer_indices", "mamba_d_state", "mamba_d_ssm", "ssm_cfg", "rwkv_version", "linear_attn_config",
    "full_attn_idxs", "layers_block_type", "global_attn_every_n_layers", "attention_layers", "swa_head_dim",
    "attn_type_list", "state_size", "ssm_state_size",
)  # fmt: skip
_MLP_IN_PATTERN = "-E"  # Nemotron-H: dense and expert layers keep nothing


@dataclass(frozen=True, slots=True)
class ModelLayers:
    """Kinds with the number of layers of each; None when the file is not understood, and then ``doubt`` says why."""

    kinds: tuple[tuple[LayerKind, int], ...] | None
    doubt: str | None = None


class _NotUnderstoodError(Exception):
    pass


def read_layers(config: object) -> ModelLayers:
    """Read a parsed ``config.json``."""
    if not isinstance(config, dict):
        return ModelLayers(None, "it is no JSON object")
    try:
        kinds = _kinds(text_of(config))
    except _NotUnderstoodError as reason:
        return ModelLayers(None, str(reason))
    return ModelLayers(tuple(Counter(kinds).items()))


def text_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part that tells of the language model: a multimodal file nests it."""
    nested: Mapping[str, Any] = next((config[key] for key in _NESTED if isinstance(config.get(key), dict)), config)
    return nested


def _kinds(text: Mapping[str, Any]) -> Sequence[LayerKind]:
    pattern = text.get("hybrid_override_pattern")
    if isinstance(pattern, str):
        return _by_letters(pattern)
    layers = text.get("num_hidden_layers")
    if not isinstance(layers, int) or isinstance(layers, bool) or layers < 1:
        raise _NotUnderstoodError("num_hidden_layers is not there")
    types = text.get("layer_types")
    several = isinstance(types, list) and len(set(map(str, types))) > 1
    placed = isinstance(types, list) and len(types) == layers
    unplaced = [name for name in _UNPLACED if text.get(name) and (not placed or not name.startswith("mamba"))]
    if unplaced:
        raise _NotUnderstoodError(f"{unplaced[0]} is set")
    if isinstance(types, list) and (placed or several):
        if not placed:
            raise _NotUnderstoodError(f"layer_types has {len(types)} entries for {layers} layers")
        return [_by_type(str(each), text) for each in types]
    return _by_rule(text, layers)


def _by_letters(pattern: str) -> Sequence[LayerKind]:
    """Nemotron-H: M is a Mamba layer, * attention."""
    letters = {"M": STATE, "*": FULL}
    unknown = set(pattern) - set(letters) - set(_MLP_IN_PATTERN)
    if unknown or not set(pattern) & set(letters):
        raise _NotUnderstoodError(f"hybrid_override_pattern is {pattern!r}")
    return [letters[letter] for letter in pattern if letter in letters]


def _by_type(name: str, text: Mapping[str, Any]) -> LayerKind:
    if name in _TYPES_FULL:
        return FULL
    if name in _TYPES_STATE:
        return STATE
    if name == "sliding_attention":
        return LayerKind(Attention.WINDOW, _span(text, "sliding_window"))
    if name == "chunked_attention":
        return LayerKind(Attention.CHUNK, _span(text, "attention_chunk_size"))
    raise _NotUnderstoodError(f"layer_types has {name!r}")


def _by_rule(text: Mapping[str, Any], layers: int) -> Sequence[LayerKind]:
    """Files that say it in numbers, or only by the model's name."""
    name = text.get("model_type")
    interval = _whole(text.get("full_attention_interval")) or _INTERVALS.get(str(name))
    if interval:
        return [FULL if index % interval == interval - 1 else STATE for index in range(layers)]
    if text.get("attention_chunk_size"):
        chunk = LayerKind(Attention.CHUNK, _span(text, "attention_chunk_size"))
        roped = text.get("no_rope_layers") or [int((index + 1) % _NO_ROPE_INTERVAL != 0) for index in range(layers)]
        if name != "llama4_text" or not isinstance(roped, list) or len(roped) != layers:
            raise _NotUnderstoodError("attention_chunk_size is set")
        return [chunk if each else FULL for each in roped]
    if text.get("sliding_window") is None or text.get("use_sliding_window") is False:
        return [FULL] * layers
    window = LayerKind(Attention.WINDOW, _span(text, "sliding_window"))
    every = _whole(text.get("sliding_window_pattern")) or _PATTERNS.get(str(name))
    if every:
        return [FULL if index % every == every - 1 else window for index in range(layers)]
    if name in _WINDOW_EVERYWHERE and text.get("sliding_window_pattern") is None:
        return [window] * layers
    raise _NotUnderstoodError("sliding_window is set")


def _span(text: Mapping[str, Any], key: str) -> int:
    value = _whole(text.get(key))
    if value is None:
        raise _NotUnderstoodError(f"{key} is {text.get(key)!r}")
    return value


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None
