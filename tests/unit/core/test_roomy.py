"""A request whose curves nobody asks for: bounded from above, booked without them, and drawn as if it had been from the beginning."""

import random

import numpy as np
import pytest

from proxy.core import placement, roomy
from proxy.core.book import Book
from proxy.core.demand import Demand
from proxy.core.events import Arrive, Effect, Finished, Granted, Observed, ReplicaFound, Reserve, Tick
from proxy.core.gate import Gate
from proxy.core.ledger import PREFILL_DELAY_STEPS, Lease
from proxy.core.newcomers import Newcomer, Undrawn
from proxy.core.outcome import Outcome
from proxy.core.shared import Load, row_of
from proxy.core.survival import SurvivalModel
from tests.support.builders import book, demand, engine_sample, lease_of, policy, scrape, spec

TENANTS = ("a", "b", "c")


def learned(rng: random.Random) -> SurvivalModel:
    """Three tenants' lengths, some of them censored."""
    model = SurvivalModel()
    for tenant in TENANTS:
        mean = rng.choice((20, 200, 1000))
        for _ in range(rng.choice((0, 30, 300))):
            model.learn(demand(tenant=tenant), max(1.0, rng.expovariate(1.0 / mean)), natural=rng.random() < 0.8)
    model.rebuild(())
    return model


def anyone(name: str, rng: random.Random) -> Demand:
    prompt, cap = rng.choice((1, 15, 16, 17, 100, 2000)), rng.choice((None, 1, 16, 100, 3000))
    return demand(name, prompt=prompt, cap=cap, tenant=rng.choice(TENANTS))


def undrawn(one: Demand, to: Book, now_s: float) -> Undrawn:
    found = to.undrawn(one, now_s)
    assert found is not None
    return found[1]


def booked(one: Demand, to: Book, newcomer: Newcomer | Undrawn | None, now_s: float = 0.0) -> Lease:
    lease = Lease(one.request_id, one, to.spec.name, to.output_tokens_max(one), now_s, to.steps_now(now_s), streaming=True)
    to.add(lease, newcomer)
    return lease


def booked_undrawn(one: Demand, to: Book, now_s: float) -> tuple[float, Undrawn]:
    """Book it by its bound alone: the headroom that was found, and the bound."""
    found = to.undrawn(one, now_s)
    assert found is not None
    booked(one, to, found[1], now_s)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_the_bound_is_never_below_the_peak(seed: int) -> None:
    rng = random.Random(seed)
    one = book(learned(rng), z=rng.choice((0.0, 1.0, 3.0)), usable=5000)
    for index in range(30):
        now_s = 0.01 * index
        newcomer = anyone(f"q{index}", rng)
        headroom_ratio, undrawn = booked_undrawn(newcomer, one, now_s)
        bound = (1.0 - headroom_ratio) * one.spec.usable_blocks
        if index % 7 == 6:  # asked now and then: the bounds of those in between add up
            exact = one.peak_blocks(None, now_s)
            assert bound >= exact - 1e-6
            assert undrawn.mean_blocks >= one.newcomer(newcomer, now_s, None).curves.mean.max() - 1e-6


@pytest.mark.parametrize("seed", range(5))
def test_who_is_asked_about_later_is_drawn_as_if_at_once(seed: int) -> None:
    rng = random.Random(seed)
    model = learned(rng)
    late, early = book(model, usable=5000), book(model, usable=5000)
    requests = [anyone(f"q{index}", rng) for index in range(12)]
    for index, one in enumerate(requests):
        now_s = 0.02 * index
        booked(one, late, undrawn(one, late, now_s), now_s)
        booked(one, early, early.newcomer(one, now_s, None), now_s)
    for name in ("q3", "q7"):
        assert late.ledger.held_at_start(late.ledger.leases[name]) == early.ledger.held_at_start(early.ledger.leases[name])
    assert late.ledger.blocks_now == early.ledger.totals[0, 0]
    assert late.room_ratio == early.room_ratio
    assert late.ledger.undrawn
    np.testing.assert_array_equal(late.ledger.totals, early.ledger.totals)
    assert not late.ledger.undrawn
    np.testing.assert_array_equal(late.ledger.rows.cap_ends, early.ledger.rows.cap_ends)


def test_a_refresh_draws_everybody_the_same() -> None:
    rng = random.Random(1)
    model = learned(rng)
    late, early = book(model, usable=5000), book(model, usable=5000)
    for index in range(80):  # so many that a refresh draws the slow figures only now and then
        one = anyone(f"q{index}", rng)
        booked(one, late, undrawn(one, late, 0.0) if index > 40 else None)
        booked(one, early, None)
        if index == 40:
            late.refresh(0.1)
            early.refresh(0.1)
    assert late.ledger.undrawn
    late.refresh(0.5)
    early.ledger.enter_rows()
    early.ledger._bare = True  # thorough, as for those without curves
    early.refresh(0.5)
    np.testing.assert_allclose(late.ledger.totals, early.ledger.totals, rtol=1e-9)


def test_who_ends_undrawn_leaves_nothing_behind() -> None:
    one = book(usable=5000)
    lease_of(demand("stays"), one)
    before, rows = one.ledger.totals.copy(), len(one.ledger.rows)
    short = demand("short")
    bound = one.undrawn(short, 0.0)
    booked(short, one, undrawn(short, one, 0.0))
    one.remove("short", 0.1)
    np.testing.assert_array_equal(one.ledger.totals, before)
    assert len(one.ledger.rows) == rows
    assert one.undrawn(short, 0.0) == bound, "its bound is taken off again"


def test_the_last_drawn_one_takes_its_rounding_with_it() -> None:
    one = book(usable=5000)
    lease_of(demand("drawn"), one)
    short = demand("short")
    booked(short, one, undrawn(short, one, 0.0))
    one.remove("drawn", 0.1)
    one.remove("short", 0.1)
    assert not one.ledger.totals.any()


@pytest.mark.parametrize("more", [{"copies": 2}, {"parts": demand().parts * 2}])
def test_what_has_no_bound_is_drawn(more: dict[str, object]) -> None:
    assert book(usable=5000).undrawn(demand(**more), 0.0) is None  # type: ignore[arg-type]


def roomy_gate(usable: int, names: tuple[str, ...] = ("r0",)) -> Gate:
    gate = Gate(policy(), 0.0)
    for name in names:
        gate.handle(ReplicaFound(spec(name, usable=usable)), 0.0)
        gate.handle(Observed(scrape(name, 0.0, engine_sample())), 0.0)
    return gate


def test_a_roomy_pool_draws_nobody_until_somebody_asks() -> None:
    gate = roomy_gate(10_000)
    (book_,) = gate.fleet
    for index in range(3):
        gate.handle(Arrive(demand(f"q{index}"), streaming=True), 1.0 + 0.01 * index)
    assert len(book_.ledger.undrawn) == 3
    lease = book_.ledger.leases["q0.0"]
    assert lease.considered is not None
    assert lease.considered.mean_blocks is not None
    gate.handle(Tick(), 5.0)
    assert not book_.ledger.undrawn
    assert book_.ledger.totals[0, 0] > 0.0


def test_a_filling_pool_draws_each() -> None:
    gate = roomy_gate(100)
    (book_,) = gate.fleet
    gate.handle(Arrive(demand("q", prompt=900, cap=10), streaming=True), 1.0)
    assert (len(book_.ledger.leases), len(book_.ledger.undrawn)) == (1, 0)


def decisions(seed: int, usable: int, names: tuple[str, ...], *, shared: bool = False) -> list[tuple[str, str]]:
    """What a gate decides on two hundred requests that come, grow and end: kinds of effects and replicas."""
    rng, gate, told = random.Random(seed), roomy_gate(usable, names), list[tuple[str, str]]()
    if shared:
        gate.share()
    running: dict[str, Lease] = {}

    def note(effects: list[Effect], now_s: float) -> None:
        for effect in effects:
            told.append((type(effect).__name__, getattr(effect, "request_id", "")))
            if isinstance(effect, Reserve):
                running[effect.request_id] = effect.lease
                told.append(("on", effect.lease.replica))
                note(gate.handle(Granted(effect.request_id), now_s), now_s)

    for index in range(200):
        now_s = 1.0 + 0.03 * index
        note(gate.handle(Arrive(anyone(f"q{index}", rng), streaming=True), now_s), now_s)
        for lease in running.values():
            lease.placed, lease.output_tokens = True, lease.output_tokens + 1
        for name in [name for name in running if rng.random() < 0.05]:
            tokens = running.pop(name).output_tokens
            note(gate.handle(Finished(name, Outcome.COMPLETED, tokens, natural=True), now_s), now_s)
        note(gate.handle(Tick(), now_s), now_s)
    return told


@pytest.mark.parametrize("usable", [300, 1500, 20_000])
@pytest.mark.parametrize("names", [("r0",), ("r0", "r1", "r2")])
def test_nothing_is_decided_otherwise(usable: int, names: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    undrawn_ones = decisions(7, usable, names)
    monkeypatch.setattr(roomy, "ROOMY_RATIO", 2.0)
    assert decisions(7, usable, names) == undrawn_ones


def test_who_looks_in_vain_is_not_followed_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    gate = roomy_gate(10_000)
    looked: list[float] = []

    def in_vain(_entry: object, _books: object, _router: object, now_s: float, **_: bool) -> None:
        looked.append(now_s)

    monkeypatch.setattr(placement, "roomy_place", in_vain)
    for now_s in (1.0, 1.05, 1.0 + 1.5 * roomy.AGAIN_S, 2.0):
        gate.handle(Arrive(demand(f"q{now_s}"), streaming=True), now_s)
    assert looked == [1.0, 1.0 + 1.5 * roomy.AGAIN_S, 2.0]


def test_what_a_tenant_holds_counts_who_is_not_drawn_yet() -> None:
    gate = roomy_gate(10_000)
    (book_,) = gate.fleet
    gate.handle(Arrive(demand("q", prompt=160, cap=1), streaming=True), 1.0)
    assert book_.ledger.undrawn
    told = gate.shares.held_by_tenant([book_])
    next(told)
    with pytest.raises(StopIteration) as held:
        next(told)
    assert held.value.value == {"default": 10.0}
    gate.handle(Arrive(demand("r", prompt=160, cap=1), streaming=True), 1.01)
    assert book_.ledger.undrawn
    assert gate.shares.held_blocks("default", [book_]) == 20.0


@pytest.mark.parametrize("seed", range(10))
def test_the_bound_knows_what_others_came_to_have_meanwhile(seed: int) -> None:
    rng = random.Random(seed)
    one, there = book(learned(rng), usable=5000), book(learned(rng), usable=5000)
    for index in range(24):
        now_s = 0.01 * index
        newcomer = anyone(f"q{index}", rng)
        booked_undrawn(newcomer, one, now_s)
        lease_of(anyone(f"o{index}", rng), there)
        if index % 4 == 3:
            one.ledger.told(row_of(Load(leases=1.0, sequences=1.0), there.ledger.own()), one.steps_now(now_s))
            before = len(one.ledger.undrawn)
            asked = one.undrawn(newcomer, now_s)
            assert asked is not None
            assert len(one.ledger.undrawn) == before > 0, "and draws nobody for it"
            total = one.ledger.totals_drawn[0].max() + sum(each.bound_blocks for each in one.ledger.undrawn.values())
            assert (1.0 - asked[0]) * one.spec.usable_blocks >= total
        if index % 8 == 7:
            asked = one.undrawn(newcomer, now_s)
            assert asked is not None
            bound = (1.0 - asked[0]) * one.spec.usable_blocks - asked[1].bound_blocks
            assert bound >= one.peak_blocks(None, now_s) - 1e-6


@pytest.mark.parametrize("seed", range(20))
def test_no_curve_is_above_the_highest_that_is_told_of_it(seed: int) -> None:
    rng = random.Random(seed)
    newcomers = book(learned(rng), usable=5000).ledger.newcomers
    for index in range(30):
        one, cap = anyone(f"q{index}", rng), rng.choice((1, 16, 100, 3000))
        highest = newcomers.highest(one, cap, PREFILL_DELAY_STEPS)
        curves = newcomers.forecast(one, cap, PREFILL_DELAY_STEPS).sum
        assert (curves <= np.array(highest)[:, None] + 1e-9).all()
        assert highest[0] <= 3.0 * curves[0].max(), "nor far below"
        if index == 15:
            newcomers.model.learn(one, 40.0, natural=True)
            newcomers.model.rebuild(())


@pytest.mark.parametrize("usable", [300, 1500, 20_000])
def test_nothing_is_decided_otherwise_where_others_are_told_of_it(usable: int, monkeypatch: pytest.MonkeyPatch) -> None:
    undrawn_ones = decisions(7, usable, ("r0", "r1"), shared=True)
    monkeypatch.setattr(roomy, "ROOMY_RATIO", 2.0)
    assert decisions(7, usable, ("r0", "r1"), shared=True) == undrawn_ones
