"""Scores among the replicas where a request fits."""

import pytest

from proxy.core.routing import LOAD_BOUND, LOAD_SLACK, Standing, key_of, pick, two_of, within_bound


def standing(name: str, *, sequences: float = 0.0, pending: float = 0.0, uncached: float = 1000.0, **more: float) -> Standing:
    return Standing(name, sequences, more.pop("share", 0.25), pending, uncached, **more)


def four(**first: float) -> list[Standing]:
    """Replica ``a`` as told, three others idle and cold."""
    return [standing("a", **first), *(standing(name) for name in "bcd")]


def test_the_warm_replica_wins_while_it_is_not_busier_than_its_warmth_is_worth() -> None:
    assert pick(four(uncached=300.0, sequences=2.0), 8.0, None).replica == "a"
    assert pick(four(uncached=400.0, sequences=2.0), 8.0, None).replica != "a", "three wait for 400 tokens"
    assert pick(four(uncached=100.0, pending=2000.0), 0.0, None).replica != "a", "long prefill before it"


def test_an_idle_cold_replica_is_not_free() -> None:
    """The published product scores it 0 and would leave every cache for it."""
    assert pick(four(uncached=50.0, sequences=1.0), 1.0, None).replica == "a"


def test_an_overloaded_warm_replica_is_left() -> None:
    warm = standing("a", uncached=1.0, sequences=12.0)
    others = [standing(name, sequences=2.0, uncached=50_000.0) for name in "bcd"]
    assert warm.score < min(one.score for one in others)
    assert pick([warm, *others], 18.0, None).replica != "a"


@pytest.mark.parametrize("total", [0.0, 3.0, 40.0])
def test_the_bound_is_a_fair_share_and_a_quarter_and_a_little_slack(total: float) -> None:
    edge = LOAD_SLACK + LOAD_BOUND * (total + 1.0) * 0.25 - 1.0
    at, over = standing("at", sequences=edge), standing("over", sequences=edge + 0.01)
    assert within_bound([at, over], total) == [at]


def test_where_all_are_over_the_bound_the_one_nearest_to_it_takes_it() -> None:
    ones = [standing("a", sequences=50.0), standing("b", sequences=49.0)]
    assert within_bound(ones, 10.0) == [ones[1]]


def test_a_larger_replica_may_hold_more() -> None:
    big, small = standing("big", sequences=20.0, share=0.8), standing("small", sequences=20.0, share=0.2)
    assert within_bound([big, small], 40.0) == [big]


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
    assert pick(ones, 23.0, 99).replica == second.replica
    outside = next(one for one in ones if one.replica not in {first.replica, second.replica})
    ones[ones.index(outside)] = standing(outside.replica, sequences=3.0, uncached=10.0, share=1 / 8)
    assert pick(ones, 23.0, 99).replica == outside.replica


def test_names_have_the_same_key_in_every_process() -> None:
    assert key_of("session") == 0xB5A5888DA19FF824
    assert len({key_of(f"s{index}") for index in range(100)}) == 100


def test_the_wait_for_room_counts_like_prefill() -> None:
    warm = standing("a", uncached=100.0, wait_tokens=800.0)
    assert pick([warm, standing("b"), standing("c")], 0.0, None).replica == "a"
    later = standing("a", uncached=100.0, wait_tokens=901.0)
    assert pick([later, standing("b"), standing("c")], 0.0, None).replica == "b"
