"""One replica's verdict: the formula of Q, what else binds, what a scrape teaches, and how missing measurements read."""

import math

import numpy as np
import pytest

from proxy.core.backfill import blocks_beside, earliest_start
from proxy.core.calibration import HORIZONS_STEPS
from proxy.core.demand import Demand
from proxy.core.replica import ReplicaPhase, aggregate
from proxy.core.saturation import BACKLOG_STEPS, Binding
from proxy.core.step_time import TOKEN_BUDGET_START
from proxy.core.survival import SurvivalModel
from tests.support.builders import book, demand, engine_sample, knows_lengths, lease_of, scrape


def test_q_is_the_formula_of_the_header() -> None:
    here = book(z=1.5)
    for index in range(3):
        lease_of(demand(f"q{index}", cap=400), here)
    for _ in range(3):
        here.reconciler.compare(30.0, 0.0, 5.0, frozen=False)
    total, s, b = here.ledger.total, here.reconciler.sigma_blocks(100, None, 5.0), here.reconciler.bias_blocks
    assert s > 0.0 < b
    risky = total.mean + 1.5 * np.sqrt(total.variance + total.common**2 + s * s)
    assert np.allclose(here.quantile(total, 0.0), np.minimum(risky, total.ceiling + s) + b)
    assert here.peak_blocks(None, 0.0) == pytest.approx(here.quantile(total, 0.0).max())


def test_a_wider_margin_never_admits_more() -> None:
    peaks = []
    for z in (0.0, 1.0, 2.0, 4.0):
        model = SurvivalModel()
        for length in range(10, 410, 4):
            model.learn(demand(cap=400), float(length), natural=True)
        model.rebuild(())
        here = book(model, z=z)
        for index in range(5):
            lease_of(demand(f"q{index}", cap=400), here)
        peaks.append(here.peak_blocks(None, 0.0))
    assert peaks == sorted(peaks)
    assert peaks[0] < peaks[-1]


def test_known_lengths_fill_the_pool_to_its_last_block_and_no_further() -> None:
    """Four of 25 blocks fill 100; a fifth does not fit. (385 tokens and 16 to come, one never fed back: 400 = 25 * 16.)"""
    one = demand(prompt=385, cap=16)
    here = book(knows_lengths(SurvivalModel(), one), usable=100)
    here.observe(scrape("r0", 0.0, engine_sample()), 0.0)
    for index in range(4):
        assert here.verdict(demand(f"q{index}", prompt=385, cap=16), 0.0).fits
        lease_of(demand(f"q{index}", prompt=385, cap=16), here).placed = True
    verdict = here.verdict(demand("more", prompt=1, cap=1), 0.0)
    assert verdict.binding is Binding.KV
    assert verdict.headroom_ratio < 0.0


@pytest.mark.parametrize(("prompt", "fits"), [(1599, True), (1600, False), (5000, False)])
def test_an_empty_replica_takes_what_fits_with_one_token(prompt: int, fits: bool) -> None:
    """However large its cap: no deadlock. 100 blocks of 16 hold 1599 prompt tokens and one more."""
    here = book(usable=100, context=100_000)
    verdict = here.verdict(demand(prompt=prompt, cap=None), 0.0)
    assert verdict.fits is fits
    assert verdict.binding is (Binding.NONE if fits else Binding.UNAVAILABLE)


def test_an_empty_replica_takes_all_its_copies_and_parts() -> None:
    assert book(usable=100).verdict(demand(prompt=500, copies=50), 0.0).fits


@pytest.mark.parametrize("phase", [phase for phase in ReplicaPhase if phase is not ReplicaPhase.SERVING])
def test_only_a_serving_replica_takes_anything(phase: ReplicaPhase) -> None:
    here = book()
    here.phase = phase
    assert here.verdict(demand(), 0.0).binding is Binding.UNAVAILABLE


def test_after_a_burst_of_preemptions_the_door_is_closed_for_a_moment() -> None:
    here = book()
    lease_of(demand("a"), here)
    here.feedback.preempted(100, 10.0)
    assert here.verdict(demand("b"), 10.0).binding is Binding.BURST
    assert here.verdict(demand("b"), here.feedback.burst_until_s).fits


def test_each_other_limit_says_its_name() -> None:
    seats = book(usable=10_000, sequences_max=2)
    lease_of(demand("a", copies=2), seats)
    assert seats.verdict(demand("b"), 0.0).binding is Binding.SEATS
    prefill = book(usable=10_000, context=100_000)
    lease_of(demand("a", prompt=int(BACKLOG_STEPS * TOKEN_BUDGET_START)), prefill)
    assert prefill.verdict(demand("b"), 0.0).binding is Binding.PREFILL


@pytest.mark.parametrize(
    ("cap", "prompt", "expected"), [(100, 50, 100), (100, 950, 50), (None, 900, 100), (0, 10, 1), (5, 2000, 1)]
)
def test_the_cap_is_clamped_to_the_context(cap: int | None, prompt: int, expected: int) -> None:
    assert book(context=1000).output_tokens_max(demand(cap=cap, prompt=prompt)) == expected


@pytest.mark.parametrize(
    ("prompt", "copies", "blocks"), [(1, 1, 1), (15, 1, 1), (16, 1, 2), (100, 4, 10), (96, 4, 5 + 4 * 2), (10, 4, 4)]
)
def test_what_a_request_needs_to_start(prompt: int, copies: int, blocks: int) -> None:
    assert book().prompt_blocks(demand(prompt=prompt, copies=copies)) == blocks


# ---- what the engine says


def test_engines_of_one_server_are_one_pool() -> None:
    both = aggregate((engine_sample(usage=0.2, running=3, waiting=1, preemptions=2.0), engine_sample(usage=0.6, running=5)))
    assert both is not None
    assert (both.kv_usage_ratio, both.running, both.waiting, both.preemptions_total) == (pytest.approx(0.4), 8, 1, 2.0)
    assert both.generation_tokens_total is None
    assert aggregate(()) is None


@pytest.mark.parametrize("missing", ["usage", "running", "waiting", "preemptions"])
def test_what_one_engine_does_not_tell_is_not_known(missing: str) -> None:
    silent = engine_sample(**{missing: None})  # type: ignore[arg-type]
    both = aggregate((engine_sample(usage=0.2, running=3, waiting=1), silent))
    assert both is not None
    assert {
        "usage": both.kv_usage_ratio,
        "running": both.running,
        "waiting": both.waiting,
        "preemptions": both.preemptions_total,
    }[missing] is None


def test_a_missing_usage_is_no_empty_pool() -> None:
    here = book()
    for at in range(1, 20):
        here.observe(scrape("r0", at, engine_sample(usage=0.5)), float(at))
    bias = here.reconciler.bias_blocks
    assert bias > 40.0
    fresh = here.quantile(here.ledger.total, 19.0)
    for at in range(20, 60):
        here.observe(scrape("r0", at, engine_sample(usage=None, running=None, waiting=None)), float(at))
    assert here.reconciler.bias_blocks == bias
    assert here.sample_age_s(59.0) == 40.0
    assert (here.quantile(here.ledger.total, 59.0) > fresh).all()


def test_foreign_traffic_takes_its_room() -> None:
    here = book()
    lease_of(demand("a"), here)
    assert here.verdict(demand("b", prompt=600), 0.0).fits
    for at in range(1, 20):
        here.observe(scrape("r0", at, engine_sample(usage=0.9, running=5, generated=100.0 * at)), float(at))
    assert here.verdict(demand("b", prompt=600), 19.0).binding is Binding.KV


def test_beside_foreign_traffic_alone_what_fits_now_is_taken() -> None:
    """Nothing of ours runs, so waiting would not help; but a prompt that has no room at all stays out."""
    here = book()
    for at in range(1, 40):
        here.observe(scrape("r0", at, engine_sample(usage=0.8, running=5)), float(at))
    assert here.verdict(demand("a", prompt=200, cap=4000), 39.0).fits
    assert here.verdict(demand("a", prompt=600, cap=10), 39.0).binding is Binding.KV


def test_while_the_engine_preempts_its_usage_frees_nothing() -> None:
    here = book()
    for at in range(1, 20):
        here.observe(scrape("r0", at, engine_sample(usage=0.9, running=5)), float(at))
    bias = here.reconciler.bias_blocks
    here.observe(scrape("r0", 20.0, engine_sample(usage=0.1, running=1, waiting=4)), 20.0)
    assert here.reconciler.bias_blocks == bias


def test_fewer_running_than_we_see_decoding_frees_nothing_either() -> None:
    here = book()
    for at in range(1, 20):
        here.observe(scrape("r0", at, engine_sample(usage=0.9, running=5)), float(at))
    for name in "abc":
        lease_of(demand(name), here).placed = True
    bias = here.reconciler.bias_blocks
    here.observe(scrape("r0", 20.0, engine_sample(usage=0.1, running=2)), 20.0)
    assert here.reconciler.bias_blocks == bias


def test_preemptions_are_told_once_and_only_as_they_grow() -> None:
    here = book()
    counts = [
        here.observe(scrape("r0", at, engine_sample(preemptions=total)), at) for at, total in enumerate((7.0, 7.0, 9.0, 9.0, 3.0))
    ]
    assert counts == [0, 0, 2, 0, 0]
    assert here.observe(scrape("r0", 9.0, engine_sample(preemptions=None)), 9.0) == 0
    assert here.observe(scrape("r0", 10.0, engine_sample(preemptions=50.0)), 10.0) == 0


def test_unseen_answers_are_placed_oldest_first_as_far_as_running_reaches() -> None:
    here = book(usable=1000)
    leases = [lease_of(demand(f"q{index}", copies=2), here, streaming=False) for index in range(3)]
    here.observe(scrape("r0", 1.0, engine_sample(running=5)), 1.0)
    assert [lease.placed for lease in leases] == [True, True, False]
    here.observe(scrape("r0", 2.0, engine_sample(running=None)), 2.0)
    assert [lease.placed for lease in leases] == [True, True, False]


def test_a_stream_is_placed_by_its_own_first_token_only() -> None:
    here = book()
    one = lease_of(demand("a"), here, streaming=True)
    here.observe(scrape("r0", 1.0, engine_sample(running=9)), 1.0)
    assert not one.placed


def test_a_scrape_that_names_no_engine_changes_nothing() -> None:
    here = book()
    assert here.observe(scrape("r0", 1.0), 1.0) == 0
    assert here.sample_age_s(1.0) is None


def test_a_new_epoch_is_an_empty_replica() -> None:
    here = book()
    lease_of(demand("a"), here)
    for at in range(1, 20):
        here.observe(scrape("r0", at, engine_sample(usage=0.9)), float(at))
    here.new_epoch()
    assert (len(here.ledger.leases), here.reconciler.bias_blocks, here.measured_blocks) == (0, 0.0, None)
    assert here.verdict(demand("b", cap=4000), 20.0).fits


def test_forecasts_for_an_engine_that_restarted_are_not_held_against_the_next() -> None:
    here = book()
    lease_of(demand("a", cap=4000), here)
    here.ledger.refresh(HORIZONS_STEPS[0])
    here.calibration.look(here.ledger)
    here.new_epoch()
    lease_of(demand("b", cap=4000), here)
    here.ledger.refresh(3.0 * HORIZONS_STEPS[-1])
    here.calibration.look(here.ledger)
    assert here.calibration.compared == 0


# ---- reservations for a head that does not fit


def test_a_head_starts_when_who_is_here_has_ended() -> None:
    """One of 63 blocks runs for 64 more steps, the head needs 44 of 100: from the grid point after its end on it fits."""
    small, head = demand("a", prompt=944, cap=64), demand("h", prompt=641, cap=64)
    here = book(knows_lengths(SurvivalModel(), small, head), usable=100)
    lease_of(small, here).placed = True
    here.ledger.refresh(0.0)
    verdict = here.verdict(head, 0.0)
    assert not verdict.fits
    start = earliest_start(here, verdict.curves, 0.0)
    assert start is not None
    assert 64 <= start[0] <= 64 + 2 * 16
    assert 0 < start[1] <= 100 - 44  # at most what the head leaves once it is alone


def test_beside_a_head_of_unknown_neighbours_nothing_is_spare_until_they_have_ended_for_certain() -> None:
    """It may start as soon as the mean says, long before the caps do; what others might still hold then is not given away."""
    head = demand("h", prompt=641, cap=64)
    model = knows_lengths(SurvivalModel(), head)
    for length in range(300):
        model.learn(demand(prompt=200, cap=1200), 20.0 + length % 150, natural=True)
    model.rebuild([])
    here = book(model, usable=100)
    for index in range(4):
        lease_of(demand(f"q{index}", prompt=200, cap=1200), here).placed = True
    here.ledger.refresh(0.0)
    assert not here.verdict(head, 0.0).fits
    start = earliest_start(here, here.verdict(head, 0.0).curves, 0.0)
    assert start is not None
    assert start[0] < 200
    assert start[1] == 0.0


def test_who_would_still_be_there_takes_of_the_spare_and_who_is_gone_by_then_does_not() -> None:
    brief, long_one = demand("b", prompt=100, cap=30), demand("l", prompt=800, cap=600)
    here = book(knows_lengths(SurvivalModel(), brief, long_one), usable=100)

    def beside(one: Demand, step: float) -> float:
        return blocks_beside(here, one, here.verdict(one, 0.0).curves, step, 0.0)

    assert beside(brief, 32.0) == 0.0  # 30 tokens, and two steps until it decodes
    assert beside(brief, 31.0) > 0.0
    assert beside(long_one, 64.0) == 88  # its peak: 1399 slots of 16
    assert beside(brief, 0.0) == math.inf  # the head's time has come: nobody goes ahead


def test_a_head_larger_than_the_pool_starts_when_the_pool_is_empty() -> None:
    """Its copies' peak never fits, so its earliest start is the end of who is here: not never, and not the grid's end."""
    head = demand("h", prompt=200, cap=1000, copies=4)
    here = book(knows_lengths(SurvivalModel(), demand(), head), usable=100, context=1600)
    lease_of(demand("a"), here)
    start = earliest_start(here, here.verdict(head, 0.0).curves, 0.0)
    assert start is not None
    assert 100 <= start[0] <= 100 + 2 * 16
    assert start[1] == 0.0
