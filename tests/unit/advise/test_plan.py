"""The KV budget: worked examples, what a model keeps, limits, and what is warned of."""

import re
from typing import Any

import pytest

from proxy.advise.plan import GIB, Card, Lengths, Question, plan
from proxy.advise.plan_advice import chunked_prefill, faults, serve_flags, warnings
from proxy.advise.plan_model import KvModel, PlanError, read_model
from proxy.advise.plan_weights import weight_bytes
from proxy.core.kv_shape import PLAIN, Attention
from tests.unit.advise.models import DEEPSEEK_V3, GEMMA_3_27B, LLAMA_3_8B, MIXTRAL_8X7B, QWEN3_NEXT

EXPECTED = Lengths(1500, 500, "given")
SEVENTY_B = KvModel(((PLAIN.kind, 80),), kv_heads=8, values_per_token=256)
CARD = Card(80 * GIB, 0.9, 36 * GIB, 6 * GIB)


def question(model: KvModel = SEVENTY_B, **fields: Any) -> Question:
    """What a plan is made for: 30 GiB of pool unless said otherwise."""
    memory = {} if "card" in fields else {"pool_given": 30 * GIB}
    return Question(**({"model": model, "lengths": EXPECTED} | memory | fields))


def told(asked: Question) -> str:
    return "\n".join(warnings(asked, plan(asked)))


def test_sixty_layers_of_mha_over_eight_cards() -> None:
    """Hidden 4096 is 32 heads of 128, every one of them kept: MHA."""
    made = plan(question(KvModel(((PLAIN.kind, 60),), kv_heads=32, values_per_token=256), pool_given=30 * 10**9, tp=8))
    assert made.bytes_per_token == 122_880  # 0.12 MB
    assert made.kv_tokens == pytest.approx(250_000, rel=0.03)
    assert made.sequences == 122


def test_a_block_of_eighty_layers_without_a_split() -> None:
    assert plan(question()).block_bytes == 5_242_880


def test_one_card_of_a_group_of_four_is_counted_in_three_ways() -> None:
    made = plan(question(card=CARD, tp=4))
    usual, reserved, split = made.readings
    assert CARD.share == 72 * GIB
    assert (usual.kv_pool_bytes, usual.kv_blocks, usual.kv_tokens) == (36 * GIB, 7372, 117_952)
    assert (reserved.kv_pool_bytes, reserved.kv_blocks, reserved.block_bytes) == (30 * GIB, 6144, 5 * 2**20)
    assert (split.kv_pool_bytes, split.kv_blocks, split.block_bytes) == (30 * GIB, 4 * 6144, 5 * 2**18)
    assert (made.kv_blocks, made.block_bytes, made.kv_pool_bytes) == (split.kv_blocks, split.block_bytes, split.kv_pool_bytes)


def test_one_reading_needs_no_other() -> None:
    assert plan(question(card=Card(80 * GIB, 0.9, 36 * GIB, 0))).readings == ()
    assert plan(question()).readings == ()


@pytest.mark.parametrize(
    ("config", "tp", "token", "block"),
    [
        (LLAMA_3_8B, 1, 131_072, 2 * 2**20),  # the reference's own example
        (LLAMA_3_8B, 16, 131_072 // 8, 2 * 2**20 // 8),  # more cards than heads keep copies
        (MIXTRAL_8X7B, 1, 131_072, 2 * 2**20),  # experts keep nothing
        (LLAMA_3_8B | {"num_key_value_heads": None}, 1, 524_288, 8 * 2**20),  # MHA
        (LLAMA_3_8B | {"torch_dtype": "float32"}, 1, 131_072, 2 * 2**20),  # served in 16 bits
        (LLAMA_3_8B | {"quantization_config": {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}}, 1, 65_536, 2**20),
        (LLAMA_3_8B | {"quantization_config": {"quant_method": "fp8"}}, 1, 131_072, 2 * 2**20),  # weights only
        (DEEPSEEK_V3, 8, 61 * 576 * 2, 16 * 61 * 576 * 2),  # whole on every card
        (GEMMA_3_27B, 1, 62 * 8192, 16 * 10 * 8192),  # 10 full and 52 windowed layers: groups of ten
    ],
)
def test_what_a_model_keeps(config: dict[str, Any], tp: int, token: int, block: int) -> None:
    made = plan(question(read_model(config), tp=tp))
    assert (made.bytes_per_token, made.block_bytes) == (token, block)


def test_a_number_given_goes_before_the_file() -> None:
    assert plan(question(read_model(LLAMA_3_8B, dtype_bytes=1))).bytes_per_token == 65_536


@pytest.mark.parametrize(
    ("config", "name"),
    [(LLAMA_3_8B, "GQA"), (LLAMA_3_8B | {"num_key_value_heads": 32}, "MHA"), (LLAMA_3_8B | {"num_key_value_heads": 1}, "MQA"),
     (DEEPSEEK_V3, "MLA")],
)  # fmt: skip
def test_the_kind_of_attention_is_named(config: dict[str, Any], name: str) -> None:
    assert read_model(config).attention_name == name


def test_pipeline_stages_split_the_layers_and_the_longest_decides() -> None:
    assert plan(question(pp=3)).block_bytes == 27 * 16 * 8 * 256 * 2


def test_a_window_holds_more_sequences_than_full_attention() -> None:
    model = read_model(GEMMA_3_27B)
    made = plan(question(model, lengths=Lengths(15_000, 1000, "given"), batched_tokens=2048))
    # 1 full group and 6 windowed (five of ten layers and one of two); a window of 1,024 takes at most 65 blocks of 16.
    assert [(each.kind.attention, each.count) for each in made.groups] == [(Attention.WINDOW, 6), (Attention.FULL, 1)]
    assert made.blocks_per_sequence == 1000 + 6 * 65
    # As vLLM: windows count with the steps in flight, ceil((1,023 + 2 × 2,048) / 16) + 1 blocks.
    assert made.kv_tokens == int(made.kv_blocks / (8192 + 6 * 321) * 131_072)


def test_states_lengthen_the_block() -> None:
    """Qwen3-Next: conv (2·16·128 + 32·128)·3 and state 32·128·128 values of 2 bytes, in pages of 2,048 bytes a token."""
    made = plan(question(read_model(QWEN3_NEXT)))
    state_bytes = ((2 * 16 * 128 + 32 * 128) * 3 + 32 * 128 * 128) * 2
    assert made.block_size == 544
    assert made.block_size * 2048 >= state_bytes > (made.block_size - 16) * 2048
    assert made.bytes_per_token == 12 * 2048  # of the twelve layers that keep tokens
    assert made.block_bytes == 544 * 2048 * 12
    assert "544 tokens is computed" in told(question(read_model(QWEN3_NEXT)))


@pytest.mark.parametrize(
    ("config", "doubt"),
    [
        ([], "it is no JSON object"),
        (LLAMA_3_8B | {"num_global_key_value_heads": 4}, "num_global_key_value_heads is set"),
        (LLAMA_3_8B | {"num_key_value_heads": None, "num_attention_heads": "32"}, "num_attention_heads is '32'"),
        (LLAMA_3_8B | {"torch_dtype": "int3"}, "give --dtype-bytes"),
        (
            LLAMA_3_8B | {"quantization_config": {"quant_method": "modelopt", "kv_cache_quant_algo": "NVFP4"}},
            "give --dtype-bytes",
        ),
        (DEEPSEEK_V3 | {"index_topk": 2048}, "index_topk is set"),
    ],
)
def test_what_is_not_understood_is_told_with_what_to_give(config: Any, doubt: str) -> None:
    with pytest.raises(PlanError, match=doubt):
        read_model(config)


def test_heads_that_cannot_be_split_are_told() -> None:
    with pytest.raises(PlanError, match="--tp 3: 8 KV heads cannot be split over 3 cards; use one of 1, 2, 4, 8"):
        plan(question(tp=3))


def test_layers_of_several_kinds_need_the_context() -> None:
    text = {key: value for key, value in GEMMA_3_27B["text_config"].items() if key != "max_position_embeddings"}
    with pytest.raises(PlanError, match="give --max-model-len"):
        plan(question(read_model(text)))


@pytest.mark.parametrize(
    ("config", "billions", "bytes_each"),
    [(LLAMA_3_8B, 8.03, 2), (MIXTRAL_8X7B, 46.7, 2), (DEEPSEEK_V3, 671, 1)],  # as their model cards count them
)
def test_weights_are_estimated_to_a_hundredth(config: dict[str, Any], billions: float, bytes_each: int) -> None:
    assert weight_bytes(config) == pytest.approx(billions * 1e9 * bytes_each, rel=0.01)


@pytest.mark.parametrize(
    ("quantization", "ratio"),
    [
        ({"quant_method": "awq", "bits": 4}, 0.25),
        ({"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 8}}}}, 0.5),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, 0.25),
    ],
)
def test_quantized_layers_weigh_less_and_embeddings_do_not(quantization: dict[str, Any], ratio: float) -> None:
    plain, quantized = weight_bytes(LLAMA_3_8B), weight_bytes(LLAMA_3_8B | {"quantization_config": quantization})
    embeddings = 2 * 128_256 * 4096 * 2
    assert plain is not None
    assert quantized == pytest.approx((plain - embeddings) * ratio + embeddings)


def test_weights_that_the_file_does_not_tell() -> None:
    assert weight_bytes({"hidden_size": 64}) is None


def test_limits_keep_a_fifth_in_hand() -> None:
    made = plan(question())
    assert made.kv_blocks == 6144
    assert made.sequences == 6143 // 125
    assert made.max_num_seqs == int(6143 * 0.8 / 125)
    # All decodes and one whole prompt, with a fifth in hand; 39 sequences bring fewer prompt tokens a step than that.
    assert made.max_num_batched_tokens == 2048
    long = plan(question(lengths=Lengths(4000, 500, "given")))
    assert long.max_num_batched_tokens == 5120  # (17 + 4,000) / 0.8 = 5,021, in steps of 256


@pytest.mark.parametrize(("gib", "limit"), [(48, 2048), (80, 8192), (192, 16_384)])
def test_a_step_stays_within_the_engines_default_for_the_card(gib: int, limit: int) -> None:
    card = Card(gib * GIB, 0.9, 16 * GIB, GIB)
    asked = question(read_model(LLAMA_3_8B), card=card, lengths=Lengths(8000, 20, "given"))
    assert plan(asked).max_num_batched_tokens == limit
    assert "prompts are the larger part" in told(asked)


def test_more_sequences_than_a_plan_should_name() -> None:
    asked = question(lengths=Lengths(20, 20, "given"))
    assert plan(asked).sequences > 1024 == plan(asked).max_num_seqs
    assert "only a benchmark tells" in told(asked)


@pytest.mark.parametrize(
    ("fields", "warning"),
    [
        ({"card": Card(80 * GIB, 0.95, 36 * GIB, 6 * GIB)}, "utilisation 0.95: near 0.95 one long prefill can spike"),
        ({"card": Card(80 * GIB, 0.98, 36 * GIB, 6 * GIB)}, "only 1.6 GiB stay outside vLLM's share"),
        ({"card": Card(80 * GIB, 0.9, 36 * GIB, 0), "tp": 4}, "NCCL buffers"),
        ({"card": Card(80 * GIB, 0.9, 36 * GIB, 0)}, "no reserve"),
        ({"tp": 16, "card": CARD}, "TP 16 spans nodes"),
        ({"tp": 16}, "TP 16 copies 8 KV heads over 16 cards"),
        ({"model": read_model(DEEPSEEK_V3), "tp": 8}, "MLA keeps its whole cache on each of the 8 cards"),
        ({"lengths": Lengths(30_000, 2000, "given")}, "only 3 sequences of 32,000 tokens at a time"),
        ({"context_tokens_max": 65_536}, "the pool holds 1 as long as the context"),
        ({"model": read_model(GEMMA_3_27B)}, "layers of 2 kinds share the pool"),
        ({"model": KvModel(((PLAIN.kind, 60),), 32, 256)}, "32 KV heads keep every head, as MHA does"),
    ],
)  # fmt: skip
def test_what_is_warned_of(fields: dict[str, Any], warning: str) -> None:
    assert warning in told(question(**fields))


def test_a_sound_plan_has_no_warning() -> None:
    asked = question(card=CARD, tp=4, context_tokens_max=8192)
    assert told(asked) == ""
    assert list(faults(asked, plan(asked))) == []


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({"card": Card(80 * GIB, 0.9, 140 * GIB, 6 * GIB)}, r"the weights do not fit.*weights alone would take TP 4"),
        ({"card": Card(8 * GIB, 0.9, 5 * GIB, 9 * GIB)}, "the weights do not fit"),
        (
            {"context_tokens_max": 131_072},
            "one request as long as the context .* will not start: set --max-model-len to 98,288 or less",
        ),
        ({"lengths": Lengths(100_000, 1, "given")}, "one request of the expected 100,001 tokens takes 6,251 of 6,143 blocks"),
        ({"context_tokens_max": 1000}, "the expected 2,000 tokens exceed the context of 1,000"),
    ],
)
def test_what_does_not_work_is_told_with_what_to_change(fields: dict[str, Any], fault: str) -> None:
    asked = question(**fields)
    (line,) = faults(asked, plan(asked))
    assert re.search(fault, line)


def test_the_advised_context_holds() -> None:
    asked = question(context_tokens_max=98_288)
    assert list(faults(asked, plan(asked))) == []
    assert any(faults(question(context_tokens_max=98_304), plan(question(context_tokens_max=98_304))))


def test_chunked_prefill_is_kept_either_way() -> None:
    long = question(context_tokens_max=8192)
    assert "4 steps of 2,048" in chunked_prefill(long, plan(long))
    short = question(context_tokens_max=2048)
    assert "every prompt fits one step" in chunked_prefill(short, plan(short))


def test_the_flags_are_those_of_the_plan() -> None:
    asked = question(card=CARD, tp=4, pp=2, context_tokens_max=8192, kv_cache_dtype="fp8")
    made = plan(asked)
    assert dict(serve_flags(asked, made)) == {
        "--tensor-parallel-size": "4",
        "--pipeline-parallel-size": "2",
        "--gpu-memory-utilization": "0.9",
        "--block-size": "16",
        "--max-model-len": "8192",
        "--kv-cache-dtype": "fp8",
        "--max-num-seqs": str(made.max_num_seqs),
        "--max-num-batched-tokens": str(made.max_num_batched_tokens),
    }
    given = question()
    assert dict(serve_flags(given, plan(given)))["--kv-cache-memory-bytes"] == str(30 * GIB)
