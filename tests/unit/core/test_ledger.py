"""The book of leases: progress, intervals, sharing, and sums that stay what a recount gives."""

import numpy as np
import pytest

from proxy.core.book import Book
from proxy.core.curves import Curves
from proxy.core.demand import PromptPart
from proxy.core.newcomers import CurveCache
from proxy.core.survival import SurvivalModel
from tests.support.builders import book, demand, knows_lengths, lease_of, no_demand

HASHES = tuple(range(1, 100))


def same(one: Curves, other: Curves) -> bool:
    return all(np.allclose(a, b, atol=1e-6) for a, b in zip(one.arrays(), other.arrays(), strict=True))


def test_an_empty_book_holds_and_forecasts_nothing() -> None:
    here = book()
    assert here.ledger.held_interval(0.0, 5.0) == (0.0, 0.0)
    assert same(here.ledger.total, no_demand(len(here.grid)))
    here.ledger.refresh(100.0)
    assert len(here.ledger.running()[0]) == 0


def test_a_lease_adds_what_its_curves_said() -> None:
    here = book()
    lease_of(demand("a", prompt=300), here)
    curves = here.ledger.demand_curves(demand("b", prompt=50), 100)
    before = here.ledger.total
    lease_of(demand("b", prompt=50), here)
    assert same(here.ledger.total, before + curves)


def test_what_leaves_leaves_nothing() -> None:
    here = book()
    one = lease_of(demand("a", copies=3, parts=[PromptPart(100), PromptPart(40)]), here)
    assert here.ledger.sequences == 6
    assert here.ledger.remove("a") is one
    assert here.ledger.remove("a") is None
    assert here.ledger.sequences == 0
    assert same(here.ledger.total, no_demand(len(here.grid)))


def test_a_lease_is_booked_once() -> None:
    here = book()
    lease_of(demand("a"), here)
    with pytest.raises(AssertionError):
        lease_of(demand("a"), here)


def test_more_leases_than_rows_to_start_with() -> None:
    here = book(usable=10_000)
    for index in range(300):
        lease_of(demand(f"q{index}"), here)
    assert np.allclose(here.ledger.total.mean, 300 * here.ledger.demand_curves(demand(), 100).mean)
    assert len(here.ledger.clear()) == 300
    assert not here.ledger.leases


def test_streamed_tokens_are_progress_unseen_ones_are_guessed() -> None:
    here = book()
    seen = lease_of(demand("a", copies=2), here)
    unseen = lease_of(demand("b"), here, streaming=False)
    seen.output_tokens = 40
    assert here.ledger.tokens_out(seen, 1e6) == 20.0
    assert here.ledger.tokens_out(unseen, 0.0) == 0.0
    assert 0.0 < here.ledger.tokens_out(unseen, 10.0) <= 10.0
    assert here.ledger.tokens_out(unseen, 1e6) == 99.0  # still here, so below its cap


def test_progress_moves_the_forecast_down_to_the_rest() -> None:
    here = book(knows_lengths(SurvivalModel(), demand()))
    one = lease_of(demand(prompt=16, cap=64), here)
    one.placed = True
    spans = []
    for tokens in (1, 20, 40, 60):
        one.output_tokens = tokens
        here.ledger.refresh(0.0)
        spans.append(int((here.ledger.total.ceiling > 0.0).sum()))
        assert here.ledger.total.ceiling.max() == 5.0  # 16 + 64 - 1 tokens: the peak is still ahead
    assert spans == sorted(spans, reverse=True)
    assert spans[0] > spans[-1] == 1


def test_the_interval_is_placed_to_all_and_reaches_ahead_by_the_lag() -> None:
    here = book()
    placed, sent = lease_of(demand("a", prompt=32), here), lease_of(demand("b", prompt=160), here)
    placed.placed, placed.output_tokens = True, 1
    assert here.ledger.held_interval(0.0, 0.0) == (2.0, 2.0 + 10.0)
    assert here.ledger.held_interval(0.0, 1.0) == (2.0, 3.0 + 10.0)
    sent.placed = True
    assert here.ledger.held_interval(0.0, 0.0) == (12.0, 12.0)


def test_the_survival_model_is_told_who_runs() -> None:
    here = book()
    lease_of(demand("a"), here).output_tokens = 7
    lease_of(demand("b", parts=[PromptPart(100), PromptPart(20)]), here)
    here.ledger.refresh(0.0)
    assert sorted(here.ledger.running()[1]) == [0.0, 0.0, 7.0]


def sharing_book(known: bool = True) -> Book:
    model = SurvivalModel()
    return book(knows_lengths(model, demand(prompt=100)) if known else model, usable=1000)


def test_a_shared_run_counts_once_and_the_last_token_is_computed_anew() -> None:
    """96 = 6 * 16 tokens: the second hits five blocks, not six. Of 100 tokens six may hit; the sixth is not offered (core.prefix)."""
    here = sharing_book()
    for name in ("a", "b"):
        lease_of(demand(name, prompt=96, hashes=HASHES[:6]), here).placed = True
    assert here.ledger.held_interval(0.0, 0.0)[0] == 6 + 1
    lease_of(demand("c", prompt=100, hashes=HASHES[:6]), here).placed = True
    assert here.ledger.held_interval(0.0, 0.0)[0] == 6 + 1 + 2


def test_the_discount_of_a_candidate_is_what_its_booking_saves() -> None:
    for known in (True, False):
        here = sharing_book(known)
        lease_of(demand("a", prompt=100, cap=50, hashes=HASHES[:6]), here)
        lease_of(demand("b", prompt=100, cap=80, hashes=(*HASHES[:3], 777, 778, 779)), here)
        curves = here.ledger.demand_curves(demand("c", prompt=100, hashes=HASHES[:6]), 100)
        before = here.ledger.total
        lease_of(demand("c", prompt=100, hashes=HASHES[:6]), here)
        assert same(here.ledger.total, before + curves)


def test_a_discount_lasts_as_long_as_its_sharers() -> None:
    """The first holder ends at its cap; from then on the candidate stands for the whole prompt."""
    here = sharing_book()
    lease_of(demand("a", prompt=100, cap=50, hashes=HASHES[:6]), here)
    plain = book(here.ledger.model, usable=1000).ledger.demand_curves(demand("c", prompt=100), 200)
    curves = here.ledger.demand_curves(demand("c", prompt=100, hashes=HASHES[:6]), 200)
    shared = here.ledger.total.ceiling > 0.0
    assert np.allclose((plain.ceiling - curves.ceiling)[shared], 6.0)
    assert np.allclose((plain.ceiling - curves.ceiling)[~shared], 0.0)
    assert shared.any()
    assert (plain.ceiling[~shared] > 0.0).any()


@pytest.mark.parametrize("leaver", ["a", "b"])
def test_whoever_leaves_first_the_run_stays_while_a_sharer_is_here(leaver: str) -> None:
    here = sharing_book()
    for name in ("a", "b"):
        lease_of(demand(name, prompt=100, hashes=HASHES[:6]), here).placed = True
    here.ledger.remove(leaver)
    assert here.ledger.held_interval(0.0, 0.0)[0] == 7.0
    alone = book(here.ledger.model, usable=1000)
    lease_of(demand("x", prompt=100), alone)
    assert same(here.ledger.total, alone.ledger.total)


def test_who_looks_up_no_prefix_gets_no_discount_and_gives_none() -> None:
    here = sharing_book()
    lease_of(demand("a", prompt=100, hashes=HASHES[:6], shares_prefix=False), here).placed = True
    lease_of(demand("b", prompt=100, hashes=HASHES[:6]), here).placed = True
    assert here.ledger.held_interval(0.0, 0.0)[0] == 14.0
    curves = here.ledger.demand_curves(demand("c", prompt=100, hashes=HASHES[:6], shares_prefix=False), 100)
    assert curves.ceiling[0] >= 7.0


def test_curves_are_computed_once_per_state_of_the_model() -> None:
    here = book()
    cache: CurveCache = {}
    first = here.ledger.demand_curves(demand(), 100, cache)
    assert here.ledger.demand_curves(demand(), 100, cache) is first
    here.ledger.model.learn(demand(), 10.0, natural=True)
    here.ledger.model.rebuild(())
    assert not same(here.ledger.demand_curves(demand(), 100, cache), first)


def test_a_discount_is_not_remembered_with_the_curves() -> None:
    """Sharers come and go while a request waits."""
    here = sharing_book()
    cache: CurveCache = {}
    candidate = demand("c", prompt=100, hashes=HASHES[:6])
    alone = here.ledger.demand_curves(candidate, 100, cache)
    lease_of(demand("a", prompt=100, hashes=HASHES[:6]), here)
    shared = here.ledger.demand_curves(candidate, 100, cache)
    assert shared.ceiling[0] == alone.ceiling[0] - 6.0
    here.ledger.remove("a")
    assert same(here.ledger.demand_curves(candidate, 100, cache), alone)


@pytest.mark.parametrize("ahead", [0, 1, 5, 8, 13])
def test_a_sum_some_steps_old_is_never_below_the_truth(ahead: int) -> None:
    """Lengths known. One here at the anchor, one that came ``ahead`` steps later: until both have ended the old sum covers them."""
    first, later = demand("a", prompt=50, cap=60), demand("b", prompt=90, cap=45)
    here = book(knows_lengths(SurvivalModel(), first, later))
    lease_of(first, here).placed = True
    here.ledger.refresh(0.0)
    here.clock.steps = float(ahead)
    lease_of(later, here)
    assert here.ledger.anchor_steps == 0.0
    for step in range(ahead, ahead + 50):  # step by step: the first decodes since the anchor, the second since it was sent
        held = 0
        if step < 60:
            held += -(-(50 + step) // 16)
        if step - ahead < 45:
            held += -(-(90 + step - ahead) // 16)
        index = int(np.searchsorted(here.grid.ends, step, side="left"))
        assert here.ledger.total.mean[index] >= held - 1e-3, step  # of 200 that went on to their caps one might not have
