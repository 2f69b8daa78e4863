"""vLLM's own histograms of latencies and lengths, under the names of each version."""

from collections.abc import Mapping
from dataclasses import dataclass, fields

from proxy.wire.histogram import Histogram, HistogramReader

# Best first. Up to 0.8.5 the time between tokens was called time per output token; 0.10.2 shows both (reference vllm.md §1.2).
NAMES: Mapping[str, tuple[str, ...]] = {
    "ttft_s": ("vllm:time_to_first_token_seconds",),
    "itl_s": ("vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"),
    "e2e_s": ("vllm:e2e_request_latency_seconds",),
    "queue_s": ("vllm:request_queue_time_seconds",),
    "prefill_s": ("vllm:request_prefill_time_seconds",),
    "prompt_tokens": ("vllm:request_prompt_tokens",),
    "output_tokens": ("vllm:request_generation_tokens",),
    "step_tokens": ("vllm:iteration_tokens_total",),  # a histogram in spite of its name
}
_READER = HistogramReader((name for names in NAMES.values() for name in names), prefix="vllm:")


@dataclass(frozen=True, slots=True)
class EngineLatencies:
    """Seconds and tokens, over all engines of a server; None is not exposed.

    ``ttft_s`` counts from arrival at the API server; ``queue_s`` and ``prefill_s`` are the engine's own parts of it. ``step_tokens`` are
    prompt and output tokens computed in one engine step.
    """

    ttft_s: Histogram | None = None
    itl_s: Histogram | None = None
    e2e_s: Histogram | None = None
    queue_s: Histogram | None = None
    prefill_s: Histogram | None = None
    prompt_tokens: Histogram | None = None
    output_tokens: Histogram | None = None
    step_tokens: Histogram | None = None

    def since(self, earlier: "EngineLatencies") -> "EngineLatencies":
        """What was observed after ``earlier``."""
        return EngineLatencies(**{name: _since(getattr(self, name), getattr(earlier, name)) for name in _FIELDS})


_FIELDS = tuple(field.name for field in fields(EngineLatencies))


def _since(now: Histogram | None, earlier: Histogram | None) -> Histogram | None:
    return None if now is None else now.since(earlier)


def read_latencies(text: bytes) -> EngineLatencies:
    """Read a whole ``/metrics`` answer."""
    found = _READER.read(text)
    chosen = {purpose: next((found[name] for name in names if name in found), None) for purpose, names in NAMES.items()}
    return EngineLatencies(**chosen)
