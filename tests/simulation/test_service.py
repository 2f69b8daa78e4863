"""What else a world must show: nothing added when there is room, nobody starved, deadlines met, load and tenants balanced, replays."""

import random

import pytest

from proxy.core.outcome import Outcome
from proxy.sim.fairness import jain
from proxy.sim.sim_request import SimRequest
from proxy.sim.world import World, WorldSettings
from tests.support.worlds import EVEN_STEPS, figures, gate_of, honest, judge, lognormal, play, pool, preemptions

ROOMY = pool(blocks=100_000)


def spread(workload: list[SimRequest], gap_s: float) -> list[SimRequest]:
    """The same requests arriving one after another."""
    return [
        SimRequest(one.request_id, one.prompt_tokens, one.output_tokens, one.output_tokens_max, arrival_s=gap_s * index)
        for index, one in enumerate(workload)
    ]


@pytest.mark.parametrize("replicas", [1, 2])
def test_with_an_infinite_cache_kvgate_is_plain_forwarding(replicas: int) -> None:
    """Nobody is held, and each request ends when it would have: steps are of even length, so routing makes no difference."""
    workload = spread(lognormal(random.Random(4), 100), 0.01)
    gated, plain = (
        play(WorldSettings(replicas=replicas, engine=ROOMY, step_time=EVEN_STEPS), workload, gated=gated)
        for gated in (True, False)
    )
    judge(gated, "seed 4")
    judge(plain, "seed 4")
    assert gate_of(gated).counters.held == 0
    step_s = EVEN_STEPS.base_s
    for name, result in plain.results.items():
        same = gated.results[name]
        assert same.end_s is not None
        assert result.end_s is not None
        # One replica: to the microsecond. Two: they step out of phase, by at most one step at its start.
        assert same.end_s == pytest.approx(result.end_s, abs=1e-6 if replicas == 1 else 2.0 * step_s)


def head_among_small(prompt: int) -> World:
    """Small requests come without a pause, and a large one among them. Lengths are known."""
    rng = random.Random(2)
    small = [honest(f"s{i}", 100, rng.randint(50, 250), 0.05 * i) for i in range(180)]
    head = honest("head", prompt, 300, 2.0)
    world = play(WorldSettings(engine=pool(blocks=256, block_size=16)), [*small[:40], head, *small[40:]])
    judge(world, "seed 2")
    return world


@pytest.mark.parametrize("prompt", [2000, 3000])
def test_a_head_larger_than_the_rest_starts_and_nobody_is_preempted(prompt: int) -> None:
    """It needs up to four fifths of the pool, and two prefill steps; it still starts before anybody who came long after it."""
    world = head_among_small(prompt)
    result = world.results["head"]
    assert result.first_s is not None
    later = [one.first_s for one in world.results.values() if one.first_s is not None and one.arrived_s > 8.0]
    assert result.first_s < min(later)
    assert preemptions(world) == 0


def starts_of_a_head(seed: int) -> tuple[float, float, int]:
    """When a head starts alone, when with small ones behind it, and how many of those went ahead. Steps are of even length."""
    rng = random.Random(seed)
    first = [honest(f"f{i}", 200, rng.randint(60, 300), 0.05 * i) for i in range(8)]
    head = honest("head", 2800, 100, 0.6)
    behind = [honest(f"b{i}", 50, rng.randint(10, 200), 0.61 + 0.05 * i) for i in range(60)]
    settings = WorldSettings(engine=pool(blocks=220, block_size=16), step_time=EVEN_STEPS)
    alone = play(settings, [*first, head]).results["head"]
    results = play(settings, [*first, head, *behind]).results
    assert alone.first_s is not None
    crowd_s = results["head"].first_s
    assert crowd_s is not None
    assert alone.first_s > alone.arrived_s + 0.1, f"the head did not have to wait; seed={seed}"
    ahead = [one for one in results.values() if one.request in behind and one.first_s is not None and one.first_s < crowd_s]
    return alone.first_s, crowd_s, len(ahead)


def test_small_ones_go_ahead_of_a_head_that_waits() -> None:
    assert all(starts_of_a_head(seed)[2] > 0 for seed in range(2))


def test_who_goes_ahead_of_a_head_does_not_delay_it() -> None:
    """EASY backfilling: with small ones behind it the head starts no later than without, but for the grid's 16 steps."""
    late = {seed: crowd_s - alone_s for seed in (6, 10) for alone_s, crowd_s, _ in [starts_of_a_head(seed)]}
    assert max(late.values()) <= 17 * EVEN_STEPS.base_s + 0.05, f"seconds late by seed: {late}"


def test_an_oversubscribed_queue_sheds_in_time_and_serves_the_rest() -> None:
    """Four times what the pool can do: nobody waits past two seconds, and the pool stays busy."""
    rng = random.Random(3)
    workload = spread(lognormal(rng, 200), 0.02)
    world = play(WorldSettings(engine=pool(blocks=128), wait_s_max=2.0), workload)
    judge(world, "seed 3", shed=True)
    shed = [one for one in world.results.values() if one.outcome is not Outcome.COMPLETED]
    assert {one.outcome for one in shed} == {Outcome.QUEUE_TIMEOUT}
    assert 0 < len(shed) < len(workload)
    for one in world.results.values():
        assert one.outcome is not None
        at_s = one.first_s if one.outcome is Outcome.COMPLETED else one.end_s
        assert at_s is not None
        assert at_s - one.arrived_s <= 2.0 + (0.5 if one.outcome is Outcome.COMPLETED else 1e-6)
    assert (figures(world).kv_usage_ratio_mean_while_queued or 0.0) > 0.5


def test_two_replicas_share_the_work() -> None:
    world = play(WorldSettings(replicas=2, engine=pool(blocks=128), concurrency=60), lognormal(random.Random(6), 150))
    judge(world, "seed 6")
    tokens = [engine.counters.generation_tokens for engine in world.engines.values()]
    assert jain(tokens) > 0.98
    assert preemptions(world) == 0


def test_ten_times_the_offers_get_no_more_than_half() -> None:
    """Two tenants, one offers ten times as much. While both wait each is served the same token-time."""
    rng = random.Random(8)
    loud, quiet = lognormal(rng, 250), lognormal(rng, 80)
    workload = [
        SimRequest(f"{tenant}{i}", one.prompt_tokens, one.output_tokens, one.output_tokens_max, 0.002 * i * step, tenant)
        for tenant, step, requests in (("loud", 1, loud), ("quiet", 10, quiet))
        for i, one in enumerate(requests)
    ]
    workload.sort(key=lambda one: one.arrival_s)
    world = play(WorldSettings(engine=pool(blocks=128)), workload)
    judge(world, "seed 8")
    last_quiet_s = max(one.first_s or 0.0 for one in world.results.values() if one.request.tenant == "quiet")
    served = dict.fromkeys(("loud", "quiet"), 0.0)
    for one in world.results.values():
        if one.first_s is not None and 2.0 < one.first_s < last_quiet_s:
            request = one.request
            mean_tokens = request.prompt_tokens + one.output_tokens / 2.0
            served[request.tenant] += mean_tokens * one.output_tokens
    assert jain(served.values()) >= 0.9


def test_equal_seeds_give_equal_worlds() -> None:
    def once() -> list[tuple[str, float | None, float | None]]:
        world = play(
            WorldSettings(replicas=2, engine=pool(blocks=128), concurrency=40), lognormal(random.Random(11), 60, cap=1500)
        )
        return [(name, one.first_s, one.end_s) for name, one in world.results.items()]

    assert once() == once()
