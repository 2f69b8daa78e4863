"""What a model keeps for each token, from its ``config.json``: the part of a plan that the model decides.

Formula, bytes that one layer keeps for one token on one card (reference: vLLM 0.32 ``v1/kv_cache_interface``):

    MHA, GQA, MQA    heads per rank × (key size + value size) × bytes of the type       heads per rank = max(1, KV heads / TP)
    MLA              (kv_lora_rank + qk_rope_head_dim) × bytes of the type              one head, kept whole on every rank
    states           conv_dim / TP × (kernel - 1) and heads / TP × rows × columns, once for a request instead of for a token

The number and kinds of layers are read by ``wire.model_layers``. What is not understood is told, never guessed.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

from proxy.core.kv_shape import Attention, LayerKind
from proxy.wire.model_layers import read_layers, text_of

BYTES_OF = {"float32": 2, "float16": 2, "bfloat16": 2, "half": 2}  # vLLM's dtype auto serves float32 weights in 16 bits
STATE_BYTES_OF = {"float32": 4, "float16": 2, "bfloat16": 2}
DTYPE_BYTES_DEFAULT = 2


class PlanError(ValueError):
    """What a plan cannot be made from, and what to give instead."""


@dataclass(frozen=True, slots=True)
class StateSize:
    """A state layer's own memory for one request: elements that TP divides, with the bytes of their types."""

    conv_elements: int
    state_elements: int
    conv_bytes: int = DTYPE_BYTES_DEFAULT
    state_bytes: int = DTYPE_BYTES_DEFAULT

    def bytes_on(self, tp: int) -> int:
        """On one card."""
        return self.conv_elements // tp * self.conv_bytes + self.state_elements // tp * self.state_bytes


@dataclass(frozen=True, slots=True)
class KvModel:
    """Layers by kind, and what each keeps. ``values_per_token``: of one head, key and value together.

    ``latent`` is MLA: its one head is not split over cards. ``dtype_bytes`` is of the KV cache, not of the weights.
    """

    layers: tuple[tuple[LayerKind, int], ...]
    kv_heads: int
    values_per_token: int
    dtype_bytes: int = DTYPE_BYTES_DEFAULT
    latent: bool = False
    state: StateSize | None = None
    context_tokens_max: int | None = None
    attention_heads: int | None = None

    @property
    def attention_name(self) -> str:
        """MHA, GQA, MQA or MLA; empty where only the KV heads are known."""
        if self.latent:
            return "MLA"
        if self.attention_heads is None:
            return ""
        return "MHA" if self.kv_heads >= self.attention_heads else "MQA" if self.kv_heads == 1 else "GQA"

    def heads_per_card(self, tp: int) -> int:
        """KV heads that one card keeps. Raises PlanError where vLLM refuses the split."""
        if self.latent:
            return self.kv_heads
        if self.kv_heads % tp and tp % self.kv_heads:
            fits = ", ".join(str(each) for each in range(1, self.kv_heads + 1) if self.kv_heads % each == 0)
            raise PlanError(
                f"--tp {tp}: {self.kv_heads} KV heads cannot be split over {tp} cards; use one of {fits}, or a multiple of the last"
            )
        return max(1, self.kv_heads // tp)

    def token_bytes(self, tp: int) -> int:
        """Bytes that one attention layer keeps for one token on one card."""
        return self.heads_per_card(tp) * self.values_per_token * self.dtype_bytes

    @property
    def has_states(self) -> bool:
        """Whether some layers keep a state instead of tokens."""
        return any(kind.attention is Attention.STATE for kind, _ in self.layers)


def read_model(config: object, *, dtype_bytes: int | None = None) -> KvModel:
    """Read a parsed ``config.json``. ``dtype_bytes`` overrides the type it tells for the KV cache. Raises PlanError."""
    layers = read_layers(config)
    if layers.kinds is None or not isinstance(config, dict):
        raise PlanError(f"its layers are not understood ({layers.doubt}); give --layers, --kv-heads and --head-dim")
    text = text_of(config)
    if text.get("index_topk"):
        raise PlanError(
            "index_topk is set: a sparse index keeps memory of its own, not counted here; start vLLM once and read its blocks"
        )
    context = _whole(text, "max_position_embeddings")
    size = dtype_bytes or kv_dtype_bytes(config)
    if _whole(text, "kv_lora_rank"):
        latent = _needed(text, "kv_lora_rank") + _needed(text, "qk_rope_head_dim")
        return KvModel(layers.kinds, 1, latent, size, latent=True, state=_state(text), context_tokens_max=context)
    heads = _whole(text, "num_key_value_heads", "num_kv_heads") or (
        1 if text.get("multi_query") else _needed(text, "num_attention_heads")
    )
    head_size = _whole(text, "head_dim") or _needed(text, "hidden_size") // _needed(text, "num_attention_heads")
    values = head_size + (_whole(text, "v_head_dim") or head_size)
    queries = _whole(text, "num_attention_heads")
    return KvModel(layers.kinds, heads, values, size, state=_state(text), context_tokens_max=context, attention_heads=queries)


def kv_dtype_bytes(config: Mapping[str, Any]) -> int:
    """Bytes of a cached value under ``--kv-cache-dtype auto``: the model's own type, or 1 where the checkpoint asks for fp8."""
    quantization = config.get("quantization_config")
    if isinstance(quantization, dict) and str(quantization.get("quant_method", "")).startswith("modelopt"):
        inner = quantization.get("quantization")
        sections = [inner, quantization] if isinstance(inner, dict) else [quantization]
        asked = [section.get(key) for section in sections for key in ("kv_cache_scheme", "kv_cache_quant_algo")]
        named = next((each for each in asked if each), None)
        if isinstance(named, str) and named.lower() == "fp8":
            return 1
        if isinstance(named, dict) and (named.get("num_bits"), named.get("type"), named.get("dynamic")) == (8, "float", False):
            return 1
        if named is not None:
            raise PlanError(f"its checkpoint asks for a KV cache of type {named!r}; give --dtype-bytes")
    text = text_of(config)
    name = str(text.get("dtype") or text.get("torch_dtype") or config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    if name not in BYTES_OF:
        raise PlanError(f"its dtype {name!r} is not known; give --dtype-bytes")
    return BYTES_OF[name]


def _state(text: Mapping[str, Any]) -> StateSize | None:
    """The state of a linear-attention (gated delta net) or Mamba 2 layer; None where there is none that is known."""
    kept = STATE_BYTES_OF.get(str(text.get("mamba_ssm_dtype")), DTYPE_BYTES_DEFAULT)
    if _whole(text, "linear_num_value_heads"):
        keys, values = _needed(text, "linear_num_key_heads"), _needed(text, "linear_num_value_heads")
        key_size, value_size = _needed(text, "linear_key_head_dim"), _needed(text, "linear_value_head_dim")
        conv = (2 * keys * key_size + values * value_size) * (_needed(text, "linear_conv_kernel_dim") - 1)
        return StateSize(conv, prod((values, value_size, key_size)), state_bytes=kept)
    heads = _whole(text, "mamba_n_heads", "mamba_num_heads")
    if heads:
        size, rows = _whole(text, "mamba_d_head", "mamba_head_dim"), _whole(text, "mamba_d_state", "ssm_state_size")
        groups, kernel = _whole(text, "mamba_n_groups", "n_groups"), _whole(text, "mamba_d_conv", "conv_kernel")
        if not (size and rows and groups and kernel):
            raise PlanError("the size of its Mamba state is not told; start vLLM once and read its blocks")
        return StateSize((heads * size + 2 * groups * rows) * (kernel - 1), heads * size * rows, state_bytes=kept)
    return None


def _whole(text: Mapping[str, Any], *keys: str) -> int | None:
    values = (text.get(key) for key in keys)
    return next((value for value in values if isinstance(value, int) and not isinstance(value, bool) and value > 0), None)


def _needed(text: Mapping[str, Any], key: str) -> int:
    value = _whole(text, key)
    if value is None:
        raise PlanError(f"{key} is {text.get(key)!r}; give --layers, --kv-heads and --head-dim")
    return value
