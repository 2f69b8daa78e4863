"""``kvgate bench`` before the real engine, and beside vLLM's own benchmark client."""

import asyncio
import io
import json
import os
import subprocess
from statistics import mean

import httpx
import pytest

from proxy.adapters.clock import SystemClock
from proxy.advise.result_text import preemptions
from proxy.bench.plan import Shape
from proxy.bench.run import BenchSettings, bench
from proxy.bench.screen import Screen
from proxy.bench.sending import Course
from proxy.wire.exposition import Scanner
from tests.vllm.conftest import HOME, ROOT, VllmServer

pytestmark = pytest.mark.vllm

TOTALS = Scanner(("vllm:prompt_tokens_total", "vllm:generation_tokens_total"), prefix="vllm:")


def totals(replica: VllmServer) -> dict[str, float]:
    """The engine's own counters."""
    return {series.name: series.value for series in TOTALS.scan(httpx.get(f"{replica.base_url}/metrics").content).series}


@pytest.mark.parametrize("api", ["chat", "completions"])
def test_prompts_and_answers_are_exact_and_counted_as_the_engine_counts(replica: VllmServer, api: str) -> None:
    before = totals(replica)
    asked = BenchSettings(
        replica.base_url, "fixed:150:40", Course(300.0, 300.0, concurrency=6, requests_max=30), Shape(api=api, seed=len(api))
    )
    result = asyncio.run(bench(asked, SystemClock(), Screen(io.StringIO())))
    after = totals(replica)
    assert result.summary.outcomes == {"completed": 30}
    assert result.notes == ()
    assert {(one.prompt_tokens, one.output_tokens) for one in result.requests} == {(150, 40)}
    assert after["vllm:prompt_tokens_total"] - before["vllm:prompt_tokens_total"] == 30 * 150
    assert after["vllm:generation_tokens_total"] - before["vllm:generation_tokens_total"] == 30 * 40
    assert preemptions(result) == 0
    (seen,) = result.engines
    assert (seen.kv_blocks, seen.block_size, seen.model) == (256, 32, "tiny")


def test_a_shared_prefix_is_found_in_the_engines_cache(replica: VllmServer) -> None:
    hits = Scanner(("vllm:prefix_cache_hits_total",), prefix="vllm:")

    def hit_tokens() -> float:
        return sum(series.value for series in hits.scan(httpx.get(f"{replica.base_url}/metrics").content).series)

    before = hit_tokens()
    asked = BenchSettings(
        replica.base_url, "fixed:64:4", Course(300.0, 300.0, concurrency=1, requests_max=10), Shape(seed=77), shared_tokens=320
    )
    result = asyncio.run(bench(asked, SystemClock(), Screen(io.StringIO())))
    assert {one.prompt_tokens for one in result.requests} == {384}
    # Every prompt after the first finds the shared 320 tokens: ten blocks of 32, perhaps less one where the template ends.
    assert hit_tokens() - before >= 9 * (320 - 32)


def test_times_are_measured_as_vllms_own_benchmark_measures_them() -> None:
    """Both clients send to one server that writes down when it wrote what; counts are equal, times within 2 % of each other's error."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "VLLM_NO_USAGE_STATS": "1"}
    ran = subprocess.run(
        [str(HOME / "venv" / "bin" / "python"), str(ROOT / "tests" / "vllm" / "agreement.py"), "60"],
        env=environment, cwd=HOME, capture_output=True, text=True, check=False, timeout=300,
    )  # fmt: skip
    assert ran.returncode == 0, ran.stderr[-3000:]
    told = json.loads(ran.stdout.splitlines()[-1])
    measured = told["measured"]
    assert measured["kvgate"]["tokens"] == measured["vllm"]["tokens"] == [60] * 60
    assert measured["kvgate"]["gaps"] == measured["vllm"]["gaps"] == [59] * 60
    for name in ("ttft", "tpot"):
        ours, theirs = (mean(measured[who][name]) / mean(told["true"][who][name]) for who in ("kvgate", "vllm"))
        assert ours / theirs == pytest.approx(1.0, abs=0.02), f"{name}: measured over true: kvgate {ours:.4f}, vLLM {theirs:.4f}"
