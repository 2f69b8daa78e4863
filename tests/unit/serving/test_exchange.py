"""What proxies tell each other once a beat: who is there, the mode that rules, charges, completions, where responses live."""

import logging
from dataclasses import replace

import pytest

from proxy.core.events import Arrive, Finished
from proxy.core.health import Outliers
from proxy.core.outcome import Mode, Outcome
from proxy.core.override import Override
from proxy.core.policy import Policy
from proxy.core.shared_health import SharedHealth
from proxy.ports.store import KeptResponse, StoreError, StoreFault
from proxy.serving.stored_responses import UNTOLD_MAX, Home, StoredResponses
from tests.support.builders import FakeClock, demand, policy
from tests.support.local_store import LocalStore
from tests.support.several import quarter
from tests.support.sharing_proxies import SharingProxy


class Pool:
    """Proxies on one clock and store."""

    def __init__(self) -> None:
        self.clock = FakeClock()
        self.store = LocalStore(self.clock, policy().store.lease_s)

    def proxy(self, name: str, rules: Policy | None = None) -> SharingProxy:
        return SharingProxy(name, self.store, self.clock, rules)


@pytest.fixture
def pool() -> Pool:
    return Pool()


async def test_proxies_know_of_each_other(pool: Pool) -> None:
    a, b = pool.proxy("a"), pool.proxy("b")
    await a.exchange.beat()
    await b.exchange.beat()
    await a.exchange.beat()
    assert [card.proxy for card in a.exchange.proxies] == ["a", "b"]
    assert (a.member.proxies, b.member.proxies) == (2, 2)
    assert a.exchange.differing() == []
    assert a.exchange.proxies[1].admin == "http://b"
    assert a.exchange.proxies[1].seen_s == pytest.approx(pool.store.now_s)


async def test_who_is_not_heard_of_counts_for_a_lease_more(pool: Pool) -> None:
    a, b = pool.proxy("a"), pool.proxy("b")
    for proxy in (b, a):
        await proxy.exchange.beat()
    pool.store.cards.clear()  # an outage of more than a lease: whoever comes back first finds itself alone
    pool.clock.advance(60.0)
    await a.exchange.beat()
    assert len(a.exchange.proxies) == 1
    assert a.member.proxies == 2
    pool.clock.advance(policy().store.lease_s)
    await a.exchange.beat()
    assert a.member.proxies == 1


async def test_another_policy_is_told_once(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    a, b = pool.proxy("a"), pool.proxy("b", replace(policy(), tokenizer="other"))
    await b.exchange.beat()
    with caplog.at_level(logging.WARNING):
        await a.exchange.beat()
        await a.exchange.beat()
    assert [card.proxy for card in a.exchange.differing()] == ["b"]
    assert sum("store.policies_differ" in line for line in caplog.messages) == 1


async def test_a_mode_in_the_store_rules_until_it_is_taken_away(pool: Pool) -> None:
    a = pool.proxy("a")
    pool.store.overrides["mode"] = Override("mode", "observe", "because", "me", pool.store.now_s + 10.0, "1")
    await a.exchange.beat()
    assert a.gate.mode is Mode.OBSERVE
    pool.store.overrides.clear()
    await a.exchange.beat()
    assert a.gate.mode is Mode.ENFORCE


async def charge(proxy: SharingProxy, name: str, tenant: str) -> None:
    """One request of the tenant, from its coming to its end."""
    await proxy.ask(quarter(name, tenant=tenant))
    await proxy.finish(name)


def virtual(proxy: SharingProxy, tenant: str) -> float:
    return proxy.gate.queue.virtual(demand(tenant=tenant))


async def test_tenants_are_charged_everywhere_and_once(pool: Pool) -> None:
    a, b = pool.proxy("a"), pool.proxy("b")
    for proxy in (a, b):
        await proxy.share()
        await proxy.exchange.beat()
    await charge(a, "q0", "x")
    charged = virtual(a, "x")
    assert charged > virtual(b, "x") == 0.0
    for proxy in (a, b, a, b):
        await proxy.exchange.beat()
    assert virtual(b, "x") == pytest.approx(charged)
    assert virtual(a, "x") == pytest.approx(charged), "its own come back to it in the total, and are not charged again"


async def test_who_waits_elsewhere_keeps_its_account_and_a_store_that_lost_them_takes_nothing_back(pool: Pool) -> None:
    a, b = pool.proxy("a"), pool.proxy("b")
    for proxy in (a, b):
        await proxy.share()
        await proxy.exchange.beat()
    for index in range(4):
        await a.ask(quarter(f"run{index}", tenant="other"))
    a.gate.handle(Arrive(quarter("w", tenant="x")), pool.clock.now_s())
    assert a.gate.queue.get("w") is not None
    a.gate.queue.charge(quarter("c", tenant="x"), 700.0)
    for proxy in (a, b, a, b):
        await proxy.exchange.beat()
    assert virtual(b, "x") == pytest.approx(virtual(a, "x"))
    assert b.gate.queue.bands[0].start() == pytest.approx(virtual(a, "other")), "the least of those who wait"
    before = virtual(a, "x")
    pool.store.accounts.clear()
    a.gate.queue.charge(quarter("d", tenant="x"), 50.0)
    for proxy in (a, b, a, b):
        await proxy.exchange.beat()
    assert virtual(a, "x") == pytest.approx(before + 50.0) == pytest.approx(virtual(b, "x"))


@pytest.mark.parametrize(("fault", "told"), [(StoreFault.CONNECTION, True), (StoreFault.TIMEOUT, False)])
async def test_what_a_failed_beat_told_is_told_again_unless_it_may_have_been_heard(
    pool: Pool, fault: StoreFault, *, told: bool
) -> None:
    a = pool.proxy("a")
    await a.share()
    await charge(a, "q0", "x")
    pool.store.fault = fault
    with pytest.raises(StoreError):
        await a.exchange.beat()
    pool.store.fault = None
    await a.exchange.beat()
    assert bool(pool.store.accounts) is told


async def test_who_starts_learns_how_long_answers_were(pool: Pool) -> None:
    a = pool.proxy("a")
    await a.share()
    await a.exchange.beat()
    before = a.gate.fleet.model.completions_total
    await charge(a, "q0", "x")
    await a.exchange.beat()
    assert a.gate.fleet.model.completions_total == before + 1
    late = pool.proxy("b")
    await late.exchange.beat()
    assert late.gate.fleet.model.completions_total == before + 1
    await late.exchange.beat()
    assert late.gate.fleet.model.completions_total == before + 1, "each once"


async def test_a_request_that_nobody_asked_the_store_for_is_told_too(pool: Pool) -> None:
    a = pool.proxy("a")
    a.gate.mode = Mode.OBSERVE
    a.dispatcher.feed(Arrive(quarter("q0")))
    a.dispatcher.feed(Finished("q0", Outcome.COMPLETED, 15, natural=True))
    await a.exchange.beat()
    assert [completion.output_tokens for _, completion in pool.store.completions] == [15.0]


async def test_a_replica_that_one_ejected_is_suspected_by_all_until_it_answers_anybody(pool: Pool) -> None:
    proxies = [pool.proxy(name) for name in "abc"]
    seen: list[tuple[str, str]] = []
    outliers = []
    for proxy, name in zip(proxies, "abc", strict=True):
        found = Outliers(policy().health)
        for replica in ("r0", "r1"):
            found.seen(replica, ("m",), pool.clock.now_s(), usable=True)
        proxy.exchange.health = SharedHealth(found)
        proxy.exchange.on_health = lambda replica, name=name: seen.append((name, replica))  # type: ignore[misc]
        outliers.append(found)

    async def beats() -> None:
        for proxy in proxies:
            pool.clock.advance(0.01)
            await proxy.exchange.beat()

    a, b, c = outliers
    await beats()
    while not a.ejected("r0"):
        a.failed("r0", pool.clock.now_s())
    await beats()
    await beats()
    assert seen == [("b", "r0"), ("c", "r0")], "once each, however often it is told"
    assert b.slow_start_of("r0", pool.clock.now_s()) is not None
    pool.clock.advance(0.01)
    b.answered("r0", pool.clock.now_s())
    assert b.slow_start_of("r0", pool.clock.now_s()) is None
    await beats()
    await beats()
    assert sorted(seen[2:]) == [("a", "r0"), ("c", "r0")]
    assert c.slow_start_of("r0", pool.clock.now_s()) is None
    assert a.returns("r0", pool.clock.now_s())
    await beats()
    await beats()
    assert not any(proxy.exchange.health.notices(0.0) for proxy in proxies)
    assert not any(proxy.faults for proxy in proxies)


def keeping(proxy: SharingProxy) -> StoredResponses:
    """Its responses, which it tells of."""
    proxy.exchange.stored.shared = True
    return proxy.exchange.stored


async def test_where_responses_live_is_told_once_and_heard_by_those_who_start_later(pool: Pool) -> None:
    a, b = pool.proxy("a"), pool.proxy("b")
    keeping(a).remember("resp_1", Home("r0", 17), 99)
    keeping(a).remember("resp_1", Home("r0", 17), 99)  # it was asked for
    keeping(a).remember("resp_2", Home("r1"), 99)
    for proxy in (b, a, b, a, b):
        await proxy.exchange.beat()
    assert [keeping(b).home(name) for name in ("resp_1", "resp_2", "resp_3")] == [Home("r0", 17), Home("r1"), None]
    assert [kept for _, kept in pool.store.responses] == [KeptResponse("resp_1", "r0", 17), KeptResponse("resp_2", "r1", 0)]
    keeping(a).remember("resp_2", Home("r1", 40), 99)  # it is finished
    late = pool.proxy("late")
    for proxy in (a, b, late):
        await proxy.exchange.beat()
    assert [keeping(one).home("resp_2") for one in (b, late)] == [Home("r1", 40)] * 2


async def test_where_a_response_lives_is_not_told_otherwise_afterwards() -> None:
    """It does not move; somebody who says so would send the next of its conversation to a replica that does not have it."""
    kept = StoredResponses()
    kept.remember("resp_1", Home("r0"), 99)
    kept.hear(
        [
            KeptResponse("resp_1", "r1", 5),
            KeptResponse("resp_2", "r1"),
            KeptResponse("resp_2", "r0", 7),
            KeptResponse("resp_2", "r1", 9),
        ],
        99,
    )
    assert (kept.home("resp_1"), kept.home("resp_2")) == (Home("r0"), Home("r1", 9))


async def test_what_one_that_has_no_others_keeps_is_not_told() -> None:
    alone = StoredResponses()
    alone.remember("resp_1", Home("r0"), 99)
    assert alone.take_untold() == ()


@pytest.mark.parametrize(("fault", "heard"), [(StoreFault.CONNECTION, UNTOLD_MAX + 1), (StoreFault.TIMEOUT, UNTOLD_MAX)])
async def test_what_the_store_did_not_hear_is_told_later_and_bounded(pool: Pool, fault: StoreFault, heard: int) -> None:
    """One that timed out may have been heard; it is found by asking, if not."""
    a = await pool.proxy("a").share()
    keeping(a).remember("resp_first", Home("r0"), 10**6)
    pool.store.fault = fault
    with pytest.raises(StoreError):
        await a.exchange.beat()
    for index in range(UNTOLD_MAX + 50):
        keeping(a).remember(f"resp_{index}", Home("r0"), 10**6)
    pool.store.fault = None
    for _ in range(2):
        await a.exchange.beat()
    told = [kept.response_id for _, kept in pool.store.responses]
    assert len(told) == heard
    assert told[-1] == f"resp_{UNTOLD_MAX + 49}"
    assert ("resp_first" in told) is (fault is StoreFault.CONNECTION)
