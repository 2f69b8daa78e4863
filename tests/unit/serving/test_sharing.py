"""Proxies over one store, and what becomes of requests when it is not well. The store is the plain ledger, the clock the test's."""

from collections.abc import AsyncIterator

import pytest

from proxy.core.events import ReplicaChanged
from proxy.core.replica import ReplicaPhase
from proxy.core.shared import Answer
from proxy.ports.store import StoreFault, StorePhase
from tests.support.builders import FakeClock, policy
from tests.support.local_store import LocalStore
from tests.support.several import quarter
from tests.support.sharing_proxies import REPLICA, SharingProxy

INTERVAL_S = policy().scrape.interval_s


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def store(clock: FakeClock) -> LocalStore:
    return LocalStore(clock, policy().store.lease_s)


@pytest.fixture
async def two(clock: FakeClock, store: LocalStore) -> AsyncIterator[tuple[SharingProxy, SharingProxy]]:
    """Two proxies that share; each knows of the other."""
    a, b = SharingProxy("a", store, clock), SharingProxy("b", store, clock)
    for proxy in (a, b):
        await proxy.share()
    for proxy in (a, b, a):
        await proxy.exchange.beat()
    yield a, b
    await a.close()
    await b.close()
    assert not a.faults
    assert not b.faults


async def ask_for(proxy: SharingProxy, count: int, name: str = "q") -> None:
    """Quarters of the replica; by itself a proxy takes three at once, for more that end together are spaced."""
    for index in range(count):
        await proxy.ask(quarter(f"{name}{index}"))


async def test_two_fill_a_replica_once(two: tuple[SharingProxy, SharingProxy]) -> None:
    a, b = two
    await ask_for(a, 3)
    await ask_for(b, 3)
    assert (len(a.placed()), len(b.placed())) == (3, 1)
    assert a.called.count("reserve") == 3, "one round trip for each grant"
    assert sum(b.sharing.answers.values()) > b.sharing.answers[Answer.GRANTED], "the store said so, for b had not heard of a yet"


async def test_room_that_came_free_is_seen_elsewhere_within_20_ms(
    two: tuple[SharingProxy, SharingProxy], clock: FakeClock
) -> None:
    a, b = two
    await ask_for(a, 3)
    await a.beats(2)
    await ask_for(b, 2)
    assert b.placed() == ["q0"]
    await a.finish("q0")
    assert a.member.due_s - clock.now_s() <= 0.02
    clock.advance(0.02)
    await a.beat()
    clock.advance(0.1)
    await b.beat()
    await b.beats(1)
    assert b.placed() == ["q0", "q1"]


@pytest.mark.parametrize("fault", list(StoreFault))
async def test_whatever_is_wrong_with_the_store_fails_nobody_and_admits_the_share(
    two: tuple[SharingProxy, SharingProxy], store: LocalStore, clock: FakeClock, fault: StoreFault
) -> None:
    a, b = two
    clock.advance(0.01)
    store.fault = fault
    await ask_for(a, 4)
    await ask_for(b, 4)
    assert (len(a.placed()), len(b.placed())) == (2, 2), "half the replica each, no more and no less"
    assert a.sharing.phase is StorePhase.DEGRADED
    assert a.sharing.errors[fault] > 0
    assert fault in str(a.sharing.last_error)
    store.fault = None
    await a.share()
    assert a.sharing.outages == 1


async def test_it_shares_again_within_two_seconds_of_the_stores_return_with_all_its_rows_lost(
    two: tuple[SharingProxy, SharingProxy], store: LocalStore, clock: FakeClock
) -> None:
    a, b = two
    await ask_for(a, 2)
    store.fault = StoreFault.CONNECTION
    await a.beats(20)
    await b.beats(20)
    assert (a.sharing.phase, b.sharing.phase) == (StorePhase.DEGRADED, StorePhase.DEGRADED)
    store.ledger.flush()
    store.fault = None
    back_s = clock.now_s()
    await a.share()
    await b.share()
    assert clock.now_s() - back_s <= 2.0
    assert store.ledger.accounts[REPLICA].entries["a"].row is not None


async def test_a_reservation_that_was_made_and_not_heard_of_is_settled_by_the_next_rewrite(
    two: tuple[SharingProxy, SharingProxy], store: LocalStore
) -> None:
    a, b = two
    store.fault, store.unheard = StoreFault.TIMEOUT, True
    await ask_for(a, 1)
    assert a.placed() == ["q0"]
    assert store.calls.count("reserve") == 1, "never sent again"
    store.fault, store.unheard = None, False
    await a.share()
    await b.beats(2)
    await ask_for(b, 4)
    assert len(b.placed()) == 3, "it is in the row, and only there"


async def test_a_fault_of_our_own_is_counted_and_fails_nobody(
    two: tuple[SharingProxy, SharingProxy], store: LocalStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, _ = two

    async def broken(_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(store, "reserve", broken)
    await ask_for(a, 1)
    assert a.placed() == ["q0"]
    assert (a.faults, a.sharing.errors["internal"]) == (["store"], 1)
    a.faults.clear()


async def test_one_scrapes_and_another_takes_over_within_two_intervals_of_its_end(
    two: tuple[SharingProxy, SharingProxy], clock: FakeClock
) -> None:
    a, b = two
    a.scrape()
    await a.sharing.settled()
    await b.beats(1)
    assert a.sharing.ours([REPLICA])
    assert not b.sharing.ours([REPLICA])
    held_s = clock.now_s()
    while not b.sharing.ours([REPLICA]):  # a is gone
        await b.beats(1, every_s=INTERVAL_S / 4)
    assert INTERVAL_S < clock.now_s() - held_s <= 2.0 * INTERVAL_S
    b.scrape(usage=0.5)
    await b.sharing.settled()
    await a.beats(2, every_s=INTERVAL_S / 4)
    assert b.sharing.ours([REPLICA])
    assert not a.sharing.ours([REPLICA])
    assert a.gate.fleet.books[REPLICA].measured_blocks == 50.0, "it adopts what the other found"


async def test_who_leaves_frees_its_share_at_once(two: tuple[SharingProxy, SharingProxy]) -> None:
    a, b = two
    for _ in range(20):  # until a lease has passed a store that has just begun gives out no more than shares
        await a.beats(1)
        await b.beats(1)
    await ask_for(a, 3)
    await a.beats(2)
    await ask_for(b, 3)
    assert len(b.placed()) == 1
    await a.sharing.leave()
    await b.beats(2)
    assert len(b.placed()) == 3


async def test_who_cannot_reach_the_store_leaves_without_it(two: tuple[SharingProxy, SharingProxy], store: LocalStore) -> None:
    a, _ = two
    store.fault = StoreFault.CONNECTION
    await a.sharing.leave()
    assert "forget" in store.calls


async def test_alone_with_a_store_that_never_was_there_it_serves(clock: FakeClock, store: LocalStore) -> None:
    store.fault = StoreFault.CONNECTION
    alone = SharingProxy("a", store, clock)
    await alone.beats(3)
    await ask_for(alone, 5)
    assert len(alone.placed()) == 3
    await alone.close()


async def test_a_proxy_that_cannot_reach_the_replica_takes_it_from_nobody(clock: FakeClock, store: LocalStore) -> None:
    a, b = SharingProxy("a", store, clock), SharingProxy("b", store, clock)
    a.dispatcher.feed(ReplicaChanged(REPLICA, ReplicaPhase.UNREACHABLE))
    await a.share()  # the store has no record yet, so it publishes what it knows
    assert store.ledger.accounts[REPLICA].record.phase is ReplicaPhase.UNREACHABLE
    await b.share()
    await b.beats(2)
    assert b.gate.fleet.books[REPLICA].phase is ReplicaPhase.SERVING
    await ask_for(b, 1)
    assert b.placed() == ["q0"]
    await b.close()
