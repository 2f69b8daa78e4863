"""Several proxies in virtual time before a roomy replica: most requests wait for no store, and the store knows of all there is."""

import random
from dataclasses import replace

import pytest

from proxy.core.outcome import Outcome
from proxy.core.policy import Policy
from proxy.core.shared import Answer
from proxy.sim.store import Span, StoreSettings
from proxy.sim.world import Listed, World, WorldSettings
from tests.support.shared_worlds import Judge, left_over, shared_world
from tests.support.worlds import honest, lognormal, pool, preemptions

SEED = 11
BLOCKS = 4096
REQUESTS, PER_S = 300, 25.0
SPREAD_BLOCKS = 0.01 * BLOCKS
LAST_S = 60.0
DELAY_S = 0.005
AHEAD = Policy().store.ahead_ratio


def played(store: StoreSettings, *, ahead_ratio: float = AHEAD, proxies: int = 3) -> tuple[World, Judge]:
    """A world run to its end, with a last request long after all others."""
    rng = random.Random(SEED)
    requests, at_s = [], 0.0
    for one in lognormal(rng, REQUESTS, length_max=600):
        at_s += rng.expovariate(PER_S)
        requests.append(replace(one, arrival_s=at_s))
    requests.append(honest("last", 10, 1, at_s + LAST_S))
    policy = Policy()
    policy = replace(policy, store=replace(policy.store, ahead_ratio=ahead_ratio))
    world, judge = shared_world(WorldSettings(engine=pool(BLOCKS)), Listed(requests), proxies, store, policy)
    world.at(at_s + LAST_S - 1.0, lambda: judge.left.update(left_over(judge)))
    return world.run(), judge


def sound(world: World, judge: Judge) -> None:
    """Nothing was over the pool or preempted, everybody got its answer, and nothing is left."""
    assert {result.outcome for result in world.results.values()} == {Outcome.COMPLETED}
    assert max(judge.rows_over_blocks) <= SPREAD_BLOCKS
    assert max(judge.over_blocks) <= SPREAD_BLOCKS
    assert preemptions(world) == 0
    for leases, blocks, used in judge.left.values():
        assert (leases, used) == (0.0, 0)
        assert blocks == pytest.approx(0.0, abs=1e-6)


def waits_s(world: World) -> list[float]:
    """How long each waited for a place, in order."""
    return sorted((result.forwarded_s or 0.0) - result.arrived_s for result in world.results.values())


def test_most_requests_go_by_room_taken_ahead_and_wait_for_no_answer() -> None:
    world, judge = played(StoreSettings(delay_s=DELAY_S))
    sound(world, judge)
    assert judge.ahead >= 0.5 * REQUESTS
    asked, judge_asked = played(StoreSettings(delay_s=DELAY_S), ahead_ratio=0.0)
    sound(asked, judge_asked)
    assert judge_asked.ahead == 0
    assert judge.answers[Answer.GRANTED] + judge.ahead == judge_asked.answers[Answer.GRANTED] == REQUESTS + 1
    assert waits_s(world)[REQUESTS // 2] == 0.0
    assert waits_s(asked)[REQUESTS // 2] >= 0.5 * DELAY_S, "there and back, each at random about so long"


@pytest.mark.parametrize(
    "store",
    [
        StoreSettings(delay_s=DELAY_S, loss=0.05, skew_s=5.0),
        StoreSettings(partitions=(Span(1, 3.0, 7.0),)),
        StoreSettings(flushes_s=(4.0,)),
    ],
    ids=["lossy, clocks apart", "one is cut off", "flushed"],
)
def test_what_was_taken_ahead_is_never_more_than_the_store_knows_of(store: StoreSettings) -> None:
    world, judge = played(store)
    sound(world, judge)
    assert judge.ahead >= 0.3 * REQUESTS
