"""The doctor on mocks that are really in the state: each is named, most certain first, and a healthy one has nothing."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from proxy.advise.watch import Targets
from proxy.sim.engine_requests import EngineGauges
from proxy.sim.mock_engine import Published
from proxy.sim.mock_metrics import MetricsVersion
from proxy.sim.mock_server import MockServer
from proxy.sim.step_time import StepTimeModel
from proxy.wire.serve_command import read_command
from tests.integration.advise.doctor_states import Traffic, after_steps, at_once, busy, cases, loaded, visit, words
from tests.integration.mock_harness import RunningMock, running, settings
from tests.integration.serving.harness import ShiftedClock, until
from tests.support.upstream_servers import asgi_server

pytestmark = pytest.mark.slow  # each drives a mock into its state; what is made of the figures is in tests/unit/advise

ROOMY = {"num_gpu_blocks": 4096}
QUICK = StepTimeModel(speed=20)


def around(tokens: int) -> Callable[[int], int]:
    """Lengths that differ. Those of one length end in one step, and every look falls into the same moment of their turn."""
    return lambda number: tokens * 3 // 4 + number % (tokens // 2 + 1)


async def test_a_healthy_engine_has_nothing_idle_or_busy() -> None:
    async with running(settings(engine=ROOMY)) as mock:
        assert cases(await visit(mock, at_once(3), targets=Targets())) == []
        async with loaded(mock, Traffic(4, lambda _: words(50), around(40))):
            found = await visit(mock, after_steps(mock, 40, 5), targets=Targets())
    assert cases(found) == []
    assert found.replicas[0].engines[0].output_tokens
    assert any("GPU utilisation" in sentence for sentence in found.diagnosis.unseen)


async def test_seats_that_are_all_taken_while_the_cache_has_room() -> None:
    async with busy(
        settings(engine=ROOMY | {"max_num_seqs": 4}, step_time=QUICK), Traffic(20, lambda _: words(50), around(200))
    ) as mock:
        found = await visit(mock, after_steps(mock, 30, 8))
        told = await visit(mock, after_steps(mock, 30, 3), flags=read_command(["--max-num-seqs", "4"]))
    assert cases(found)[0] == "seats_timid"
    assert "running never exceeds 4" in found.diagnosis.findings[0].evidence
    assert "from 4 to about 32" in told.diagnosis.findings[0].knob
    assert told.diagnosis.findings[0].confidence > found.diagnosis.findings[0].confidence


async def test_a_pool_too_small_for_the_prompts() -> None:
    async with busy(
        settings(engine={"num_gpu_blocks": 300}, step_time=QUICK),
        Traffic(5, lambda _: words(1600), around(30)),
    ) as mock:
        found = await visit(mock, after_steps(mock, 60, 8), flags=read_command(["--max-num-seqs", "256"]))
    assert cases(found)[0] == "pool_small"
    assert "seats_timid" not in cases(found)


async def test_more_admitted_than_the_pool_holds() -> None:
    async with busy(
        settings(engine={"num_gpu_blocks": 260}, step_time=QUICK), Traffic(40, lambda _: words(60), around(300))
    ) as mock:
        found = await visit(mock, after_steps(mock, 60, 8))
    first = found.diagnosis.findings[0]
    assert first.case == "over_capacity"
    assert "--watermark" in first.knob
    assert "swap" not in first.knob


async def test_the_advice_is_the_versions_own() -> None:
    chosen = settings(engine={"num_gpu_blocks": 260}, step_time=QUICK, metrics_version=MetricsVersion.V0_10_2)
    async with running(chosen) as mock, loaded(mock, Traffic(40, lambda _: words(60), around(300))):
        found = await visit(mock, after_steps(mock, 60, 8), flags=read_command(["--swap-space", "4", "--watermark=0.1"]))
    first = found.diagnosis.findings[0]
    assert first.case == "over_capacity"
    assert "--watermark" not in first.knob
    unknown = [finding.cause for finding in found.diagnosis.findings if finding.case == "flag_unknown"]
    assert any("--watermark is not yet in vLLM 0.10" in cause for cause in unknown)
    assert any("--swap-space is still accepted and does nothing" in note for note in found.diagnosis.notes)


async def test_prefill_that_blocks_first_tokens() -> None:
    slow_prefill = StepTimeModel(prefill_token_s=0.1e-3, speed=5)
    async with busy(
        settings(engine=ROOMY | {"max_num_batched_tokens": 512}, step_time=slow_prefill),
        Traffic(16, lambda _: words(1200), lambda _: 8),
    ) as mock:
        flags = read_command(["--max-num-batched-tokens", "512", "--max-num-seqs", "256"])
        found = await visit(mock, after_steps(mock, 20, 8), targets=Targets(0.2, 0.1), flags=flags)
    assert cases(found)[0] in {"prefill_blocks", "batched_tokens_small"}
    assert {"prefill_blocks", "batched_tokens_small"} <= set(cases(found))
    assert "seats_timid" not in cases(found)


async def test_small_batches_are_guessed_from_the_steps() -> None:
    async with busy(
        settings(engine=ROOMY | {"max_num_batched_tokens": 256}, step_time=QUICK), Traffic(4, lambda _: words(900), around(20))
    ) as mock:
        found = await visit(mock, after_steps(mock, 30, 8))
    assert "batched_tokens_small" in cases(found)


async def test_decode_that_is_crowded() -> None:
    async with busy(
        settings(engine=ROOMY, step_time=StepTimeModel(speed=4)), Traffic(40, lambda _: words(30), around(100))
    ) as mock:
        found = await visit(mock, after_steps(mock, 30, 8), targets=Targets(1000.0, 0.0005))
    assert cases(found)[0] == "decode_crowded"


async def test_a_step_that_few_share_and_is_slow_all_the_same() -> None:
    async with busy(
        settings(engine=ROOMY, step_time=StepTimeModel(speed=4)), Traffic(3, lambda _: words(30), around(30))
    ) as mock:
        found = await visit(mock, after_steps(mock, 30, 8), targets=Targets(1000.0, 0.0005))
        wide = await visit(mock, after_steps(mock, 30, 4), flags=read_command(["-tp", "4"]))
    assert cases(found) == ["parallelism_narrow"]
    assert cases(wide) == ["parallelism_wide"]


async def test_prefill_pieces_that_stall_streams() -> None:
    heavy = StepTimeModel(base_s=2e-3, decode_sequence_s=0.0, prefill_token_s=0.05e-3)
    traffic = (Traffic(4, lambda _: words(20), around(300)), Traffic(1, lambda _: words(2000), around(60)))
    async with (
        running(settings(engine=ROOMY | {"max_num_batched_tokens": 4096}, step_time=heavy)) as mock,
        loaded(mock, *traffic),
    ):
        found = await visit(mock, after_steps(mock, 60, 10), targets=Targets(1000.0, 0.03))
    assert cases(found)[0] == "prefill_stalls_decode"


async def test_a_tail_of_stragglers() -> None:
    async with busy(
        settings(engine=ROOMY, step_time=StepTimeModel(speed=20)),
        Traffic(10, lambda _: words(30), lambda number: 900 if number % 25 == 0 else 10),
    ) as mock:
        found = await visit(mock, after_steps(mock, 250, 10))
    assert cases(found) == ["stragglers"]


async def test_prefix_caching_that_is_off() -> None:
    async with running(settings(engine=ROOMY | {"prefix_caching": False})) as mock:
        assert cases(await visit(mock, at_once(2))) == ["prefix_caching_off"]


async def test_a_prefix_cache_that_thrashes() -> None:
    async with running(settings(engine={"num_gpu_blocks": 300}, step_time=QUICK)) as mock:
        shared = words(1600)
        for number in range(12):
            await mock.post("/v1/completions", prompt=f"{shared} {number}", max_tokens=2, ignore_eos=True)
        async with loaded(mock, Traffic(30, lambda _: words(200), around(20))):
            found = await visit(mock, after_steps(mock, 80, 10))
    assert "prefix_thrash" in cases(found)


async def test_metrics_that_are_off() -> None:
    async with running(settings(log_stats=False)) as mock:
        found = await visit(mock, at_once(2))
    assert cases(found) == ["metrics_off"]
    assert any("its metrics are off" in sentence for sentence in found.diagnosis.unseen)


async def test_a_gauge_that_was_left_behind() -> None:
    async with running(settings(engine=ROOMY)) as mock:
        (engine,) = mock.server.pool.engines
        engine.published = Published(EngineGauges(usage_ratio=0.99), engine.published.counters)
        assert cases(await visit(mock, at_once(3))) == ["metrics_stale"]


async def test_an_engine_that_stands_still() -> None:
    clock = ShiftedClock()
    async with running(settings(engine=ROOMY, step_time=StepTimeModel(speed=50))) as mock:
        (engine,) = mock.server.pool.engines
        async with loaded(mock, Traffic(4, lambda _: words(50), around(2000))):
            await until(lambda: engine.published.gauges.running == 4, "four running")
            engine._step_time = StepTimeModel(speed=1e-9)  # its next step never ends
            await asyncio.sleep(0.1)

            async def later() -> AsyncIterator[float]:
                for number in range(10):
                    clock.ahead_s += 3.0
                    yield float(number)

            found = await visit(mock, later(), clock=clock)
    first = found.diagnosis.findings[0]
    assert first.case == "wedged"
    assert "4 running" in first.evidence


async def test_a_context_that_one_request_can_fill_the_pool_with() -> None:
    async with running(settings(engine={"num_gpu_blocks": 300})) as mock:
        assert cases(await visit(mock, at_once(2))) == ["context_fills_pool"]


async def test_an_engine_that_restarts() -> None:
    chosen = settings(engine=ROOMY)
    servers = [MockServer(chosen)]

    async def latest(scope: Any, receive: Any, send: Any) -> None:
        servers[-1].pool.ensure_running()
        await servers[-1](scope, receive, send)

    async with asgi_server(latest) as port:
        mock = RunningMock(servers[0], port)
        await mock.chat(max_tokens=5)

        async def restarting() -> AsyncIterator[float]:
            yield 0.0
            servers.append(MockServer(chosen))
            yield 1.0

        found = await visit(mock, restarting())
    for server in servers:
        await server.pool.stop()
    first = found.diagnosis.findings[0]
    assert first.case == "restarts"
    assert first.knob.index("--tensor-parallel-size") < first.knob.index("--gpu-memory-utilization")
    assert first.knob.index("--gpu-memory-utilization") < first.knob.index("--max-num-batched-tokens")


async def test_an_engine_that_dies_while_it_is_watched() -> None:
    server = MockServer(settings(engine=ROOMY))
    dead = False

    async def mortal(scope: Any, receive: Any, send: Any) -> None:
        if dead:
            await send({"type": "http.response.start", "status": 503, "headers": [(b"content-length", b"0")]})
            await send({"type": "http.response.body", "body": b""})
            return
        server.pool.ensure_running()
        await server(scope, receive, send)

    async def dying() -> AsyncIterator[float]:
        nonlocal dead
        yield 0.0
        dead = True
        for number in range(3):
            yield float(number)

    async with asgi_server(mortal) as port:
        found = await visit(RunningMock(server, port), dying())
    await server.pool.stop()
    first = found.diagnosis.findings[0]
    assert first.case == "restarts"
    assert "4 of 6 scrapes failed" in first.evidence
    assert "503" in first.evidence


async def test_simply_too_few_replicas() -> None:
    # Prompts fill the pool and answers are short: nothing needs to grow, so nothing is preempted. Lengths differ: few end in one step.
    async with busy(
        settings(engine={"num_gpu_blocks": 161, "block_size": 64}, step_time=QUICK),
        Traffic(60, lambda _: words(130), around(30)),
    ) as mock:
        found = await visit(mock, after_steps(mock, 13, 20))
    assert cases(found)[0] == "too_few_replicas"
    assert "over_capacity" not in cases(found)


async def test_data_parallel_engines_of_which_one_gets_it_all() -> None:
    chosen = settings(engine={"num_gpu_blocks": 300}, step_time=QUICK, data_parallel_size=2)
    async with (
        running(chosen) as mock,
        loaded(mock, Traffic(30, lambda _: words(200), around(60), {"x-data-parallel-rank": "1"})),
    ):
        found = await visit(mock, after_steps(mock, 60, 8))
    assert "parallelism_uneven" in cases(found)
