"""A head that stays blocked without being asked again: the same decisions as those of a gate that asks again after every event."""

import random
from dataclasses import dataclass, field
from heapq import heappop, heappush

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.core.choice import Blocked
from proxy.core.events import Arrive, Cancelled, Effect, Event, Finished, Forward, Granted, Observed, ReplicaFound, Reserve, Tick
from proxy.core.gate import Gate
from proxy.core.outcome import Outcome
from proxy.core.stuck import StuckHeads
from tests.support.builders import demand, engine_sample, policy, scrape, spec

SERVED = 150  # requests of a world
STEP_S = 0.0004  # between two events


@dataclass
class World:
    """Clients of a few small replicas, in a closed loop: whoever is answered asks again."""

    seed: int
    replicas: int
    clients: int
    hold_s: float
    tenants: int
    shared: bool
    asks_again: bool  # whether what was found for pacing is forgotten at once
    now_s: float = 0.0
    serial: int = 0
    spared: int = 0  # looks that were not taken
    told: list[tuple[object, ...]] = field(default_factory=list)
    due: list[tuple[float, int, str]] = field(default_factory=list)

    def run(self) -> None:
        """Until so many were served."""
        self.chance = random.Random(self.seed)
        self.gate = Gate(policy(), 0.0)
        stuck = self.gate.placement.stuck
        self._keep, self._still = stuck.keep, stuck.still
        stuck.keep, stuck.still = self.keep, self.still  # type: ignore[method-assign]
        for index in range(self.replicas):
            self.feed(ReplicaFound(spec(f"r{index}", usable=self.chance.choice((300, 500, 2000)), context=8192)))
        for index in range(self.clients):
            self.later(0.001 * index, "")
        self.later(0.05, "scrape")
        while self.serial < SERVED:
            due_s = self.gate.deadline_s_next(self.now_s)
            if due_s <= max(self.due[0][0], self.now_s):
                self.now_s = max(self.now_s + 1e-4, due_s)
                self.feed(Tick())
                continue
            at_s, _, what = heappop(self.due)
            self.now_s = max(self.now_s, at_s)
            self.happen(what)

    def keep(self, model: str, head: object, blocked: Blocked, *rest: object) -> None:
        if blocked.only_for_kv or not self.asks_again:
            self._keep(model, head, blocked, *rest)  # type: ignore[arg-type]

    def still(self, *looked: object) -> bool:
        found: bool = self._still(*looked)  # type: ignore[arg-type]
        self.spared += found
        return found

    def later(self, in_s: float, what: str) -> None:
        heappush(self.due, (self.now_s + in_s, len(self.due) + self.serial, what))

    def happen(self, what: str) -> None:
        """Somebody asks, is answered or leaves, or every replica is scraped."""
        if what == "scrape":
            for book in list(self.gate.fleet):
                ratio = min(1.0, len(book.ledger.leases) * 30 / book.spec.usable_blocks)
                sample = engine_sample(usage=ratio, running=len(book.ledger.leases), generated=300.0 * self.now_s)
                self.feed(Observed(scrape(book.spec.name, self.now_s, sample)))
            self.later(0.05, "scrape")
        elif what:
            waits = self.gate.queue.get(what) is not None
            self.feed(Cancelled(what) if waits else Finished(what, Outcome.COMPLETED, 16, natural=True))
            self.later(0.0, "")
        else:
            self.arrive()

    def arrive(self) -> None:
        self.serial += 1
        name, chance, prompt = f"q{self.serial}", self.chance, self.chance.randrange(300, 500)
        own = tuple(chance.getrandbits(60) for _ in range(prompt // 16))
        hashes = (tuple(range(10)) + own[10:]) if self.shared and chance.random() < 0.3 else own
        asked = demand(
            name, prompt=prompt, cap=chance.choice((16, 16, 60)), hashes=hashes, arrived_s=self.now_s,
            deadline_s=self.now_s + chance.choice((0.02, 10.0)), tenant=f"t{chance.randrange(self.tenants)}",
        )  # fmt: skip
        self.feed(Arrive(asked, streaming=False))
        if chance.random() < 0.1 and self.gate.queue.get(name) is not None:
            self.later(chance.uniform(0.0, 0.02), name)

    def feed(self, event: Event) -> None:
        """One event, and what the driver does about it."""
        self.now_s += STEP_S * self.chance.random()
        for effect in self.gate.handle(event, self.now_s):
            self.effect(effect)
        self.told += [(book.kv_limited, book.room_ratio, book.feedback.z) for book in self.gate.fleet]

    def effect(self, effect: Effect) -> None:
        replica = effect.lease.replica if isinstance(effect, Reserve | Forward) else None
        self.told.append((type(effect).__name__, getattr(effect, "request_id", None), replica, self.now_s))
        if isinstance(effect, Reserve):
            self.feed(Granted(effect.request_id))
        elif isinstance(effect, Forward):
            self.later(self.hold_s * self.chance.uniform(0.8, 1.2), effect.request_id)


@given(
    seed=st.integers(0, 1 << 30),
    replicas=st.integers(1, 3),
    clients=st.integers(10, 60),
    hold_s=st.sampled_from((0.005, 0.02, 0.1)),
    tenants=st.integers(1, 3),
    shared=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_asking_again_would_have_said_the_same(
    seed: int, replicas: int, clients: int, hold_s: float, tenants: int, shared: bool
) -> None:
    kept, asked = (World(seed, replicas, clients, hold_s, tenants, shared, asks_again) for asks_again in (False, True))
    kept.run()
    asked.run()
    assert kept.told == asked.told
    assert kept.spared >= asked.spared


def test_most_looks_are_spared_where_requests_are_paced() -> None:
    kept, asked = (World(3, 1, 40, 0.02, 1, False, asks_again) for asks_again in (False, True))
    kept.run()
    asked.run()
    assert kept.told == asked.told
    assert kept.spared > asked.spared + SERVED // 2


def test_its_repr_names_the_models() -> None:
    world = World(3, 1, 40, 0.02, 1, False, asks_again=False)
    world.run()
    assert isinstance(world.gate.placement.stuck, StuckHeads)
    assert repr(world.gate.placement.stuck) == "<StuckHeads ['m']>"
