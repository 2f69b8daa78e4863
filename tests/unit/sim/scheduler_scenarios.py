"""Random loads for the engine, made from a seed, and how a run of one is written down.

Shared by the test and by ``record_vllm_scheduler.py``, so it needs nothing but the standard library.
"""

import hashlib
import json
import random
from typing import Any

SCENARIOS = 120
CONTEXT = 512
BLOCK_SIZE = 16

Row = list[Any]  # scheduled tokens by id, preempted ids, running, waiting, used blocks, prefix queries and hits so far


def scenario(seed: int) -> dict[str, Any]:
    """Settings and requests: shared prefixes, repeats, long prompts, priorities, aborts."""
    rng = random.Random(seed)
    settings = {
        "num_gpu_blocks": rng.choice((40, 60, 80, 120)),
        "block_size": BLOCK_SIZE,
        "max_num_batched_tokens": rng.choice((48, 64, 128, 512, 2048)),
        "max_num_seqs": rng.choice((4, 8, 32)),
        "long_prefill_token_threshold": rng.choice((0, 0, 24, 100)),
        "watermark": rng.choice((0.0, 0.0, 0.05, 0.15)),
        "prefix_caching": rng.random() < 0.8,
        "policy": rng.choice(("fcfs", "fcfs", "priority")),
        "max_model_len": CONTEXT,
        "reserve_full_isl": rng.random() < 0.85,
    }
    requests: list[dict[str, Any]] = []
    prefixes = [[rng.randrange(1, 1000) for _ in range(rng.randrange(16, 200))] for _ in range(4)]
    for index in range(40):
        prompt = prefixes[rng.randrange(4)][: rng.randrange(1, 200)] if rng.random() < 0.6 else []
        prompt = prompt + [rng.randrange(1, 1000) for _ in range(rng.randrange(1, 120))]
        if rng.random() < 0.05:
            prompt = [rng.randrange(1, 1000) for _ in range(450)]
        if rng.random() < 0.1 and requests:
            prompt = list(rng.choice(requests)["prompt"])
        requests.append(
            {
                "id": f"{index:03}",
                "prompt": prompt,
                "max_tokens": rng.randrange(1, 150),
                "priority": rng.randrange(3),
                "at": rng.randrange(0, 120),
                "abort": rng.randrange(0, 300) if rng.random() < 0.1 else None,
            }
        )
    requests.sort(key=lambda request: (request["at"], request["id"]))
    return {"settings": settings, "requests": requests}


def arrival(request: dict[str, Any]) -> float:
    """Distinct for every request."""
    return float(request["at"] * 1000 + int(request["id"]))


def digest(rows: list[Row]) -> dict[str, Any]:
    """A run in one line: steps, preemptions, and a hash of every row."""
    text = json.dumps(rows, separators=(",", ":"))
    return {
        "steps": len(rows),
        "preemptions": sum(len(row[1]) for row in rows),
        "sha256": hashlib.sha256(text.encode()).hexdigest(),
    }
