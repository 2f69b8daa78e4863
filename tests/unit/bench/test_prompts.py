"""Prompts have the length that was asked for, by the model's own count, and share what the workload says they share."""

import json
from dataclasses import replace
from itertools import islice, takewhile
from math import inf

import pytest

from proxy.adapters.tokenizer_files import LoadedTokenizer, open_tokenizer
from proxy.bench.plan import COMPLETIONS, Dresser, FixedLengths, Shape, workload_of
from proxy.bench.prompts import PromptError, PromptMaker
from proxy.sim.mock_text import TOKENIZER_DIRECTORY, MockTokenizer
from proxy.sim.sim_request import SimRequest


def alike(texts: list[list[str]]) -> list[str]:
    """The words that all begin with."""
    return [words[0] for words in takewhile(lambda words: len(set(words)) == 1, zip(*texts, strict=False))]


@pytest.fixture(scope="module")
def tokenizer() -> LoadedTokenizer:
    return open_tokenizer(str(TOKENIZER_DIRECTORY), wall_s=lambda: 0.0)


def maker(tokenizer: LoadedTokenizer, *, chat: bool = True, shared_tokens: int = 0) -> PromptMaker:
    return PromptMaker(tokenizer, chat=chat, block_size=16, seed=1, shared_tokens=shared_tokens)


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("tokens", [40, 41, 333, 4000])
def test_a_prompt_has_exactly_the_tokens_asked_for(tokenizer: LoadedTokenizer, chat: bool, tokens: int) -> None:
    prompt = maker(tokenizer, chat=chat).make(SimRequest("r", tokens, 10))
    assert (prompt.tokens, prompt.exact) == (tokens, True)
    if not chat:
        assert len(MockTokenizer().encode(prompt.text)) == tokens


def test_a_prompt_below_the_templates_own_length_says_so(tokenizer: LoadedTokenizer) -> None:
    made = maker(tokenizer)
    prompt = made.make(SimRequest("r", 1, 10))
    assert (prompt.tokens, prompt.exact) == (made.least, False)


def test_a_shared_prefix_comes_first_and_on_top(tokenizer: LoadedTokenizer) -> None:
    made = maker(tokenizer, shared_tokens=100)
    one, two = (made.make(SimRequest(name, 50, 10)) for name in ("one", "two"))
    assert one.tokens == two.tokens == 150
    assert len(alike([one.text.split(), two.text.split()])) >= 100
    alone = maker(tokenizer)
    assert len(alike([alone.make(SimRequest(name, 150, 10)).text.split() for name in ("one", "two")])) < 5


def test_a_session_repeats_its_earlier_turns_and_all_share_the_system_prompt(tokenizer: LoadedTokenizer) -> None:
    workload = workload_of("agent", 1, 16)
    made = maker(tokenizer, chat=False)
    first = next(workload.arrivals(1.0))
    second = workload.follow_up(first, 5.0)
    assert second is not None
    other = list(islice(workload.arrivals(1.0), 2))[1]
    words = [made.make(request).text.split() for request in (first, second, other)]
    assert len(alike(words[:2])) >= 16 * len(first.block_hashes)
    assert 4000 <= len(alike([words[0], words[2]])) < 4000 + 32


def test_a_model_without_a_template_is_told_to_take_completions(tokenizer: LoadedTokenizer) -> None:
    with pytest.raises(PromptError, match="--api completions"):
        maker(replace(tokenizer, templates={}))


def dresser(tokenizer: LoadedTokenizer, shape: Shape, context_tokens: int | None = 4096) -> Dresser:
    return Dresser("m", maker(tokenizer, chat=shape.api == "chat"), shape, context_tokens, 0)


def test_lengths_are_exact_or_the_models_own(tokenizer: LoadedTokenizer) -> None:
    request = SimRequest("r", 60, 500, 200)
    exact = json.loads(dresser(tokenizer, Shape()).dress(request).body)
    assert (exact["max_tokens"], exact["ignore_eos"], exact["stream"]) == (200, True, True)
    natural = json.loads(dresser(tokenizer, Shape(natural=True)).dress(request).body)
    assert natural["max_tokens"] == 200
    assert "ignore_eos" not in natural
    plain = dresser(tokenizer, Shape(api="completions")).dress(request)
    assert plain.target == COMPLETIONS
    assert plain.prompt_tokens == 60


def test_tenants_and_leavers_are_the_same_for_the_same_seed(tokenizer: LoadedTokenizer) -> None:
    def dressed(seed: int) -> list[tuple[str, float]]:
        made = dresser(tokenizer, Shape(tenants=3, cancel_ratio=0.5, cancel_after_s=1.0, seed=seed))
        return [(one.tenant, one.leave_after_s) for one in (made.dress(SimRequest(f"r{n}", 60, 5)) for n in range(60))]

    once = dressed(1)
    assert once == dressed(1)
    assert once != dressed(2)
    assert {tenant for tenant, _ in once} == {"tenant-0", "tenant-1", "tenant-2"}
    leaving = [after_s for _, after_s in once if after_s < inf]
    assert 15 < len(leaving) < 45
    assert max(leaving) <= 2.0


def test_what_does_not_fit_the_context_is_counted_and_not_sent(tokenizer: LoadedTokenizer) -> None:
    made = dresser(tokenizer, Shape(), context_tokens=100)
    assert made.fits(SimRequest("r", 60, 40))
    assert not made.fits(SimRequest("r", 60, 41))
    assert made.left_out == 1


@pytest.mark.parametrize("name", ["fixed:1", "fixed:a:1", "fixed:0:5", "fixed:1:2:3", "nonsense"])
def test_a_workload_that_is_none_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=name):
        workload_of(name, 1, 16)


def test_fixed_lengths_arrive_as_a_poisson_process_at_the_rate() -> None:
    workload = FixedLengths("fixed:100:20", 1)
    arrivals = list(islice(workload.arrivals(10.0), 4000))
    assert {(one.prompt_tokens, one.length) for one in arrivals} == {(100, 20)}
    assert 4000 / arrivals[-1].arrival_s == pytest.approx(10.0, rel=0.05)
