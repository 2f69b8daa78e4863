"""What a tenant is charged in the end."""

from dataclasses import replace

import pytest

from proxy.core.bands import TenantLine
from proxy.core.demand import Demand, PromptPart
from proxy.core.events import Arrive, Cancelled, Finished, Granted, Observed, ReplicaFound, Reserve
from proxy.core.gate import Gate
from proxy.core.open_leases import used_block_steps
from proxy.core.outcome import Outcome
from tests.support.builders import demand, engine_sample, policy, scrape, spec


def empty() -> Gate:
    """A gate over one empty replica that was just scraped."""
    gate = Gate(policy(), 0.0)
    gate.handle(ReplicaFound(spec("r0")), 0.0)
    gate.handle(Observed(scrape("r0", 0.0, engine_sample())), 0.0)
    return gate


def charges_of(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What tenants are charged from now on, in block-steps."""
    charged: list[float] = []
    charge = gate.queue.charge

    def noted(one: Demand, block_steps: float) -> TenantLine:
        charged.append(block_steps)
        return charge(one, block_steps)

    monkeypatch.setattr(gate.queue, "charge", noted)
    return charged


@pytest.mark.parametrize("tokens", [1, 5, 64, 600])
def test_a_tenant_is_charged_in_the_end_what_its_request_held(tokens: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever was forecast: blocks after each token, summed, but for the half block by which they are rounded up."""
    gate = empty()
    charged = charges_of(gate, monkeypatch)
    gate.handle(Arrive(demand("a", prompt=385, cap=900)), 0.0)
    gate.handle(Granted("a"), 0.0)
    assert charged[0] > 25 * 15
    gate.handle(Finished("a", Outcome.COMPLETED, tokens), 1.0)
    held = sum(-((384 + done) // -16) for done in range(1, tokens + 1))
    assert sum(charged) == pytest.approx(held, abs=0.5 * tokens)


def test_who_cancels_is_charged_for_what_it_held_until_then(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = empty()
    charged = charges_of(gate, monkeypatch)
    (reserve,) = gate.handle(Arrive(demand("a", prompt=385, cap=15), streaming=True), 0.0)
    assert isinstance(reserve, Reserve)
    gate.handle(Granted("a"), 0.0)
    reserve.lease.output_tokens = 10
    gate.handle(Cancelled("a"), 1.0)
    assert sum(charged) == 10 * 25


@pytest.mark.parametrize("prompt", [1, 16, 17, 385, 4000])
@pytest.mark.parametrize("tokens", [0.0, 0.5, 1, 15, 16, 17.5, 600])
@pytest.mark.parametrize("beam", [False, True])
def test_one_plain_prompt_takes_what_the_rule_for_all_demands_says(prompt: int, tokens: float, *, beam: bool) -> None:
    """Its short way against Simpson's rule over the ledger's own blocks, to the last bit."""
    book = next(iter(empty().fleet))
    one = replace(demand("a", prompt=prompt), beam_search=beam)
    assert one.copies == len(one.parts) == 1
    begun, half, ended = (book.ledger.blocks_at(one, out) for out in (1.0, tokens / 2.0, tokens))
    assert used_block_steps(book.ledger, one, tokens) == (tokens * (begun + 4.0 * half + ended) / 6.0 if tokens else 0.0)


def test_prompts_that_are_several_take_what_each_of_them_does() -> None:
    ledger = next(iter(empty().fleet)).ledger
    parts = [PromptPart(100), PromptPart(333)]
    alone = [used_block_steps(ledger, replace(demand("a"), parts=(part,)), 40.0) for part in parts]
    assert used_block_steps(ledger, replace(demand("a"), parts=tuple(parts)), 40.0) == pytest.approx(sum(alone))
