"""A book among other proxies': what others have counts in every limit, what is told of ours, and who draws conclusions from the engine."""

from dataclasses import replace

import numpy as np
import pytest

from proxy.core.bank import Bank
from proxy.core.book import Book
from proxy.core.replica import ReplicaPhase
from proxy.core.saturation import Binding
from proxy.core.shared import LOAD_FIELDS, Load, Others, Record, curves_of, load_of, row_of, shifted
from proxy.core.shared_book import SharedBook
from proxy.core.survival import SurvivalModel
from tests.support.builders import book, demand, engine_sample, knows_lengths, lease_of, scrape

PROMPT, CAP = 385, 15  # 25 blocks from its first to its last token
MODEL = knows_lengths(SurvivalModel(), demand(prompt=PROMPT, cap=CAP))


def quarters(count: int, *, seats: int | None = None) -> Book:
    """A replica of 100 blocks with so many requests of 25."""
    here = book(MODEL) if seats is None else book(MODEL, sequences_max=seats)
    here.observe(scrape("r0", 0.0, engine_sample()), 0.0)
    for index in range(count):
        lease_of(demand(f"q{index}", prompt=PROMPT, cap=CAP), here).placed = True
    return here


def others_of(there: Book, now_s: float = 0.0) -> Others:
    """What the proxy with this book tells, if the shared clock is its own."""
    row = SharedBook(there).row(now_s)
    assert row is not None
    return Others(there.spec.name, row, there.steps_now(now_s))


def test_a_row_tells_nothing_of_what_the_store_has_not_answered() -> None:
    here, settled = quarters(3), quarters(2)
    *_, asked = here.ledger.leases.values()
    asked.store_number, asked.placed = 7, False
    shared = SharedBook(here)
    whole, row, expected = others_of(here).row, shared.row(0.0, 6), others_of(settled).row
    assert row is not None
    assert load_of(whole).leases == 3.0
    assert load_of(row)[:2] == load_of(expected)[:2] == (2.0, 2.0)
    assert np.allclose(curves_of(row), curves_of(expected))
    assert load_of(row).high_blocks == pytest.approx(load_of(whole).high_blocks - here.prompt_blocks(asked.demand))
    for lease in here.ledger.leases.values():
        lease.store_number = 7
    assert shared.row(0.0, 6) is None


def test_what_may_be_shared_with_it_counts_whole_meanwhile() -> None:
    here = book(MODEL)
    for name in ("a", "b"):
        lease_of(demand(name, prompt=PROMPT, cap=CAP, hashes=tuple(range(24))), here)
    *_, asked = here.ledger.leases.values()
    asked.store_number = 7
    row = SharedBook(here).row(0.0, 6)
    alone = book(MODEL)
    lease_of(demand("a", prompt=PROMPT, cap=CAP, hashes=tuple(range(24))), alone)
    assert row is not None
    assert np.allclose(curves_of(row)[2], curves_of(others_of(alone).row)[2]), "not less by the blocks that both have"


def fits(here: Book, *, prompt: int = PROMPT, cap: int = CAP) -> Binding:
    return here.verdict(demand("new", prompt=prompt, cap=cap), 0.0).binding


@pytest.mark.parametrize(("theirs", "ours"), [(0, 3), (1, 2), (3, 0), (4, 0), (2, 2)])
def test_what_others_have_takes_room_like_ours(theirs: int, ours: int) -> None:
    here = quarters(ours)
    if theirs:
        SharedBook(here).told(others_of(quarters(theirs)), 0.0, 0.0)
    expected = Binding.NONE if theirs + ours < 4 else Binding.KV
    assert fits(here) is expected
    assert (Bank([here]).verdict(demand(prompt=PROMPT, cap=CAP), 0.0, {}).headroom_ratio >= 0.0) == [expected is Binding.NONE]


def test_a_replica_is_empty_only_where_nobody_has_anything() -> None:
    here, large = quarters(0), demand("large", prompt=1590, cap=400)
    assert here.verdict(large, 0.0).fits, "an empty replica takes anything"
    SharedBook(here).told(others_of(quarters(1)), 0.0, 0.0)
    assert here.verdict(large, 0.0).binding is Binding.KV
    nothing = row_of(Load(), np.zeros((4, len(here.grid))))
    SharedBook(here).told(Others("r0", nothing, 0.0), 0.0, 0.0)
    assert here.verdict(large, 0.0).fits


def test_sequences_of_others_take_seats_and_their_prompts_prefill() -> None:
    here = quarters(0, seats=2)
    SharedBook(here).told(others_of(quarters(2)), 0.0, 0.0)
    assert fits(here, prompt=16, cap=1) is Binding.SEATS
    there = quarters(0)
    lease_of(demand("sent", prompt=PROMPT, cap=CAP), there)
    here = quarters(0)
    SharedBook(here).told(others_of(there), 0.0, 0.0)
    assert here.saturation.backlog_tokens(0.0) == PROMPT
    assert here.saturation.own_backlog_tokens(0.0) == 0.0


def test_others_are_read_where_the_ledgers_own_anchor_is() -> None:
    here, there = quarters(1), book(MODEL)
    lease_of(demand("long", prompt=100, cap=300), there)
    others = others_of(there)
    SharedBook(here).told(others, 0.0, 0.0)
    here.refresh(2.0)  # 40 steps on
    assert here.ledger.anchor_steps == pytest.approx(40.0)
    expected = curves_of(shifted(others.row, 40.0, here.grid))
    assert np.allclose(here.ledger.totals - here.ledger.own(), expected)
    assert expected[0, 0] > curves_of(others.row)[0, 0], "it has grown"


def test_the_shared_clock_is_turned_into_our_own_when_told() -> None:
    here = quarters(1)
    here.refresh(5.0)  # our clock stands at 100, the shared one at 1,000: what is told is 30 steps old
    there = book(MODEL)
    lease_of(demand("long", prompt=100, cap=300), there)
    row = others_of(there).row
    SharedBook(here).told(Others("r0", row, 970.0), 1000.0, 5.0)
    assert np.allclose(here.ledger.totals - here.ledger.own(), curves_of(shifted(row, 30.0, here.grid)))


def test_a_row_says_what_is_held_and_how_it_grows() -> None:
    here = book(MODEL)
    lease = lease_of(demand("a", prompt=100, cap=300), here, streaming=False)
    lease.placed, lease.placed_s = True, 0.0
    lease_of(demand("b", prompt=160, cap=300), here)
    shared = SharedBook(here)
    changed = [shared.row_changed]
    row = shared.row(0.9)
    assert row is not None
    load = load_of(row)
    assert (load.leases, load.sequences) == (2.0, 2.0)
    assert 7.0 <= load.low_blocks <= 9.0
    assert load.low_blocks + 10.0 <= load.high_blocks <= load.low_blocks + 12.0
    assert load.growth_blocks_per_step == pytest.approx(2.0 / 16.0, abs=0.07)
    changed.append(shared.row_changed)
    assert len(row) == LOAD_FIELDS + 4 * len(here.grid)
    here.remove("b", 1.0)
    assert [*changed, shared.row_changed] == [True, False, True]
    here.remove("a", 1.0)
    assert shared.row(1.0) is None


def test_runs_of_blocks_shared_inside_this_proxy_count_once_in_its_row() -> None:
    here, hashes = book(MODEL), tuple(range(1, 25))
    for name in ("a", "b"):
        lease_of(demand(name, prompt=PROMPT, cap=CAP, hashes=hashes), here).placed = True
    row = SharedBook(here).row(0.0)
    assert row is not None
    assert curves_of(row)[0, 0] == pytest.approx(26.0)


def told_record(here: Book) -> Record:
    return SharedBook(here).record_now("p1", 0.0, 1000.0)


def test_followers_take_the_holders_margin_bias_and_sight_of_the_engine() -> None:
    holder = quarters(0)
    for at_s in (0.0, 0.5, 1.0):
        holder.observe(scrape("r0", at_s, engine_sample(usage=0.3, running=2, waiting=1)), at_s)
    holder.feedback.z_min, holder.feedback.z_max = 0.0, 4.0
    holder.feedback.preempted(3, 1.0)
    record = SharedBook(holder).record_now("p1", 1.0, 500.0)
    follower = quarters(0)
    follower.feedback.z_min, follower.feedback.z_max = 0.0, 4.0
    assert not SharedBook(follower).adopt(record, 77.0, 500.0)
    assert follower.risk(77.0) == holder.risk(1.0)
    assert holder.risk(1.0).bias_blocks > 25.0
    assert (follower.measured_blocks, follower.running, follower.waiting) == (30.0, 2, 1)
    assert follower.feedback.burst_until_s == pytest.approx(78.0)
    assert follower.sample_age_s(77.0) == pytest.approx(0.0)


def test_a_follower_does_not_move_the_margin_and_goes_on_from_it_when_it_holds() -> None:
    here = book(MODEL)
    here.feedback.z_min, here.feedback.z_max = 0.0, 4.0
    shared = SharedBook(here)
    shared.adopt(replace(told_record(quarters(0)), z=3.3, bias_blocks=7.0, sigma_blocks=2.0), 0.0, 1000.0)
    for _ in range(500):
        here.feedback.completed(100.0, 100.0, kv_limited=True)
    assert here.feedback.z == 3.3
    shared.scraped(0.5, 1000.5, new_epoch=False)
    here.observe(scrape("r0", 0.5, engine_sample(usage=0.07)), 0.5)
    assert here.feedback.z == pytest.approx(3.3)
    assert here.reconciler.bias_blocks == pytest.approx(7.0)
    before = here.feedback.delta
    here.observe(scrape("r0", 1.0, engine_sample(usage=0.07, preemptions=1.0, running=1)), 1.0)
    lease_of(demand("a"), here)
    here.observe(scrape("r0", 1.5, engine_sample(usage=0.07, preemptions=2.0, running=1)), 1.5)
    assert here.feedback.delta > before + 0.05


def test_four_proxies_react_to_one_counter_as_one() -> None:
    """The holder's margin moves by one cluster, and everybody's is the holder's."""
    books = [quarters(1) for _ in range(4)]
    for one in books:
        one.feedback.z_min, one.feedback.z_max = 0.0, 4.0
    alone = quarters(1)
    alone.feedback.z_min, alone.feedback.z_max = 0.0, 4.0
    shared = [SharedBook(one) for one in books]
    for step in range(10):
        at_s = 0.5 * step
        sample = scrape("r0", at_s, engine_sample(usage=0.25, running=1, preemptions=float(step)))
        alone.observe(sample, at_s)
        shared[0].scraped(at_s, at_s, new_epoch=False)
        books[0].observe(sample, at_s)
        record = shared[0].record_now("p0", at_s, at_s)
        for follower in shared[1:]:
            follower.adopt(record, at_s, at_s)
    assert alone.feedback.delta > 0.1
    assert [one.feedback.z for one in books] == [pytest.approx(alone.feedback.z)] * 4


def test_what_others_hold_is_no_traffic_that_bypasses_us() -> None:
    here = quarters(1)
    SharedBook(here).told(others_of(quarters(2)), 0.0, 0.0)
    here.refresh(1.0)
    here.observe(scrape("r0", 1.0, engine_sample(usage=0.75, running=3)), 1.0)
    assert here.reconciler.bias_blocks == 0.0
    assert not here.foreign
    here.observe(scrape("r0", 1.5, engine_sample(usage=0.95, running=4)), 1.5)
    assert here.reconciler.bias_blocks > 10.0


def test_a_new_engine_makes_a_followers_leases_void() -> None:
    here = quarters(2)
    shared = SharedBook(here)
    assert not shared.adopt(told_record(quarters(0)), 0.0, 1000.0), "the first that is heard of it"
    assert here.ledger.leases
    assert shared.adopt(replace(told_record(quarters(0)), engine_epoch=1, number=2), 0.5, 1000.5)
    assert not here.ledger.leases


def test_who_began_without_knowing_of_a_record_keeps_its_leases_when_it_hears_of_it() -> None:
    here = quarters(2)
    shared = SharedBook(here)
    shared.record_now("late", 0.0, 1000.0)  # not taken: another holds the replica
    assert not shared.adopt(replace(told_record(quarters(0)), engine_epoch=3), 0.1, 1000.1)
    assert len(here.ledger.leases) == 2


def test_what_another_cannot_reach_is_not_out_of_reach_here() -> None:
    here = quarters(0)
    shared = SharedBook(here)
    for at_s, phase in enumerate((ReplicaPhase.SERVING, ReplicaPhase.UNREACHABLE, ReplicaPhase.PROBING)):
        shared.adopt(replace(told_record(quarters(0)), phase=phase), float(at_s), 1000.0 + at_s)
        assert here.phase is ReplicaPhase.SERVING
    here.phase = ReplicaPhase.UNREACHABLE  # seen here
    shared.adopt(told_record(quarters(0)), 4.0, 1004.0)
    assert here.phase is ReplicaPhase.UNREACHABLE


def test_the_shared_clock_goes_on_where_the_last_holder_left_it() -> None:
    first = quarters(1)
    first.refresh(10.0)
    record = SharedBook(first).record_now("p0", 10.0, 500.0)
    assert record.steps == pytest.approx(200.0)
    second = quarters(1)
    second.refresh(1.0)  # it has seen 20 steps
    shared = SharedBook(second)
    shared.adopt(record, 1.0, 500.0)
    own = second.clock.steps
    shared.scraped(2.0, 501.0, new_epoch=False)
    taken = shared.record_now("p1", 2.0, 501.0)
    assert taken.steps == pytest.approx(record.steps_at(501.0))
    assert (taken.number, taken.holder, taken.engine_epoch) == (record.number + 1, "p1", record.engine_epoch)
    assert second.clock.steps == own, "leases' own progress does not jump"
    later = shared.record_now("p1", 2.0, 501.5)  # our own clock says that nothing was done meanwhile
    assert later.steps >= taken.steps_at(501.5)


@pytest.mark.parametrize("proxies", [1, 2, 4])
def test_apart_a_proxy_fills_its_share_and_no_more(proxies: int) -> None:
    here = quarters(1)
    here.refresh(1.0)
    here.observe(scrape("r0", 1.0, engine_sample(usage=0.45, running=2)), 1.0)
    here.reconciler.follow(0.0, 0.0)
    shared = SharedBook(here)
    shared.keep_to_share(proxies, 1.0)
    free = 55.0 / proxies
    assert shared.share_blocks(proxies, 1.0) == pytest.approx(25.0 + free)
    taken = 0
    while here.verdict(demand(f"n{taken}", prompt=65, cap=15), 1.0).fits:  # of 5 blocks
        lease_of(demand(f"n{taken}", prompt=65, cap=15), here, now_s=1.0)
        taken += 1
    assert taken == free // 5
    here.observe(scrape("r0", 1.5, engine_sample(usage=0.45, running=2)), 1.5)
    assert here.reconciler.bias_blocks == 0.0, "what others send meanwhile is theirs"


def test_apart_what_bypasses_us_is_taken_off_once() -> None:
    here = quarters(0)
    for at_s in (0.0, 0.5, 1.0):
        here.observe(scrape("r0", at_s, engine_sample(usage=0.5, running=2)), at_s)
    assert here.reconciler.bias_blocks > 45.0
    here.reconciler.follow(here.reconciler.bias_blocks, 0.0)
    SharedBook(here).keep_to_share(1, 1.0)
    assert here.verdict(demand(prompt=PROMPT, cap=CAP), 1.0).fits
