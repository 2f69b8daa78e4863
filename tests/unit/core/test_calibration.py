"""Forecasts that come true leave the margin alone; those that are surpassed widen it; others' requests do not count."""

import random

import numpy as np
import pytest

from proxy.core.book import Book
from proxy.core.calibration import EVERY_STEPS, HORIZONS_STEPS, SCALE_MAX, Calibration, square_above
from proxy.core.shared import Load, row_of
from tests.support.builders import book, demand, lease_of


def taught() -> Book:
    """A replica whose class has seen outputs of about 300 tokens."""
    here = book(usable=100_000)
    rng = random.Random(1)
    for index in range(800):
        here.ledger.model.learn(demand(f"l{index}", cap=4000), max(1.0, rng.lognormvariate(5.7, 0.5)), natural=True)
        if index % 20 == 0:
            here.ledger.model.rebuild(())
    return here


def play(here: Book, lengths: list[int], rounds: int) -> Calibration:
    """Requests of these lengths come all at once, again and again, and each gives a token a step."""
    calibration, steps = here.calibration, here.clock.steps
    for turn in range(rounds):
        leases = {}
        for index in range(len(lengths)):
            one = lease_of(demand(f"q{turn}.{index}", cap=4000), here)
            one.streaming = one.placed = True
            leases[one.lease_id] = (one, lengths[index])
        while leases:
            steps += 16.0
            for lease_id, (lease, length) in list(leases.items()):
                lease.output_tokens += 16
                if lease.output_tokens >= length:
                    lease.ended = True
                    here.ledger.remove(lease_id)
                    del leases[lease_id]
            here.ledger.refresh(steps)
            calibration.look(here.ledger)
    return calibration


def test_lengths_as_forecast_leave_the_margin_alone() -> None:
    rng = random.Random(2)
    calibration = play(taught(), [max(1, int(rng.lognormvariate(5.7, 0.5))) for _ in range(60)], 6)
    assert calibration.compared > 60
    assert calibration.scale == pytest.approx(1.0, abs=0.35)


def test_requests_that_outlive_their_forecast_widen_it() -> None:
    calibration = play(taught(), [1500] * 60, 1)
    assert calibration.scale > 1.5
    assert calibration.scale <= SCALE_MAX


def test_requests_that_end_early_change_nothing() -> None:
    calibration = play(taught(), [20] * 60, 10)
    assert calibration.scale == 1.0


def test_nothing_is_compared_before_its_time_or_across_a_restart() -> None:
    here = taught()
    lease_of(demand("q", cap=4000), here)
    here.ledger.refresh(EVERY_STEPS)
    here.calibration.look(here.ledger)
    here.ledger.refresh(EVERY_STEPS + HORIZONS_STEPS[0] - 1.0)
    here.calibration.look(here.ledger)
    assert here.calibration.compared == 0
    here.calibration.new_epoch()
    here.ledger.refresh(10_000.0)
    here.calibration.look(here.ledger)
    assert here.calibration.compared == 0


@pytest.mark.parametrize(("tokens", "told"), [(64, (1, 0)), (3000, (0, 1))])
def test_bounds_that_held_are_told_from_those_that_did_not(tokens: int, told: tuple[int, int]) -> None:
    here = taught()
    lease = lease_of(demand("q", cap=4000), here)
    here.ledger.refresh(EVERY_STEPS)
    here.calibration.look(here.ledger, 3.0)
    lease.output_tokens = tokens
    here.ledger.refresh(EVERY_STEPS + HORIZONS_STEPS[0])
    here.calibration.look(here.ledger, 3.0)
    assert (here.calibration.covered_total[0], here.calibration.exceeded_total[0]) == told
    assert here.calibration.compared == 1


def test_an_error_of_a_share_counts_as_the_expected_square_of_the_whole() -> None:
    rng = random.Random(3)
    for error, share in ((0.0, 0.25), (1.0, 0.25), (-2.0, 0.5), (4.0, 0.25), (3.0, 0.9)):
        wholes = [share**0.5 * error + (1.0 - share) ** 0.5 * rng.gauss(0.0, 1.0) for _ in range(40_000)]
        expected = 2.0 * sum(max(0.0, whole) ** 2 for whole in wholes) / len(wholes)
        assert square_above(error, share) == pytest.approx(expected, rel=0.05, abs=0.02)
    assert square_above(1.5, 1.0) == pytest.approx(4.5)
    assert square_above(-1.5, 1.0) == 0.0


def test_requests_that_outlive_their_forecast_count_less_beside_those_of_other_proxies() -> None:
    alone, beside = taught(), taught()
    curves = np.zeros((4, len(beside.grid)))
    curves[0], curves[1], curves[2] = 500.0, 40_000.0, 2_000.0
    beside.ledger.told(row_of(Load(leases=100.0, sequences=100.0), curves), beside.clock.steps)
    widened = play(alone, [1500] * 4, 1).scale
    assert 1.0 <= play(beside, [1500] * 4, 1).scale < widened
