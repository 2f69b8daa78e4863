"""Whatever comes, goes and grows: the ledger's sums are what a recount gives, and shared blocks are what a plain dict says."""

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from proxy.core.curves import Curves
from proxy.core.demand import PromptPart
from proxy.core.ledger import Lease, Ledger
from proxy.core.survival import SurvivalModel
from proxy.sim.engine import Engine
from proxy.sim.engine_requests import EngineRequest, EngineSettings
from tests.support.builders import book, demand, lease_of, no_demand

BLOCK = 16
PROMPTS = st.integers(1, 120)
# Two families of prompts with a common start: lists of block hashes.
FAMILIES = tuple(tuple(range(1000 * family, 1000 * family + 10)) for family in range(2))


def recount(ledger: Ledger) -> Curves:
    """The total from its rows and from who references which block, without the running sums."""
    rows = [row for lease in ledger.leases.values() for row in lease.rows]
    total = Curves(*ledger.rows.curves[:, rows].sum(axis=1)) if rows else no_demand(ledger.totals.shape[1])
    holders: dict[int, list[int]] = {}
    for row, hashes in ledger._shared._blocks._held.items():
        for block in hashes:
            holders.setdefault(block, []).append(row)
    for members in holders.values():
        alive = ledger.rows.alive[members]
        total.mean -= alive.sum(axis=0) - (1.0 - np.prod(1.0 - alive, axis=0))
        total.ceiling -= np.maximum((alive > 0.0).sum(axis=0) - 1, 0)
    return total


class LedgerMachine(RuleBasedStateMachine):
    """Random leases come, are placed, grow and go."""

    def __init__(self) -> None:
        super().__init__()
        self.book = book(usable=1000)
        self.steps = 0.0
        self.serial = 0

    def lease(self, data: st.DataObject) -> Lease:
        return data.draw(st.sampled_from(list(self.book.ledger.leases.values())))

    @rule(
        lengths=st.lists(PROMPTS, min_size=1, max_size=3),
        family=st.sampled_from([(), *FAMILIES]),
        cap=st.integers(1, 200),
        copies=st.integers(1, 3),
        streaming=st.booleans(),
    )
    def add(self, lengths: list[int], family: tuple[int, ...], cap: int, copies: int, streaming: bool) -> None:
        parts = [PromptPart(length, family[: length // BLOCK]) for length in lengths]
        self.serial += 1
        candidate = demand(f"q{self.serial}", parts=parts, cap=cap, copies=copies)
        expected = self.book.ledger.total + self.book.ledger.demand_curves(candidate, cap)
        lease_of(candidate, self.book, streaming=streaming)
        if len(parts) == 1:
            assert np.allclose(self.book.ledger.total.mean, expected.mean, atol=1e-6)
        else:  # parts of one request may share among themselves, which only booking them shows
            assert (self.book.ledger.total.mean <= expected.mean + 1e-6).all()

    @precondition(lambda self: self.book.ledger.leases)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        lease = self.lease(data)
        assert self.book.ledger.remove(lease.lease_id) is lease

    @precondition(lambda self: self.book.ledger.leases)
    @rule(data=st.data(), tokens=st.integers(0, 300))
    def progress(self, data: st.DataObject, tokens: int) -> None:
        lease = self.lease(data)
        lease.output_tokens += tokens
        lease.placed = True

    @rule(steps=st.floats(0.0, 100.0))
    def refresh(self, steps: float) -> None:
        self.steps += steps
        self.book.ledger.refresh(self.steps)

    @rule(tokens=st.integers(1, 500), natural=st.booleans())
    def learn(self, tokens: int, natural: bool) -> None:
        self.book.ledger.model.learn(demand(), tokens, natural=natural)
        self.book.ledger.model.rebuild([self.book.ledger.running()])

    @rule()
    def clear(self) -> None:
        self.book.ledger.clear()

    @invariant()
    def sums_are_a_recount(self) -> None:
        for kept, counted in zip(self.book.ledger.total.arrays(), recount(self.book.ledger).arrays(), strict=True):
            assert np.allclose(kept, counted, atol=1e-6)
            assert (kept > -1e-6).all()

    @invariant()
    def counts_are_a_recount(self) -> None:
        ledger = self.book.ledger
        assert ledger.sequences == sum(lease.demand.sequences for lease in ledger.leases.values())
        assert len(ledger.running()[0]) == sum(len(lease.demand.parts) for lease in ledger.leases.values())

    @invariant()
    def the_interval_is_ordered(self) -> None:
        low, high = self.book.ledger.held_interval(self.steps, 2.0)
        assert 0.0 <= low <= high + 1e-9


LedgerMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=25, deadline=None)
TestLedger = LedgerMachine.TestCase


class SharingMachine(RuleBasedStateMachine):
    """The engine model beside the ledger: what it holds is never more than the ledger says, with any sharing."""

    def __init__(self) -> None:
        super().__init__()
        self.book = book(SurvivalModel(), usable=999)
        self.engine = Engine(EngineSettings(num_gpu_blocks=1000, block_size=BLOCK, max_num_batched_tokens=100_000))
        self.serial = 0

    @rule(length=PROMPTS, family=st.sampled_from([(), *FAMILIES]))
    def add(self, length: int, family: tuple[int, ...]) -> None:
        length += length % BLOCK == 0  # the engine's own copies of a last full block: test_prefix.py
        self.serial += 1
        name, hashes = f"q{self.serial}", family[: length // BLOCK]
        self.engine.add(EngineRequest(name, length, None, 1000, hashes))
        lease = lease_of(demand(name, prompt=length, cap=1000, hashes=hashes), self.book)
        lease.placed = True
        self.step()

    @rule()
    def step(self) -> None:
        for name in self.engine.step().sampled:
            self.book.ledger.leases[name].output_tokens += 1

    @precondition(lambda self: self.book.ledger.leases)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(list(self.book.ledger.leases)))
        self.book.ledger.remove(name)
        self.engine.abort(name)

    @invariant()
    def the_ledger_never_holds_less(self) -> None:
        assert self.engine.used_blocks <= self.book.ledger.held_interval(0.0, 0.0)[0] + 1e-6


SharingMachine.TestCase.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
TestSharing = SharingMachine.TestCase
