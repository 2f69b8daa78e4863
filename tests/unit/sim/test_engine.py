"""The engine model beyond the recorded traces: allocation vectors, aborts, counters, seats, step time."""

import copy
import random

import pytest

from proxy.sim.block_pool import BlockPool
from proxy.sim.engine import Engine
from proxy.sim.engine_requests import EngineRequest, EngineSettings, FinishReason, SchedulingPolicy, chain_hashes
from proxy.sim.step_time import StepTimeModel


def engine(num_gpu_blocks: int = 101, **changes: object) -> Engine:
    defaults: dict[str, object] = {"block_size": 16, "max_num_batched_tokens": 8192, "max_num_seqs": 64}
    return Engine(EngineSettings(num_gpu_blocks=num_gpu_blocks, **{**defaults, **changes}))  # type: ignore[arg-type]


def hashes(name: int, blocks: int) -> tuple[int, ...]:
    return chain_hashes([name] * (blocks * 16), 16)


def test_first_allocation_and_repeat() -> None:
    model = engine()
    model.add(EngineRequest("a", 40, 50, block_hashes=hashes(1, 2)))
    assert model.step().used_blocks == 3
    model.add(EngineRequest("b", 40, 50, block_hashes=hashes(1, 2)))
    report = model.step()
    assert report.scheduled["b"] == 8  # 32 of 40 hit
    assert report.used_blocks == 4
    assert (model.counters.prefix_queries, model.counters.prefix_hits) == (80, 32)


def test_a_fully_cached_prompt_recomputes_its_last_block() -> None:
    model = engine()
    for name in "ab":
        model.add(EngineRequest(name, 48, 1, block_hashes=hashes(1, 3)))
        model.step()
    assert (model.counters.prefix_hits, model.counters.prompt_tokens_cached) == (32, 32)
    assert model.used_blocks == 0


def test_the_fourth_block_comes_with_the_49th_token_fed() -> None:
    model = engine()
    model.add(EngineRequest("a", 40, 50))
    held = {}
    for _ in range(12):
        report = model.step()
        held[report.kv_tokens] = report.used_blocks
    assert held[48] == 3
    assert held[49] == 4


def test_copies_share_all_full_prompt_blocks_in_one_step() -> None:
    model = engine()
    for index in range(4):
        model.add(EngineRequest(f"{index}_a", 100, 10, block_hashes=hashes(1, 6)))
    report = model.step()
    assert list(report.scheduled.values()) == [100, 4, 4, 4]
    assert report.used_blocks == 10


def test_watermark_applies_once_something_runs() -> None:
    model = engine(101, watermark=0.1)
    for name, blocks in (("a", 60), ("b", 30), ("c", 1)):
        model.add(EngineRequest(name, blocks * 16, 5))
    report = model.step()
    assert report.admitted == ["a", "b"]
    assert (report.used_blocks, report.waiting) == (90, 1)


def test_a_head_larger_than_the_pool_blocks_everything() -> None:
    model = engine(5)
    model.add(EngineRequest("big", 7 * 16, 5))
    model.add(EngineRequest("small", 16, 5))
    reports = [model.step() for _ in range(20)]
    assert all(not report.scheduled and report.waiting == 2 for report in reports)


@pytest.mark.parametrize("steps_before", [0, 1, 5])
def test_abort_of_the_only_request_runs_one_empty_step(steps_before: int) -> None:
    model = engine()
    model.add(EngineRequest("a", 40, 50))
    for _ in range(steps_before):
        model.step()
    assert model.abort("a")
    assert not model.abort("a")
    assert model.used_blocks == 0
    assert model.has_work
    assert model.gauges.running == min(1, steps_before)  # still what the last step published
    report = model.step()
    assert not report.scheduled
    assert (model.gauges.running, model.gauges.waiting, model.gauges.usage_ratio) == (0, 0, 0.0)
    assert not model.has_work


def test_abort_while_preempted_is_never_exposed() -> None:
    model = engine(11, max_num_batched_tokens=64)
    for index in range(3):
        model.add(EngineRequest(f"r{index}", 40, 60))
    while "r2" not in model.step().preempted:
        pass
    model.abort("r2")
    while model.has_work:
        model.step()
    assert model.counters.preemptions == 2
    assert model.counters.preemptions_exposed == 1
    assert model.counters.finished == {FinishReason.STOP: 2, FinishReason.LENGTH: 0, FinishReason.ABORT: 1}


def test_recomputed_tokens_are_what_a_resume_feeds_again() -> None:
    cached, plain = engine(11, max_num_batched_tokens=64), engine(11, max_num_batched_tokens=64, prefix_caching=False)
    totals = []
    for model in (cached, plain):
        for index in range(3):
            model.add(EngineRequest(f"r{index}", 40, output_tokens_max=60))
        fed = 0
        while model.has_work:
            fed += sum(model.step().scheduled.values())
        # What was fed beyond each sequence's own tokens was fed twice.
        assert fed == 3 * (40 + 60 - 1) + model.counters.recomputed_tokens
        totals.append(model.counters.recomputed_tokens)
    assert 0 < totals[0] < totals[1]


@pytest.mark.parametrize(
    ("natural", "limit", "tokens", "reason"),
    [
        (10, None, 10, FinishReason.STOP),
        (10, 10, 10, FinishReason.STOP),
        (10, 4, 4, FinishReason.LENGTH),
        (None, 4, 4, FinishReason.LENGTH),
        (None, None, 88, FinishReason.LENGTH),  # the context's end
        (500, 400, 88, FinishReason.LENGTH),
    ],
)
def test_end_of_output(natural: int | None, limit: int | None, tokens: int, reason: FinishReason) -> None:
    model = engine(max_model_len=128)
    model.add(EngineRequest("a", 40, natural, limit))
    finished = []
    while model.unfinished:
        finished += model.step().finished
    assert finished == [("a", reason)]
    assert model.counters.generation_tokens == tokens


def test_seats_limit_running() -> None:
    model = engine(max_num_seqs=8, max_num_active_seqs=3)
    for index in range(5):
        model.add(EngineRequest(str(index), 16, 5))
    report = model.step()
    assert (report.running, report.waiting) == (3, 2)


def test_without_chunked_prefill_a_prompt_waits_for_a_whole_budget() -> None:
    model = engine(max_num_batched_tokens=64, chunked_prefill=False)
    for name in "ab":
        model.add(EngineRequest(name, 40, 5))
    assert model.step().scheduled == {"a": 40}
    assert model.step().scheduled == {"a": 1, "b": 40}


def test_no_lookup_still_publishes() -> None:
    model = engine()
    model.add(EngineRequest("a", 40, 5, block_hashes=hashes(1, 2), shares_prefix=False))
    model.add(EngineRequest("b", 40, 5, block_hashes=hashes(1, 2)))
    assert model.step().scheduled == {"a": 40, "b": 8}
    assert model.counters.prefix_queries == 40


def test_named_generated_blocks_are_found_by_the_next_turn() -> None:
    model = engine()
    turn = list(range(40 + 24))
    names = chain_hashes(turn, 16)
    model.add(EngineRequest("a", 40, 24, block_hashes=names[:2], hash_block=lambda index: names[index]))
    while model.unfinished:
        model.step()
    model.add(EngineRequest("b", 80, 5, block_hashes=chain_hashes([*turn, *range(16)], 16)))
    # 63 of 64 tokens were fed: three full blocks.
    assert model.step().scheduled == {"b": 80 - 48}


@pytest.mark.parametrize(
    ("request_", "word"),
    [
        (EngineRequest("a", 0, 5), "prompt"),
        (EngineRequest("a", 8192, 5), "max_model_len"),
        (EngineRequest("a", 5, 0), "output_tokens=0"),
        (EngineRequest("a", 5, 5, 0), "output_tokens_max=0"),
    ],
)
def test_what_the_api_server_refuses(request_: EngineRequest, word: str) -> None:
    with pytest.raises(ValueError, match=word):
        engine().add(request_)


def test_an_id_is_unique_among_unfinished() -> None:
    model = engine()
    model.add(EngineRequest("a", 5, 5))
    with pytest.raises(ValueError, match="in use"):
        model.add(EngineRequest("a", 5, 5))


@pytest.mark.parametrize("policy", list(SchedulingPolicy))
@pytest.mark.parametrize("seed", range(8))
def test_random_loads_end_with_every_block_free(policy: SchedulingPolicy, seed: int) -> None:
    rng = random.Random(seed)
    model = engine(
        40,
        max_num_batched_tokens=rng.choice((32, 64, 512)),
        max_num_seqs=rng.choice((4, 16)),
        long_prefill_token_threshold=rng.choice((0, 24)),
        watermark=rng.choice((0.0, 0.1)),
        prefix_caching=rng.random() < 0.7,
        policy=policy,
    )
    for index in range(60):
        prompt = rng.randrange(1, 300)
        shared = hashes(rng.randrange(3), rng.randrange(4))
        model.add(EngineRequest(str(index), prompt, rng.randrange(1, 200), block_hashes=shared, priority=rng.randrange(3)))
        for _ in range(rng.randrange(4)):
            report = model.step()
            assert report.used_blocks <= model.usable_blocks
        if rng.random() < 0.1:
            model.abort(str(rng.randrange(index + 1)))
    for _ in range(200_000):
        if not model.has_work:
            break
        model.step()
    assert not model.has_work
    assert model.used_blocks == 0
    assert sum(model.counters.finished.values()) == 60
    assert model.counters.preemptions >= model.counters.preemptions_exposed


def test_equal_calls_give_equal_reports() -> None:
    def trace() -> list[object]:
        model = engine(20, max_num_batched_tokens=64)
        rng = random.Random(3)
        for index in range(20):
            model.add(EngineRequest(str(index), rng.randrange(1, 100), rng.randrange(1, 90)))
        reports = []
        while model.has_work:
            reports.append(model.step())
        return list(reports)

    assert trace() == trace()


def test_free_queue_order() -> None:
    pool = BlockPool(7)
    held = pool.take(4)
    assert held == [1, 2, 3, 4]
    pool.register(1, 11)
    pool.register(2, 22)
    pool.release(held)
    # Unhashed first, tail before head; then never used; then cached, tail before head.
    assert pool.take(6) == [4, 3, 5, 6, 2, 1]
    assert pool.longest_hit((11, 22), 2) == []


def test_sharing_takes_a_cached_block_out_of_the_free_queue() -> None:
    pool = BlockPool(4)
    held = pool.take(1)
    pool.register(held[0], 11)
    pool.release(held)
    assert (pool.used, pool.unheld(held)) == (0, 1)
    pool.share(pool.longest_hit((11,), 1))
    pool.share(pool.longest_hit((11,), 1))
    assert (pool.used, pool.unheld(held)) == (1, 0)
    pool.release(held)
    assert pool.used == 1


def test_step_time_is_linear_and_scales_with_speed() -> None:
    model = engine()
    model.add(EngineRequest("a", 1000, 5))
    first, second = model.step(), model.step()
    assert StepTimeModel().seconds(first) == pytest.approx(10e-3 + 1000 * 0.03e-3 + 1000 * 20e-9)
    assert StepTimeModel().seconds(second) == pytest.approx(10e-3 + 0.04e-3 + 1001 * 20e-9)
    assert StepTimeModel(speed=4).seconds(second) == pytest.approx(StepTimeModel().seconds(second) / 4)
    with pytest.raises(ValueError, match="speed=0"):
        StepTimeModel(speed=0)


def test_a_deep_copy_goes_its_own_way() -> None:
    """What would have happened otherwise is asked of a copy, which must not touch the original's queue."""
    original = engine(11, max_num_seqs=1)
    for name in "ab":
        original.add(EngineRequest(name, 40, 5))
    original.step()
    twin = copy.deepcopy(original)
    while twin.has_work:
        twin.step()
    assert original.unfinished == 2
    while original.has_work:
        original.step()
    assert (original.counters, original.used_blocks) == (twin.counters, 0)
