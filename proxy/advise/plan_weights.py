"""How many bytes a model's weights take, from its ``config.json``: for where no weight files are at hand to be weighed.

Formula, for gated feed-forward layers, as nearly all models that vLLM serves have them: embeddings and head ``vocabulary × hidden`` each
(once when tied), per layer the attention projections, and ``3 × hidden × intermediate`` for each expert or the one dense block. Quantized
layers count in the bits that the file tells, embeddings in 16. State layers are counted as attention.
"""

from collections.abc import Mapping
from typing import Any

from proxy.wire.model_layers import text_of

BYTES_PLAIN = 2.0
MXFP4_BITS = 4.25  # four bits and a scale of eight for each 32
EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


def weight_bytes(config: Mapping[str, Any]) -> int | None:
    """Bytes of all weights together; None where the file does not tell enough."""
    text = text_of(config)
    try:
        hidden, layers, vocabulary = text["hidden_size"], text["num_hidden_layers"], text["vocab_size"]
        body = int(layers * _attention(text, hidden) + _feed_forward(text, hidden, layers))
        embeddings = int(vocabulary * hidden)
    except (KeyError, TypeError):
        return None
    tied = bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", False)))
    return round(body * bytes_per_weight(config) + embeddings * (1 if tied else 2) * BYTES_PLAIN)


def bytes_per_weight(config: Mapping[str, Any]) -> float:
    """Of the layers' matrices."""
    quantization = config.get("quantization_config") or text_of(config).get("quantization_config")
    if not isinstance(quantization, dict):
        return BYTES_PLAIN
    bits = quantization.get("bits") or quantization.get("w_bit")
    method = str(quantization.get("quant_method", ""))
    groups = quantization.get("config_groups")
    if bits is None and isinstance(groups, dict):
        told = [(group.get("weights") or {}).get("num_bits") for group in groups.values() if isinstance(group, dict)]
        bits = max((each for each in told if isinstance(each, int)), default=None)
    if bits is None and quantization.get("load_in_4bit"):
        bits = 4
    if bits is None:
        bits = {"fp8": 8, "fbgemm_fp8": 8, "modelopt": 8, "modelopt_fp4": 4, "mxfp4": MXFP4_BITS}.get(method)
    return BYTES_PLAIN if not isinstance(bits, int | float) else bits / 8


def _attention(text: Mapping[str, Any], hidden: int) -> int:
    heads: int = text["num_attention_heads"]
    if text.get("kv_lora_rank"):
        latent, rope, plain, value = (text[key] for key in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))
        rank = text.get("q_lora_rank")
        query = hidden * rank + rank * heads * (plain + rope) if rank else hidden * heads * (plain + rope)
        return int(query + hidden * (latent + rope) + latent * heads * (plain + value) + heads * value * hidden)
    kv_heads = text.get("num_key_value_heads") or heads
    size = text.get("head_dim") or hidden // heads
    return int(2 * hidden * heads * size + 2 * hidden * kv_heads * size)


def _feed_forward(text: Mapping[str, Any], hidden: int, layers: int) -> int:
    dense = 3 * hidden * int(text["intermediate_size"])
    experts = next((text[key] for key in EXPERTS if text.get(key)), 0)
    if not experts:
        return layers * dense
    width = text.get("moe_intermediate_size") or text["intermediate_size"]
    shared = text.get("shared_expert_intermediate_size") or (text.get("n_shared_experts") or 0) * width
    dense_layers = min(layers, text.get("first_k_dense_replace") or 0)
    mixed = 3 * hidden * (experts * width + shared) + hidden * experts
    return int(dense_layers * dense + (layers - dense_layers) * mixed)
