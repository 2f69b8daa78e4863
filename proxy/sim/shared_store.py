"""The store of one simulated world: the ledger that every proxy asks, and who listens for what it tells by itself."""

from functools import partial
from itertools import count
from typing import Protocol, assert_never

from proxy.core.lease import Lease
from proxy.core.policy import Policy
from proxy.core.shared_ledger import SharedLedger
from proxy.core.store_calls import (
    CallAdvance,
    CallHeads,
    CallPublish,
    CallRegister,
    CallReserve,
    CallRewrite,
    StoreCall,
    StoreReply,
)
from proxy.sim.admission import Ways
from proxy.sim.board import Board
from proxy.sim.store import StoreLink, StoreSettings


class Listener(Protocol):
    """A proxy as the store sees it."""

    link: StoreLink

    def offered(self, replica: str) -> None:
        """Room is held for one of its heads."""
        ...


class Onlooker(Protocol):
    """Is told what the store did, at the moment that it did: a judge."""

    def done(self, call: StoreCall, reply: StoreReply) -> None:
        """A call was answered."""
        ...

    def granted_ahead(self, lease: Lease) -> None:
        """A proxy granted a request out of what it had taken ahead."""
        ...


def answer(ledger: SharedLedger, call: StoreCall, store_s: float) -> StoreReply:
    """What a ledger makes of a call, at ``store_s`` of its clock."""
    match call:
        case CallReserve(ask) | CallAdvance(ask):
            return ledger.reserve(ask, store_s)
        case CallRewrite(ask):
            return ledger.rewrite(ask, store_s)
        case CallPublish(record, ends, scrape_lease_s):
            return ledger.publish(record, ends, scrape_lease_s, store_s)
        case CallHeads(proxy, replica, heads):
            ledger.set_heads(proxy, replica, heads, store_s)
            return None
        case CallRegister(proxy):
            return ledger.register(proxy, store_s)
        case _:
            assert_never(call)


class SharedStore:
    """The store of one world: the ledger, what is exchanged besides, and who listens."""

    def __init__(self, policy: Policy, settings: StoreSettings, seed: int) -> None:
        self.ledger = SharedLedger(policy.store.lease_s)
        self.board = Board(policy.store.lease_s)
        self.settings = settings
        self.onlookers: list[Onlooker] = []
        self._policy = policy
        self._seed = seed
        self._listening: dict[str, Listener] = {}
        self._lives = count()

    def start(self, world: Ways) -> None:
        """The world begins."""
        self.world = world
        for at_s in self.settings.flushes_s:
            world.at(at_s, self._flush)

    def _flush(self) -> None:
        self.ledger.flush()
        self.board.clear()

    def connect(self, index: int, proxy: Listener) -> tuple[str, StoreLink]:
        """A name that nobody had, and a connection."""
        name = f"p{index}.{next(self._lives)}"
        self._listening[name] = proxy
        link = StoreLink(index, self.settings, self.world, timeout_s=self._policy.store.timeout_s, seed=self._seed)
        return name, link

    def answer(self, call: StoreCall, store_s: float) -> StoreReply:
        """What the ledger makes of a call; whoever looks on and whoever is offered room is told."""
        reply = answer(self.ledger, call, store_s)
        for onlooker in self.onlookers:
            onlooker.done(call, reply)
        self._push_offers()
        return reply

    def granted_ahead(self, lease: Lease) -> None:
        """A proxy granted a request without a call: nothing is written, but who looks on is told."""
        for onlooker in self.onlookers:
            onlooker.granted_ahead(lease)

    def _push_offers(self) -> None:
        """Let every proxy hear which of its heads have room now."""
        offered_to = self.ledger.offered_to()
        if not offered_to:
            return
        for name, proxy in self._listening.items():
            if name in offered_to:
                for replica in self.ledger.take_offers(name):
                    proxy.link.push(partial(proxy.offered, replica))
