"""A threshold that follows preemptions, in a world in which nothing moves by itself."""

import pytest

from proxy.core.policy import Policy
from proxy.sim.baselines import make_baseline
from proxy.sim.baselines.queueing import Queueing
from proxy.sim.baselines.rules import LearnedThreshold
from tests.support.still_world import StillWorld


def learned(level: float, *, replicas: int = 1) -> tuple[StillWorld, LearnedThreshold]:
    admission = make_baseline(f"threshold-learned:{level:g}", Policy())
    world = StillWorld(admission, replicas=replicas)
    assert isinstance(admission, Queueing)
    assert isinstance(admission.rule, LearnedThreshold)
    return world, admission.rule


def held_back(world: StillWorld) -> bool:
    world.arrive("next", 100, 100)
    return "next" not in world.gone


def test_a_learned_threshold_begins_like_one_that_is_not() -> None:
    world, _ = learned(0.9)
    world.scrape(0.6)
    for index in range(8):
        world.arrive(f"q{index}", 112)
    assert len(world.gone) == 5


def test_a_learned_threshold_falls_with_preemptions_and_one_burst_is_one_lesson() -> None:
    world, rule = learned(0.9)
    world.scrape(0.5, preemptions=2)
    assert rule.levels["r0"] == pytest.approx(0.88)
    world.scrape(0.5, preemptions=42)
    assert rule.levels["r0"] == pytest.approx(0.85)
    world.scrape(0.5, preemptions=42)
    assert rule.levels["r0"] == pytest.approx(0.85)
    world.scrape(0.86, preemptions=42)
    assert held_back(world)


def test_a_learned_threshold_rises_by_completions_while_it_holds_somebody_back() -> None:
    world, rule = learned(0.9)
    for name in "abc":
        world.arrive(name, 112)
    world.admission.ended("a", 5, natural=True)
    assert rule.levels["r0"] == pytest.approx(0.9), "nobody waits: it is not what limits"
    world.scrape(0.95)
    assert held_back(world)
    world.admission.ended("b", 5, natural=True)
    assert rule.levels["r0"] == pytest.approx(0.9 + LearnedThreshold.STEP * LearnedThreshold.AIM)


def test_a_learned_threshold_stays_within_its_limits_on_each_replica() -> None:
    world, rule = learned(0.9, replicas=2)
    for count in range(1, 41):
        world.scrape(0.5, replica="r1", preemptions=3.0 * count)
    assert rule.levels == pytest.approx({"r0": 0.9, "r1": LearnedThreshold.LEVEL_MIN})
