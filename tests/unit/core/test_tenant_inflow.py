"""What tenants are about to send, against sums done by hand."""

import numpy as np
import pytest

from proxy.core.grid import FloatArray, Grid
from proxy.core.lease import Lease
from proxy.core.tenant_inflow import FORGET_S, WINDOW_S, Inflow, Line
from tests.support.builders import demand

GRID = Grid(1000)
STEPS_PER_S = 50.0
BLOCKS, LIVES = 4.0, 64.0  # four blocks until step 64


def draw(lease: Lease) -> FloatArray:
    sums = np.zeros((4, len(GRID)))
    sums[0] = np.where(GRID.ends <= float(lease.output_tokens_max), BLOCKS, 0.0)
    return sums


def regular(inflow: Inflow, tenant: str, per_s: float, until_s: float) -> None:
    for number in range(int(until_s * per_s)):
        asked = demand(f"{tenant}{number}", tenant=tenant)
        inflow.admitted(Lease(f"{tenant}{number}.0", asked, "r0", int(LIVES), number / per_s, 0.0))


def line_of(inflow: Inflow, tenant: str) -> Line:
    return next(line for line in inflow.lines.values() if line.tenant == tenant)


def expected(inflow: Inflow, now_s: float, *tenants: str) -> FloatArray:
    return Inflow.expected([line_of(inflow, tenant) for tenant in tenants], GRID, draw, now_s, STEPS_PER_S)


def test_a_steady_tenant_comes_to_hold_its_rate_times_its_block_time() -> None:
    inflow = Inflow()
    regular(inflow, "a", per_s=5.0, until_s=20.0)
    mean, variance = expected(inflow, 20.0, "a")
    assert mean[-1] == pytest.approx(5.0 * LIVES / STEPS_PER_S * BLOCKS, rel=0.05)
    assert variance[-1] == pytest.approx(5.0 * LIVES / STEPS_PER_S * BLOCKS**2, rel=0.05)
    assert mean[1] == pytest.approx(mean[-1] * GRID.ends[1] / LIVES), "less is expected sooner"


def test_tenants_add_up() -> None:
    inflow = Inflow()
    regular(inflow, "a", per_s=1.0, until_s=10.0)
    assert not inflow.several
    regular(inflow, "b", per_s=20.0, until_s=10.0)
    assert inflow.several
    np.testing.assert_allclose(expected(inflow, 10.0, "a", "b"), expected(inflow, 10.0, "a") + expected(inflow, 10.0, "b"))
    assert expected(inflow, 10.0, "b")[0, -1] == pytest.approx(20.0 * expected(inflow, 10.0, "a")[0, -1], rel=0.1)


def test_who_falls_silent_fades_and_is_forgotten() -> None:
    inflow = Inflow()
    regular(inflow, "a", per_s=5.0, until_s=60.0)
    before, after = (line_of(inflow, "a").per_s(at_s) for at_s in (60.0, 60.0 + WINDOW_S))
    assert after == pytest.approx(before / np.e, rel=0.15)
    inflow.forget(60.0 + FORGET_S)
    assert not inflow.lines


def test_who_comes_back_after_a_pause_is_expected_at_its_rate_again_within_seconds() -> None:
    inflow, back_s = Inflow(), 90.0
    regular(inflow, "a", per_s=5.0, until_s=60.0)
    line = line_of(inflow, "a")
    for number in range(30):
        asked = demand(f"again{number}", tenant="a")
        inflow.admitted(Lease(f"again{number}.0", asked, "r0", int(LIVES), back_s + number / 5.0, 0.0))
    assert line.per_s(back_s + 6.0) == pytest.approx(5.0, rel=0.1), "the pause is not averaged into it"


def test_a_gap_that_chance_makes_is_no_pause() -> None:
    inflow = Inflow()
    regular(inflow, "a", per_s=0.2, until_s=60.0)
    line, since_s = line_of(inflow, "a"), line_of(inflow, "a").since_s
    inflow.admitted(Lease("later.0", demand("later", tenant="a"), "r0", int(LIVES), 70.0, 0.0))
    assert line.since_s == since_s
