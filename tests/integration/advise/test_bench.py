"""``kvgate bench`` end to end: what it counts is what the engine counts, and a sweep leaves no engine behind."""

import asyncio
import io
import json
import signal
import sys
from pathlib import Path

import pytest

from proxy.adapters.clock import SystemClock
from proxy.advise.result_file import Slo, decode, encode
from proxy.advise.result_text import preemptions, report
from proxy.bench.plan import Shape
from proxy.bench.run import BenchError, BenchSettings, bench
from proxy.bench.screen import Screen
from proxy.bench.sending import Course
from proxy.bench.sweeping import command_for
from proxy.sim.mock_text import TOKENIZER_DIRECTORY
from proxy.sim.step_time import StepTimeModel
from tests.integration.mock_harness import RunningMock, running, settings
from tests.integration.serving.harness import proxying
from tests.support.processes import alive, children_of

pytestmark = pytest.mark.slow  # real loads for seconds each; what is made of them is in tests/unit/bench

QUICK = StepTimeModel(speed=20)
ENGINE = [sys.executable, "-m", "proxy", "mock-vllm", "--num-gpu-blocks", "300", "--max-model-len", "2048", "--speed", "20"]


def asked(url: str, **changes: object) -> BenchSettings:
    known: dict[str, object] = {
        "url": url.removesuffix("/v1"), "workload": "fixed:100:20", "tokenizer": str(TOKENIZER_DIRECTORY),
        "course": Course(duration_s=60.0, drain_s=30.0, concurrency=8, requests_max=40),
    }  # fmt: skip
    return BenchSettings(**(known | changes))  # type: ignore[arg-type]


def counted(mock: RunningMock) -> tuple[float, float]:
    (engine,) = mock.server.pool.engines
    return engine.published.counters.prompt_tokens, engine.published.counters.generation_tokens


@pytest.mark.parametrize("api", ["chat", "completions"])
async def test_tokens_are_exactly_the_engines(api: str) -> None:
    async with running(settings(step_time=QUICK)) as mock:
        result = await bench(asked(mock.base_url, shape=Shape(api=api)), SystemClock(), Screen(io.StringIO()))
        assert counted(mock) == (4000, 800)
    assert result.summary.outcomes == {"completed": 40}
    assert {one.prompt_tokens for one in result.requests} == {100}
    assert {one.output_tokens for one in result.requests} == {20}
    assert {sum(one.itl_counts.values()) for one in result.requests} == {19}
    assert result.notes == ()
    assert result.summary.output_tokens_per_s == pytest.approx(800 / result.duration_s)
    assert decode(encode(result), "again") == result
    assert "40 completed" in report(result)


async def test_engine_signals_are_sampled_beside_it() -> None:
    chosen = settings(engine={"num_gpu_blocks": 260}, step_time=StepTimeModel(speed=3))
    course = Course(duration_s=60.0, drain_s=30.0, concurrency=40, requests_max=60)
    async with running(chosen) as mock:
        result = await bench(asked(mock.base_url, workload="fixed:60:200", course=course), SystemClock(), Screen(io.StringIO()))
        (engine,) = mock.server.pool.engines
        assert preemptions(result) == engine.published.counters.preemptions_exposed > 0
    (signals,) = result.signals
    assert max(usage or 0.0 for usage in signals.kv_usage_ratio) > 0.9
    assert list(signals.at_s) == sorted(signals.at_s)
    (seen,) = result.engines
    assert (seen.version, seen.kv_blocks, seen.block_size) == ("0.32.0", 260, 16)


async def test_through_kvgate_with_tenants_and_leavers_and_the_engine_watched() -> None:
    shape = Shape(tenants=3, cancel_ratio=0.3, cancel_after_s=0.001)
    async with running(settings(step_time=StepTimeModel(speed=1))) as mock, proxying(mock.base_url.removesuffix("/v1")) as proxy:
        chosen = asked(proxy.base_url, shape=shape, engines=(mock.base_url.removesuffix("/v1"),), slo=Slo(ttft_s=30.0))
        result = await bench(chosen, SystemClock(), Screen(io.StringIO()))
        await proxy.until_idle(mock)
    assert set(result.summary.outcomes) == {"completed", "cancelled"}
    assert {one.tenant for one in result.requests} == {"tenant-0", "tenant-1", "tenant-2"}
    assert result.summary.goodput_ratio == 1.0
    assert (
        [seen.url for seen in result.engines]
        == [signals.url for signals in result.signals]
        == [mock.base_url.removesuffix("/v1")]
    )


async def test_an_open_loop_keeps_its_rate() -> None:
    course = Course(duration_s=2.0, drain_s=30.0, rate_per_s=40.0)
    async with running(settings(step_time=StepTimeModel(speed=200))) as mock:
        result = await bench(asked(mock.base_url, course=course), SystemClock(), Screen(io.StringIO()))
    assert set(result.summary.outcomes) == {"completed"}
    assert 50 <= len(result.requests) <= 110  # a Poisson count of mean 80
    assert all(one.sent_s >= one.planned_s for one in result.requests)
    assert result.workload.rate_per_s == 40.0


async def test_what_cannot_be_run_says_what_to_do() -> None:
    with pytest.raises(BenchError, match="Check that vLLM is running there"):
        await bench(asked("http://127.0.0.1:1"), SystemClock(), Screen(io.StringIO()))
    async with running(settings()) as mock:
        with pytest.raises(BenchError, match="give --tokenizer"):
            await bench(asked(mock.base_url, tokenizer="/nowhere"), SystemClock(), Screen(io.StringIO()))
        never = asked(mock.base_url, course=Course(duration_s=60.0, drain_s=1.0, rate_per_s=1e-9))
        with pytest.raises(BenchError, match="nothing was sent"):
            await bench(never, SystemClock(), Screen(io.StringIO()))


def test_a_sweep_puts_the_flag_and_a_port_behind_the_command() -> None:
    words, url = command_for(["vllm", "serve", "m"], "max-num-seqs", "16")
    assert words[:5] == ["vllm", "serve", "m", "--max-num-seqs", "16"]
    assert url == f"http://127.0.0.1:{words[words.index('--port') + 1]}"
    given = ["vllm", "serve", "m", "--port=9000", "--host", "0.0.0.0"]  # noqa: S104 - as containers do
    assert command_for(given, "max-num-seqs", "16") == ([*given, "--max-num-seqs", "16"], "http://127.0.0.1:9000")


async def swept(folder: Path, *words: str) -> asyncio.subprocess.Process:
    command = ["bench", "--sweep", "max-num-seqs=2,16", "--workload", "fixed:60:40", "--concurrency", "16", *words]
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "proxy", *command, "--out", str(folder / "r.json"), "--", *ENGINE,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip


async def test_a_sweep_runs_each_value_and_marks_one(tmp_path: Path) -> None:
    process = await swept(tmp_path, "--requests", "120", "--json")
    async with asyncio.timeout(120):
        out, told = await process.communicate()
    assert process.returncode == 0, told.decode()
    found = json.loads(out)
    assert [point["value"] for point in found["points"]] == ["2", "16"]
    assert [point["completed"] for point in found["points"]] == [120, 120]
    assert found["sweet_spot"] == "16"
    for value in ("2", "16"):
        result = decode((tmp_path / f"r-max-num-seqs-{value}.json").read_bytes(), value)
        assert result.label == f"--max-num-seqs {value}"
    assert (tmp_path / "r-max-num-seqs.png").exists() is (b"the curves are drawn" in told)


async def test_a_sweep_that_is_stopped_leaves_no_engine(tmp_path: Path) -> None:
    process = await swept(tmp_path, "--duration", "5m")
    assert process.stderr is not None
    async with asyncio.timeout(120):
        async for line in process.stderr:
            if b"completed" in line:
                break
        started = children_of(process.pid)
        assert len(started) == 1
        process.send_signal(signal.SIGTERM)
        await process.communicate()
    assert process.returncode == 143
    assert alive(started) == set()
