"""Traces recorded from the real vLLM 0.32 scheduler: 16-token blocks, budget 64, 16 seats, end token ignored.

A row is (step, scheduled tokens, preempted, running, waiting, used blocks); steps between rows repeat the decode tokens and
change nothing else.
"""

import pytest

from proxy.sim.engine import Engine
from proxy.sim.engine_requests import EngineRequest, EngineSettings, SchedulingPolicy, StepReport

Row = tuple[int, dict[str, int], list[str], int, int, int]

BOTH = {"r0": 1, "r1": 1}
G1: list[Row] = [
    (0, {"r0": 40, "r1": 24}, [], 2, 1, 5),
    (1, {"r0": 1, "r1": 16, "r2": 40}, [], 3, 0, 9),
    (2, {"r0": 1, "r1": 1, "r2": 1}, [], 3, 0, 9),
    (9, {"r0": 1, "r1": 1, "r2": 1}, [], 3, 0, 10),
    (10, BOTH, ["r2"], 2, 1, 8),
    (11, BOTH, [], 2, 1, 8),
    (25, BOTH, [], 2, 1, 9),
    (26, BOTH, [], 2, 1, 10),
    (41, {"r0": 1}, ["r1"], 1, 2, 6),
    (42, {"r0": 1}, [], 1, 2, 6),
    (57, {"r0": 1}, [], 1, 2, 7),
    (59, {"r0": 1}, [], 0, 2, 0),
    (60, {"r1": 32, "r2": 32}, [], 2, 0, 7),
    (61, {"r1": 1, "r2": 17}, [], 2, 0, 10),
    (62, {"r1": 1, "r2": 1}, [], 2, 0, 10),
    (77, {"r1": 1}, ["r2"], 1, 1, 7),
    (78, {"r1": 1}, [], 1, 1, 7),
    (79, {"r1": 1}, [], 0, 1, 0),
    (80, {"r2": 17}, [], 1, 0, 5),
    (81, {"r2": 1}, [], 1, 0, 5),
    (96, {"r2": 1}, [], 1, 0, 6),
    (112, {"r2": 1}, [], 1, 0, 7),
    (114, {"r2": 1}, [], 0, 0, 0),
]


def settings(**changes: object) -> EngineSettings:
    defaults: dict[str, object] = {"num_gpu_blocks": 11, "block_size": 16, "max_num_batched_tokens": 64, "max_num_seqs": 16}
    return EngineSettings(**{**defaults, **changes})  # type: ignore[arg-type]


def three(engine: Engine, priorities: tuple[int, int, int] = (0, 0, 0)) -> None:
    for index, priority in enumerate(priorities):
        engine.add(EngineRequest(f"r{index}", 40, output_tokens_max=60, priority=priority, arrival=float(index)))


def run(engine: Engine) -> list[StepReport]:
    reports = []
    while engine.has_work:
        reports.append(engine.step())
        assert len(reports) < 10_000, "the engine never finishes"
    return reports


def test_g1_step_by_step() -> None:
    engine = Engine(settings())
    three(engine)
    reports = run(engine)
    assert len(reports) == 115
    rows = {row[0]: row for row in G1}
    expected = G1[0]
    for report in reports:
        expected = rows.get(report.index, (report.index, *expected[1:2], [], *expected[3:]))  # type: ignore[assignment]
        seen = (report.index, report.scheduled, report.preempted, report.running, report.waiting, report.used_blocks)
        assert seen == expected


def test_g1_counters_are_exposed_late() -> None:
    engine = Engine(settings())
    three(engine)
    exposed = [(engine.step().index, engine.counters.preemptions, engine.counters.preemptions_exposed) for _ in range(115)]
    first = {true: next(index for index, count, _ in exposed if count == true) for true in (1, 2, 3)}
    late = {true: next(index for index, _, count in exposed if count == true) for true in (1, 2, 3)}
    # r2 falls at 10 and 77, r1 at 41; r1's next output is at step 60, r2's at 61 and (second fall) 80.
    assert first == {1: 10, 2: 41, 3: 77}
    assert late == {1: 60, 2: 61, 3: 80}
    counters = engine.counters
    assert (counters.prompt_tokens, counters.generation_tokens) == (120, 180)
    assert (counters.prefix_queries, counters.prefix_hits) == (120, 0)


def test_g2_watermark_trades_concurrency_for_preemptions() -> None:
    engine = Engine(settings(watermark=0.3))
    three(engine)
    reports = run(engine)
    assert reports[1].scheduled == {"r0": 1, "r1": 16}
    assert reports[1].used_blocks == 6
    assert [(report.index, report.preempted) for report in reports if report.preempted] == [(41, ["r1"])]
    assert reports[60].scheduled == {"r1": 32}
    assert reports[80].admitted == ["r2"]
    assert reports[-1].index == 139


def test_g3_identical_prompts_share() -> None:
    engine = Engine(settings(num_gpu_blocks=21, max_num_batched_tokens=512))
    prompt = (101, 102, 103, 104)
    engine.add(EngineRequest("a", 48, 60, block_hashes=prompt[:3]))
    engine.add(EngineRequest("b", 48, 60, block_hashes=prompt[:3]))
    engine.add(EngineRequest("c", 64, 60, block_hashes=prompt))
    first, second = engine.step(), engine.step()
    assert first.scheduled == {"a": 48, "b": 16, "c": 16}
    assert first.used_blocks == 5
    assert second.used_blocks == 8


def test_g4_without_prefix_caching_resumes_recompute_everything() -> None:
    engine = Engine(settings(prefix_caching=False))
    three(engine)
    reports = run(engine)
    assert reports[60].scheduled == {"r1": 64}
    assert reports[61].scheduled["r1"] == 16
    assert reports[-1].index == 116


def test_priority_order_and_victim() -> None:
    engine = Engine(settings(policy=SchedulingPolicy.PRIORITY))
    three(engine, (5, 0, 1))
    reports = run(engine)
    assert [request for report in reports for request in report.admitted][:3] == ["r1", "r2", "r0"]
    assert next(report.preempted for report in reports if report.preempted) == ["r0"]
    assert [request for report in reports for request, _ in report.finished] == ["r1", "r2", "r0"]


def test_long_prefill_threshold_lets_several_pass_the_gate() -> None:
    engine = Engine(settings(max_num_batched_tokens=48, long_prefill_token_threshold=16))
    for name in "abc":
        engine.add(EngineRequest(name, 96, 10))
    reports = [engine.step() for _ in range(6)]
    assert reports[0].admitted == ["a", "b", "c"]
    assert reports[0].used_blocks == 3
    assert [report.preempted for report in reports] == [[], [], [], ["c"], [], ["b"]]


@pytest.mark.parametrize(
    ("prompt", "output", "blocks"), [(16, 17, 2), (16, 18, 3), (15, 2, 1), (16, 1, 1), (40, 8, 3), (40, 9, 3), (40, 10, 4)]
)
def test_peak_blocks_of_one_request(prompt: int, output: int, blocks: int) -> None:
    engine = Engine(settings(num_gpu_blocks=101))
    engine.add(EngineRequest("a", prompt, output_tokens_max=output))
    peak = 0
    while engine.unfinished:
        before = engine.step()
        peak = max(peak, before.used_blocks, -(-before.kv_tokens // 16))
    assert peak == blocks == -(-(prompt + output - 1) // 16)
