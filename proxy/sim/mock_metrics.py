"""``/metrics`` of vLLM as text, under the names of four versions.

Which version shows what (reference: names across versions): 0.6.6 has neither the engine label nor the new names; up to 0.8.5 usage is
``gpu_cache_usage_perc`` over all blocks, where the null block counts as used from V1 on (idle is not 0); 0.10.2 shows old and new
names side by side over usable blocks; 0.32 only the new ones, with waiting by reason. With log stats off every engine series is
absent and only HTTP and process series stay.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from proxy.sim.engine_requests import FinishReason
from proxy.sim.mock_engine import EngineLoop, Histogram

Labels = Mapping[str, str]
Sample = tuple[str, Labels, float]


class MetricsVersion(StrEnum):
    """Whose names the exposition uses."""

    V0_6_6 = "0.6.6"
    V0_8_5 = "0.8.5"
    V0_10_2 = "0.10.2"
    V0_32 = "0.32"


OLD_NAMES = {MetricsVersion.V0_6_6, MetricsVersion.V0_8_5, MetricsVersion.V0_10_2}
NEW_NAMES = {MetricsVersion.V0_10_2, MetricsVersion.V0_32}


@dataclass(frozen=True, slots=True)
class ServerCounts:
    """What the API server counts by itself: HTTP answers by (handler, method, status class) and refusals by reason."""

    http: dict[tuple[str, str, str], int]
    rejections: dict[str, int]
    started_s: float


class _Writer:
    """Exposition lines. As the Python client does, every counter and histogram also shows when it was created."""

    def __init__(self, created_s: float) -> None:
        self.lines: list[str] = []
        self._created_s = created_s

    def family(self, name: str, kind: str, text: str, samples: Iterable[Sample]) -> None:
        exposed = f"{name}_total" if kind == "counter" else name
        self.lines += (f"# HELP {exposed} {text}", f"# TYPE {exposed} {kind}")
        owners: dict[str, None] = {}
        for suffix, labels, value in samples:
            inside = ",".join([f'{key}="{_escaped(labels[key])}"' for key in sorted(labels)])
            self.lines.append(f"{name}{suffix}{{{inside}}} {float(value)}" if inside else f"{name}{suffix} {float(value)}")
            if suffix in ("_total", "_sum"):
                owners[inside] = None
        if owners:
            self.lines += (f"# HELP {name}_created {text}", f"# TYPE {name}_created gauge")
            self.lines += [f"{name}_created{{{inside}}} {self._created_s}" for inside in owners]


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def expose(
    version: MetricsVersion, model: str, engines: Sequence[EngineLoop], server: ServerCounts, *, log_stats: bool = True
) -> str:
    """The whole exposition."""
    write = _Writer(server.started_s)
    write.family("python_info", "gauge", "Python platform information", [("", {"implementation": "CPython"}, 1)])
    started: list[Sample] = [("", {}, server.started_s)]
    write.family("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.", started)
    http = [
        ("_total", {"handler": handler, "method": method, "status": status}, count)
        for (handler, method, status), count in server.http.items()
    ]
    write.family("http_requests", "counter", "Total number of requests by method, status and handler.", http)
    if log_stats:
        exposition = _EngineExposition(write, version, model, engines)
        exposition.gauges()
        exposition.counters()
        exposition.histograms()
        exposition.cache_config()
        if version is MetricsVersion.V0_32:
            rejections = [
                ("_total", {"model_name": model, "reason": reason}, count) for reason, count in server.rejections.items()
            ]
            write.family("vllm:admission_rejections", "counter", "Number of requests rejected by admission control.", rejections)
        exposition.own()
    return "\n".join(write.lines) + "\n"


class _EngineExposition:
    def __init__(self, write: _Writer, version: MetricsVersion, model: str, engines: Sequence[EngineLoop]) -> None:
        self._write = write
        self._version = version
        self._engines = engines
        self._labels: list[dict[str, str]] = [
            {"model_name": model} if version is MetricsVersion.V0_6_6 else {"engine": str(index), "model_name": model}
            for index in range(len(engines))
        ]

    def _each(self, suffix: str, value: Callable[[EngineLoop], float], **labels: str) -> list[Sample]:
        return [(suffix, {**own, **labels}, value(engine)) for own, engine in zip(self._labels, self._engines, strict=True)]

    def _gauge(self, name: str, text: str, value: Callable[[EngineLoop], float]) -> None:
        self._write.family(f"vllm:{name}", "gauge", text, self._each("", value))

    def _counter(self, name: str, text: str, value: Callable[[EngineLoop], float]) -> None:
        self._write.family(f"vllm:{name}", "counter", text, self._each("_total", value))

    def _usage(self, engine: EngineLoop) -> float:
        usable = engine.engine.usable_blocks
        used = round(engine.published.gauges.usage_ratio * usable)
        if self._version is MetricsVersion.V0_6_6:  # no null block yet: idle is 0
            return used / (usable + 1)
        if self._version is MetricsVersion.V0_8_5:
            return 1 - (usable - used) / (usable + 1)
        return 1 - (usable - used) / usable

    def gauges(self) -> None:
        version = self._version
        self._gauge(
            "num_requests_running", "Number of requests in model execution batches.", lambda e: e.published.gauges.running
        )
        self._gauge("num_requests_waiting", "Number of requests waiting to be processed.", lambda e: e.published.gauges.waiting)
        if version is MetricsVersion.V0_6_6:
            self._gauge("num_requests_swapped", "Number of requests swapped to CPU.", lambda _: 0)
            self._gauge("cpu_cache_usage_perc", "CPU KV-cache usage. 1 means 100 percent usage.", lambda _: 0)
        if version is MetricsVersion.V0_32:
            waiting = [
                *self._each("", lambda e: e.published.gauges.waiting, reason="capacity"),
                *self._each("", lambda _: 0, reason="deferred"),
            ]
            self._write.family("vllm:num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason.", waiting)
            awake = [
                sample
                for state, value in (("awake", 1), ("weights_offloaded", 0), ("discard_all", 0))
                for sample in self._each("", lambda _, value=value: value, sleep_state=state)  # type: ignore[misc]
            ]
            self._write.family("vllm:engine_sleep_state", "gauge", "Engine sleep state.", awake)
        if version in OLD_NAMES:
            self._gauge("gpu_cache_usage_perc", "GPU KV-cache usage. 1 means 100 percent usage.", self._usage)
        if version in NEW_NAMES:
            self._gauge("kv_cache_usage_perc", "KV-cache usage. 1 means 100 percent usage.", self._usage)

    def counters(self) -> None:
        version = self._version
        for prefix in (["gpu_"] if version in OLD_NAMES - {MetricsVersion.V0_6_6} else []) + (
            [""] if version in NEW_NAMES else []
        ):
            self._counter(f"{prefix}prefix_cache_queries", "Prefix cache queries, in tokens.",
                          lambda e: e.published.counters.prefix_queries)  # fmt: skip
            self._counter(f"{prefix}prefix_cache_hits", "Prefix cache hits, in tokens.",
                          lambda e: e.published.counters.prefix_hits)  # fmt: skip
        self._counter("num_preemptions", "Cumulative number of preemptions.", lambda e: e.published.counters.preemptions_exposed)
        self._counter("prompt_tokens", "Number of prefill tokens processed.", lambda e: e.published.counters.prompt_tokens)
        self._counter("generation_tokens", "Number of generation tokens processed.",
                      lambda e: e.published.counters.generation_tokens)  # fmt: skip
        if version is MetricsVersion.V0_32:
            sources = [
                *self._each("_total", lambda e: e.published.counters.prompt_tokens - e.published.counters.prompt_tokens_cached,
                            source="local_compute"),
                *self._each("_total", lambda e: e.published.counters.prompt_tokens_cached, source="local_cache_hit"),
                *self._each("_total", lambda _: 0, source="external_kv_transfer"),
            ]  # fmt: skip
            self._write.family("vllm:prompt_tokens_by_source", "counter", "Number of prompt tokens by source.", sources)
            for name in ("external_prefix_cache_queries", "external_prefix_cache_hits", "mm_cache_queries", "mm_cache_hits"):
                self._counter(name, f"{name.replace('_', ' ').capitalize()}.", lambda _: 0)
            self._counter("prompt_tokens_cached", "Number of cached prompt tokens.",
                          lambda e: e.published.counters.prompt_tokens_cached)  # fmt: skip
        # Aborts by the frontend are not counted (vLLM #31503), so abort stays 0.
        unseen = ("abort", "error", "repetition") if version is MetricsVersion.V0_32 else ("abort",)
        success = [
            *self._each("_total", lambda e: e.published.counters.finished[FinishReason.STOP], finished_reason="stop"),
            *self._each("_total", lambda e: e.published.counters.finished[FinishReason.LENGTH], finished_reason="length"),
            *(sample for reason in unseen for sample in self._each("_total", lambda _: 0, finished_reason=reason)),
        ]
        self._write.family("vllm:request_success", "counter", "Count of successfully processed requests.", success)

    def own(self) -> None:
        # The real server has no such series, hence another prefix: the demo shows what preemptions cost.
        recomputed = self._each("_total", lambda e: e.published.counters.recomputed_tokens)
        self._write.family("mock:recomputed_tokens", "counter", "Tokens computed again after a preemption.", recomputed)

    def histograms(self) -> None:
        tables: list[tuple[str, Callable[[EngineLoop], Histogram]]] = [
            ("time_to_first_token_seconds", lambda e: e.latencies.time_to_first_token),
            ("e2e_request_latency_seconds", lambda e: e.latencies.end_to_end),
            ("request_queue_time_seconds", lambda e: e.latencies.queue),
            ("request_prefill_time_seconds", lambda e: e.latencies.prefill),
            ("request_prompt_tokens", lambda e: e.latencies.prompt_tokens),
            ("request_generation_tokens", lambda e: e.latencies.generation_tokens),
            ("iteration_tokens_total", lambda e: e.latencies.step_tokens),  # a histogram in spite of its name
        ]
        if self._version in OLD_NAMES:
            tables.append(("time_per_output_token_seconds", lambda e: e.latencies.inter_token))
        if self._version in NEW_NAMES:
            tables.append(("inter_token_latency_seconds", lambda e: e.latencies.inter_token))
        for name, of_engine in tables:
            samples: list[Sample] = []
            for own, engine in zip(self._labels, self._engines, strict=True):
                samples += _histogram_samples(of_engine(engine), own)
            self._write.family(f"vllm:{name}", "histogram", f"Histogram of {name.replace('_', ' ')}.", samples)

    def cache_config(self) -> None:
        # num_gpu_blocks is the sum over this server's engines, repeated on each; kv_cache_size_tokens is one engine's.
        total = sum(engine.engine.settings.num_gpu_blocks for engine in self._engines)
        samples: list[Sample] = []
        for index, engine in enumerate(self._engines):
            settings = engine.engine.settings
            labels = {
                "block_size": str(settings.block_size),
                "cache_dtype": "auto",
                "enable_prefix_caching": str(settings.prefix_caching),
                "engine": str(index),
                "gpu_memory_utilization": "0.92",
                "num_gpu_blocks": str(total),
                "num_gpu_blocks_override": "None",
                "prefix_caching_hash_algo": "sha256",
                "sliding_window": "None",
            }
            if self._version is MetricsVersion.V0_6_6:
                del labels["engine"]
            if self._version is MetricsVersion.V0_32:
                labels["kv_cache_max_concurrency"] = str(settings.num_gpu_blocks * settings.block_size / settings.max_model_len)
                labels["kv_cache_size_tokens"] = str(settings.num_gpu_blocks * settings.block_size)
            samples.append(("", labels, 1))
        self._write.family("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig", samples)


def _histogram_samples(histogram: Histogram, labels: Labels) -> list[Sample]:
    counts = histogram.cumulative()
    samples: list[Sample] = [
        ("_bucket", {**labels, "le": str(bound)}, count) for bound, count in zip(histogram.bounds, counts, strict=False)
    ]
    samples.append(("_bucket", {**labels, "le": "+Inf"}, counts[-1]))
    samples.append(("_count", labels, histogram.count))
    samples.append(("_sum", labels, histogram.total))
    return samples
