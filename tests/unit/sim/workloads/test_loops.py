"""Workloads in a world: how long they go on, and that the turns of a session find each other in the engine's cache."""

from itertools import repeat

import pytest

from proxy.sim.admission import PlainForwarding
from proxy.sim.engine_requests import EngineSettings
from proxy.sim.sim_request import SimRequest
from proxy.sim.workloads import ClosedLoop, OpenLoop, load_workload
from proxy.sim.workloads.workload import length_stats
from proxy.sim.world import World, WorldSettings

ROOMY = EngineSettings(num_gpu_blocks=40_001, block_size=16, max_model_len=32_768)


def ids(source: OpenLoop | ClosedLoop, asked_s: list[float]) -> list[str | None]:
    return [one and one.request_id for one in map(source.next_request, asked_s)]


def test_an_open_loop_ends_at_its_count_or_its_time() -> None:
    workload = load_workload("chat", 1)
    assert ids(OpenLoop(workload, 5.0, requests_max=2), [0.0, 0.0, 0.0]) == ["chat-0", "chat-1", None]
    third = list(zip(workload.arrivals(5.0), range(3), strict=False))[2][0]
    assert ids(OpenLoop(workload, 5.0, until_s=third.arrival_s), [0.0] * 3) == ["chat-0", "chat-1", None]


def test_a_closed_loop_ends_at_its_count_or_its_time() -> None:
    assert ids(ClosedLoop(load_workload("chat", 1), requests_max=2), [0.0, 1.0, 2.0]) == ["chat-0", "chat-1", None]
    assert ids(ClosedLoop(load_workload("chat", 1), until_s=2.0), [0.0, 1.9, 2.0]) == ["chat-0", "chat-1", None]


@pytest.mark.parametrize("closed", [True, False])
def test_a_world_plays_whole_sessions_and_hits_their_prefixes(closed: bool) -> None:
    workload = load_workload("agent", 1, block_size=16)
    source = ClosedLoop(workload, requests_max=12) if closed else OpenLoop(workload, 4.0, requests_max=12)
    world = World(WorldSettings(engine=ROOMY, concurrency=3 if closed else None), PlainForwarding(), source).run()
    results = sorted(world.results.values(), key=lambda result: result.arrived_s)
    turns: dict[str, list[str]] = {}
    for result in results:
        assert result.end_s is not None
        turns.setdefault(result.request.session or "", []).append(result.request.request_id)
    assert set(turns) == {f"agent-{serial}" for serial in range(12)}
    for session, played in turns.items():
        assert played == [f"{session}.{index}" for index in range(len(played))]
    (engine,) = world.engines.values()
    stats = length_stats((result.request for result in results), block_size=16)
    # The cache holds everything, so only sessions that began together computed the system prompt twice.
    assert 0.9 * stats.prefix_hit_ratio_max < engine.counters.prefix_hits / engine.counters.prefix_queries
    assert engine.counters.prefix_hits / engine.counters.prefix_queries <= stats.prefix_hit_ratio_max


def test_the_ceiling_of_hits_counts_blocks_from_the_front_and_never_the_last_token() -> None:
    requests = [
        SimRequest("a", 40, 20, block_hashes=(1, 2), output_hashes=(3,)),
        SimRequest("b", 48, 1, block_hashes=(1, 2, 3)),  # all of it known, the last block is computed again for its last token
        SimRequest("c", 49, 1, block_hashes=(1, 9, 3)),
    ]
    stats = length_stats(requests, block_size=16)
    assert stats.prompt_tokens_fresh_mean == pytest.approx((40 + (48 - 32) + (49 - 16)) / 3)
    assert stats.prefix_hit_ratio_max == pytest.approx((32 + 16) / 137)


def test_nothing_cannot_be_weighed() -> None:
    with pytest.raises(ValueError, match="without requests"):
        length_stats(repeat(SimRequest("a", 1, 1), 0))
