"""The mock's ``/metrics``, read with the Prometheus client's own parser."""

import json
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from proxy.sim.mock_metrics import MetricsVersion
from tests.integration.mock_harness import RunningMock, running, settings

Samples = dict[str, list[tuple[dict[str, str], float]]]


async def scrape(mock: RunningMock) -> Samples:
    samples: Samples = {}
    for family in text_string_to_metric_families((await mock.request("GET", "/metrics")).body):
        for sample in family.samples:
            samples.setdefault(sample.name, []).append((sample.labels, sample.value))
    return samples


# Present, absent, and the usage ratio of an idle engine of 512 blocks.
NAMES: dict[MetricsVersion, tuple[set[str], set[str], float]] = {
    MetricsVersion.V0_6_6: (
        {"gpu_cache_usage_perc", "cpu_cache_usage_perc", "num_requests_swapped", "time_per_output_token_seconds_count"},
        {"kv_cache_usage_perc", "prefix_cache_queries_total", "gpu_prefix_cache_queries_total", "num_requests_waiting_by_reason"},
        0.0,
    ),
    MetricsVersion.V0_8_5: (
        {
            "gpu_cache_usage_perc",
            "gpu_prefix_cache_queries_total",
            "gpu_prefix_cache_hits_total",
            "time_per_output_token_seconds_count",
        },
        {"kv_cache_usage_perc", "prefix_cache_queries_total", "cpu_cache_usage_perc", "inter_token_latency_seconds_count"},
        1 / 512,
    ),
    MetricsVersion.V0_10_2: (
        {"gpu_cache_usage_perc", "kv_cache_usage_perc", "gpu_prefix_cache_queries_total", "prefix_cache_queries_total"},
        {"num_requests_waiting_by_reason", "prompt_tokens_cached_total", "admission_rejections_total"},
        0.0,
    ),
    MetricsVersion.V0_32: (
        {"kv_cache_usage_perc", "num_requests_waiting_by_reason", "prompt_tokens_by_source_total", "admission_rejections_total"},
        {"gpu_cache_usage_perc", "gpu_prefix_cache_queries_total", "time_per_output_token_seconds_count"},
        0.0,
    ),
}
ALWAYS = {"num_requests_running", "num_requests_waiting", "num_preemptions_total", "cache_config_info", "request_success_total"}


@pytest.mark.parametrize("version", NAMES)
async def test_names_of_a_version(version: MetricsVersion) -> None:
    present, absent, idle = NAMES[version]
    async with running(settings(metrics_version=version)) as mock:
        samples = await scrape(mock)
        shown = {name.removeprefix("vllm:") for name in samples if name.startswith("vllm:")}
        assert present | ALWAYS <= shown
        assert not absent & shown
        for name in ("gpu_cache_usage_perc", "kv_cache_usage_perc"):
            for labels, value in samples.get(f"vllm:{name}", []):
                assert value == pytest.approx(idle)
                assert ("engine" in labels) == (version is not MetricsVersion.V0_6_6)
        assert (await mock.request("GET", "/version")).json()["version"].startswith(str(version))


async def test_every_series_is_one_of_the_real_servers() -> None:
    """Names, types and labels recorded from vLLM 0.32; its cache_config_info has more labels, which come and go with releases."""
    recorded = json.loads(Path(__file__).with_name("mock_recorded_metrics.json").read_text(encoding="utf-8"))
    async with running(settings()) as mock:
        await mock.chat(max_tokens=1)
        text = (await mock.request("GET", "/metrics")).body
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name.startswith("mock:"):  # says itself that it is not
                continue
            real = recorded[sample.name]
            assert family.type == real["type"]
            if sample.name in ("vllm:cache_config_info", "python_info"):
                assert set(sample.labels) <= set(real["labels"])
            else:
                assert sorted(sample.labels) == real["labels"]


async def test_without_log_stats_only_http_and_process_series_stay() -> None:
    async with running(settings(log_stats=False)) as mock:
        await mock.chat(max_tokens=1)
        samples = await scrape(mock)
        assert not [name for name in samples if name.startswith("vllm:")]
        assert samples["http_requests_total"] == [({"handler": "/v1/chat/completions", "method": "POST", "status": "2xx"}, 1.0)]
        assert samples["process_start_time_seconds"][0][1] > 1.6e9


async def test_every_engine_has_its_series_and_the_config_sums_over_them() -> None:
    async with running(settings(data_parallel_size=3)) as mock:
        samples = await scrape(mock)
        assert [labels["engine"] for labels, _ in samples["vllm:kv_cache_usage_perc"]] == ["0", "1", "2"]
        configs = [labels for labels, _ in samples["vllm:cache_config_info"]]
        assert [config["num_gpu_blocks"] for config in configs] == ["1536"] * 3
        assert {config["kv_cache_size_tokens"] for config in configs} == {str(512 * 16)}
        assert {config["block_size"] for config in configs} == {"16"}


async def test_counts_add_up() -> None:
    async with running(settings()) as mock:
        usages = [(await mock.chat(text, max_tokens=30)).json()["usage"] for text in ("one", "two", "two")]
        await mock.until_idle()
        samples = await scrape(mock)

        def total(name: str) -> float:
            return sum(value for _, value in samples[f"vllm:{name}"])

        assert total("prompt_tokens_total") == sum(usage["prompt_tokens"] for usage in usages)
        assert total("generation_tokens_total") == sum(usage["completion_tokens"] for usage in usages)
        assert total("prompt_tokens_by_source_total") == total("prompt_tokens_total")
        assert total("request_success_total") == total("time_to_first_token_seconds_count") == 3
        tokens_after_first = total("generation_tokens_total") - 3
        assert total("inter_token_latency_seconds_count") == tokens_after_first
        assert total("iteration_tokens_total_sum") == total("prompt_tokens_total") + total("generation_tokens_total")
        assert [value for _, value in samples["vllm:request_generation_tokens_bucket"]][-1] == 3
