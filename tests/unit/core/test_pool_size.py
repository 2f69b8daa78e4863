"""How many replicas a pool wants: nothing counted twice, whoever tells of it, and no limit left out that is known."""

import pytest

from proxy.core.book import Book
from proxy.core.pool_size import PoolDemand, PoolSizes
from proxy.core.queue_census import Wanted
from proxy.core.shared import LOAD_FIELDS, Load, row_of
from tests.support.builders import book, demand, engine_sample, knows_lengths, lease_of, scrape


def pools_of(*books: Book, queued: dict[str, Wanted] | None = None, foreign: bool = True) -> dict[str, PoolDemand]:
    """What one proxy tells of these replicas."""
    sizes = PoolSizes(0.0, lambda _: foreign)
    for one in books:
        sizes.add(one, one.outlook(0.0).margin_blocks)
    sizes.queued(queued or {})
    return {pool.pool: pool for pool in sizes.demands()}


def full_length(name: str = "r0", leases: int = 0, **replica: int) -> Book:
    """A replica with so many requests of ten blocks at their end, as is known for certain."""
    here = book(usable=100, name=name, **replica)  # type: ignore[arg-type]
    ask = demand("q", prompt=80, cap=80)
    knows_lengths(here.ledger.model, ask)
    for index in range(leases):
        lease_of(demand(f"{name}.{index}", prompt=80, cap=80), here)
    here.told(engine_sample(), 0.0, 0.0)  # measured just now, so that nothing is kept free for what is not known
    return here


def test_an_idle_pool_wants_nothing() -> None:
    pool = pools_of(full_length("a"), full_length("b"))["m"]
    assert (pool.replicas_wanted, pool.budget_blocks, pool.servers) == (0.0, 100.0, {"a", "b"})


def test_running_and_queued_over_the_budget_of_one_replica() -> None:
    pool = pools_of(full_length("a", 5), full_length("b", 2), queued={"m": Wanted(130.0, 13)})["m"]
    assert pool.running_blocks == pytest.approx(70.0, rel=0.02)
    assert pool.replicas_wanted == pytest.approx((pool.running_blocks + 130.0) / pool.budget_blocks)
    assert pool.replicas_wanted == pytest.approx(2.0, rel=0.1)


def test_seats_count_where_they_are_the_tighter_limit() -> None:
    few = pools_of(full_length("a", 4, sequences_max=4), full_length("b", 0, sequences_max=4), queued={"m": Wanted(1.0, 8)})["m"]
    assert few.replicas_wanted == pytest.approx(12 / 4)
    unknown = pools_of(full_length("a", 4, sequences_max=4), full_length("b"), queued={"m": Wanted(1.0, 8)})["m"]
    assert unknown.replicas_wanted < 1.0


def test_the_shares_of_two_proxies_add_up_to_what_one_would_tell() -> None:
    alone = pools_of(full_length("a", 6))["m"]
    shares = []
    for ours, others, holds in ((4, 2, True), (2, 4, False)):
        here = full_length("a", ours)
        there = full_length("a", others)
        curves = there.ledger.own()
        here.ledger.told(row_of(Load(leases=others, sequences=others), curves), 0.0)
        assert here.ledger.peers is not None
        assert len(row_of(Load(), curves)) == LOAD_FIELDS + curves.size
        here.reconciler.follow(8.0, 0.0)
        shares.append(pools_of(here, foreign=holds)["m"])
    assert sum(share.running_blocks for share in shares) == pytest.approx(alone.running_blocks, rel=0.02)
    assert [share.foreign_blocks for share in shares] == [8.0, 0.0]
    assert sum(share.replicas_wanted for share in shares) == pytest.approx((alone.running_blocks + 8.0) / 100.0, rel=0.05)


def test_what_bypasses_kvgate_counts_when_it_holds_nothing_itself() -> None:
    here = full_length("a")
    here.observe(scrape("a", 0.0, engine_sample(usage=0.6, running=5)), 0.0)
    pool = pools_of(here)["m"]
    assert (pool.running_blocks, pool.foreign_blocks) == (0.0, 60.0)
    assert pool.replicas_wanted == 60.0 / pool.budget_blocks


def test_pools_are_apart_by_the_first_model_and_queued_aliases_find_theirs() -> None:
    both = full_length("a", models=("m", "m-lora"))  # type: ignore[arg-type]
    other = full_length("b", models=("n",))  # type: ignore[arg-type]
    gone = full_length("c", models=())  # type: ignore[arg-type]
    pools = pools_of(both, other, gone, queued={"m-lora": Wanted(50.0, 1), "unheard-of": Wanted(50.0, 1)})
    assert {name: pool.replicas_wanted for name, pool in pools.items()} == {"m": 0.5, "n": 0.0}


def test_engines_of_one_server_are_one_replica() -> None:
    engines = [full_length(f"a/{rank}", 5, server="a") for rank in range(2)]  # type: ignore[arg-type]
    pool = pools_of(*engines)["m"]
    assert pool.servers == {"a"}
    assert pool.budget_blocks == pytest.approx(200.0, rel=0.02)
    assert pool.replicas_wanted == pytest.approx(0.5, rel=0.05)
