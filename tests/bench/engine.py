"""The engine's own word: its /metrics, read independently of the package's parser, and waiting until it is idle.

Sums over the engines of one server. Fails: a gauge that is not there (``--disable-log-stats``) raises KeyError.
"""

import asyncio
import re
from dataclasses import dataclass

import httpx

# A connection for each request: a busy server closes idle ones when it gets to it, which may be when the next request has been sent.
CLOSING = {"connection": "close"}
SERVER_S_MAX = 120.0  # an API server whose engine outruns it answers when it is through
_SAMPLE = re.compile(r"^(vllm:[a-z_]+)\{[^\n]*\} ([0-9.e+-]+)$", re.MULTILINE)
_BLOCKS = re.compile(r'^vllm:cache_config_info\{[^\n]*num_gpu_blocks="(\d+)"', re.MULTILINE)


@dataclass(frozen=True, slots=True)
class EngineState:
    """One scrape. ``used_blocks`` excludes the null block, which the engine's own usage excludes too."""

    running: int
    waiting: int
    used_blocks: float
    usable_blocks: int
    preemptions: int

    @property
    def idle(self) -> bool:
        """Nothing runs, waits or is held."""
        return self.running == 0 and self.waiting == 0 and self.used_blocks == 0


def read_state(text: str) -> EngineState:
    """Read one exposition."""
    sums: dict[str, float] = {}
    for name, value in _SAMPLE.findall(text):
        sums[name] = sums.get(name, 0.0) + float(value)
    blocks = [int(value) for value in _BLOCKS.findall(text)]
    if not blocks:
        raise KeyError("vllm:cache_config_info")
    usable = sum(blocks) - len(blocks)
    usage = sums["vllm:kv_cache_usage_perc"] / len(blocks)
    return EngineState(
        running=int(sums["vllm:num_requests_running"]),
        waiting=int(sums["vllm:num_requests_waiting"]),
        used_blocks=usage * usable,
        usable_blocks=usable,
        preemptions=int(sums["vllm:num_preemptions_total"]),
    )


async def scrape(client: httpx.AsyncClient, base_url: str) -> EngineState:
    """Scrape once."""
    answer = await client.get(f"{base_url}/metrics", timeout=SERVER_S_MAX, headers=CLOSING)
    answer.raise_for_status()
    return read_state(answer.text)


async def wait_idle(base_url: str, *, looks_max: int = 480, period_s: float = 0.25) -> EngineState:
    """Return the state once the engine is idle. Raises TimeoutError with what it still holds after that many looks."""
    state = None
    async with httpx.AsyncClient() as client:
        for _ in range(looks_max):
            state = await scrape(client, base_url)
            if state.idle:
                return state
            await asyncio.sleep(period_s)
    raise TimeoutError(f"{base_url} is not idle after {looks_max * period_s:g} s: {state}")


async def model_name(base_url: str) -> str:
    """Return the name the server serves its first model by."""
    async with httpx.AsyncClient() as client:
        answer = await client.get(f"{base_url}/v1/models", timeout=SERVER_S_MAX)
    answer.raise_for_status()
    return str(answer.json()["data"][0]["id"])


async def prompt_tokens(base_url: str, model: str, prompt: str) -> int:
    """Return the engine's own count of a plain prompt."""
    async with httpx.AsyncClient() as client:
        answer = await client.post(f"{base_url}/tokenize", json={"model": model, "prompt": prompt}, timeout=SERVER_S_MAX)
    answer.raise_for_status()
    return int(answer.json()["count"])
