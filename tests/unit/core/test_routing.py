"""Scores among the replicas where a request fits."""

import pytest

from proxy.core.routing import LOAD_BOUND, Standing, key_of, pick, two_of, within_bound


def standing(
    name: str, *, sequences: float = 0.0, pending: float = 0.0, uncached: float = 1000.0, load: float = 0.0, **more: float
) -> Standing:
    return Standing(
        name, sequences, more.pop("share", 0.25), pending, uncached, load_tokens=load, **{"slack_tokens": 10_000.0} | more
    )


def four(**first: float) -> list[Standing]:
    """Replica ``a`` as told, three others idle and cold."""
    return [standing("a", **first), *(standing(name) for name in "bcd")]


def test_the_warm_replica_wins_while_it_is_not_busier_than_its_warmth_is_worth() -> None:
    assert pick(four(uncached=300.0, sequences=2.0), 0.0, None).replica == "a"
    assert pick(four(uncached=400.0, sequences=2.0), 0.0, None).replica != "a", "three wait for 400 tokens"
    assert pick(four(uncached=100.0, pending=2000.0), 0.0, None).replica != "a", "long prefill before it"


def test_an_idle_cold_replica_is_not_free() -> None:
    """The published product scores it 0 and would leave every cache for it."""
    assert pick(four(uncached=50.0, sequences=1.0), 0.0, None).replica == "a"


def test_an_overloaded_warm_replica_is_left() -> None:
    warm = standing("a", uncached=10.0, load=90_000.0)
    others = [standing(name, load=20_000.0, uncached=5_000.0) for name in "bcd"]
    assert warm.score < min(one.score for one in others)
    assert pick([warm, *others], 150_000.0, None).replica != "a"


def test_a_long_conversation_on_an_idle_fleet_stays() -> None:
    """It is all the load there is; moved, it would be as much elsewhere and its cache lost."""
    warm = standing("a", uncached=1_000.0, load=50_000.0)
    assert pick([warm, *(standing(name, uncached=51_500.0) for name in "bcd")], 50_000.0, None).replica == "a"


@pytest.mark.parametrize(("total", "slack"), [(0.0, 0.0), (40_000.0, 0.0), (40_000.0, 5_000.0)])
def test_the_bound_is_a_fair_share_and_a_quarter_and_some_slack(total: float, slack: float) -> None:
    edge = LOAD_BOUND * (total + 100.0) * 0.25 + slack - 100.0
    idle = standing("idle", uncached=100.0 if total else 0.0)
    at = standing("at", uncached=100.0, load=edge, slack_tokens=slack)
    over = standing("over", uncached=100.0, load=edge + 1.0, slack_tokens=slack)
    assert within_bound([at, over, idle], total) == [at, idle]


def test_where_all_are_over_the_bound_the_least_loaded_takes_it() -> None:
    ones = [standing("a", load=90_000.0), standing("b", load=80_000.0)]
    assert within_bound(ones, 100.0) == [ones[1]]


def test_a_larger_replica_may_have_more() -> None:
    big, small = standing("big", load=20_000.0, share=0.8), standing("small", load=20_000.0, share=0.2)
    assert within_bound([big, small], 40_000.0) == [big]


def test_equal_scores_go_to_most_headroom_then_to_the_least_filled_cache() -> None:
    ones = [standing("a", headroom_ratio=0.4), standing("b", headroom_ratio=0.5), standing("c", headroom_ratio=0.5, turnover=1.0)]
    assert pick(ones, 0.0, None).replica == "b"
    assert pick(ones[::-1], 0.0, None).replica == "b"


def test_one_key_means_the_same_two_for_everybody_and_other_keys_other_ones() -> None:
    ones = [standing(f"r{index}") for index in range(8)]
    twos = {frozenset(one.replica for one in two_of(ones, key)) for key in range(200)}
    assert len(twos) == 28, "all pairs of eight"
    assert two_of(ones, 7) == two_of(ones[::-1], 7)
    firsts = [two_of(ones, key)[0].replica for key in range(8000)]
    assert max(firsts.count(one.replica) for one in ones) < 1.15 * 1000


def test_a_replica_that_leaves_moves_only_its_own_keys() -> None:
    ones = [standing(f"r{index}") for index in range(8)]
    for key in range(200):
        before = {one.replica for one in two_of(ones, key)}
        if "r3" not in before:
            assert {one.replica for one in two_of([one for one in ones if one.replica != "r3"], key)} == before


def test_of_the_two_the_less_loaded_takes_it_and_a_warm_one_goes_before_both() -> None:
    ones = [standing(f"r{index}", sequences=3.0, share=1 / 8) for index in range(8)]
    first, second = two_of(ones, 99)
    ones[ones.index(second)] = standing(second.replica, sequences=2.0, share=1 / 8)
    assert pick(ones, 0.0, 99).replica == second.replica
    outside = next(one for one in ones if one.replica not in {first.replica, second.replica})
    ones[ones.index(outside)] = standing(outside.replica, sequences=3.0, uncached=10.0, share=1 / 8)
    assert pick(ones, 0.0, 99).replica == outside.replica


def test_names_have_the_same_key_in_every_process() -> None:
    assert key_of("session") == 0xB5A5888DA19FF824
    assert len({key_of(f"s{index}") for index in range(100)}) == 100


def test_the_wait_for_room_counts_like_prefill() -> None:
    warm = standing("a", uncached=100.0, wait_tokens=800.0)
    assert pick([warm, standing("b"), standing("c")], 0.0, None).replica == "a"
    later = standing("a", uncached=100.0, wait_tokens=901.0)
    assert pick([later, standing("b"), standing("c")], 0.0, None).replica == "b"
