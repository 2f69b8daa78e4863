"""One account for a tenant at several proxies: levels, lifts, and the virtual time of the system."""

import pytest

from proxy.core.events import Arrive, Cancelled
from proxy.core.exchange import Exchange
from proxy.core.gate import Gate
from proxy.core.tenant_accounts import LEVELS_MAX, NO_LEVELS, SEEN_S_MIN, Level, Levels
from tests.support.several import filled, gate_of, quarter

PERIOD = 7


class Store:
    """The account of a period, and what proxies tell each other over it at every beat."""

    def __init__(self, *gates: Gate) -> None:
        self.exchanges = [gate.share().exchange for gate in gates]
        self.totals: dict[tuple[int, str], float] = {}
        self.levels: dict[Exchange, Levels] = {}
        self._heard: dict[Exchange, dict[tuple[int, str], float]] = {exchange: {} for exchange in self.exchanges}
        self.period = PERIOD

    def beats(self) -> None:
        """Two of each, in turn: what each told the others have heard."""
        for exchange in (*self.exchanges, *self.exchanges):
            told = exchange.take_charges()
            for key, charge in told.items():
                self.totals[key] = self.totals.get(key, 0.0) + charge
            self.levels[exchange] = exchange.accounts.levels()
            before = self._heard[exchange]
            grown = {key: total - before.get(key, 0.0) - told.get(key, 0.0) for key, total in self.totals.items()}
            exchange.charged({key: charge for key, charge in grown.items() if abs(charge) > 1e-9}, {})
            others = [levels for other, levels in self.levels.items() if other is not exchange]
            exchange.accounts.heard(dict(self.totals), self.period, others)
            self._heard[exchange] = dict(self.totals)


def full(*, running: str = "others") -> Gate:
    """A gate without room, whose requests are of a tenant that is looked at nowhere."""
    gate = gate_of()
    for index in range(4):
        gate.handle(Arrive(quarter(f"run{index}", tenant=running)), 0.2 * index)
    return gate


def waits(gate: Gate, name: str, tenant: str) -> None:
    gate.handle(Arrive(quarter(name, tenant=tenant)), 1.0)
    assert gate.queue.get(name) is not None


def virtual(gate: Gate, tenant: str) -> float:
    return gate.queue.bands[0].tenants[tenant].virtual


def pair() -> tuple[Gate, Gate, Store]:
    """Two full gates that have heard of each other."""
    here, there = full(), full()
    store = Store(here, there)
    store.beats()
    return here, there, store


def test_a_line_that_ran_dry_goes_on_where_its_tenant_waits_elsewhere() -> None:
    """Nobody waits here for a moment, and the clock is far ahead: it says nothing of those who wait there."""
    here, there, store = pair()
    for gate in (here, there):
        waits(gate, f"{id(gate)}", "spread")
    store.beats()
    here.handle(Cancelled(f"{id(here)}"), 1.0)
    here.queue.bands[0].clock += 50_000.0
    waits(here, "again", "spread")
    assert virtual(here, "spread") == pytest.approx(virtual(there, "spread"))


def test_who_comes_back_begins_with_the_least_of_those_who_wait_anywhere() -> None:
    here, there, store = pair()
    there.queue.charge(quarter("c", tenant="waits"), 3000.0)
    waits(there, "w", "waits")
    least = virtual(there, "waits")
    here.queue.bands[0].clock = least + 9000.0
    store.beats()
    waits(here, "n", "new")
    assert virtual(here, "new") == pytest.approx(least)
    there.handle(Cancelled("w"), 1.0)
    here.handle(Cancelled("n"), 1.0)
    store.beats()
    waits(here, "o", "other")
    assert virtual(here, "other") == pytest.approx(here.queue.bands[0].clock), "nobody waited any more"


def test_absence_gives_no_credit_at_any_proxy() -> None:
    """It is lifted where it comes back first, and what it lost there it does not get at the next."""
    here, there, store = pair()
    here.queue.charge(quarter("c", tenant="absent"), 10.0)
    waits(there, "w", "waits")
    there.queue.charge(quarter("d", tenant="waits"), 6000.0)
    store.beats()
    waits(here, "a", "absent")
    lifted = virtual(here, "absent")
    assert lifted > 6000.0
    store.beats()
    assert virtual(there, "absent") == pytest.approx(lifted), "before it has come there"
    waits(there, "b", "absent")
    assert virtual(there, "absent") == pytest.approx(lifted)


def test_who_waits_at_several_has_the_least_of_its_levels() -> None:
    here, there, store = pair()
    for gate in (here, there):
        waits(gate, f"{id(gate)}", "spread")
    least = virtual(there, "spread")
    here.queue.bands[0].tenants["spread"].virtual += 4000.0
    store.beats()
    assert virtual(here, "spread") == pytest.approx(virtual(there, "spread")) == pytest.approx(least)


def test_charges_on_their_way_change_no_level() -> None:
    here, there, store = pair()
    for gate in (here, there):
        waits(gate, f"{id(gate)}", "spread")
    store.beats()
    here.queue.charge(quarter("c", tenant="spread"), 700.0)
    there.queue.charge(quarter("d", tenant="spread"), -40.0)
    before = virtual(here, "spread")
    store.beats()
    assert virtual(here, "spread") == pytest.approx(before - 40.0) == pytest.approx(virtual(there, "spread"))


def test_who_begins_takes_over_what_the_others_know() -> None:
    """Until it heard of them its accounts began at nothing: those of tenants that wait elsewhere, and of others."""
    here, there, store = pair()
    there.queue.charge(quarter("c", tenant="spread"), 5000.0)
    waits(there, "s", "spread")
    store.beats()
    late = full()
    waits(late, "t", "spread")
    waits(late, "u", "only here")
    grown = Store(here, there, late)
    grown.totals, grown.levels = store.totals, store.levels
    grown._heard = {exchange: dict(store.totals) for exchange in grown.exchanges}
    grown.beats()
    assert virtual(late, "spread") == pytest.approx(virtual(there, "spread"))
    assert virtual(late, "only here") >= virtual(there, "spread") - 1e-6
    grown.beats()
    assert virtual(there, "spread") == pytest.approx(virtual(late, "spread"))
    assert virtual(there, "spread") > 5000.0


def test_levels_of_another_period_or_of_lost_accounts_count_for_nothing() -> None:
    here = filled(gate_of())
    accounts = here.share().exchange.accounts
    assert accounts.levels() == NO_LEVELS, "nothing was heard yet"
    waits(here, "s", "spread")
    accounts.heard({(0, "spread"): 100.0}, PERIOD, [])
    before = virtual(here, "spread")
    low = (Level(0, "spread", -50_000.0, 100.0),)
    accounts.heard({(0, "spread"): 100.0}, PERIOD, [Levels(PERIOD - 1, low)])
    assert virtual(here, "spread") == before
    for known, counts in ((99.0, False), (100.0, True)):
        lost = (Level(0, "spread", -50_000.0, 200.0),)
        accounts.heard({(0, "spread"): known}, PERIOD, [Levels(PERIOD, lost)])
        assert (virtual(here, "spread") < before) is counts


def test_a_store_out_of_reach_leaves_every_proxy_to_its_own_lines() -> None:
    here, there, store = pair()
    waits(there, "w", "waits")
    store.beats()
    band = here.queue.bands[0]
    assert band.start() == pytest.approx(virtual(there, "waits"))
    here.share().lost(2, 2.0)
    assert band.start() == band.clock


@pytest.mark.parametrize(
    ("waiting", "told"), [(LEVELS_MAX - 1, LEVELS_MAX - 1), (LEVELS_MAX, LEVELS_MAX), (LEVELS_MAX + 1, LEVELS_MAX)]
)
def test_the_next_in_turn_are_told(waiting: int, told: int) -> None:
    gate = full()
    gate.share().exchange.accounts.heard({}, PERIOD, [])
    for index in range(waiting):
        waits(gate, f"q{index}", f"t{index}")
        gate.queue.bands[0].tenants[f"t{index}"].virtual = 5000.0 - index
    levels = gate.share().exchange.accounts.levels().levels
    assert len(levels) == told
    assert levels[0].tenant == f"t{waiting - 1}"


def test_a_line_at_two_proxies_is_one_line_that_moves_at_the_sum_of_their_rates() -> None:
    here, there, store = pair()
    for gate in (here, there):
        waits(gate, f"{id(gate)}", "spread")
    line, other = (gate.queue.bands[0].tenants["spread"] for gate in (here, there))
    line.drain.work, line.drain.seconds = 200.0, 10.0
    other.drain.work, other.drain.seconds = 300.0, SEEN_S_MIN
    entry, books, forecast = here.queue.entries()[0], list(here.fleet), here.shedding.forecast
    here_per_s = line.drain.rate_per_s(forecast.rate_per_s(books))
    alone_s = forecast.wait_s(entry, books, 1.0)
    assert alone_s == pytest.approx(line.charge / here_per_s, rel=1e-3)
    store.beats()
    assert line.charge_elsewhere == pytest.approx(other.charge)
    assert line.elsewhere_per_s == pytest.approx(300.0 / SEEN_S_MIN)
    together_s = forecast.wait_s(entry, books, 1.0)
    assert together_s == pytest.approx((line.charge + other.charge) / (here_per_s + 300.0 / SEEN_S_MIN), rel=1e-3)
    here.share().lost(2, 2.0)
    assert forecast.wait_s(entry, books, 1.0) == pytest.approx(alone_s)


@pytest.mark.parametrize(("seen_s", "known"), [(SEEN_S_MIN - 0.01, False), (SEEN_S_MIN, True), (SEEN_S_MIN + 0.01, True)])
def test_a_rate_is_told_of_a_line_that_was_seen_for_long_enough(seen_s: float, *, known: bool) -> None:
    gate = full()
    gate.share().exchange.accounts.heard({}, PERIOD, [])
    waits(gate, "q", "spread")
    drain = gate.queue.bands[0].tenants["spread"].drain
    drain.work, drain.seconds = 30.0, seen_s
    (told,) = [one for one in gate.share().exchange.accounts.levels().levels if one.tenant == "spread"]
    assert (told.promised_per_s > 0.0) is known
