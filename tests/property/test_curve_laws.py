"""With known lengths a forecast is never below the truth, at any step, for any request; and it bounds what the engine model holds."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.core.grid import Grid
from proxy.core.kv_shape import KvShape
from proxy.core.survival import SurvivalModel
from proxy.core.units import blocks_for_tokens
from proxy.sim.engine import Engine
from proxy.sim.engine_requests import EngineRequest, EngineSettings
from tests.support.builders import book, curves_of, demand, knows_lengths, lease_of, rows

GRID = Grid(4096)
KNOWS = SurvivalModel()
KNOWS._lines[:] = 0.0  # nobody ends before its cap
PREFILL_STEPS_MAX = 3  # the step that takes the prompt, and the delay's two before it


def truth(prompt: int, out: int, cap: int, copies: int, step: int, block_size: int) -> int:
    """Blocks held during decode step ``step`` from now, by the engine's rule; copies run in step with each other."""
    tokens = out + step
    if tokens > cap:
        return 0
    shared = (prompt - 1) // block_size if copies > 1 else 0
    return shared + copies * (blocks_for_tokens(prompt - 1 + max(tokens, 1), block_size) - shared)


@st.composite
def known(draw: st.DrawFn) -> tuple[int, int, int, int, int]:
    """(prompt, tokens out, cap, copies, block size) of a request that is decoding."""
    cap = draw(st.integers(2, 2000))
    out = draw(st.integers(1, cap - 1))
    return draw(st.integers(1, 3000)), out, cap, draw(st.integers(1, 5)), draw(st.sampled_from([1, 8, 16, 32, 128]))


@given(known())
@settings(max_examples=100, deadline=None)
def test_known_lengths_are_never_underestimated(case: tuple[int, int, int, int, int]) -> None:
    prompt, out, cap, copies, block_size = case
    curves, _ = curves_of(rows((prompt, out, cap), copies=copies), GRID, KNOWS, KvShape(block_size))
    steps = np.arange(1, cap - out + 1)
    held = np.asarray([truth(prompt, out, cap, copies, int(step), block_size) for step in steps])
    interval = np.searchsorted(GRID.ends, steps, side="left")
    assert (curves.mean[0, interval] >= held).all()
    assert (curves.ceiling[0, interval] >= held).all()


@given(prompt=st.integers(1, 600), cap=st.integers(1, 300), starts=st.integers(0, PREFILL_STEPS_MAX - 1))
@settings(max_examples=50, deadline=None)
def test_a_request_on_its_way_is_never_underestimated(prompt: int, cap: int, starts: int) -> None:
    """However many of the delay's steps pass before the engine takes it, the real block count stays below the curve."""
    curves, _ = curves_of(rows((prompt, 0, cap), delay=2.0), GRID, KNOWS, KvShape(16))
    engine = Engine(EngineSettings(num_gpu_blocks=500, max_num_batched_tokens=4096, max_model_len=4096))
    engine.add(EngineRequest("q", prompt, None, cap))
    step = starts
    while engine.has_work:
        engine.step()
        step += 1
        at = int(np.searchsorted(GRID.ends, step, side="left"))
        held = engine.used_blocks if engine.unfinished else blocks_for_tokens(prompt + cap - 1, 16)
        assert curves.mean[0, at] >= held, (step, held)


@given(
    states=st.lists(st.tuples(st.integers(1, 500), st.integers(0, 300), st.integers(1, 900)), min_size=1, max_size=5),
    copies=st.integers(1, 3),
)
def test_ceilings_bound_means_and_nothing_is_negative(states: list[tuple[int, int, int]], copies: int) -> None:
    curves, living = curves_of(rows(*states, copies=copies), GRID, SurvivalModel(), KvShape(16))
    assert (curves.ceiling >= curves.mean - 1e-9).all()
    assert all((curve >= 0.0).all() for curve in curves.arrays())
    assert ((living >= 0.0) & (living <= 1.0)).all()


@given(prompt=st.integers(1, 500), out=st.integers(0, 100), cap=st.integers(101, 900), more=st.integers(0, 500))
def test_a_higher_cap_never_needs_less(prompt: int, out: int, cap: int, more: int) -> None:
    model = SurvivalModel()
    low, _ = curves_of(rows((prompt, out, cap)), GRID, model, KvShape(16))
    high, _ = curves_of(rows((prompt, out, cap + more)), GRID, model, KvShape(16))
    assert (high.mean >= low.mean).all()
    assert (high.ceiling >= low.ceiling).all()


@given(lengths=st.lists(st.tuples(st.integers(1, 400), st.integers(1, 300)), min_size=1, max_size=12))
@settings(max_examples=30, deadline=None)
def test_a_books_forecast_bounds_the_engine_all_the_way(lengths: list[tuple[int, int]]) -> None:
    """Everybody is sent at once and ends at its cap: the peak forecast at the start is never exceeded."""
    demands = [demand(f"q{index}", prompt=prompt, cap=cap) for index, (prompt, cap) in enumerate(lengths)]
    here = book(knows_lengths(SurvivalModel(), *demands), usable=2000)
    engine = Engine(EngineSettings(num_gpu_blocks=2001, max_num_batched_tokens=100_000, max_model_len=4096))
    for one in demands:
        lease_of(one, here)
        engine.add(EngineRequest(one.request_id, one.prompt_tokens, None, one.output_tokens_max))
    peak = here.peak_blocks(None, 0.0)
    while engine.has_work:
        assert engine.step().used_blocks <= peak + 1e-6
