"""What a tenant is charged in the end."""

import pytest

from proxy.core.events import Arrive, Cancelled, Finished, Granted, Observed, ReplicaFound, Reserve
from proxy.core.gate import Gate
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
    monkeypatch.setattr(gate.queue, "charge", lambda _, block_steps: charged.append(block_steps))
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
