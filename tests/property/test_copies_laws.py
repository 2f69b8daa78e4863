"""Several sequences of one request as the engine's front end sends them: n copies, lists of prompts, beams. Their forecast bounds what
the engine model holds, all the way."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.core.demand import Demand, PromptPart
from proxy.core.survival import SurvivalModel
from proxy.sim.engine import Engine
from proxy.sim.engine_requests import EngineRequest, EngineSettings, chain_hashes
from tests.support.builders import book, demand, knows_lengths

BLOCK_SIZE = 16
CACHING = EngineSettings(num_gpu_blocks=5001, max_num_batched_tokens=100_000, max_num_seqs=1000, max_model_len=4096)
PARTS = st.lists(st.integers(1, 300), min_size=1, max_size=4)


def forecast_peak(one: Demand) -> float:
    here = book(knows_lengths(SurvivalModel(), one), usable=5000)
    return float(here.ledger.demand_curves(one, here.output_tokens_max(one)).ceiling.max())


def prompt_hashes(part: int, tokens: int) -> tuple[int, ...]:
    return chain_hashes([part * 10_000 + index for index in range(tokens)], BLOCK_SIZE)


def used_most(one: Demand, settings: EngineSettings) -> int:
    """One engine request per part and copy, as vLLM fans them out; blocks at the worst step, before the finished are freed."""
    engine = Engine(settings)
    for part, each in enumerate(one.parts):
        for copy in range(one.copies):
            name, hashes = f"{part}.{copy}", prompt_hashes(part, each.tokens)
            engine.add(EngineRequest(name, each.tokens, None, one.output_tokens_max, hashes, shares_prefix=one.shares_prefix))
    most = 0
    while engine.has_work:
        most = max(most, engine.step().used_blocks)
    return most


@given(parts=PARTS, copies=st.integers(1, 6), cap=st.integers(2, 120), shares=st.booleans())
@settings(max_examples=30, deadline=None)
def test_copies_and_prompt_lists(parts: list[int], copies: int, cap: int, shares: bool) -> None:
    one = demand(parts=[PromptPart(tokens) for tokens in parts], copies=copies, cap=cap, shares_prefix=shares)
    assert used_most(one, CACHING) <= forecast_peak(one)


@pytest.mark.parametrize(
    ("prompt", "cap", "copies", "blocks"),
    [
        (100, 1, 4, 10),  # reference: 7 + 3 blocks
        (100, 60, 4, 22),  # the real scheduler's 6 + 4 * 4 for 159 tokens: test_kv_recordings, plain-100+60x4
        (1500, 40, 4, 109),  # 93 + 4 * 4 for 1,539 tokens: plain-1500+40x4
        (5000, 40, 3, 321),  # 312 + 3 * 3: plain-5000+40x3
    ],
)
def test_copies_hold_exactly_what_the_real_scheduler_gave_them(prompt: int, cap: int, copies: int, blocks: int) -> None:
    here = book(usable=5000, context=8192)
    assert here.ledger.shape.held_by(prompt, prompt - 1 + cap, copies) == blocks


def beams_most(prompt: int, width: int, cap: int) -> int:
    """A beam search as vLLM's API server runs it: every token is ``width`` requests of one token for the grown prompts.

    Beams that have parted share nothing but the prompt, which is the worst they can do. Each round is looked at while it runs: its
    requests are given a second token and aborted before it.
    """
    engine = Engine(CACHING)
    most = 0
    for out in range(cap):
        names = [f"{out}.{beam}" for beam in range(width if out else 1)]
        for beam, name in enumerate(names):
            tokens = list(range(prompt)) + [100_000 * (beam + 1) + index for index in range(out)]
            engine.add(EngineRequest(name, len(tokens), None, 2, chain_hashes(tokens, BLOCK_SIZE)))
        most = max(most, engine.step().used_blocks)
        for name in names:
            assert engine.abort(name)
    return most


@given(prompt=st.integers(1, 200), width=st.integers(2, 5), cap=st.integers(2, 40))
@settings(max_examples=20, deadline=None)
def test_beams(prompt: int, width: int, cap: int) -> None:
    one = replace(demand(prompt=prompt, copies=width, cap=cap), beam_search=True)
    most = beams_most(prompt, width, cap)
    assert most <= forecast_peak(one) <= most + width  # one token of lead


def test_a_beam_feeds_its_last_token_back() -> None:
    """16 tokens and one out: a copy never feeds the one back, a beam's second round does."""
    copies = demand(prompt=16, copies=2, cap=2)
    here = book(usable=5000)
    assert here.ledger.shape.held_by(16, 16 - 1 + 1, 2) == 2  # no full block before the last token: nothing is shared
    assert forecast_peak(copies) == 4
    assert beams_most(16, 2, 2) == 3  # the prompt's block once, and one more for each
    assert forecast_peak(replace(copies, beam_search=True)) == 3
