"""What both runs are sent: the same requests, byte for byte, in the same order.

Prompt length: lognormal, median ``PROMPT_TOKENS_MEDIAN``, at most a third of the context. Output length is the mock's own, drawn from
the prompt and its seed: lognormal, median ``OUTPUT_TOKENS_MEDIAN``. ``max_tokens`` is far above most answers, as real clients send it:
who believed it would reserve several times what comes. Shape: on the default pool about 25 requests of average size fit a replica
and 32 knock at it, so the cache is contended, and neither idle nor hopeless.

Fails: on a pool far from the default the shape may contend for nothing, and the table then says so.
"""

import json
import math
import random
from dataclasses import dataclass

from proxy.sim.train_tokenizer import ADJECTIVES, GLUE, NOUNS, VERBS

MODEL = "mock"
BLOCK_SIZE = 16  # vLLM's default
CONTEXT_TOKENS_MAX = 4096
PROMPT_TOKENS_MEDIAN = 400
PROMPT_TOKENS_SIGMA = 0.6
PROMPT_TOKENS_MIN = 16
OUTPUT_TOKENS_MEDIAN = 250
OUTPUT_TOKENS_SIGMA = 0.7
OUTPUT_TOKENS_MAX = 1024  # what clients ask for; 1 in 40 answers would be longer
KV_BLOCKS_MIN = 64  # 1,008 tokens: below, not even one such request is sure to fit


@dataclass(frozen=True, slots=True)
class DemoSettings:
    """What can be chosen. ``kv_blocks`` are each replica's, the null block included; ``clients`` is of both replicas together."""

    seed: int = 1
    requests: int = 400
    clients: int = 64
    replicas: int = 2
    kv_blocks: int = 1024

    @property
    def context_tokens_max(self) -> int:
        """The context that the mocks serve: a whole one must fit a pool."""
        return min(CONTEXT_TOKENS_MAX, (self.kv_blocks - 1) * BLOCK_SIZE)


def mock_words(settings: DemoSettings) -> list[str]:
    """Flags of ``kvgate mock-vllm`` for one replica, on any free port."""
    flags = {
        "port": 0,
        "model": MODEL,
        "num-gpu-blocks": settings.kv_blocks,
        "block-size": BLOCK_SIZE,
        "max-model-len": settings.context_tokens_max,
        "output-median": OUTPUT_TOKENS_MEDIAN,
        "output-sigma": OUTPUT_TOKENS_SIGMA,
        "seed": settings.seed,
    }
    return [word for flag, value in flags.items() for word in (f"--{flag}", str(value))]


def request_bodies(settings: DemoSettings) -> list[bytes]:
    """Bodies of streaming chat requests that ask for usage. Equal settings give equal bytes."""
    rng = random.Random(settings.seed)
    words = [*NOUNS, *VERBS, *ADJECTIVES, *GLUE]
    longest = settings.context_tokens_max // 3
    bodies = []
    for _ in range(settings.requests):
        drawn = round(rng.lognormvariate(math.log(PROMPT_TOKENS_MEDIAN), PROMPT_TOKENS_SIGMA))
        length = min(max(drawn, PROMPT_TOKENS_MIN), longest)
        body = {
            "model": MODEL,
            # Nearly every word is one token of the shipped tokenizer.
            "messages": [{"role": "user", "content": " ".join(rng.choices(words, k=length))}],
            "max_tokens": min(OUTPUT_TOKENS_MAX, settings.context_tokens_max // 2),
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        bodies.append(json.dumps(body).encode())
    return bodies
