"""The step-time model: exact on exact data, never negative, forgetting, careful beyond what it saw, and the learned token budget."""

import random
from dataclasses import replace

import numpy as np
import pytest

from proxy.core.step_time import (
    ERROR_WINDOWS,
    MEMORY_WINDOWS,
    QUANTILE_Z,
    REACH,
    SEQUENCES_START,
    TOKEN_BUDGET_START,
    WINDOW_S_MAX,
    WINDOW_STEPS_MIN,
    StepTime,
    StepWindow,
    _least_squares,
)

TRUE = (0.010, 30e-6, 40e-6, 20e-9)


def window(
    *, steps: float = 30.0, prefill: float = 0.0, sequences: float = 10.0, kv: float = 1e4, slower: float = 1.0,
    outlook: float | None = None, waiting: bool = False,
) -> StepWindow:  # fmt: skip
    """What a machine of ``TRUE`` coefficients does; ``prefill`` tokens and ``sequences`` per step."""
    base, per_prefill, per_sequence, per_kv = TRUE
    step_s = slower * (base + per_prefill * prefill + per_sequence * sequences + per_kv * kv)
    expected = prefill if outlook is None else outlook
    return StepWindow(steps * step_s, steps, steps * prefill, steps * sequences, kv, expected, waiting)


def taught(rng: random.Random, count: int = 200, *, slower: float = 1.0) -> StepTime:
    model = StepTime()
    for _ in range(count):
        model.observe(
            window(prefill=rng.uniform(0, 1500), sequences=rng.uniform(1, 200), kv=rng.uniform(1e3, 3e5), slower=slower)
        )
    return model


def test_nothing_is_known_at_first() -> None:
    model = StepTime()
    assert not model.learned
    assert model.step_s(sequences=100.0, kv_tokens=1e5, prefill_tokens=1000.0) == 0.0
    assert model.outlook_s(sequences=100.0, kv_tokens=1e5, prefill_tokens=1000.0) == 0.0
    assert model.prefill_s(10_000.0, sequences=10.0, kv_tokens=0.0) == 0.0
    assert model.sequences_known == SEQUENCES_START


def test_it_finds_the_coefficients_of_a_machine_that_obeys_it() -> None:
    model = taught(random.Random(1))
    for sequences, kv, prefill in ((1, 1e3, 0), (100, 1e5, 0), (200, 3e5, 1500), (50, 1e4, 2000)):
        true = TRUE[0] + TRUE[1] * prefill + TRUE[2] * sequences + TRUE[3] * kv
        assert model.step_s(sequences=sequences, kv_tokens=kv, prefill_tokens=prefill) == pytest.approx(true, rel=0.01)
    assert model.prefill_token_s == pytest.approx(TRUE[1], rel=0.01)


def test_noise_does_not_drive_a_coefficient_below_zero() -> None:
    """Decoding and KV tokens rise together and steps get no longer: a free fit would have one grow and the other fall."""
    rng = random.Random(2)
    model = StepTime()
    for _ in range(100):
        sequences = rng.uniform(1, 100)
        one = window(sequences=sequences, kv=1000.0 * sequences)
        model.observe(replace(one, seconds=one.steps * rng.gauss(0.012, 0.003)))
        assert min(model._coefficients) >= 0.0
    assert model.step_s(sequences=50.0, kv_tokens=5e4) == pytest.approx(0.012, rel=0.15)


def test_the_least_squares_are_the_best_non_negative_ones() -> None:
    rng = np.random.default_rng(3)
    for _ in range(50):
        rows, wanted = rng.normal(size=(12, 4)), rng.normal(size=12)
        gram, moment = rows.T @ rows, rows.T @ wanted
        found = _least_squares(gram, moment)
        slope = gram @ found - moment
        assert (found >= 0.0).all()
        assert (slope >= -1e-9).all()  # no term would gain by growing
        assert np.abs(slope * found).max() < 1e-9  # nor one that is there by changing


def test_a_machine_that_became_slower_is_learned_anew() -> None:
    rng = random.Random(4)
    model = taught(rng)
    before = model.step_s(sequences=100.0, kv_tokens=1e5)
    for _ in range(int(3 * MEMORY_WINDOWS)):
        model.observe(window(prefill=rng.uniform(0, 1500), sequences=rng.uniform(1, 200), kv=rng.uniform(1e3, 3e5), slower=2.0))
    assert model.step_s(sequences=100.0, kv_tokens=1e5) == pytest.approx(2.0 * before, rel=0.1)


def test_the_outlook_follows_sooner_than_the_coefficients() -> None:
    model = StepTime()
    for _ in range(300):
        model.observe(window(sequences=100.0, kv=1e5))
    before = model.outlook_s(sequences=100.0, kv_tokens=1e5, prefill_tokens=0.0)
    for _ in range(int(ERROR_WINDOWS)):
        model.observe(window(sequences=100.0, kv=1e5, slower=1.5))
    assert model.outlook_s(sequences=100.0, kv_tokens=1e5, prefill_tokens=0.0) >= 1.4 * before


def test_the_outlook_adds_the_spread_less_of_it_for_longer_answers() -> None:
    rng = random.Random(5)
    model = StepTime()
    for _ in range(400):
        model.observe(window(sequences=50.0, prefill=rng.choice((0.0, 400.0)), outlook=200.0))
    mean_s, spread_s = model.error_s
    assert spread_s == pytest.approx(200.0 * TRUE[1], rel=0.15)
    expected_s = model.step_s(sequences=50.0, kv_tokens=1e4, prefill_tokens=200.0) + mean_s
    outlooks = [
        model.outlook_s(sequences=50.0, kv_tokens=1e4, prefill_tokens=200.0, steps=steps) for steps in (1.0, 300.0, 30_000.0)
    ]
    assert outlooks[0] == pytest.approx(expected_s + QUANTILE_Z * spread_s)
    assert outlooks[0] > outlooks[1] > outlooks[2] > expected_s


def test_the_largest_batch_bounds_what_it_speaks_of() -> None:
    model = StepTime()
    model.observe(window(sequences=40.0))
    assert model.sequences_known == REACH * 40.0
    model.observe(window(sequences=3.0))
    assert model.sequences_known == REACH * 40.0


def test_short_looks_are_joined_until_they_hold_enough_steps() -> None:
    model = StepTime()
    short = window(steps=WINDOW_STEPS_MIN / 3.0)
    model.observe(short)
    model.observe(short)
    assert not model.learned
    model.observe(short)
    assert model.windows == 1
    assert model.step_s(sequences=10.0, kv_tokens=1e4) == pytest.approx(short.seconds / short.steps, rel=0.02)


def test_a_step_longer_than_the_looks_belongs_to_the_look_it_ends_in() -> None:
    """Two looks without a step, then one with it: seconds add up; and without any step at all nothing is learned however long."""
    model = StepTime()
    stalled = StepWindow(WINDOW_S_MAX, 0.0, 0.0, 0.0, 1e4)
    model.observe(stalled)
    model.observe(stalled)
    assert not model.learned
    model.observe(StepWindow(1.0, 2.0, 0.0, 20.0, 1e4))
    assert model.step_s(sequences=10.0, kv_tokens=1e4) == pytest.approx((2.0 * WINDOW_S_MAX + 1.0) / 2.0, rel=0.02)


def test_idle_time_is_no_part_of_a_window() -> None:
    model = StepTime()
    model.observe(StepWindow(3.0, 1.0, 0.0, 1.0, 0.0))
    model.interrupted()
    model.observe(window())
    assert model.step_s(sequences=10.0, kv_tokens=1e4) == pytest.approx(window().seconds / window().steps, rel=0.02)


def test_the_token_budget_rises_to_what_was_seen_and_falls_only_to_what_a_full_step_took() -> None:
    model = StepTime()
    model.observe(window(prefill=8000.0, sequences=192.0))
    assert model.token_budget == 8192.0
    model.observe(window(prefill=100.0))
    assert model.token_budget == 8192.0
    for _ in range(60):
        model.observe(window(prefill=500.0, sequences=12.0, waiting=True))
    assert model.token_budget == pytest.approx(512.0, rel=0.01)


def test_prefill_takes_whole_steps_beside_those_that_decode() -> None:
    model = taught(random.Random(6))
    step_s = model.step_s(sequences=48.0, kv_tokens=1e4)
    per_step = TOKEN_BUDGET_START - 48.0
    for tokens, steps in ((1.0, 1), (per_step, 1), (per_step + 1.0, 2), (10.0 * per_step, 10)):
        expected_s = tokens * model.prefill_token_s + steps * step_s
        assert model.prefill_s(tokens, sequences=48.0, kv_tokens=1e4) == pytest.approx(expected_s)
