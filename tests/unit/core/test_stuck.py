"""A head that no replica takes is asked again as soon as anything is another that it was found from."""

import pytest

from proxy.core.bank import RISK_S
from proxy.core.book import Book
from proxy.core.choice import Blocked
from proxy.core.curves import Curves
from proxy.core.pacing import BURST_ARRIVALS, BURST_HOLD_S, BurstWatch
from proxy.core.placement import Placement
from proxy.core.saturation import Binding
from proxy.core.stuck import StuckHeads
from proxy.core.verdict import Verdict
from proxy.core.wait_queue import Waiting, WaitQueue
from proxy.core.warmth import Warmth
from tests.support.builders import book, demand, lease_of


class Scene:
    """One replica with one request on it, a head and somebody behind it."""

    def __init__(self) -> None:
        self.book = book(usable=200)
        lease_of(demand("runs", prompt=300, cap=16), self.book)
        self.book.refresh(0.0)
        self.queue = WaitQueue(requests_max=10, tokens_max=10**6, bytes_max=10**6)
        self.head = Waiting(demand("head", prompt=300, cap=16), 0.0, peak_blocks=20.0)
        self.queue.push(self.head)
        self.queue.push(Waiting(demand("behind"), 0.0, peak_blocks=7.0))
        self.placement = Placement(self.queue, Warmth())
        self.burst = BurstWatch()
        self.stuck = StuckHeads(self.queue, self.burst, Warmth())

    def keep(self, *bindings: Binding, contended: bool = True, shared: bool = False) -> None:
        """The head was found blocked at second 0."""
        newcomer = self.book.newcomer(self.head.demand, 0.0, self.head.curves)
        curves = Curves(*newcomer.curves.arrays()) if shared else newcomer.curves
        places = [(self.book, Verdict(one, 0.1, curves, 0.0, newcomer), one) for one in bindings]
        only_for_kv = {*bindings} == {Binding.KV}
        blocked = Blocked(only_for_kv=only_for_kv, contended=contended, places=places)
        self.stuck.keep("m", self.head, blocked, self.pool, self.placement.banks(self.pool), 0.0)

    @property
    def pool(self) -> list[Book]:
        return [self.book]

    def still(self, now_s: float = 0.0) -> bool:
        return self.stuck.still("m", self.head, self.pool, self.placement.banks(self.pool), now_s)


def test_it_stands_while_nothing_moves_and_until_it_is_forgotten() -> None:
    scene = Scene()
    assert not scene.still()
    scene.keep(Binding.PACING)
    assert scene.still()
    scene.queue.push(Waiting(demand("more"), 0.0, peak_blocks=5.0))  # who comes behind it only adds to what waits
    assert scene.still()
    scene.stuck.forget()
    assert not scene.still()


def test_another_head_is_another_matter() -> None:
    scene = Scene()
    scene.keep(Binding.PACING)
    scene.head = Waiting(scene.head.demand, 0.0)
    assert not scene.still()


@pytest.mark.parametrize("binding", [Binding.KV, Binding.PACING])
def test_an_end_or_a_refresh_there_voids_it(binding: Binding) -> None:
    scene = Scene()
    scene.keep(binding)
    scene.book.refresh(0.01)
    assert not scene.still(0.01)
    scene.keep(binding)
    scene.book.remove("runs", 0.01)
    assert not scene.still(0.01)


def test_a_step_further_its_end_is_another() -> None:
    scene = Scene()
    scene.keep(Binding.PACING)
    step_s = 1.0 / scene.book.clock.rate_per_s
    assert not scene.still(0.5 * step_s)  # steps are rounded up
    scene.keep(Binding.KV)
    assert scene.still(0.5 * step_s)  # for KV alone only ledgers count


def test_margins_are_read_anew_before_long() -> None:
    scene = Scene()
    scene.book.clock.rate_per_s = 0.0  # no step is done meanwhile
    scene.keep(Binding.PACING)
    assert scene.still(0.9 * RISK_S)
    assert not scene.still(RISK_S)


def test_lengths_learned_anew_void_it() -> None:
    scene = Scene()
    scene.keep(Binding.PACING)
    scene.book.ledger.model.rebuild(())
    assert not scene.still()


def test_where_demand_exceeded_the_pools_it_must_not_have_become_less() -> None:
    scene = Scene()
    scene.keep(Binding.PACING)
    scene.queue.remove("behind")
    assert not scene.still()


def test_in_a_burst_it_stands_until_the_burst_is_over() -> None:
    scene = Scene()
    scene.book.clock.rate_per_s = 0.0
    for _ in range(BURST_ARRIVALS):
        scene.burst.arrived(0.0, "default")
    scene.keep(Binding.PACING, contended=False)
    scene.queue.remove("behind")
    assert scene.still(0.9 * BURST_HOLD_S)
    assert not scene.still(BURST_HOLD_S)


@pytest.mark.parametrize(
    ("bindings", "shared", "avoided"),
    [
        ((Binding.PACING, Binding.PEERS), False, False),
        ((Binding.UNAVAILABLE,), False, False),
        ((), False, False),
        ((Binding.PACING,), True, False),
        ((Binding.PACING,), False, True),
    ],
)
def test_what_must_be_looked_at_anew_is_not_kept(bindings: tuple[Binding, ...], shared: bool, avoided: bool) -> None:
    scene = Scene()
    if avoided:
        scene.head.avoided = {"r9": 1.0}
    scene.keep(*bindings, shared=shared)
    assert not scene.still()


def test_another_limit_is_asked_again() -> None:
    scene = Scene()
    scene.book.saturation.sequences_max = 1
    scene.keep(Binding.SEATS)
    assert scene.still()
    scene.book.saturation.sequences_max = 2
    assert not scene.still()
    scene.keep(Binding.SEATS, Binding.PACING)
    assert not scene.still()
