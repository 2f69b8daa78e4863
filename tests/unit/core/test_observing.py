"""Observed requests go on whatever the forecast says, and what enforcing would have done to them is noted; some tenants may be enforced."""

from dataclasses import replace

import pytest

from proxy.core.events import Arrive, Effect, Finished, Forward, Granted, Reroute, Reserve
from proxy.core.gate import Gate
from proxy.core.lease import Lease
from proxy.core.observing import place_of
from proxy.core.outcome import Mode, Outcome, Would
from tests.support.builders import demand
from tests.support.several import gate_of, quarter

TENANTS = [f"tenant-{number}" for number in range(2000)]


def lease_of(effects: list[Effect]) -> Lease:
    (reserve,) = (effect for effect in effects if isinstance(effect, Reserve))
    return reserve.lease


def observing(mode: Mode = Mode.OBSERVE, *replicas: str) -> Gate:
    gate = gate_of(*(replicas or ("r0",)), shared=False)
    gate.mode = mode
    return gate


def ramped(ratio: float, *replicas: str) -> Gate:
    gate = observing(Mode.ENFORCE, *replicas)
    gate.policy = replace(gate.policy, enforce_ratio=ratio)
    return gate


def test_what_would_be_held_is_noted_with_the_wait_of_a_shadow_queue() -> None:
    gate = observing()
    would = [lease_of(gate.handle(Arrive(quarter(f"q{index}")), 0.0)).would for index in range(10)]
    first = would.index(next(one for one in would if one is not None))
    assert 2 <= first <= 4, "quarters of the pool: about three fit"
    assert would[:first] == [None] * first
    waits = [one.wait_s for one in would[first:] if one is not None]
    assert waits == sorted(waits)
    assert len(waits) == gate.counters.would_hold == 10 - first
    assert all(wait_s is not None and wait_s > 0.0 for wait_s in waits)
    assert (gate.counters.held, gate.counters.shed, len(gate.queue)) == (0, 0, 0)
    later = lease_of(gate.handle(Arrive(quarter("later")), 1.0)).would
    assert later is not None
    assert later.wait_s is not None
    assert waits[-1] is not None
    assert waits[-1] - 1.0 < later.wait_s < waits[-1], "the line has drained for a second and grown by one"


def test_what_could_never_be_served_would_be_shed() -> None:
    gate = observing()
    assert lease_of(gate.handle(Arrive(demand("q", prompt=100_000)), 0.0)).would == Would(None)
    assert gate.counters.would_shed == 1


def test_off_looks_at_nothing() -> None:
    gate = observing(Mode.OFF)
    leases = [lease_of(gate.handle(Arrive(quarter(f"q{index}")), 0.0)) for index in range(10)]
    assert {lease.would for lease in leases} == {None}
    assert gate.counters.would_hold == 0


def test_places_are_even_and_never_change() -> None:
    places = [place_of(tenant) for tenant in TENANTS]
    assert all(0.0 <= place < 1.0 for place in places)
    for ratio in (0.05, 0.2, 0.5):
        assert sum(place < ratio for place in places) == pytest.approx(ratio * len(places), rel=0.2)
    assert place_of("default") == pytest.approx(0.69309172, abs=1e-8), "a written number: every version and proxy agrees on it"


@pytest.mark.parametrize(("ratio", "share"), [(0.0, 0.0), (1.0, 1.0)])
def test_none_and_all(ratio: float, share: float) -> None:
    gate = ramped(ratio)
    assert sum(map(gate.enforces, TENANTS)) == share * len(TENANTS)
    gate.mode = Mode.OBSERVE
    assert not any(map(gate.enforces, TENANTS))


def test_tenants_below_the_ratio_are_held_and_the_others_go_on_in_one_ledger() -> None:
    inside, outside = min(TENANTS, key=place_of), max(TENANTS, key=place_of)
    gate = ramped(0.05)
    for index in range(6):
        assert lease_of(gate.handle(Arrive(quarter(f"o{index}", tenant=outside)), 0.0)).lease_id
        gate.handle(Granted(f"o{index}"), 0.0)
    assert gate.counters.would_hold >= 2
    assert not gate.handle(Arrive(quarter("i0", tenant=inside)), 0.0), "held: the observed ones fill its ledger too"
    assert (gate.counters.held, len(gate.queue)) == (1, 1)
    effects = [
        effect for index in range(6) for effect in gate.handle(Finished(f"o{index}", Outcome.COMPLETED, 15, natural=True), 1.0)
    ]
    assert any(isinstance(effect, Reserve) and effect.request_id == "i0" for effect in effects)


def test_an_observed_request_that_a_replica_failed_waits_for_nobody() -> None:
    outside = max(TENANTS, key=place_of)
    gate = ramped(0.05, "r0", "r1")
    names = [f"o{index}" for index in range(12)]
    leases = {}
    for name in names:
        leases[name] = lease_of(gate.handle(Arrive(quarter(name, tenant=outside)), 0.0))
        assert any(isinstance(effect, Forward) for effect in gate.handle(Granted(name), 0.0))
    last = leases[names[-1]]
    assert last.would is not None
    again = lease_of(gate.handle(Reroute(names[-1]), 0.5))
    assert again.replica != last.replica
    assert again.would == last.would
    assert len(gate.queue) == 0
