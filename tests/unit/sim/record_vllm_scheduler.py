"""Writes ``scheduler_recordings.json`` from the real vLLM scheduler. Not a test: run it with a Python that has vLLM 0.32 installed.

    PYTHONPATH=. python tests/unit/sim/record_vllm_scheduler.py MODEL_DIRECTORY

MODEL_DIRECTORY is any text model's folder; only its configuration is read. No model runs: each step's tokens are made up.
"""

import json
import sys
from pathlib import Path
from typing import Any

import torch
from vllm.config import CacheConfig, ModelConfig, SchedulerConfig, VllmConfig
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from tests.unit.sim.scheduler_scenarios import SCENARIOS, Row, arrival, digest, scenario


def make_scheduler(settings: dict[str, Any], model: str) -> Scheduler:
    config = VllmConfig(
        scheduler_config=SchedulerConfig(
            max_num_seqs=settings["max_num_seqs"],
            max_num_batched_tokens=settings["max_num_batched_tokens"],
            max_model_len=settings["max_model_len"],
            long_prefill_token_threshold=settings["long_prefill_token_threshold"],
            watermark=settings["watermark"],
            policy=settings["policy"],
            scheduler_reserve_full_isl=settings["reserve_full_isl"],
            async_scheduling=False,
            enable_chunked_prefill=True,
            is_encoder_decoder=False,
        ),
        model_config=ModelConfig(model=model, dtype="float32", seed=0, max_model_len=settings["max_model_len"]),
        cache_config=CacheConfig(block_size=settings["block_size"], enable_prefix_caching=settings["prefix_caching"]),
    )
    config.cache_config.num_gpu_blocks = settings["num_gpu_blocks"]
    spec = FullAttentionSpec(block_size=settings["block_size"], num_kv_heads=1, head_size=1, dtype=torch.float32)
    kv_config = KVCacheConfig(
        num_blocks=settings["num_gpu_blocks"], kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], spec)]
    )
    return Scheduler(
        vllm_config=config,
        kv_cache_config=kv_config,
        structured_output_manager=StructuredOutputManager(config),
        block_size=settings["block_size"],
        log_stats=True,
    )


def run(load: dict[str, Any], model: str) -> list[Row]:
    settings = load["settings"]
    scheduler = make_scheduler(settings, model)
    hasher = get_request_block_hasher(settings["block_size"], sha256) if settings["prefix_caching"] else None
    coming = list(load["requests"])
    rows: list[Row] = []
    queries = hits = 0
    while True:
        step = len(rows)
        while coming and coming[0]["at"] <= step:
            request = coming.pop(0)
            scheduler.add_request(
                Request(
                    request_id=request["id"],
                    prompt_token_ids=request["prompt"],
                    sampling_params=SamplingParams(max_tokens=request["max_tokens"], ignore_eos=True),
                    pooling_params=None,
                    arrival_time=arrival(request),
                    priority=request["priority"],
                    block_hasher=hasher,
                )
            )
        for request in load["requests"]:
            if request["abort"] == step and request["id"] in scheduler.requests:
                scheduler.finish_requests(request["id"], RequestStatus.FINISHED_ABORTED)
        if not coming and not scheduler.has_unfinished_requests():
            return rows
        output = scheduler.schedule()
        ids = list(output.num_scheduled_tokens)
        states = [scheduler.requests[name] for name in ids]
        # A token of its own for each request, so that outputs never share blocks.
        sampled = [[2000 + int(each.request_id)] if each.num_computed_tokens >= each.num_tokens else [] for each in states]
        model_output = ModelRunnerOutput(ids, {name: index for index, name in enumerate(ids)}, sampled_token_ids=sampled)
        for engine_output in scheduler.update_from_output(output, model_output).values():
            stats = engine_output.scheduler_stats
            if stats is not None and stats.prefix_cache_stats is not None:
                queries += stats.prefix_cache_stats.queries
                hits += stats.prefix_cache_stats.hits
        running, waiting = scheduler.get_request_counts()
        used = settings["num_gpu_blocks"] - 1 - scheduler.kv_cache_manager.block_pool.get_num_free_blocks()
        preempted = sorted(output.preempted_req_ids or [])
        rows.append([dict(output.num_scheduled_tokens), preempted, running, waiting, used, queries, hits])


def main() -> None:
    init_none_hash(sha256)
    digests = [digest(run(scenario(seed), sys.argv[1])) for seed in range(SCENARIOS)]
    lines = ",\n".join(json.dumps(each) for each in digests)
    Path(__file__).with_name("scheduler_recordings.json").write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
