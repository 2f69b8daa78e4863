"""What is warm where."""

import pytest

from proxy.core.demand import Demand, PromptPart
from proxy.core.ledger import Lease
from proxy.core.warmth import ADAPTER_LOAD_TOKENS, Warmth
from tests.support.builders import demand, engine_sample, scrape

BLOCK = 128
PROMPT = (1, 2, 3, 4)
NAMES = ("r0", "r1")


def warmth(*, caching: bool = True, blocks: int = 1000) -> Warmth:
    one = Warmth()
    for name in NAMES:
        one.found(name, usable_blocks=blocks, block_size=BLOCK, caching=caching)
    return one


def prompt(*hashes: int, extra: int = 0, **more: object) -> Demand:
    return demand(prompt=len(hashes) * BLOCK + 1 + extra, hashes=hashes, **more)  # type: ignore[arg-type]


def run(at: Warmth, one: Demand, replica: str = "r0", *, output: int = 0, keep: bool = False) -> Lease:
    """Place it, and end it unless it is kept."""
    cached = int(at.cached_tokens(one, (replica,))[0])
    lease = Lease("l", one, replica, 100, 0.0, 0.0, cached_tokens=cached)
    at.placed(lease)
    if not keep:
        lease.output_tokens = output
        at.ended(lease)
    return lease


def test_a_prompt_is_warm_where_it_ran() -> None:
    one = warmth()
    run(one, prompt(*PROMPT))
    assert one.cached_tokens(prompt(1, 2, 9), NAMES) == [2 * BLOCK, 0.0]
    assert one.cached_tokens(prompt(*PROMPT), NAMES) == [4 * BLOCK, 0.0]
    assert one.cached_tokens(prompt(*PROMPT), ("r1", "unknown", "r0")) == [0.0, 0.0, 4 * BLOCK]


def test_several_prompts_of_a_request_are_each_looked_up() -> None:
    one = warmth()
    parts = (PromptPart(2 * BLOCK + 1, (1, 2)), PromptPart(BLOCK + 1, (7,)))
    run(one, demand(parts=parts))
    assert one.cached_tokens(demand(parts=parts), NAMES) == [3 * BLOCK, 0.0]


@pytest.mark.parametrize("one", [warmth(caching=False), warmth()])
def test_nothing_is_promised_where_the_engine_looks_nothing_up(one: Warmth) -> None:
    run(one, prompt(*PROMPT))
    asked = prompt(*PROMPT, shares_prefix=False)
    assert one.cached_tokens(asked, NAMES) == [0.0, 0.0]


def test_without_prefix_caching_nothing_is_warm() -> None:
    one = warmth(caching=False)
    run(one, prompt(*PROMPT, session="s"))
    assert one.cached_tokens(prompt(*PROMPT, session="s"), NAMES) == [0.0, 0.0]


def test_a_sessions_output_is_warm_too() -> None:
    one = warmth()
    run(one, prompt(*PROMPT, session="s"), output=300)
    longer = prompt(*PROMPT, 5, 6, 7, 8, session="s")
    assert one.cached_tokens(longer, NAMES) == [4 * BLOCK + 1 + 300, 0.0]
    assert one.cached_tokens(prompt(*PROMPT, 5, 6, 7, 8), NAMES) == [4 * BLOCK, 0.0], "of no session"
    assert one.cached_tokens(prompt(*PROMPT, 5, session="s", tenant="b"), NAMES) == [4 * BLOCK, 0.0], "another tenant's name"


def test_a_session_whose_prompts_are_not_hashed_is_believed_until_the_pool_has_turned_over() -> None:
    one = warmth(blocks=10)
    run(one, demand(prompt=600, session="s"), output=40)
    assert one.cached_tokens(demand(prompt=700, session="s"), NAMES) == [640.0, 0.0]
    assert one.cached_tokens(demand(prompt=300, session="s"), NAMES) == [299.0, 0.0], "the last token is always computed"
    run(one, demand(prompt=9 * BLOCK))
    assert one.cached_tokens(demand(prompt=700, session="s"), NAMES) == [640.0, 0.0]
    run(one, demand(prompt=2 * BLOCK))
    assert one.cached_tokens(demand(prompt=700, session="s"), NAMES) == [0.0, 0.0]


def test_a_session_that_starts_another_conversation_is_cold() -> None:
    one = warmth()
    run(one, prompt(*PROMPT, session="s"), output=300)
    assert one.cached_tokens(prompt(11, 12, 13, 14, 15, session="s"), NAMES) == [0.0, 0.0]


def test_a_session_goes_where_its_last_turn_was() -> None:
    one = warmth()
    run(one, demand(prompt=600, session="s"))
    run(one, demand(prompt=600, session="s"), "r1")
    assert one.cached_tokens(demand(prompt=700, session="s"), NAMES) == [0.0, 600.0]


def test_hits_that_do_not_come_true_count_less() -> None:
    one = warmth()
    one.observed(scrape("r0", 0.0, engine_sample(prefix_hits=0.0)))
    run(one, prompt(*range(500)))
    for _ in range(60):
        run(one, prompt(*range(500)))
        one.observed(scrape("r0", 0.0, engine_sample(prefix_hits=0.0)))
    cached = one.cached_tokens(prompt(*range(500)), NAMES)[0]
    assert 0.0 < cached < 0.05 * 500 * BLOCK


def test_adapters_stay_where_they_run_or_ran_last() -> None:
    one = warmth()
    assert one.adapter_tokens(demand(), "r0") == 0.0
    assert one.adapter_tokens(demand(adapter="a"), "r0") == ADAPTER_LOAD_TOKENS
    lease = run(one, demand(adapter="a"), keep=True)
    assert one.adapter_tokens(demand(adapter="a"), "r0") == 0.0
    assert one.adapter_tokens(demand(adapter="b"), "r0") == 2 * ADAPTER_LOAD_TOKENS, "to be loaded, and another is in its way"
    one.ended(lease)
    assert one.adapter_tokens(demand(adapter="a"), "r0") == 0.0
    assert one.adapter_tokens(demand(adapter="b"), "r0") == ADAPTER_LOAD_TOKENS
    assert one.adapter_tokens(demand(adapter="b"), "nobody") == 0.0


def test_a_new_engine_has_nothing_warm_and_forgets_what_ran() -> None:
    one = warmth()
    late = run(one, prompt(*PROMPT, adapter="a", session="s"), keep=True)
    one.new_epoch("r0")
    asked = prompt(*PROMPT, 5, adapter="a", session="s")
    assert one.cached_tokens(asked, NAMES) == [0.0, 0.0]
    assert one.adapter_tokens(asked, "r0") == ADAPTER_LOAD_TOKENS
    one.ended(late)
    assert one.cached_tokens(asked, NAMES) == [0.0, 0.0]


def test_a_new_engine_ends_sessions_whose_prompts_are_not_hashed() -> None:
    one = warmth()
    run(one, demand(prompt=600, session="s"))
    one.new_epoch("r0")
    assert one.cached_tokens(demand(prompt=700, session="s"), NAMES) == [0.0, 0.0]


def test_what_begins_behind_a_shared_system_prompt_names_a_conversation() -> None:
    one = warmth()
    assert one.first_unshared(prompt(*PROMPT), "r0", 2 * BLOCK) == 3
    assert one.first_unshared(prompt(*PROMPT), "r0", 4 * BLOCK) is None
    assert one.first_unshared(demand(), "r0", 0.0) is None
