"""The capability probe: what it finds across versions, and the sentence it leaves when something is odd."""

import httpx
import pytest

from proxy.adapters.probe import METRICS_FILTERED, METRICS_WHOLE
from proxy.core.replica import ReplicaFacts
from proxy.wire.report import describe
from tests.unit.adapters.fake_vllm import FakeVllm, recorded
from tests.unit.adapters.probing import URL, probe


async def test_032() -> None:
    probed = await probe(FakeVllm(recorded("0.32.0")))
    assert probed.facts == ReplicaFacts(
        url=URL,
        models=("tiny", "my-lora"),
        adapters=("my-lora",),
        context_tokens_max=4096,
        block_size=32,
        kv_blocks_total=256,
        version="0.32.0",
        model_root="/models/tiny",
        usage_metric="vllm:kv_cache_usage_perc",
        kv_cache_size_tokens=8192,
    )
    assert probed.scrape_path == METRICS_FILTERED
    assert not probed.new_epoch


async def test_data_parallel() -> None:
    facts = (await probe(FakeVllm(recorded("0.32.0-dp2")))).facts
    assert (facts.engines, facts.kv_blocks_total, facts.kv_cache_size_tokens, facts.warnings) == (2, 512, 8192, ())
    assert any("2 engines, separate pools; usable per engine 255 = 8,160 tokens" in line for line in describe(facts, None))


@pytest.mark.parametrize(
    ("version", "usage", "blocks", "caching"),
    [
        ("0.6.6", "vllm:gpu_cache_usage_perc", 2000, False),
        ("0.8.5", "vllm:gpu_cache_usage_perc", None, True),
        ("0.9.2", "vllm:kv_cache_usage_perc", 2000, True),
    ],
)
async def test_old_versions(version: str, usage: str, blocks: int | None, caching: bool) -> None:
    facts = (await probe(FakeVllm(recorded(version), version=version))).facts
    assert (facts.usage_metric, facts.kv_blocks_total, facts.block_size, facts.prefix_caching) == (usage, blocks, 16, caching)
    assert any("older than 0.10.2" in warning for warning in facts.warnings)
    assert any("does not know how many KV blocks" in warning and "--kv-blocks" in warning for warning in facts.warnings) is (
        blocks is None
    )


@pytest.mark.parametrize("name", ["0.11.2-pid", "0.32.0-two-api-servers"])
async def test_several_api_servers_cannot_filter(name: str) -> None:
    probed = await probe(FakeVllm(recorded(name), filters=False))
    assert probed.scrape_path == METRICS_WHOLE
    assert probed.facts.log_stats
    assert probed.facts.warnings == ()


async def test_log_stats_off() -> None:
    facts = (await probe(FakeVllm(recorded("0.32.0-disable-log-stats")))).facts
    assert not facts.log_stats
    assert (facts.kv_blocks_total, facts.block_size, facts.usage_metric) == (None, None, None)
    (warning,) = facts.warnings
    assert "--disable-log-stats" in warning
    assert "--kv-blocks" in warning
    assert "kv_blocks" in warning
    report = "\n".join(describe(facts, None))
    assert "own accounting only" in report
    assert "size unknown" in report
    assert warning in report


async def test_log_stats_off_with_configured_blocks() -> None:
    facts = (await probe(FakeVllm(recorded("0.32.0-disable-log-stats")), kv_blocks=300)).facts
    assert facts.kv_blocks_total == 300
    (warning,) = facts.warnings
    assert "--kv-blocks" not in warning
    assert "300 blocks (set by kv_blocks), 1 engine; usable per engine 299" in "\n".join(describe(facts, 300))


async def test_configured_blocks_go_first_and_the_difference_is_told() -> None:
    facts = (await probe(FakeVllm(recorded("0.32.0")), kv_blocks=200)).facts
    assert facts.kv_blocks_total == 200
    (warning,) = facts.warnings
    assert "200" in warning
    assert "256" in warning


@pytest.mark.parametrize(
    ("status", "kind", "body"),
    [(404, "application/json", b"{}"), (200, "text/html", b"<html>nope</html>"), (200, "text/plain", b"")],
)
async def test_no_metrics_at_all(status: int, kind: str, body: bytes) -> None:
    fake = FakeVllm(b"", special={"/metrics": lambda _: httpx.Response(status, content=body, headers={"content-type": kind})})
    probed = await probe(fake)
    assert probed.scrape_path is None
    assert not probed.facts.log_stats
    (warning,) = probed.facts.warnings
    assert f"answered {status} {kind}" in warning
    assert "own accounting" in warning


async def test_renamed_usage_metric() -> None:
    facts = (await probe(FakeVllm(recorded("0.32.0").replace(b"kv_cache_usage_perc", b"kv_cache_usage_fraction")))).facts
    assert facts.usage_metric is None
    (warning,) = facts.warnings
    assert "no usage metric found among vllm:kv_cache_usage_perc, vllm:gpu_cache_usage_perc" in warning
    assert "vllm:kv_cache_usage_fraction" in warning
    assert "runs on its own accounting" in warning
    assert "KV usage is not" in "\n".join(describe(facts, None))


async def test_missing_cache_config() -> None:
    facts = (await probe(FakeVllm(recorded("0.32.0").replace(b"vllm:cache_config_info{", b"vllm:other{")))).facts
    assert facts.block_size is None
    assert any("vllm:cache_config_info is missing" in warning for warning in facts.warnings)


async def test_unreadable_lines_are_told() -> None:
    text = recorded("0.32.0") + b'vllm:num_requests_running{engine="1"} many\n'
    facts = (await probe(FakeVllm(text))).facts
    assert any("1 lines of /metrics could not be read" in warning for warning in facts.warnings)


@pytest.mark.parametrize(("tokens", "odd"), [(8192, False), (8190, False), (8160, True), (5000, True)])
async def test_capacity_cross_check(tokens: int, odd: bool) -> None:
    text = recorded("0.32.0").replace(b'kv_cache_size_tokens="8192"', b'kv_cache_size_tokens="%d"' % tokens)
    facts = (await probe(FakeVllm(text))).facts
    assert any("several KV groups" in warning for warning in facts.warnings) is odd


async def test_capacity_of_a_context_that_ends_inside_a_block_is_not_odd() -> None:
    # 256 blocks hold 256 requests of 17 tokens at 1 block of 32: int(256 × 17) tokens.
    models = {"data": [{"id": "m", "parent": None, "max_model_len": 17}]}
    text = recorded("0.32.0").replace(b'kv_cache_size_tokens="8192"', b'kv_cache_size_tokens="4352"')
    facts = (await probe(FakeVllm(text, special={"/v1/models": lambda _: httpx.Response(200, json=models)}))).facts
    assert facts.warnings == ()


async def test_server_info_fills_in_what_metrics_lack() -> None:
    config = {
        "vllm_config": {
            "scheduler_config": {"max_num_seqs": 64},
            "parallel_config": {"data_parallel_size": 2},
            "cache_config": {
                "block_size": 32,
                "num_gpu_blocks": 512,
                "kv_cache_size_tokens": 8192,
                "enable_prefix_caching": False,
            },
        }
    }
    fake = FakeVllm(recorded("0.32.0-disable-log-stats"), special={"/server_info": lambda _: httpx.Response(200, json=config)})
    facts = (await probe(fake)).facts
    assert (facts.sequences_max, facts.engines, facts.block_size, facts.kv_blocks_total) == (64, 2, 32, 512)
    assert not facts.prefix_caching
    assert fake.requests[-1].url.params["config_format"] == "json"
