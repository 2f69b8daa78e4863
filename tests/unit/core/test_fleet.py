"""When a replica's book is new, what stays, and how scrapes reach the right one."""

from proxy.core.fleet import REBUILD_COMPLETIONS, REBUILD_S, REBUILD_S_MIN, Fleet
from proxy.core.replica import ReplicaPhase
from tests.support.builders import demand, engine_sample, lease_of, policy, scrape, spec


def fleet() -> Fleet:
    one = Fleet(policy(), 0.0)
    assert not one.found(spec("a"), 0.0)
    return one


def test_the_same_facts_keep_the_book() -> None:
    one = fleet()
    before = one.books["a"]
    one.changed("a", ReplicaPhase.UNREACHABLE)
    assert not one.found(spec("a"), 1.0)
    assert one.books["a"] is before
    assert before.phase is ReplicaPhase.SERVING


def test_other_facts_make_it_another_replica_with_its_margin() -> None:
    one = fleet()
    before = one.books["a"]
    before.feedback.preempted(1, 0.0)
    assert one.found(spec("a", usable=50), 1.0)
    after = one.books["a"]
    assert after is not before
    assert (after.spec.usable_blocks, after.feedback.z, len(after.ledger.leases)) == (50, before.feedback.z, 0)
    assert one.epochs_total == 1


def test_replicas_nobody_knows_are_passed_over() -> None:
    one = fleet()
    one.changed("nobody", ReplicaPhase.DRAINING)
    assert not one.observed(scrape("nobody", 1.0, engine_sample(), new_epoch=True), 1.0)
    assert one.epochs_total == 0


def test_a_new_epoch_is_told_once_and_empties_the_book() -> None:
    one = fleet()
    lease_of(demand(), one.books["a"])
    assert one.observed(scrape("a", 1.0, engine_sample(), new_epoch=True), 1.0)
    assert not one.books["a"].ledger.leases
    assert not one.observed(scrape("a", 2.0, engine_sample()), 2.0)
    assert one.epochs_total == 1


def test_preemptions_of_all_replicas_add_up() -> None:
    one = fleet()
    one.found(spec("b"), 0.0)
    for name in "ab":
        one.observed(scrape(name, 1.0, engine_sample(preemptions=5.0)), 1.0)
        one.observed(scrape(name, 2.0, engine_sample(preemptions=7.0)), 2.0)
    assert one.preemptions_total == 4


def test_who_could_take_a_request_some_time() -> None:
    one = fleet()
    one.found(spec("b", models=("other",)), 0.0)
    one.found(spec("c", usable=2), 0.0)
    assert one.could_take(demand(), set())
    assert not one.could_take(demand(), {"a"})
    assert not one.could_take(demand(prompt=5000), set())
    one.changed("a", ReplicaPhase.DRAINING)
    assert not one.could_take(demand(), set())
    assert one.could_take(demand(prompt=20), set())
    one.changed("a", ReplicaPhase.STALLED)
    assert one.could_take(demand(), set())
    one.changed("a", ReplicaPhase.UNREACHABLE)
    assert not one.could_take(demand(), set())


def test_replicas_of_a_model() -> None:
    one = fleet()
    one.found(spec("b", models=("n", "m")), 0.0)
    assert [book.spec.name for book in one.of_model("m")] == ["a", "b"]
    assert [book.spec.name for book in one.of_model("n")] == ["b"]
    assert one.of_model("x") == []


def test_running_requests_enter_the_estimate_now_and_then() -> None:
    one = fleet()
    version = one.model.version
    one.rebuild_when_due(REBUILD_S * 0.9)
    assert one.model.version == version
    one.rebuild_when_due(REBUILD_S)
    assert one.model.version == version + 1
    for _ in range(REBUILD_COMPLETIONS):
        one.model.learn(demand(), 10.0, natural=True)
    one.rebuild_when_due(REBUILD_S + REBUILD_S_MIN * 0.9)
    assert one.model.version == version + 1
    one.rebuild_when_due(REBUILD_S + REBUILD_S_MIN * 1.1)
    assert one.model.version == version + 2


def test_refreshing_is_spread_over_ticks_and_forced_only_when_no_tick_came() -> None:
    one = Fleet(policy(), 0.0)
    for index in range(16):
        one.found(spec(f"r{index}"), 0.0)
        lease_of(demand(f"q{index}"), one.books[f"r{index}"])
    due_s = one.refresh_due_s_next()
    assert 0.0 < due_s < 1.0
    one.refresh_due(due_s)
    refreshed = [book for book in one if book.refresh_due_s() > due_s]
    assert 0 < len(refreshed) < 16
    assert one.refresh_due_s_next() < due_s + 0.1
    before = [book.refresh_due_s() for book in one]
    one.fresh(due_s + 0.1)
    assert [book.refresh_due_s() for book in one] == before
    one.fresh(due_s + 10.0)
    assert all(book.refresh_due_s() > due_s + 10.0 for book in one)
