"""Each baseline's rule on situations small enough to do by hand. Replicas have 100 blocks of 16 tokens."""

import numpy as np
import pytest

from proxy.core.policy import Policy
from proxy.sim.baselines import make_baseline
from proxy.sim.baselines.past_future import PUBLISHED, PastFuture, peak_tokens
from proxy.sim.baselines.queueing import Queueing
from proxy.sim.baselines.rule import Rule
from proxy.sim.baselines.sglang_ratio import NewTokenRatio
from tests.support.still_world import StillWorld


def still(name: str, *, replicas: int = 1) -> StillWorld:
    return StillWorld(make_baseline(name, Policy()), replicas=replicas)


def rule_of(world: StillWorld) -> Rule:
    assert isinstance(world.admission, Queueing)
    return world.admission.rule


def held_back(world: StillWorld, name: str = "next", prompt: int = 100, cap: int = 100) -> bool:
    """Whether one more request would have to wait."""
    world.arrive(name, prompt, cap)
    return name not in world.gone


# ---- thresholds


@pytest.mark.parametrize(("usage", "waits"), [(0.899, False), (0.9, True)])
def test_threshold_at_its_edge(usage: float, waits: bool) -> None:
    world = still("threshold:0.9")
    world.scrape(usage)
    assert held_back(world) == waits


def test_threshold_lets_a_whole_queue_in_between_two_scrapes() -> None:
    world = still("threshold:0.9")
    world.scrape(0.95)
    for index in range(50):
        world.arrive(f"q{index}")
    world.scrape(0.89)
    assert len(world.gone) == 50


def test_own_threshold_counts_what_the_scrape_cannot_have_seen() -> None:
    """Usage 0.6 and prompts of 7 blocks each: below 0.9 before the 1st to 5th, not before the 6th."""
    world = still("threshold-own:0.9")
    world.scrape(0.6)
    for index in range(8):
        world.arrive(f"q{index}", 112)
    assert len(world.gone) == 5


def test_own_threshold_counts_a_prompt_until_a_scrape_saw_it() -> None:
    world = still("threshold-own:0.9")
    world.scrape(0.6)
    for index in range(5):
        world.arrive(f"q{index}", 112)
    world.until(1.0)
    for index in range(5):
        world.admission.progress(f"q{index}", 1)
    world.until(1.5)
    world.scrape(0.6, age_s=0.6)  # from before their first tokens
    assert held_back(world)
    world.scrape(0.85, age_s=0.4)
    assert world.gone[-1] == "next", "all five are in the 0.85"
    assert held_back(world, "another")


def test_own_threshold_takes_the_silent_as_placed_once_forwarded() -> None:
    world = still("threshold-own:0.9")
    for index in range(20):
        world.arrive(f"q{index}", 112, streaming=False)
    assert len(world.gone) == 13  # 13 × 7 blocks reach 90
    world.until(0.5)
    world.scrape(0.85)
    assert len(world.gone) == 14


# ---- llm-d


@pytest.mark.parametrize(
    ("usage", "waiting", "waits"), [(0.79, 0, False), (0.8, 0, True), (0.1, 4, False), (0.1, 5, True), (0.79, 4, False)]
)
def test_detector_takes_the_larger_of_queue_and_usage(usage: float, waiting: int, waits: bool) -> None:
    world = still("llm-d")
    world.scrape(usage, waiting=waiting)
    assert held_back(world) == waits


def test_detector_averages_over_the_pool() -> None:
    """One replica at 1.25 and one idle: 0.625, so it goes on; where both have a queue it does not."""
    world = still("llm-d", replicas=2)
    world.scrape(1.0, replica="r0")
    assert not held_back(world)
    assert world.forwarded == [("next", "r1")]
    world.scrape(0.1, replica="r1", waiting=4)
    assert held_back(world, "another")


@pytest.mark.parametrize(("age_s", "waits"), [(0.2, False), (0.21, True)])
def test_detector_takes_a_stale_replica_as_full(age_s: float, waits: bool) -> None:
    world = still("llm-d")
    world.scrape(0.1)
    world.until(age_s)
    assert held_back(world) == waits


def test_detector_judges_staleness_by_when_the_scrape_came() -> None:
    world = still("llm-d")
    world.until(5.0)
    world.scrape(0.1, age_s=1.0)
    assert not held_back(world)


def test_detector_dispatches_one_per_millisecond() -> None:
    world = still("llm-d")
    world.scrape(0.9)
    for index in range(100):
        world.arrive(f"q{index}")
    world.until(0.3)
    world.scrape(0.1)
    world.until(0.3105)
    assert len(world.gone) == 11
    world.until(1.0)
    assert len(world.gone) == 100, "up to 200 before it is stale"


# ---- reserve-max


@pytest.mark.parametrize(("cap", "waits"), [(800, False), (801, True)])
def test_reserve_max_at_its_edge(cap: int, waits: bool) -> None:
    """50 blocks are taken and 800 tokens remain: a prompt of one and the cap, whose last token is never stored."""
    world = still("reserve-max")
    world.arrive("a", 700, 101)
    assert held_back(world, prompt=1, cap=cap) == waits


def test_reserve_max_lets_a_cap_beyond_the_pool_run_alone() -> None:
    world = still("reserve-max")
    world.arrive("a", 100, None)
    assert world.gone == ["a"]
    assert held_back(world, prompt=1, cap=1)


# ---- Past-Future


def brute_peak(held: list[float], remaining: list[float]) -> float:
    """By the definition: at each step, all that are still there and what they have grown to."""
    return max(
        sum(h + step for h, r in zip(held, remaining, strict=True) if r >= step) for step in range(int(max(remaining)) + 1)
    )


def test_peak_of_requests_that_advance_together() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        held = rng.integers(1, 50, (4, 7)).astype(float)
        remaining = rng.integers(0, 40, (4, 7)).astype(float)
        expected = [brute_peak(list(h), list(r)) for h, r in zip(held, remaining, strict=True)]
        assert peak_tokens(held, remaining).tolist() == expected


@pytest.mark.parametrize(
    ("name", "window", "seeds", "presumed"), [("code", 200, 100, 1024), ("paper", 1000, 500, 512), ("artifact", 40, 20, 4096)]
)
def test_published_parameters_differ_in_how_they_begin(name: str, window: int, seeds: int, presumed: int) -> None:
    rule = rule_of(still(f"past-future:{name}"))
    assert isinstance(rule, PastFuture)
    assert rule.parameters is PUBLISHED[name]
    assert rule.history.maxlen == window
    assert list(rule.history) == [presumed] * seeds


def learned(name: str, length: int) -> StillWorld:
    """A world whose history is nothing but requests of one length."""
    world = still(name)
    rule = rule_of(world)
    assert isinstance(rule, PastFuture)
    rule.history.extend([length] * (rule.history.maxlen or 0))
    return world


def test_past_future_admits_what_history_says_will_fit() -> None:
    """Prompts of 100, lengths of 100, all just begun: at their end each holds 200 of 0.95 × 1,600 tokens: seven. Caps do not count."""
    world = learned("past-future:code", 100)
    for index in range(12):
        world.arrive(f"q{index}", 100, 1400)
    assert len(world.gone) == 1, "one pass per ten steps"
    world.until(0.2)
    assert 6 <= len(world.gone) <= 7, "those in earlier passes may be drawn towards their caps"


def test_past_future_counts_every_end_and_forgets_the_oldest() -> None:
    world = still("past-future:artifact")
    for index in range(21):
        world.arrive(f"q{index}", 10, 50)
        world.admission.ended(f"q{index}", 30, natural=False)
        world.until(0.02 * (index + 1))
    rule = rule_of(world)
    assert isinstance(rule, PastFuture)
    assert list(rule.history) == [4096] * 19 + [30] * 21


def test_past_future_draws_past_lengths_only_above_what_is_out() -> None:
    """Everybody in the past ended at 10 and this one has 60 out: its length is drawn from 60 to its cap."""
    world = learned("past-future:code", 10)
    world.arrive("a", 100, 160)
    world.admission.progress("a", 60)
    rule = rule_of(world)
    assert isinstance(rule, PastFuture)
    assert isinstance(world.admission, Queueing)
    draws = np.array([rule._draw(world.admission.replicas[0])[1] for _ in range(200)])
    assert draws.min() >= 0
    assert draws.max() <= 100
    assert draws.mean() == pytest.approx(50, abs=4)


# ---- SGLang


def ratio(world: StillWorld) -> float:
    rule = rule_of(world)
    assert isinstance(rule, NewTokenRatio)
    return rule.ratios["r0"]


def test_new_token_ratio_falls_over_600_steps_and_stays() -> None:
    world = still("sglang")
    for name in "ab":
        world.arrive(name, 10, 3000 if name == "a" else 100)
        world.until(world.now_s + 0.02)
    assert world.gone == ["a"], "10 + 3,000 presumed whole until it decodes"
    assert ratio(world) == 0.7
    for step in range(300):
        world.admission.progress("a", step + 1)
    assert ratio(world) == pytest.approx(0.7 * (1 - 0.86 / 2))
    for step in range(300, 700):
        world.admission.progress("a", step + 1)
    assert ratio(world) == pytest.approx(0.7 * 0.14)


@pytest.mark.parametrize(("cap", "waits"), [(524, False), (525, True)])
def test_new_token_ratio_at_its_edge(cap: int, waits: bool) -> None:
    """a holds 101 and is presumed to grow by just under 0.7 × 1,380; 10 + cap have to stay below what that leaves of 1,600."""
    world = still("sglang")
    world.arrive("a", 100, 1381)
    world.admission.progress("a", 1)
    assert 101 + ratio(world) * 1380 == pytest.approx(1065.6, abs=0.1)
    world.until(0.02)
    assert held_back(world, prompt=10, cap=cap) == waits


def test_a_preemption_sets_the_ratio_to_what_was_decoded() -> None:
    world = still("sglang")
    world.arrive("a", 10, 399)
    world.admission.progress("a", 100)
    world.scrape(0.9, preemptions=1)
    assert ratio(world) == pytest.approx((100 + 20) / 400)
    world.admission.progress("a", 101)
    falling = ratio(world)
    assert falling < 0.3
    world.scrape(0.9, preemptions=1)
    assert ratio(world) == falling, "the same count again is nothing new"
