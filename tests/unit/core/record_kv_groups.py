"""Writes ``kv_groups_recordings.json`` from the real vLLM scheduler. Not a test: run it with a Python that has vLLM 0.32 installed.

    PYTHONPATH=. python tests/unit/core/record_kv_groups.py MODEL_DIRECTORY

MODEL_DIRECTORY is any text model's folder; only its configuration is read. No model runs: each step's tokens are made up. Groups come
from the engine's own grouping of the layers; ``held`` are (tokens computed of the
farthest request, of the nearest, blocks held by all), from each step at which the blocks changed.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import (
    get_kv_cache_groups,
    get_request_block_hasher,
    init_none_hash,
    resolve_kv_cache_block_sizes,
)
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheSpec,
    MambaSpec,
    SlidingWindowSpec,
)
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

BLOCKS = 20_000
CONTEXT = 8192
BLOCK_SIZE = 16
PLAIN, WINDOW, CHUNK, STATE = "full", "window", "chunk", "state"

# name: (layers by kind, window or chunk in tokens, prefix caching)
MODELS: dict[str, tuple[dict[str, int], int, bool]] = {
    "plain": ({PLAIN: 32}, 0, True),
    "gemma_1024": ({PLAIN: 10, WINDOW: 52}, 1024, True),
    "gemma_512": ({PLAIN: 4, WINDOW: 22}, 512, True),
    "gpt_oss": ({PLAIN: 12, WINDOW: 12}, 128, True),
    "uneven": ({PLAIN: 13, WINDOW: 12}, 128, True),
    "mistral": ({WINDOW: 32}, 1000, True),
    "llama4": ({PLAIN: 12, CHUNK: 36}, 1024, True),
    "mamba": ({PLAIN: 4, STATE: 36}, 0, False),
    "mamba_cached": ({PLAIN: 4, STATE: 36}, 0, True),
}
# prompt tokens, output tokens, copies, tokens in a step
CASES = [
    (100, 60, 1, 2048),
    (1500, 100, 1, 2048),
    (5000, 40, 1, 2048),
    (5000, 40, 1, 512),
    (100, 60, 4, 2048),
    (1500, 40, 4, 2048),
    (5000, 40, 3, 2048),
    (900, 600, 3, 2048),
]


def spec_of(kind: str, span: int, *, caching: bool) -> KVCacheSpec:
    sizes: dict[str, Any] = {"block_size": BLOCK_SIZE, "num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
    if kind == STATE:
        return MambaSpec(
            block_size=BLOCK_SIZE if caching else CONTEXT, shapes=((1,),), dtypes=(torch.float32,), page_size_padded=128,
            mamba_cache_mode="align" if caching else "none",
        )  # fmt: skip
    if kind == WINDOW:
        return SlidingWindowSpec(**sizes, sliding_window=span)
    if kind == CHUNK:
        return ChunkedLocalAttentionSpec(**sizes, attention_chunk_size=span)
    return FullAttentionSpec(**sizes)


def make_scheduler(name: str, budget: int, model: str) -> tuple[Scheduler, list[str]]:
    layers, span, caching = MODELS[name]
    config = VllmConfig(
        scheduler_config=SchedulerConfig(
            max_num_seqs=64, max_num_batched_tokens=budget, max_model_len=CONTEXT, async_scheduling=False,
            enable_chunked_prefill=True, is_encoder_decoder=False,
        ),
        model_config=ModelConfig(model=model, dtype="float32", seed=0, max_model_len=CONTEXT),
        cache_config=CacheConfig(
            block_size=BLOCK_SIZE, enable_prefix_caching=caching, mamba_cache_mode="align" if caching else "none"
        ),
    )  # fmt: skip
    config.cache_config.num_gpu_blocks = BLOCKS
    config.cache_config.kv_cache_layout = "LBNHC"
    specs = {f"{kind}.{index}": spec_of(kind, span, caching=caching) for kind, count in layers.items() for index in range(count)}
    groups = get_kv_cache_groups(config, specs)
    kv_config = KVCacheConfig(num_blocks=BLOCKS, kv_cache_tensors=[], kv_cache_groups=groups)
    manager = StructuredOutputManager(config)
    steps, hashes = resolve_kv_cache_block_sizes(kv_config, config)
    scheduler = Scheduler(
        vllm_config=config, kv_cache_config=kv_config, structured_output_manager=manager, block_size=steps, hash_block_size=hashes,
        log_stats=True,
    )  # fmt: skip
    return scheduler, [group.layer_names[0].partition(".")[0] for group in groups]


def run(name: str, case: tuple[int, int, int, int], model: str) -> dict[str, Any]:
    prompt, output, copies, budget = case
    scheduler, groups = make_scheduler(name, budget, model)
    hasher = get_request_block_hasher(BLOCK_SIZE, sha256) if MODELS[name][2] else None
    for copy in range(copies):
        scheduler.add_request(
            Request(
                request_id=str(copy), prompt_token_ids=list(range(prompt)), pooling_params=None, arrival_time=float(copy),
                sampling_params=SamplingParams(max_tokens=output, ignore_eos=True), block_hasher=hasher,
            )
        )  # fmt: skip
    rows = []
    while scheduler.has_unfinished_requests():
        plan = scheduler.schedule()
        ids = list(plan.num_scheduled_tokens)
        held = BLOCKS - 1 - scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        states = [scheduler.requests[each] for each in ids]
        computed = max(state.num_computed_tokens for state in states)  # of the request that is farthest
        if not rows or held != rows[-1][2]:
            rows.append([computed, min(state.num_computed_tokens for state in states), held])
        sampled = [[20_000 + int(each.request_id)] if each.num_computed_tokens >= each.num_tokens else [] for each in states]
        scheduler.update_from_output(
            plan, ModelRunnerOutput(ids, {each: index for index, each in enumerate(ids)}, sampled_token_ids=sampled)
        )
    layers, span, caching = MODELS[name]
    return {
        "model": name, "layers": layers, "span": span, "prefix_caching": caching, "groups": groups,
        "prompt": prompt, "output": output, "copies": copies, "budget": budget, "held": rows,
    }  # fmt: skip


def main() -> None:
    init_none_hash(sha256)
    runs = [run(name, case, sys.argv[1]) for name in MODELS for case in CASES]
    lines = ",\n".join(json.dumps(each) for each in runs)
    Path(__file__).with_name("kv_groups_recordings.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
