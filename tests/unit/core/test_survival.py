"""Survival of output length: occurrence over exposure by hand, censoring, forgetting, back-off, shifts and the bound on classes."""

import math
import random

import numpy as np
import pytest

from proxy.core import survival
from proxy.core.demand import Demand
from proxy.core.length_bins import EDGES
from proxy.core.length_names import bucket, class_chain
from proxy.core.survival import (
    FORGET_COMPLETIONS,
    PRIOR_POWER,
    PRIOR_RATES,
    ROOT_WEIGHT,
    SurvivalModel,
)
from tests.support.builders import demand

CHAIN = 5  # the root and four narrower classes


def hazard(model: SurvivalModel, one: Demand, tokens: float) -> float:
    return float(model.hazard_at(np.asarray([model.leaf(one)]), np.asarray([float(tokens)]))[0])


def alive(model: SurvivalModel, one: Demand, tokens: float) -> float:
    return math.exp(-hazard(model, one, tokens))


def taught(*outputs: tuple[float, bool], one: Demand | None = None) -> SurvivalModel:
    model = SurvivalModel()
    for index, (tokens, natural) in enumerate(outputs):
        model.learn(demand() if one is None else one, tokens, natural=natural)
        if index % 25 == 24:
            model.rebuild(())
    model.rebuild(())
    return model


def backed_off(prior: float, ends: float, exposure: float) -> float:
    """One bin's rate at the leaf when the whole chain saw the same: no parent knows anything from others but the prior."""
    rate = (ends + ROOT_WEIGHT * prior) / (exposure + ROOT_WEIGHT)
    for _ in range(CHAIN - 1):
        rate = (ends + ROOT_WEIGHT * rate) / (exposure + ROOT_WEIGHT)
    return rate


def test_one_end_by_hand() -> None:
    """An output of a bin and a half: it passed the first bin, half of the second, and ended in there."""
    first, second = EDGES[1], EDGES[2]
    model = taught(((first + second) / 2.0, True))
    one = backed_off(PRIOR_RATES[0], 0.0, 1.0)
    two = backed_off(PRIOR_RATES[1], 1.0, 0.5)
    three = backed_off(PRIOR_RATES[2], 0.0, 0.0)
    assert hazard(model, demand(), first) == pytest.approx(one)
    assert hazard(model, demand(), second) == pytest.approx(one + two)
    assert hazard(model, demand(), EDGES[3]) == pytest.approx(one + two + three)
    assert hazard(model, demand(), first + 0.25 * (second - first)) == pytest.approx(one + 0.25 * two)


def test_a_censored_end_adds_exposure_only() -> None:
    first, second = EDGES[1], EDGES[2]
    model = taught(((first + second) / 2.0, False))
    assert hazard(model, demand(), second) == pytest.approx(
        backed_off(PRIOR_RATES[0], 0.0, 1.0) + backed_off(PRIOR_RATES[1], 0.0, 0.5)
    )


def test_natural_ends_shorten_and_censored_ones_lengthen_the_forecast() -> None:
    cold, natural, cut = taught(), taught(*[(100.0, True)] * 50), taught(*[(100.0, False)] * 50)
    expected = [model.output_tokens_expected(demand(), 2000) for model in (natural, cold, cut)]
    assert expected == sorted(expected)
    assert expected[0] < expected[1] < expected[2]


def test_running_requests_count_before_they_end() -> None:
    model = taught(*[(100.0, True)] * 20)
    before = alive(model, demand(), 300)
    model.rebuild([(model.leaf(demand()), 300.0)] * 40)
    assert alive(model, demand(), 300) > before
    model.rebuild(())
    assert alive(model, demand(), 300) == pytest.approx(before)


def test_survival_starts_at_one_and_never_rises() -> None:
    rng = random.Random(3)
    model = taught(*[(rng.uniform(1, 3000), rng.random() < 0.7) for _ in range(300)])
    values = [alive(model, demand(), tokens) for tokens in range(0, 5000, 7)]
    assert values[0] == 1.0
    assert values == sorted(values, reverse=True)
    assert values[-1] >= 0.0


def test_lengths_beyond_the_last_bin_are_no_error() -> None:
    model = taught((EDGES[-1] * 4, True))
    assert hazard(model, demand(), EDGES[-1] * 8) == hazard(model, demand(), EDGES[-1])


def test_what_was_learned_is_the_truth_where_ends_abound() -> None:
    rng = random.Random(7)
    model = taught(*[(rng.expovariate(1 / 200.0), True) for _ in range(800)])
    for tokens in (50, 200, 400):
        assert alive(model, demand(), tokens) == pytest.approx(math.exp(-tokens / 200.0), abs=0.06)


def test_caps_do_not_bias_what_is_learned() -> None:
    """Cut at 150 tokens, the class still learns how the uncut part of its lengths falls."""
    rng = random.Random(7)
    lengths = [rng.expovariate(1 / 200.0) for _ in range(800)]
    model = taught(*[(min(length, 150.0), length < 150.0) for length in lengths])
    assert alive(model, demand(), 100) == pytest.approx(math.exp(-0.5), abs=0.06)


def test_forgetting_follows_completions() -> None:
    """An old end weighs (1 - 1/F)^n after n more: compared by hand on the bin it fell in."""
    model = taught((8.0, True), *[(EDGES[1], False)] * 10)
    keep = 1.0 - 1.0 / FORGET_COMPLETIONS
    exposure = 0.5 * keep**10 + sum(keep**age for age in range(10))
    assert hazard(model, demand(), EDGES[1]) == pytest.approx(backed_off(PRIOR_RATES[0], keep**10, exposure))


def test_a_new_class_starts_as_its_parent() -> None:
    model = taught(*[(100.0, True)] * 100)
    other = demand(cap=3000)
    assert bucket(other.output_tokens_max) != bucket(demand().output_tokens_max)
    model.leaf(other)
    model.rebuild(())
    assert alive(model, other, 200) == pytest.approx(alive(model, demand(), 200), abs=0.1)
    assert alive(model, other, 200) < 0.3 < alive(taught(), other, 200)


def test_classes_differ_by_what_is_known_of_a_request() -> None:
    leaves = {
        class_chain(one)[-1] for one in (demand(), demand(model="n"), demand(prompt=4000), demand(cap=None), demand(cap=9000))
    }
    assert len(leaves) == 5
    assert len({class_chain(one)[0] for one in (demand(), demand(model="n"))}) == 1


def error(model: SurvivalModel, one: Demand, tokens: float) -> float:
    """Standard deviation of log S at ``tokens``."""
    _, doubts = model.cumulative_at(np.asarray([model.leaf(one)]), np.asarray([[tokens]]))
    return math.sqrt(float(doubts[0, 0]))


def test_error_shrinks_with_ends_and_a_class_leans_on_its_parents() -> None:
    model = SurvivalModel()
    errors = []
    for count in (10, 30, 100):
        for _ in range(count):
            model.learn(demand(), 50.0, natural=True)
        model.rebuild(())
        errors.append(error(model, demand(), 60.0))
    assert errors == sorted(errors, reverse=True)
    newcomer = demand(cap=None)
    model.leaf(newcomer)
    model.rebuild(())
    assert errors[-1] < error(model, newcomer, 60.0)


def test_the_error_is_greenwoods() -> None:
    """Of many ends at one length, in a class without parents to lean on but itself: the binomial's, sqrt((1 - p) / (p n)) near p = 1."""
    model = SurvivalModel()
    for index in range(1500):
        model.learn(demand(), 50.0 if index % 10 == 0 else 5000.0, natural=True)
        if index % 25 == 0:
            model.rebuild(())
    keep = 1.0 - 1.0 / FORGET_COMPLETIONS
    seen = (1.0 - keep**1500) / (1.0 - keep)
    assert error(model, demand(), 200.0) == pytest.approx(math.sqrt(0.1 / seen), rel=0.2)


def test_what_was_never_seen_is_doubted_and_goes_on() -> None:
    """Beyond the longest length seen a share of 2^-PRIOR_POWER comes to twice as far, and nobody can be sure of it."""
    model = taught(*[(100.0, True)] * 50)
    assert alive(model, demand(), 4000) / alive(model, demand(), 2000) == pytest.approx(2.0**-PRIOR_POWER, rel=0.05)
    assert error(model, demand(), 4000.0) > 2.0 * error(model, demand(), 90.0)


def test_expected_length_is_the_area_under_survival() -> None:
    model = taught(*[(100.0, True)] * 30)
    area = sum((alive(model, demand(), x) + alive(model, demand(), x + 1)) / 2.0 for x in range(500))
    assert model.output_tokens_expected(demand(), 500) == pytest.approx(area, rel=0.05)  # trapezoids on the bins
    assert model.output_tokens_expected(demand(), 1) == pytest.approx(1.0, abs=0.05)


def run(model: SurvivalModel, rng: random.Random, mean: float, count: int) -> int:
    """Teach ``count`` lengths as a fleet does; return the shifts they caused."""
    before = model.shifts_total
    for index in range(count):
        model.learn(demand(cap=4096), max(1.0, rng.expovariate(1.0 / mean)), natural=True)
        if index % 25 == 24:
            model.rebuild(())
    return model.shifts_total - before


def test_shifts_fire_on_a_change_and_not_without() -> None:
    """Ten classes that keep their law after a learning time, then change it. Chance may fire once in a long while, not often."""
    idle = fired = 0
    for seed in range(10):
        rng = random.Random(seed)
        model = SurvivalModel()
        run(model, rng, 200.0, 300)
        idle += run(model, rng, 200.0, 400) > 0
        fired += run(model, rng, 900.0 if seed % 2 else 40.0, 200) > 0
    assert fired == 10
    assert idle <= 1


@pytest.mark.parametrize("mean", [20.0, 50.0, 150.0])
def test_learning_from_cold_is_no_shift(mean: float) -> None:
    assert [run(SurvivalModel(), random.Random(seed), mean, 150) for seed in range(8)] == [0] * 8


def crowd(model: SurvivalModel, rng: random.Random, *, crowd: int, completions: int, median: float) -> int:
    """A pool that is full from the start: whoever ends is replaced, all gain 16 tokens a turn. Returns the shifts."""
    one, row = demand(cap=8192), model.leaf(demand(cap=8192))

    def length() -> float:
        return min(8000.0, rng.lognormvariate(math.log(median), 0.8))

    lengths, out = [length() for _ in range(crowd)], [0.0] * crowd
    before, turn = model.shifts_total, 0
    while completions > 0:
        turn += 1
        for index in range(crowd):
            out[index] += 16.0
            if out[index] >= lengths[index]:
                model.learn(one, lengths[index], natural=True)
                completions -= 1
                lengths[index], out[index] = length(), 0.0
        if turn % 2 == 0:
            model.rebuild([(np.full(crowd, row), np.asarray(out))])
    return model.shifts_total - before


@pytest.mark.parametrize("size", [30, 150])
def test_a_pool_that_fills_is_no_shift_though_the_short_ones_complete_first(size: int) -> None:
    shifts = [crowd(SurvivalModel(), random.Random(seed), crowd=size, completions=900, median=1340.0) for seed in range(3)]
    assert sum(shifts) <= CHAIN, f"by seed: {shifts}"  # one change fires in each class of the chain


def test_a_full_pool_whose_outputs_grow_is_a_shift() -> None:
    model = SurvivalModel()
    crowd(model, random.Random(1), crowd=60, completions=600, median=200.0)
    assert crowd(model, random.Random(2), crowd=60, completions=300, median=1000.0) >= 1
    assert model.output_tokens_expected(demand(cap=8192), 8192) == pytest.approx(1000.0 * math.exp(0.32), rel=0.3)


def test_after_a_shift_the_class_believes_what_comes_now() -> None:
    rng = random.Random(5)
    model = SurvivalModel()
    run(model, rng, 40.0, 700)
    run(model, rng, 900.0, 150)
    assert model.output_tokens_expected(demand(cap=4096), 4096) > 400.0


def test_beyond_the_bound_newcomers_share_their_parents_class(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(survival, "CLASSES_MAX", CHAIN + 2)
    model = SurvivalModel()
    first = model.leaf(demand())
    leaves = {model.leaf(demand(model=f"model-{index}")) for index in range(50)}
    assert first not in leaves
    assert "classes=7" in repr(model)
    model.learn(demand(model="model-49"), 10.0, natural=True)
    model.rebuild(())
    assert model.leaf(demand()) == first


def test_rows_stay_valid_as_classes_come() -> None:
    model = taught(*[(100.0, True)] * 50)
    row, before = model.leaf(demand()), hazard(model, demand(), 100)
    for index in range(20):
        model.leaf(demand(model=f"model-{index}"))
    assert model.leaf(demand()) == row
    assert hazard(model, demand(), 100) == before
