"""The shared store by examples: what is granted, refused, fenced, settled, passed on, dropped and recovered."""

from dataclasses import replace
from math import inf

import numpy as np
import pytest

from proxy.core.shared import Answer, Rank, ReserveReply, RewriteReply, curves_of, load_of
from proxy.core.shared_heads import OFFER_S
from proxy.core.shared_ledger import RECOVERY_S_MAX, SharedLedger
from tests.support.shared_rows import ENDS, RANK, ask, blocks_row, head, record, rewriting

BETTER = Rank(-1.0, 0.0, 0.0)
PROXIES = ("p0", "p1", "p2")


class Fleet:
    """A ledger that has recovered, with three proxies whose numbers it keeps. ``r0`` has 100 blocks."""

    def __init__(self, lease_s: float = 2.0, **fields: object) -> None:
        self.ledger = SharedLedger(lease_s)
        self.epochs = {proxy: self.ledger.register(proxy, 0.0) for proxy in PROXIES}
        self.numbers = dict.fromkeys(PROXIES, 0)
        assert self.ledger.publish(record(**fields), ENDS, 1.0, 0.0)
        for proxy in PROXIES:
            self.rewrite(proxy, known=3)

    def reserve(self, proxy: str, blocks: float, now_s: float = 0.0, **fields: object) -> ReserveReply:
        self.numbers[proxy] += 1
        fields = {"number": self.numbers[proxy], "proxy": proxy, "epoch": self.epochs[proxy], "anchor": 30.0 * now_s} | fields
        return self.ledger.reserve(ask(blocks=blocks, **fields), now_s)  # type: ignore[arg-type]

    def rewrite(self, proxy: str, now_s: float = 0.0, **fields: object) -> RewriteReply:
        fields = {"proxy": proxy, "epoch": self.epochs[proxy], "anchor": 30.0 * now_s} | fields
        return self.ledger.rewrite(rewriting(**fields), now_s)  # type: ignore[arg-type]

    def held(self) -> float:
        return float(self.ledger.accounts["r0"].total[2])


def test_what_all_proxies_have_must_fit_together() -> None:
    fleet = Fleet()
    assert fleet.reserve("p0", 60).answer is Answer.GRANTED
    assert fleet.reserve("p1", 40).answer is Answer.GRANTED
    refused = fleet.reserve("p2", 1)
    assert refused.answer is Answer.ROOM
    assert refused.free_blocks == pytest.approx(0.0)
    assert refused.others is not None
    assert load_of(refused.others.row).leases == 2.0
    assert curves_of(refused.others.row)[0].max() == pytest.approx(100.0)


def test_an_empty_replica_takes_anything_unless_something_else_fills_it() -> None:
    assert Fleet().reserve("p0", 1000).answer is Answer.GRANTED
    assert Fleet(bias_blocks=1.0).reserve("p0", 1000).answer is Answer.ROOM


def test_margin_spread_and_bias_are_those_of_the_record() -> None:
    row = blocks_row(100.0, alive=0.5)  # mean 50, deviation 50 and common error 5
    assert Fleet(z=0.9).reserve("p0", 0, row=row).answer is Answer.GRANTED  # empty
    for z, fits in ((0.95, True), (0.96, False)):  # 50 + z * 50.34 + 2
        fleet = Fleet(z=z, sigma_blocks=3.0, bias_blocks=2.0)
        assert (fleet.reserve("p0", 0, row=row).answer is Answer.GRANTED) is fits


def test_seats_are_counted_over_all_proxies() -> None:
    fleet = Fleet(sequences_max=3)
    assert fleet.reserve("p0", 1, row=blocks_row(1, sequences=2)).answer is Answer.GRANTED
    assert fleet.reserve("p1", 1, row=blocks_row(1, sequences=2)).answer is Answer.SEATS
    assert fleet.reserve("p1", 1).answer is Answer.GRANTED


def test_a_rewrite_keeps_grants_it_does_not_know_of_and_settles_those_it_does() -> None:
    fleet = Fleet()
    fleet.reserve("p0", 10)
    fleet.reserve("p0", 20)
    fleet.rewrite("p0", row=blocks_row(7), upto=1)
    assert fleet.held() == pytest.approx(27.0)
    fleet.rewrite("p0", row=blocks_row(25), upto=2)
    assert fleet.held() == pytest.approx(25.0)
    assert fleet.rewrite("p0", row=blocks_row(99), upto=1).answer is Answer.STALE
    assert fleet.held() == pytest.approx(25.0)


def test_a_reservation_that_comes_after_the_rewrite_that_answers_for_it_is_not_committed() -> None:
    fleet = Fleet()
    fleet.rewrite("p0", upto=5)
    late = fleet.reserve("p0", 10, number=5)
    assert late.answer is Answer.STALE
    assert fleet.held() == 0.0
    assert fleet.reserve("p0", 10, number=6).answer is Answer.GRANTED
    assert fleet.reserve("p0", 10, number=6).answer is Answer.STALE  # sent twice


def test_others_are_everybody_but_oneself() -> None:
    fleet = Fleet()
    fleet.rewrite("p0", row=blocks_row(10))
    fleet.reserve("p0", 5)
    fleet.rewrite("p1", row=blocks_row(30))
    reply = fleet.rewrite("p0", row=blocks_row(15), upto=1)
    assert reply.others is not None
    assert load_of(reply.others.row) == load_of(blocks_row(30))


def test_rows_are_read_in_steps_of_the_record() -> None:
    fleet = Fleet()
    fleet.rewrite("p0", row=blocks_row(100, until_steps=64))
    assert fleet.reserve("p1", 50, 0.4).answer is Answer.ROOM
    for proxy in PROXIES[:2]:  # the first rewrite of p1 makes the total anew at step 54, when p0's request is all but over
        fleet.rewrite(proxy, 1.8, row=blocks_row(100, until_steps=64) if proxy == "p0" else None, anchor=0.0, upto=9)
    total = curves_of(fleet.ledger.accounts["r0"].total)[0]
    assert ENDS.tolist() == [16.0, 32.0, 64.0, 128.0, 256.0], "step 54 lies in the third interval, 70 in the fourth"
    assert total.tolist() == [100.0, 0.0, 0.0, 0.0, 0.0]


def test_the_share_of_a_proxy_that_stopped_is_free_after_its_lease_and_it_must_register_anew() -> None:
    fleet = Fleet()
    fleet.rewrite("p0", row=blocks_row(100))
    assert fleet.reserve("p1", 10, 1.9).answer is Answer.ROOM
    assert fleet.reserve("p1", 100, 2.1).answer is Answer.GRANTED
    assert fleet.reserve("p0", 1, 2.2).answer is Answer.FENCED
    assert fleet.rewrite("p0", 2.2, row=blocks_row(100)).answer is Answer.FENCED
    old = fleet.epochs["p0"]
    fleet.epochs["p0"] = fleet.ledger.register("p0", 2.3)
    assert fleet.epochs["p0"] > old
    assert fleet.rewrite("p0", 2.3, row=blocks_row(5)).answer is Answer.GRANTED
    assert fleet.rewrite("p0", 2.3, row=blocks_row(5), epoch=old).answer is Answer.FENCED


def test_an_idle_proxy_is_not_fenced_for_its_silence() -> None:
    fleet = Fleet()
    assert fleet.reserve("p1", 100, 60.0).answer is Answer.GRANTED
    assert fleet.rewrite("p0", 60.0).answer is Answer.GRANTED


def test_a_better_head_that_fits_is_offered_the_room_and_passed_over_when_it_does_not_take_it() -> None:
    fleet = Fleet()
    fleet.rewrite("p0", row=blocks_row(50))
    fleet.ledger.set_heads("p1", "r0", [head("h", 40, rank=BETTER)], 0.0)
    first = fleet.reserve("p2", 10, 0.1)
    assert (first.answer, first.retry_s) == (Answer.HEAD, OFFER_S)
    assert fleet.ledger.take_offers("p1") == ["r0"]
    assert fleet.reserve("p2", 10, 0.14).answer is Answer.HEAD
    assert fleet.ledger.take_offers("p1") == []  # once
    assert fleet.reserve("p2", 10, 0.16).answer is Answer.GRANTED
    fleet.ledger.set_heads("p1", "r0", [head("h", 40, rank=BETTER)], 0.3)
    assert fleet.reserve("p2", 1, 0.3).answer is Answer.GRANTED  # still passed over
    fleet.ledger.set_heads("p1", "r0", [head("h", 10, rank=BETTER)], 1.2)
    assert fleet.reserve("p2", 1, 1.2).answer is Answer.HEAD


def test_a_head_holds_up_neither_its_own_proxy_nor_a_better_rank_nor_anybody_once_it_has_its_place() -> None:
    fleet = Fleet()
    fleet.rewrite("p0", row=blocks_row(50))
    fleet.ledger.set_heads("p1", "r0", [head("h", 10)], 0.0)
    assert fleet.reserve("p0", 1, rank=RANK).answer is Answer.GRANTED  # equal
    assert fleet.reserve("p0", 1, rank=BETTER).answer is Answer.GRANTED
    worse = Rank(0.0, 1.0, 11.0)
    assert fleet.reserve("p1", 1, rank=worse).answer is Answer.GRANTED
    assert fleet.reserve("p0", 1, rank=worse).answer is Answer.HEAD
    assert fleet.reserve("p1", 10, rank=RANK).answer is Answer.GRANTED
    assert fleet.reserve("p0", 1, rank=worse).answer is Answer.GRANTED


def test_within_a_tenant_the_deadline_counts_whatever_each_proxy_has_heard_of_its_charges() -> None:
    fleet = Fleet()
    fleet.rewrite("p0", row=blocks_row(50))
    fleet.ledger.set_heads("p1", "r0", [head("h", 10, rank=Rank(0.0, 900.0, 5.0, tenant=7.0))], 0.0)
    later, sooner = Rank(0.0, 100.0, 6.0, tenant=7.0), Rank(0.0, 950.0, 4.0, tenant=7.0)
    assert fleet.reserve("p2", 1, rank=Rank(0.0, 899.0, 6.0, tenant=8.0)).answer is Answer.GRANTED, "another tenant, served less"
    assert fleet.reserve("p2", 1, rank=sooner).answer is Answer.GRANTED
    assert fleet.reserve("p2", 1, rank=later).answer is Answer.HEAD


def test_a_tenant_is_where_the_proxy_that_heard_least_has_it() -> None:
    fleet = Fleet()
    fleet.rewrite("p0", row=blocks_row(50))
    fleet.ledger.set_heads("p1", "r0", [head("h", 10, rank=Rank(0.0, 900.0, 5.0, tenant=7.0))], 0.0)
    fleet.ledger.set_heads("p0", "r0", [head("g", 90, rank=Rank(0.0, 100.0, 9.0, tenant=7.0), ready=64.0)], 0.0)
    other = Rank(0.0, 500.0, 1.0, tenant=8.0)
    assert fleet.reserve("p2", 1, rank=other).answer is Answer.HEAD
    assert fleet.ledger.take_offers("p1") == ["r0"], "the sooner of the tenant's, at the virtual time of the other"


def test_a_head_that_has_its_place_is_gone_though_its_tenant_was_charged_since_it_was_published() -> None:
    fleet = Fleet()
    fleet.rewrite("p0", row=blocks_row(50))
    fleet.ledger.set_heads("p1", "r0", [head("h", 10, rank=Rank(0.0, 900.0, 5.0, tenant=7.0))], 0.0)
    assert fleet.reserve("p1", 10, rank=Rank(0.0, 910.0, 5.0, tenant=7.0)).answer is Answer.GRANTED
    assert fleet.reserve("p2", 1, rank=Rank(0.0, 910.0, 6.0, tenant=7.0)).answer is Answer.GRANTED


def test_who_goes_ahead_of_a_head_that_does_not_fit_must_leave_it_its_room_from_the_promised_step_on() -> None:
    fleet = Fleet()
    fleet.rewrite("p0", row=blocks_row(80, until_steps=64))
    fleet.ledger.set_heads("p1", "r0", [head("h", 90, rank=BETTER, ready=64.0)], 0.0)
    assert fleet.reserve("p2", 15).answer is Answer.HEAD
    assert fleet.reserve("p2", 15, row=blocks_row(15, until_steps=64)).answer is Answer.GRANTED  # over by then
    assert fleet.reserve("p2", 3, anchor=0.0).answer is Answer.GRANTED  # beside it
    fleet.ledger.set_heads("p1", "r0", [head("h", 90, rank=BETTER, ready=inf)], 0.0)
    assert fleet.reserve("p2", 2).answer is Answer.GRANTED


def test_freed_room_is_offered_to_the_best_head_that_fits() -> None:
    fleet = Fleet()
    fleet.rewrite("p0", row=blocks_row(100))
    fleet.ledger.set_heads("p1", "r0", [head("big", 90, rank=BETTER)], 0.0)
    fleet.ledger.set_heads("p2", "r0", [head("small", 30)], 0.0)
    assert fleet.rewrite("p0", row=blocks_row(80)).offered == ()
    assert fleet.rewrite("p0", row=blocks_row(60)).offered == ("p2",)
    assert fleet.rewrite("p0", row=blocks_row(60)).offered == ()
    assert fleet.ledger.take_offers("p2") == ["r0"]
    assert fleet.rewrite("p0", row=blocks_row(5)).offered == ("p1",)


def test_a_dead_head_holds_up_nobody() -> None:
    fleet = Fleet()
    fleet.ledger.set_heads("p1", "r0", [head("h", 10, rank=BETTER)], 0.0)
    assert fleet.reserve("p0", 10, 2.01).answer is Answer.GRANTED


def test_one_proxy_at_a_time_publishes_and_another_takes_over_after_the_lease() -> None:
    ledger = SharedLedger()
    assert ledger.publish(record(holder="a"), ENDS, 1.0, 0.0)
    assert not ledger.publish(record(holder="b"), ENDS, 1.0, 0.9)
    assert ledger.publish(record(holder="a"), ENDS, 1.0, 0.9)
    assert not ledger.publish(record(holder="b"), ENDS, 1.0, 1.8)
    number = ledger.accounts["r0"].record.number
    assert ledger.publish(record(holder="b"), ENDS, 1.0, 1.9)
    assert ledger.accounts["r0"].record.number > number
    assert not ledger.publish(record(holder="a"), ENDS, 1.0, 2.0)
    ledger.forget("b")
    assert ledger.publish(record(holder="a"), ENDS, 1.0, 2.1)


def test_who_takes_over_goes_on_from_the_steps_that_were_told_last() -> None:
    ledger = SharedLedger()
    assert ledger.publish(record(holder="a", steps=1000.0, steps_per_s=50.0, published_s=1.0), ENDS, 1.0, 1.0)
    late = record(holder="b", steps=1090.0, steps_per_s=20.0, published_s=3.0)
    assert not ledger.publish(late, ENDS, 1.0, 3.0), "it has not heard of the 1,100 that anchors count in"
    assert ledger.publish(replace(late, steps=1100.0), ENDS, 1.0, 3.0)


def test_a_record_is_told_once_and_rows_of_another_grid_not_taken() -> None:
    fleet = Fleet()
    told = fleet.rewrite("p0").record
    assert told is not None
    assert replace(told, number=0) == record()
    assert fleet.rewrite("p0", record_number=told.number).record is None
    other = np.array([16.0, 32.0])
    assert fleet.reserve("p0", 1, row=blocks_row(1, ends=other)).answer is Answer.UNKNOWN
    assert fleet.rewrite("p0", row=blocks_row(1, ends=other)).answer is Answer.UNKNOWN
    assert fleet.reserve("p0", 1, replica="nobody knows").answer is Answer.UNKNOWN
    assert fleet.ledger.publish(record(), other, 1.0, 0.0)
    for proxy in PROXIES:
        assert fleet.rewrite(proxy).answer is Answer.GRANTED
    assert fleet.reserve("p0", 1, row=blocks_row(1, ends=other)).answer is Answer.GRANTED


def test_after_a_flush_everybody_keeps_to_its_last_share_until_all_have_rewritten() -> None:
    fleet = Fleet()
    fleet.ledger.flush()
    assert fleet.ledger.publish(record(), ENDS, 1.0, 10.0)
    assert fleet.reserve("p0", 1, 10.0).answer is Answer.FENCED
    for proxy in PROXIES:
        assert fleet.ledger.register(proxy, 10.0) > fleet.epochs[proxy]
        fleet.epochs[proxy] = fleet.ledger.register(proxy, 10.0)
    unwritten = fleet.reserve("p0", 1, 10.0, number=9, own_share_blocks=33.0)
    assert (unwritten.answer, unwritten.retry_s) == (Answer.RECOVERING, 0.05), "what it has there is not known"
    fleet.rewrite("p0", 10.0, row=blocks_row(30), upto=9, known=3)
    assert fleet.reserve("p0", 3, 10.0, number=10, own_share_blocks=33.0).answer is Answer.GRANTED
    refused = fleet.reserve("p0", 1, 10.5, number=11, own_share_blocks=33.0)
    assert refused.answer is Answer.RECOVERING
    assert refused.retry_s == pytest.approx(RECOVERY_S_MAX - 0.5)
    fleet.rewrite("p1", 10.5, known=3)
    assert fleet.reserve("p0", 1, 10.5, number=12, own_share_blocks=33.0).answer is Answer.RECOVERING
    fleet.rewrite("p2", 10.5, known=3)
    assert fleet.reserve("p0", 1, 10.5, number=13, own_share_blocks=33.0).answer is Answer.GRANTED


@pytest.mark.parametrize(("lease_s", "recovers_s"), [(1.0, 1.0), (2.0, RECOVERY_S_MAX), (600.0, RECOVERY_S_MAX)])
def test_recovery_does_not_wait_long_for_who_does_not_come_back(lease_s: float, recovers_s: float) -> None:
    fleet = Fleet(lease_s=lease_s)
    fleet.ledger.flush()
    assert fleet.ledger.publish(record(), ENDS, 1.0, 10.0)
    fleet.epochs["p0"] = fleet.ledger.register("p0", 10.0)
    fleet.rewrite("p0", 10.0, known=3)
    assert fleet.reserve("p0", 50, 10.0 + recovers_s - 0.01, own_share_blocks=33.0).answer is Answer.RECOVERING
    assert fleet.reserve("p0", 50, 10.0 + recovers_s, own_share_blocks=33.0).answer is Answer.GRANTED


def test_a_proxy_that_leaves_takes_everything_with_it() -> None:
    fleet = Fleet()
    fleet.reserve("p0", 100)
    fleet.ledger.set_heads("p0", "r0", [head("h", 1, rank=BETTER)], 0.0)
    fleet.ledger.forget("p0")
    assert fleet.reserve("p1", 100).answer is Answer.GRANTED
    assert fleet.reserve("p0", 1).answer is Answer.FENCED
