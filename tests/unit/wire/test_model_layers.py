"""What a model's ``config.json`` says of its layers, and what kvgate makes of it beside the engine's own account."""

from collections import Counter
from typing import Any

import pytest

from proxy.core.kv_shape import PLAIN, Attention, KvGroups, KvLayout, LayerKind, grouped
from proxy.wire.kv_layout import CacheSizes, choose_layout
from proxy.wire.model_layers import FULL, STATE, ModelLayers, read_layers


def window(tokens: int) -> LayerKind:
    return LayerKind(Attention.WINDOW, tokens)


GEMMA = {"model_type": "gemma3_text", "num_hidden_layers": 62, "sliding_window": 1024}
GPT_OSS = {
    "model_type": "gpt_oss",
    "num_hidden_layers": 4,
    "sliding_window": 128,
    "layer_types": ["sliding_attention", "full_attention"] * 2,
}
LLAMA_4 = {"model_type": "llama4_text", "num_hidden_layers": 8, "attention_chunk_size": 8192, "no_rope_layers": []}
QWEN_NEXT = {"model_type": "qwen3_next", "num_hidden_layers": 48, "full_attention_interval": 4}
GRANITE = {
    "model_type": "granitemoehybrid", "num_hidden_layers": 10, "mamba_d_state": 128, "layer_types": ["mamba"] * 9 + ["attention"],
}  # fmt: skip


@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        ({"model_type": "llama", "num_hidden_layers": 32}, {FULL: 32}),
        ({"model_type": "qwen2", "num_hidden_layers": 28, "sliding_window": 32768, "use_sliding_window": False}, {FULL: 28}),
        ({"model_type": "mistral", "num_hidden_layers": 32, "sliding_window": 4096}, {window(4096): 32}),
        ({"model_type": "mistral", "num_hidden_layers": 40, "sliding_window": None}, {FULL: 40}),
        (GEMMA, {FULL: 10, window(1024): 52}),
        (
            {"model_type": "gemma3", "text_config": GEMMA, "vision_config": {"num_hidden_layers": 27}},
            {FULL: 10, window(1024): 52},
        ),
        ({**GEMMA, "sliding_window_pattern": 2}, {FULL: 31, window(1024): 31}),
        ({"model_type": "gemma2", "num_hidden_layers": 26, "sliding_window": 4096}, {FULL: 13, window(4096): 13}),
        (GPT_OSS, {FULL: 2, window(128): 2}),
        (LLAMA_4, {FULL: 2, LayerKind(Attention.CHUNK, 8192): 6}),
        ({**LLAMA_4, "no_rope_layers": [1, 0] * 4}, {FULL: 4, LayerKind(Attention.CHUNK, 8192): 4}),
        (QWEN_NEXT, {FULL: 12, STATE: 36}),
        (GRANITE, {FULL: 1, STATE: 9}),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M-M*-ME", "ssm_state_size": 128}, {STATE: 3, FULL: 1}),
    ],
)
def test_layers_are_read(config: dict[str, Any], kinds: dict[LayerKind, int]) -> None:
    layers = read_layers(config)
    assert layers.kinds is not None, layers.doubt
    assert dict(layers.kinds) == kinds


@pytest.mark.parametrize(
    ("config", "doubt"),
    [
        ([], "no JSON object"),
        ({"model_type": "llama"}, "num_hidden_layers"),
        ({"num_hidden_layers": True}, "num_hidden_layers"),
        ({"model_type": "qwen2", "num_hidden_layers": 4, "sliding_window": 4096, "use_sliding_window": True}, "sliding_window"),
        ({"model_type": "new", "num_hidden_layers": 4, "sliding_window": 4096}, "sliding_window"),
        ({**GPT_OSS, "num_hidden_layers": 5}, "4 entries for 5 layers"),
        ({**GPT_OSS, "sliding_window": None}, "sliding_window is None"),
        ({**GPT_OSS, "layer_types": ["full_attention", "retention"] * 2}, "'retention'"),
        ({**GPT_OSS, "num_kv_shared_layers": 2}, "num_kv_shared_layers"),
        ({**GPT_OSS, "global_head_dim": 512}, "global_head_dim"),
        ({"model_type": "falcon_h1", "num_hidden_layers": 4, "mamba_d_ssm": 1024}, "mamba_d_ssm"),
        ({"model_type": "mamba2", "num_hidden_layers": 4, "state_size": 128}, "state_size"),
        ({"model_type": "other", "num_hidden_layers": 4, "attention_chunk_size": 512}, "attention_chunk_size"),
        ({**LLAMA_4, "no_rope_layers": [1, 0]}, "attention_chunk_size"),
        ({"hybrid_override_pattern": "M?*"}, "hybrid_override_pattern"),
        ({"hybrid_override_pattern": "---"}, "hybrid_override_pattern"),
    ],
)
def test_what_is_not_certain_is_not_understood(config: object, doubt: str) -> None:
    layers = read_layers(config)
    assert layers.kinds is None
    assert doubt in str(layers.doubt)


def sizes(tokens: int | None, *, context: int | None = 8192, blocks: int = 1000, caching: bool = True) -> CacheSizes:
    return CacheSizes(16, blocks, context, tokens, caching)


def told(blocks_of_longest: int, *, context: int = 8192, blocks: int = 1000) -> CacheSizes:
    """Sizes of an engine on which a request of full length takes so many blocks."""
    return sizes(int(blocks / blocks_of_longest * context), context=context, blocks=blocks)


PLAIN_LAYERS = ModelLayers(((FULL, 32),))
GEMMA_LAYERS = ModelLayers(((FULL, 10), (window(1024), 52)))
GEMMA_GROUPS = (PLAIN, KvGroups(window(1024), 6))


@pytest.mark.parametrize("layers", [None, PLAIN_LAYERS, GEMMA_LAYERS, ModelLayers(None, "new")])
def test_one_full_length_of_blocks_is_one_group_whatever_the_file_says(layers: ModelLayers | None) -> None:
    """A hybrid under --disable-hybrid-kv-cache-manager is one group."""
    layout, warnings = choose_layout(layers, told(512))
    assert layout == KvLayout()
    assert not warnings


def test_a_hybrid_with_its_file_is_known_and_tells_what_the_engine_has_in_flight() -> None:
    # 2,048 tokens in flight: ceil((1023 + 2048) / 16) + 1 = 193 blocks in each of six groups.
    layout, warnings = choose_layout(GEMMA_LAYERS, told(512 + 6 * 193))
    assert layout.groups == GEMMA_GROUPS
    assert 2048 <= layout.in_flight_tokens_max < 2048 + 16
    assert not layout.fitted
    assert not warnings


def test_states_are_known_too() -> None:
    layers = ModelLayers(((FULL, 12), (STATE, 36)))
    layout, warnings = choose_layout(layers, told(512 + 3 * 2))
    assert layout.groups == grouped([(FULL, 12), (STATE, 36)])
    assert not warnings


@pytest.mark.parametrize(
    ("layers", "says"),
    [
        (None, "not where kvgate runs"),
        (ModelLayers(None, "num_kv_shared_layers is set"), "num_kv_shared_layers is set"),
        (PLAIN_LAYERS, "one full-attention group"),
        (ModelLayers(((FULL, 12), (window(128), 12))), "another number"),
    ],
)
def test_what_the_file_does_not_explain_is_fitted(layers: ModelLayers | None, says: str) -> None:
    layout, warnings = choose_layout(layers, told(512 + 1158))
    assert layout.fitted
    assert layout.excess_blocks_max == 1158
    assert says in warnings[0]


def test_a_larger_capacity_is_counted_in_full_and_told() -> None:
    layout, warnings = choose_layout(None, told(70))
    assert layout == KvLayout()
    assert "keeps only a window" in warnings[0]
    layout, warnings = choose_layout(PLAIN_LAYERS, told(256))
    assert layout == KvLayout()
    assert "policy key block_size is set to 2 times" in warnings[0]


def test_a_window_everywhere_with_its_file_is_known() -> None:
    layout, warnings = choose_layout(ModelLayers(((window(1024), 32),)), told(193))
    assert layout.groups == (KvGroups(window(1024)),)
    assert not warnings


def test_an_engine_that_does_not_tell_is_taken_at_its_files_word() -> None:
    assert choose_layout(GEMMA_LAYERS, sizes(None))[0].groups == GEMMA_GROUPS
    assert choose_layout(None, sizes(None)) == (KvLayout(), ())
    assert choose_layout(None, sizes(5000, context=None)) == (KvLayout(), ())
    layout, warnings = choose_layout(ModelLayers(None, "sliding_window is set"), sizes(None))
    assert layout.fitted
    assert "Upgrade vLLM" in warnings[0]


def test_prefix_caching_is_part_of_the_layout() -> None:
    assert not choose_layout(None, sizes(None, caching=False))[0].prefix_caching
    assert Counter(groups.kind for groups in choose_layout(None, sizes(None))[0].groups) == {FULL: 1}
