"""The queue that all baselines share, the routings, and the names they go by."""

import pytest

from proxy.core.outcome import Outcome
from proxy.core.policy import Policy, Queue
from proxy.sim.admission import PlainForwarding
from proxy.sim.baselines import BASELINES, PASS_THROUGH, make_baseline
from proxy.sim.baselines.queueing import Queueing
from proxy.sim.baselines.routing import FewestOutstanding
from proxy.sim.baselines.rules import StaticCap
from tests.support.still_world import StillWorld


def still(name: str, *, replicas: int = 1, blocks: int = 100, seed: int = 0) -> StillWorld:
    return StillWorld(make_baseline(name, Policy(), seed=seed), replicas=replicas, blocks=blocks)


def test_first_come_first_served_as_places_free_up() -> None:
    world = still("static:1")
    for name in "abc":
        world.arrive(name)
    assert (world.gone, world.admission.queued) == (["a"], 2)
    world.admission.ended("a", 5, natural=True)
    assert (world.gone, world.admission.queued) == (["a", "b"], 1)


def test_nobody_overtakes_a_head_that_does_not_fit() -> None:
    world = still("reserve-max")
    world.arrive("a", 700, 100)  # 50 of 100 blocks
    world.arrive("head", 900, 100)
    world.arrive("small", 10, 10)
    assert world.gone == ["a"]


def test_shed_at_the_deadline_not_before_and_the_next_goes_on() -> None:
    world = still("reserve-max")
    world.arrive("a", 700, 100)
    world.arrive("head", 900, 100, deadline_s=3.0)
    world.arrive("small", 10, 10, deadline_s=9.0)
    world.until(2.999)
    assert world.sheds == []
    world.until(3.0)
    assert world.sheds == [("head", Outcome.QUEUE_TIMEOUT)]
    assert world.gone == ["a", "small"]
    world.until(20.0)
    assert len(world.sheds) == 1, "one that went on is not shed"


def test_a_later_arrival_may_have_the_earlier_deadline() -> None:
    world = still("static:1")
    world.arrive("a")
    world.arrive("patient", deadline_s=9.0)
    world.arrive("hasty", deadline_s=2.0)
    world.until(5.0)
    assert world.sheds == [("hasty", Outcome.QUEUE_TIMEOUT)]
    world.until(9.0)
    assert world.sheds[1:] == [("patient", Outcome.QUEUE_TIMEOUT)]


@pytest.mark.parametrize(
    ("bounds", "refused"), [(Queue(requests_max=2), "d"), (Queue(tokens_max=150), "c"), (Queue(tokens_max=200), "d")]
)
def test_the_policy_bounds_the_queue(bounds: Queue, refused: str) -> None:
    world = StillWorld(Queueing(StaticCap(1), FewestOutstanding(), bounds))
    for name in "abcd":
        world.arrive(name)
    assert world.sheds[0] == (refused, Outcome.QUEUE_FULL)


@pytest.mark.parametrize(("prompt", "fits"), [(1599, True), (1600, False)])
def test_a_prompt_that_no_replica_can_hold_is_refused(prompt: int, fits: bool) -> None:
    """100 blocks of 16: the prompt and one token have to fit."""
    world = still("reserve-max")
    world.arrive("a", prompt, 100)
    assert (world.gone == ["a"], world.sheds == [("a", Outcome.NEVER_FITS)]) == (fits, not fits)


def test_a_prompt_as_long_as_the_context_is_refused() -> None:
    world = still("round-robin", blocks=1000)
    world.arrive("a", 4095)
    world.arrive("b", 4096)
    assert (world.gone, world.sheds) == (["a"], [("b", Outcome.NEVER_FITS)])


def test_admission_baselines_send_to_the_replica_with_fewest_of_their_own() -> None:
    world = still("static:2", replicas=3)
    for name in "abcdefg":
        world.arrive(name)
    assert [replica for _, replica in world.forwarded] == ["r0", "r1", "r2", "r0", "r1", "r2"]
    world.admission.ended("e", 1, natural=True)
    assert world.forwarded[-1] == ("g", "r1")


def test_round_robin_takes_turns_whatever_ends() -> None:
    world = still("round-robin", replicas=2)
    for name in "abcd":
        world.arrive(name)
        world.admission.ended(name, 1, natural=True)
    assert [replica for _, replica in world.forwarded] == ["r0", "r1", "r0", "r1"]


def test_least_waiting_herds_between_scrapes() -> None:
    world = still("least-waiting", replicas=2)
    world.scrape(replica="r0", waiting=3)
    for index in range(20):
        world.arrive(f"q{index}")
    assert {replica for _, replica in world.forwarded} == {"r1"}


def test_two_choices_are_nearly_even_without_any_metric() -> None:
    world = still("p2c", replicas=8)
    for index in range(800):
        world.arrive(f"q{index}")
    sent = [replica for _, replica in world.forwarded]
    counts = [sent.count(f"r{index}") for index in range(8)]
    assert max(counts) - min(counts) <= 8, counts


def test_equal_seeds_route_alike_and_others_do_not() -> None:
    def sent(seed: int) -> list[tuple[str, str]]:
        world = still("p2c", replicas=4, seed=seed)
        for index in range(50):
            world.arrive(f"q{index}")
        return world.forwarded

    assert sent(1) == sent(1)
    assert sent(1) != sent(2)


def test_pass_through_is_plain_forwarding() -> None:
    assert isinstance(make_baseline(PASS_THROUGH, Policy()), PlainForwarding)


@pytest.mark.parametrize("name", [f"{name}:32" if one.parameter is None else name for name, one in BASELINES.items()])
def test_every_baseline_lets_the_first_request_through(name: str) -> None:
    world = still(name)
    world.arrive("a")
    assert world.gone == ["a"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("statik:3", "no such baseline"),
        ("static", "needs a parameter"),
        ("static:0", "at least 1"),
        ("static:x", "static:x"),
        ("threshold:0", "above 0"),
        ("threshold-own:1.1", "at most 1"),
        ("llm-d:0", "above 0"),
        ("past-future:blog", "code, paper, artifact"),
        ("sglang:-1", "above 0"),
        ("reserve-max:3", "no parameter"),
        ("p2c:3", "no parameter"),
    ],
)
def test_a_name_that_is_none_is_told_why(name: str, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        make_baseline(name, Policy())
