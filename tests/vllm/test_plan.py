"""``kvgate plan`` counts the blocks that the engine prints at its start, for models of several shapes: memory given, nothing overridden."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest

from proxy.advise.plan import GIB, Lengths, Plan, Question, plan
from proxy.advise.plan_model import read_model
from tests.vllm.conftest import HOME, free_port, stop, wait_until_healthy

pytestmark = pytest.mark.vllm

KV_SPACE_GIB = 1
BATCHED_TOKENS = 512
COMMON: dict[str, Any] = {
    "dtype": "bfloat16", "hidden_size": 64, "intermediate_size": 128, "vocab_size": 4096, "max_position_embeddings": 4096,
    "bos_token_id": None, "eos_token_id": 2, "pad_token_id": 0, "rms_norm_eps": 1e-6,
}  # fmt: skip
GROUPED = COMMON | {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 64,
}  # fmt: skip
WINDOWED = COMMON | {
    "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "num_hidden_layers": 8, "num_attention_heads": 4,
    "num_key_value_heads": 1, "head_dim": 128, "query_pre_attn_scalar": 128, "sliding_window": 512,
    "layer_types": [*["sliding_attention"] * 5, "full_attention", *["sliding_attention"] * 2],
}  # fmt: skip
LATENT = COMMON | {
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "kv_lora_rank": 512, "q_lora_rank": None, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "v_head_dim": 128, "n_routed_experts": 4, "first_k_dense_replace": 1, "moe_layer_freq": 1, "n_group": 1, "topk_group": 1,
    "topk_method": "greedy", "hidden_act": "silu", "moe_intermediate_size": 128, "n_shared_experts": 1, "num_experts_per_tok": 1,
}  # fmt: skip


def folder_of(config: Mapping[str, Any], path: Path) -> Path:
    """A model folder without weights: the engine makes them up."""
    folder = path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copyfile(HOME / "model" / name, folder / name)
    return folder


def started(folder: Path, block_size: int, log: Path) -> tuple[str, str]:
    """Start the engine, and return its metrics and its log once it serves; it is stopped then."""
    port = free_port()
    command = [
        *(str(HOME / "venv" / "bin" / "python"), "-m", "vllm.entrypoints.openai.api_server"),
        *("--model", str(folder), "--load-format", "dummy", "--host", "127.0.0.1", "--port", str(port), "--enforce-eager"),
        *("--block-size", str(block_size), "--max-num-seqs", "16", "--max-num-batched-tokens", str(BATCHED_TOKENS)),
    ]
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "VLLM_CPU_KVCACHE_SPACE": str(KV_SPACE_GIB),
        "VLLM_NO_USAGE_STATS": "1",
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        wait_until_healthy(process, f"http://127.0.0.1:{port}", log)
        return httpx.get(f"http://127.0.0.1:{port}/metrics").text, log.read_text(errors="replace")
    finally:
        stop(process)


def planned(config: Mapping[str, Any], block_size: int) -> Plan:
    """The plan for the same memory; this engine has one step in flight, as always on a CPU."""
    lengths = Lengths(1000, 500, "test")
    return plan(
        Question(
            read_model(config),
            lengths,
            pool_given=KV_SPACE_GIB * GIB,
            block_size=block_size,
            batched_tokens=BATCHED_TOKENS,
            steps_in_flight=1,
        )
    )


@pytest.mark.parametrize(
    ("config", "block_size"), [(GROUPED, 64), (WINDOWED, 32), (LATENT, 16)], ids=["grouped heads", "windows", "latent"]
)
def test_the_engine_prints_the_blocks_that_were_planned(config: dict[str, Any], block_size: int, tmp_path: Path) -> None:
    metrics, log = started(folder_of(config, tmp_path), block_size, tmp_path / "server.log")
    (cache,) = re.findall(r"^vllm:cache_config_info\{(.*)\}", metrics, re.MULTILINE)
    sizes = {name: re.search(rf'\b{name}="(\d+)"', cache) for name in ("block_size", "num_gpu_blocks", "kv_cache_size_tokens")}
    seen = {name: int(found[1]) for name, found in sizes.items() if found}
    made = planned(config, block_size)
    assert seen == {"block_size": made.block_size, "num_gpu_blocks": made.kv_blocks, "kv_cache_size_tokens": made.kv_tokens}
    assert f"KV cache size: {made.kv_tokens:,} tokens" in log
