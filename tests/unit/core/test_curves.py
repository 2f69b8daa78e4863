"""Blocks and demand curves: the engine's own vectors, and what bounds what."""

import numpy as np
import pytest

from proxy.core.curves import LookAhead, RowStates, alive, apart, blocks_held, cap_ends, look_ahead
from proxy.core.demand import Demand, PromptPart
from proxy.core.grid import Grid
from proxy.core.kv_shape import KvShape
from proxy.core.survival import SurvivalModel
from proxy.sim.engine import Engine
from proxy.sim.engine_requests import EngineRequest, EngineSettings
from tests.support.builders import book, curves_of, demand, lease_of, no_demand, rows

GRID = Grid(2048)


def ahead_of(states: RowStates) -> LookAhead:
    """What is ahead of rows on a new model."""
    return look_ahead(states, GRID, SurvivalModel(), KvShape(16), doubts=True)


@pytest.mark.parametrize(("prompt", "output", "peak"), [(16, 17, 2), (16, 18, 3), (15, 2, 1), (16, 1, 1), (40, 8, 3)])
def test_peaks_are_the_schedulers(prompt: int, output: int, peak: int) -> None:
    """Vectors of the real 0.32 scheduler: the last sampled token is never fed back."""
    assert blocks_held(rows((prompt, 0, output)), np.inf, KvShape(16))[0] == peak


@pytest.mark.parametrize(("fed", "blocks"), [(48, 3), (49, 4)])
def test_a_block_is_taken_with_its_first_token(fed: int, blocks: int) -> None:
    prompt = 40
    assert blocks_held(rows((prompt, fed - prompt + 1, 100)), 0.0, KvShape(16))[0] == blocks


def test_copies_share_the_full_blocks_before_the_last_prompt_token() -> None:
    assert blocks_held(rows((100, 0, 50), copies=4), 0.0, KvShape(16))[0] == 7 + 3
    assert (
        blocks_held(rows((96, 0, 50), copies=4), 0.0, KvShape(16))[0] == 5 + 4
    )  # 96 tokens are full, the last block is not shared
    assert blocks_held(rows((10, 0, 50), copies=4), 0.0, KvShape(16))[0] == 4


def engine_holds(one: Demand) -> int:
    """Blocks the engine model holds for a demand after its first step."""
    engine = Engine(EngineSettings(num_gpu_blocks=1000, max_num_batched_tokens=100_000))
    for index, part in enumerate(one.parts):
        for copy in range(one.copies):
            hashes = tuple(range(1000 * index, 1000 * index + part.tokens // 16))
            name = f"{index}.{copy}"
            engine.add(EngineRequest(name, part.tokens, None, 50, hashes, shares_prefix=one.shares_prefix))
    engine.step()
    return engine.used_blocks


@pytest.mark.parametrize(
    "one",
    [
        demand(prompt=100, copies=4),
        demand(prompt=96, copies=3),
        demand(prompt=100),
        demand(prompt=100, shares_prefix=False),
        demand(parts=[PromptPart(100), PromptPart(33)], copies=2),
    ],
)
def test_the_ledger_holds_what_the_engine_holds(one: Demand) -> None:
    here = book(usable=999)
    lease_of(one, here).placed = True
    assert here.ledger.held_interval(0.0, 0.0)[0] == engine_holds(one)


def test_copies_that_look_up_no_prefix_share_nothing() -> None:
    one = demand(prompt=100, copies=4, shares_prefix=False)
    here = book(usable=999)
    lease_of(one, here).placed = True
    assert engine_holds(one) == 28
    assert here.ledger.held_interval(0.0, 0.0)[0] == 28
    assert here.prompt_blocks(one) == 28


def test_growth_ends_at_the_cap() -> None:
    state = rows((16, 0, 17))
    assert [blocks_held(state, ahead, KvShape(16))[0] for ahead in (0.0, 1.0, 2.0, 16.0, 17.0, 18.0, 1e9)] == [
        1,
        1,
        2,
        2,
        2,
        2,
        2,
    ]


def test_alive_is_one_now_and_zero_from_the_cap_on() -> None:
    one = rows((10, 5, 40))
    living, possible = alive(one, ahead_of(one))
    assert living[0, 0] == 1.0
    gone = GRID.starts + 5 >= 40
    assert (living[0, gone] == 0.0).all()
    assert (living[0, ~gone] > 0.0).all()
    assert np.array_equal(possible[0], (~gone).astype(float))
    assert (np.diff(living[0]) <= 0.0).all()


def test_who_is_still_to_be_prefilled_lives_longer_by_its_delay() -> None:
    delayed = [rows((10, 0, 32), delay=delay) for delay in (0.0, 2.0)]
    now, later = (alive(one, ahead_of(one))[1][0].sum() for one in delayed)
    assert later == now + 1


def test_a_row_is_a_bernoulli_variable_of_its_blocks() -> None:
    curves, living = curves_of(rows((100, 10, 300)), GRID, SurvivalModel(), KvShape(16))
    blocks = curves.ceiling[0]
    here = blocks > 0.0
    assert np.allclose(curves.mean[0], blocks * living[0])
    assert np.allclose(curves.variance[0], blocks**2 * living[0] * (1.0 - living[0]))
    assert (curves.ceiling[0] >= curves.mean[0]).all()
    assert here.any()
    assert not here.all()


def test_the_common_error_is_the_doubt_about_survival() -> None:
    """None at the start, growing ahead; a row that is older doubts only what lies before it."""
    model = SurvivalModel()
    curves, living = curves_of(rows((100, 10, 3000), (100, 900, 3000)), GRID, model, KvShape(16))
    assert curves.common[0, 0] == 0.0
    ahead = GRID.starts + 10.0
    _, doubts = model.cumulative_at(np.zeros(1, dtype=np.intp), np.append(ahead, 10.0)[None, :])
    expected = curves.mean[0] * np.sqrt(doubts[0, :-1] - doubts[0, -1])
    assert np.allclose(curves.common[0], expected)
    relative = curves.common / np.maximum(curves.mean, 1e-9)
    both = (living > 0.0).all(axis=0)
    assert (np.diff(relative[0][both]) >= 0.0).all()


@pytest.mark.parametrize(
    ("common", "classes", "left"),
    [
        ([1.0, 1.0, 1.0, 1.0], [0, 0, 0, 0], 1.0),
        ([1.0, 1.0, 1.0, 1.0], [0, 1, 2, 3], 0.5),
        ([3.0, 4.0], [0, 1], 5.0 / 7.0),
        ([0.0], [0], 1.0),
    ],
)
def test_classes_err_apart(common: list[float], classes: list[int], left: float) -> None:
    assert apart(np.asarray(common), np.asarray(classes, dtype=np.intp)) == pytest.approx(left)


def test_curves_add_up_and_zero_changes_nothing() -> None:
    both, _ = curves_of(rows((100, 10, 300), (7, 0, 900)), GRID, SurvivalModel(), KvShape(16))
    one, _ = curves_of(rows((100, 10, 300)), GRID, SurvivalModel(), KvShape(16))
    two, _ = curves_of(rows((7, 0, 900)), GRID, SurvivalModel(), KvShape(16))
    for total, summed in zip(both.total().arrays(), (one.total() + two.total() + no_demand(len(GRID))).arrays(), strict=True):
        assert np.allclose(total, summed)


def test_a_cap_end_frees_the_peak_at_the_cap() -> None:
    both = rows((16, 5, 18), (40, 0, 8), delay=2.0)
    steps, blocks, reach = cap_ends(both, ahead_of(both))
    assert steps.tolist() == [15.0, 10.0]
    assert blocks.tolist() == [3.0, 3.0]
    assert ((reach > 0.0) & (reach < 1.0)).all()
