"""Lengths of those that ended are counted together, when hazards are made anew: as one after the other would be."""

import itertools
import random

import numpy as np
import pytest

from proxy.core import survival
from proxy.core.length_bins import EDGES
from proxy.core.survival import KEEP, SurvivalModel
from tests.support.builders import demand


def one_by_one(model: SurvivalModel, ended: list[tuple[float, bool]]) -> tuple[list[float], list[float]]:
    """Ends and exposure of the root as each of ``ended`` would leave them in turn, without a shift."""
    (_, ends, exposure), *_ = model.classes()
    counted, passed = ends.tolist(), exposure.tolist()
    for tokens, natural in ended:
        counted, passed = [KEEP * value for value in counted], [KEEP * value for value in passed]
        for index, (first, last) in enumerate(itertools.pairwise(EDGES)):
            if first <= tokens:
                passed[index] += min(1.0, (tokens - first) / (last - first))
            if natural and first <= tokens < last:
                counted[index] += 1.0
    return counted, passed


def test_those_that_ended_are_counted_at_once_as_one_after_the_other() -> None:
    rng = random.Random(3)
    model = SurvivalModel()
    for _ in range(40):
        model.learn(demand(), rng.expovariate(0.01), natural=True)
    model.rebuild(())
    ended = [(round(rng.expovariate(0.01), 1), rng.random() < 0.7) for _ in range(60)]
    counted, passed = one_by_one(model, ended)
    for tokens, natural in ended:
        model.learn(demand(), tokens, natural=natural)
    (_, ends, exposure), *_ = model.classes()
    np.testing.assert_allclose(ends, counted, rtol=1e-9)
    np.testing.assert_allclose(exposure, passed, rtol=1e-9)


def test_what_is_not_asked_for_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survival, "ENDED_MAX", 8)
    model = SurvivalModel()
    for _ in range(100):
        model.learn(demand(), 10.0, natural=True)
        assert len(model._ended) < 8
