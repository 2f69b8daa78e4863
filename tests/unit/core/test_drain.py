"""The rate at which a line moves."""

import pytest

from proxy.core.drain import PRIOR_S, WINDOW_S, DrainMeter


def test_before_any_evidence_the_prior_is_the_rate() -> None:
    assert DrainMeter().rate_per_s(7.0) == 7.0


def test_it_finds_the_rate_of_a_steady_line() -> None:
    meter = DrainMeter()
    for second in range(1, 301):
        meter.lapse(float(second), waited=True)
        meter.admitted(50.0)
    assert meter.rate_per_s(10.0) == pytest.approx(50.0, rel=0.15)
    assert meter.rate_per_s(50.0) == pytest.approx(50.0, rel=0.03)


def test_idle_time_changes_nothing() -> None:
    meter = DrainMeter()
    meter.lapse(4.0, waited=True)
    meter.admitted(40.0)
    before = meter.rate_per_s(1.0)
    meter.lapse(500.0, waited=False)
    assert meter.rate_per_s(1.0) == before


def test_a_line_that_stands_still_is_seen_to() -> None:
    """What the prior says, and what was seen long ago, fade."""
    meter = DrainMeter()
    meter.lapse(1.0, waited=True)
    meter.admitted(1000.0)
    meter.lapse(1.0 + 5.0 * WINDOW_S, waited=True)
    assert meter.rate_per_s(10.0) < 10.0 * PRIOR_S / WINDOW_S + 1.0


def test_forgetting_is_the_same_in_small_steps_and_in_one() -> None:
    one, many = DrainMeter(), DrainMeter()
    for meter in (one, many):
        meter.admitted(100.0)
    one.lapse(10.0, waited=True)
    for tenth in range(1, 101):
        many.lapse(tenth / 10.0, waited=True)
    assert (one.work, one.seconds) == (pytest.approx(many.work), pytest.approx(many.seconds))
