"""Whether an exact count can matter: never where even bounds leave the pool half empty, always where anything else depends on it."""

from collections.abc import Callable

import pytest

from proxy.core.book import Book
from proxy.core.events import Arrive, ReplicaFound
from proxy.core.gate import Gate
from proxy.core.outcome import Mode
from proxy.core.plenty import BOUND_RATIO_MAX, SPARE_RATIO, bound_tokens_max
from proxy.core.policy import TenantPolicy, Tenants
from proxy.core.replica import ReplicaPhase
from tests.support.builders import demand, policy, spec

USABLE_TOKENS = 1000 * 16


def gate_over(*names: str) -> tuple[Gate, list[Book]]:
    gate = Gate(policy(), 0.0)
    for name in names:
        gate.handle(ReplicaFound(spec(name, usable=1000)), 0.0)
    return gate, list(gate.fleet)


def test_an_idle_roomy_engine_takes_bounds_up_to_a_share_of_the_pool() -> None:
    gate, books = gate_over("r0")
    assert bound_tokens_max(gate, books, 0) == int(BOUND_RATIO_MAX * USABLE_TOKENS)


def test_what_others_bounds_exceed_their_lengths_by_counts() -> None:
    gate, books = gate_over("r0")
    spare = int((1.0 - SPARE_RATIO) * USABLE_TOKENS)
    assert bound_tokens_max(gate, books, spare - 100) == 100
    assert bound_tokens_max(gate, books, spare) == 0


def test_a_pool_forecast_to_fill_is_counted_for() -> None:
    gate, books = gate_over("r0")
    gate.handle(Arrive(demand("a", prompt=4000, cap=90), streaming=True), 0.0)
    assert bound_tokens_max(gate, books, 0) > 0
    gate.handle(Arrive(demand("b", prompt=4000, cap=90), streaming=True), 0.0)
    assert bound_tokens_max(gate, books, 0) == 0


def test_the_context_bounds_it() -> None:
    gate = Gate(policy(), 0.0)
    gate.handle(ReplicaFound(spec("r0", usable=1000, context=512)), 0.0)
    assert bound_tokens_max(gate, list(gate.fleet), 0) == 511


def drain(gate: Gate) -> None:
    next(iter(gate.fleet)).phase = ReplicaPhase.DRAINING


CHANGES: dict[str, Callable[[Gate], object]] = {
    "observed only": lambda gate: setattr(gate, "mode", Mode.OBSERVE),
    "other proxies": Gate.share,
    "tenants with shares": lambda gate: setattr(gate.shares, "tenants", Tenants(others=TenantPolicy(kv_share_max=0.5))),
    "draining": drain,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_lengths_matter_where_something_else_depends_on_them(change: Callable[[Gate], object]) -> None:
    gate, books = gate_over("r0")
    change(gate)
    assert bound_tokens_max(gate, books, 0) == 0


def test_several_engines_want_to_know_the_prefix() -> None:
    gate, books = gate_over("r0", "r1")
    assert bound_tokens_max(gate, books, 0) == 0


def test_while_somebody_waits_everybody_is_counted() -> None:
    gate, books = gate_over("r0")
    for name in "abcde":
        gate.handle(Arrive(demand(name, prompt=3900, cap=90), streaming=True), 0.0)
    assert len(gate.queue)
    assert bound_tokens_max(gate, books, 0) == 0
