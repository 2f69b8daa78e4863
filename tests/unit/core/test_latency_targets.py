"""Prefill backlog against its bound and TTFT targets; steps against TPOT targets."""

import pytest

from proxy.core.saturation import BACKLOG_STEPS, TTFT_BACKLOG_SHARE, Binding
from proxy.core.step_time import SEQUENCES_START, TOKEN_BUDGET_START
from tests.support.builders import demand
from tests.support.saturated import binds, roomy, running, sent, teach

BACKLOG = int(BACKLOG_STEPS * TOKEN_BUDGET_START)


# ---- prefill and TTFT


def test_prefill_backlog_binds_beyond_its_bound_but_never_the_first() -> None:
    here = roomy()
    running(here, 1)
    assert binds(here, prompt=10 * BACKLOG) is Binding.NONE
    sent(here, 1, 0.0, prompt=100)
    assert binds(here, prompt=BACKLOG - 100) is Binding.NONE
    assert binds(here, prompt=BACKLOG - 99) is Binding.PREFILL


def test_the_bound_follows_the_learned_token_budget() -> None:
    here = roomy()
    here.saturation.step_time.token_budget = 512.0
    running(here, 1)
    sent(here, 1, 0.0, prompt=100)
    assert binds(here, prompt=int(BACKLOG_STEPS * 512) - 100) is Binding.NONE
    assert binds(here, prompt=int(BACKLOG_STEPS * 512) - 99) is Binding.PREFILL


def test_a_target_goes_only_where_its_forecast_holds() -> None:
    """A full step takes 0.01 + 0.2048 s and some: one is under way, 4,000 tokens are two more. 1 s holds and 0.6 s does not."""
    here = roomy()
    teach(here.saturation)
    running(here, 1)
    sent(here, 1, 0.0, prompt=3000)
    assert here.saturation.ttft_s_forecast(demand("new", prompt=1000), 0.0) == pytest.approx(0.640, abs=0.01)
    assert binds(here, prompt=1000, ttft_s=1.0) is Binding.NONE
    assert binds(here, prompt=1000, ttft_s=0.6) is Binding.PREFILL
    assert binds(here, prompt=1000) is Binding.NONE


def test_time_already_waited_counts_toward_the_target() -> None:
    here = roomy()
    teach(here.saturation)
    running(here, 1)
    sent(here, 1, 0.6, prompt=3000)
    assert here.saturation.ttft_s_forecast(demand("new", prompt=1000), 0.6) == pytest.approx(1.240, abs=0.01)
    assert binds(here, 0.6, prompt=1000, ttft_s=1.2) is Binding.PREFILL
    assert binds(here, 0.6, prompt=1000, ttft_s=1.3) is Binding.NONE
    assert binds(here, 0.6, prompt=1000, ttft_s=0.6) is Binding.NONE  # it has passed: it cannot be met any more


def test_one_that_misses_its_target_anyhow_is_not_kept_waiting_for_it() -> None:
    here = roomy()
    teach(here.saturation)
    running(here, 1)
    sent(here, 1, 0.0, prompt=3000)
    assert here.saturation.ttft_s_forecast(demand("new", prompt=1000), 0.0, backlog=False) == pytest.approx(0.112, abs=0.01)
    assert binds(here, prompt=1000, ttft_s=0.1) is Binding.NONE


def test_others_leave_half_of_the_least_target_to_those_who_have_one() -> None:
    here = roomy()
    teach(here.saturation)
    running(here, 1, ttft_s=0.2)
    sent(here, 1, 0.0, prompt=100)
    bound = here.saturation.backlog_tokens_max()
    assert bound == pytest.approx(TTFT_BACKLOG_SHARE * 0.2 / here.saturation.step_s(TOKEN_BUDGET_START) * TOKEN_BUDGET_START)
    assert bound < BACKLOG
    assert binds(here, prompt=int(bound) - 100) is Binding.NONE
    assert binds(here, prompt=int(bound) - 99) is Binding.PREFILL


def test_before_anything_was_measured_no_target_refuses() -> None:
    here = roomy()
    running(here, 1)
    sent(here, 1, 0.0, prompt=3000)
    assert here.saturation.ttft_s_forecast(demand("new", arrived_s=-0.25), 0.0) == 0.25
    assert binds(here, prompt=1000, ttft_s=0.001) is Binding.NONE


def test_a_cached_prefix_shortens_the_forecast() -> None:
    here = roomy()
    teach(here.saturation)
    asked = demand("new", prompt=2000)
    full, cached = (here.saturation.ttft_s_forecast(asked, 0.0, cached_tokens=tokens) for tokens in (0, 1984))
    assert full - cached == pytest.approx(1984 * here.saturation.step_time.prefill_token_s)


# ---- TPOT


def test_a_step_longer_than_the_target_of_the_candidate_keeps_it_out() -> None:
    """10 ms + 1 ms per sequence: with 40 there and one more a step takes 51 ms."""
    here = roomy()
    teach(here.saturation)
    running(here, 40, prompt=1)
    assert binds(here, prompt=1, tpot_s=0.07) is Binding.NONE
    assert binds(here, prompt=1, tpot_s=0.045) is Binding.TPOT
    assert binds(here, prompt=1) is Binding.NONE


def test_one_without_a_target_is_kept_out_by_those_who_have_one() -> None:
    here = roomy()
    teach(here.saturation)
    running(here, 39, prompt=1)
    (promised,) = running(here, 1, prompt=1, tpot_s=0.045)
    assert binds(here, prompt=1) is Binding.TPOT
    here.remove(promised.lease_id, 0.0)
    assert binds(here, prompt=1) is Binding.NONE


def test_a_target_that_nobody_could_meet_is_left_out() -> None:
    """One sequence alone takes 11 ms."""
    here = roomy()
    teach(here.saturation)
    running(here, 40, prompt=1)
    assert binds(here, prompt=1, tpot_s=0.010) is Binding.NONE
    running(here, 1, prompt=1, tpot_s=0.005)
    assert binds(here, prompt=1) is Binding.NONE


def test_n_takes_n_steps_of_the_ladder() -> None:
    here = roomy()
    teach(here.saturation)
    running(here, 20, prompt=1)
    assert binds(here, prompt=1, tpot_s=0.045) is Binding.NONE
    assert binds(here, prompt=1, tpot_s=0.045, copies=30) is Binding.TPOT


def test_before_anything_was_measured_a_handful_is_let_in() -> None:
    here = roomy()
    running(here, int(SEQUENCES_START) - 1, prompt=1)
    assert binds(here, prompt=1, tpot_s=0.05) is Binding.NONE
    running(here, 1, prompt=1)
    assert binds(here, prompt=1, tpot_s=0.05) is Binding.TPOT
    assert binds(here, prompt=1) is Binding.NONE
