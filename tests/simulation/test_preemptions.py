"""The point of kvgate: with known lengths nobody is preempted; with unknown ones few are, and only while it learns."""

import random

import pytest

from proxy.core.outcome import Outcome
from proxy.core.policy import Policy
from proxy.sim.admission import GateAdmission
from proxy.sim.sim_request import SimRequest
from proxy.sim.world import Listed, World, WorldSettings
from tests.support.worlds import gate_of, honest, judge, lognormal, mixed, play, pool, preemptions, wave


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("kind", ["wave", "lognormal", "mixed"])
def test_known_lengths_preempt_nobody(kind: str, seed: int) -> None:
    rng = random.Random(seed)
    workload: list[SimRequest] = {
        "wave": lambda: wave(80, rng.choice([50, 200, 1000]), rng.choice([100, 200, 400])),
        "lognormal": lambda: lognormal(rng, 100),
        "mixed": lambda: mixed(rng, 80),
    }[kind]()
    world = play(WorldSettings(engine=pool(), concurrency=60), workload)
    replay = f"kind={kind} seed={seed}: pytest tests/simulation/test_preemptions.py -k 'known and {kind}-{seed}'"
    judge(world, replay)
    assert preemptions(world) == 0, replay
    assert gate_of(world).counters.held > 0, f"nobody had to wait, so this proves nothing; {replay}"


@pytest.mark.parametrize("seed", range(2))
def test_plain_forwarding_of_the_same_load_preempts(seed: int) -> None:
    """The load is real: without the gate the engine thrashes on it."""
    world = play(WorldSettings(engine=pool(), concurrency=60), lognormal(random.Random(seed), 120), gated=False)
    judge(world, f"seed={seed}")
    assert preemptions(world) > 10


@pytest.mark.parametrize("streaming", [True, False])
def test_a_wave_of_small_pools_is_safe_whether_seen_or_not(streaming: bool) -> None:
    workload = [honest(f"q{i}", 64, 128, streaming=streaming) for i in range(60)]
    world = play(WorldSettings(engine=pool(blocks=40, block_size=16, context=640), concurrency=30), workload)
    judge(world, f"streaming={streaming}")
    assert preemptions(world) == 0


def preempted_after_learning(seed: int, completions: int = 100) -> int:
    """Preemptions after the first ``completions`` of 350 requests with natural lengths around 150 under caps of 2,000."""
    world = World(
        WorldSettings(engine=pool(), concurrency=60),
        GateAdmission(Policy()),
        Listed(lognormal(random.Random(seed), 350, cap=2000)),
    )
    learning: list[int] = []
    ended = world._ended

    def count(request_id: str, outcome: Outcome, *, natural: bool) -> None:
        if len(learning) < completions:
            learning.append(preemptions(world))
        ended(request_id, outcome, natural=natural)

    world._ended = count  # type: ignore[method-assign]
    world.run()
    judge(world, f"seed={seed}: pytest tests/simulation/test_preemptions.py -k dishonest")
    return preemptions(world) - learning[-1]


@pytest.mark.slow
def test_dishonest_caps_preempt_few_once_lengths_were_seen() -> None:
    """At most 1 % over several worlds: preemptions come in clusters, so one world of 250 requests says little."""
    found = {seed: preempted_after_learning(seed) for seed in range(5)}
    assert sum(found.values()) <= 0.01 * 250 * len(found), f"preemptions by seed: {found}"
