"""Whether a class has shifted is told of many ends at once as of one after the other."""

import random

import numpy as np
import pytest

from proxy.core.shift_watch import SHIFT_KEEP, ShiftWatch

KEEP = 0.9995


def watch(hazard: float, running: float) -> ShiftWatch:
    """One class, with so much hazard gone through by those under way."""
    made = ShiftWatch()
    made.weights(np.full((1, 4), running))
    made.under_way(np.array([hazard]))
    return made


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("longer", [0.3, 1.0, 4.0])
def test_many_at_once_drift_where_one_after_the_other_would(seed: int, longer: float) -> None:
    rng = random.Random(seed)
    expected = [rng.expovariate(1.0) * longer for _ in range(600)]
    natural = [rng.random() < 0.9 for _ in expected]
    at_once, in_turn = watch(12.0, 30.0), watch(12.0, 30.0)
    drifts: list[int] = []
    ends = ends_in_turn = 0.0
    done = 0
    while done < len(expected):
        drifted, ends = at_once.first_drift(0, expected[done:], natural[done:], ends, KEEP)
        if drifted is None:
            break
        done += drifted + 1
        ends *= SHIFT_KEEP
        drifts.append(done - 1)
    found: list[int] = []
    for place, (one, ended) in enumerate(zip(expected, natural, strict=True)):
        drifted, ends_in_turn = in_turn.first_drift(0, [one], [ended], ends_in_turn, KEEP)
        if drifted is not None:
            found.append(place)
            ends_in_turn *= SHIFT_KEEP
    assert (drifts, ends) == (found, ends_in_turn)
    assert bool(drifts) is (longer != 1.0)
