"""Proxies in one process over one ``LocalStore``, driven by hand: what is due is done when a test says so, on its clock."""

import asyncio
from dataclasses import replace

from proxy.core.demand import Demand
from proxy.core.events import Arrive, Event, Finished, Observed
from proxy.core.member import Member
from proxy.core.outcome import Outcome
from proxy.core.policy import Policy
from proxy.ports.store import StorePhase
from proxy.serving.admission import Client
from proxy.serving.dispatcher import Dispatcher
from proxy.serving.exchange import Exchange
from proxy.serving.guard import Guard
from proxy.serving.override import Switches
from proxy.serving.sharing import Sharing
from tests.support.builders import FakeClock, engine_sample, policy, scrape
from tests.support.local_store import LocalStore
from tests.support.several import gate_of

REPLICA = "r0"


async def nobody_leaves() -> dict[str, str]:
    """An ASGI ``receive`` of a client that stays."""
    await asyncio.Event().wait()
    raise AssertionError


class SharingProxy:
    """One of several before ``REPLICA``, of 100 blocks."""

    def __init__(self, name: str, store: LocalStore, clock: FakeClock, rules: Policy | None = None) -> None:
        self.clock, self.store = clock, store
        self.faults: list[str] = []
        self.called: list[str] = []
        self.gate = gate_of(REPLICA)
        self.policy = rules or policy()
        guard = Guard(clock, lambda part: self.faults.append(part.value))
        member = Member(self.gate, name, self.policy, clock.now_s())
        self.sharing = Sharing(member, store, clock, guard, self._feed, lambda call, _: self.called.append(call))
        self.dispatcher = Dispatcher(self.gate, clock, self.sharing, guard)
        self.switches = Switches(self.gate, clock, guard, self._feed)
        self.exchange = Exchange(self.sharing, self.policy, f"http://{name}", clock, guard, self.switches)
        self.waiting: dict[str, asyncio.Task[object]] = {}

    def _feed(self, event: Event) -> None:
        self.dispatcher.feed(event)

    @property
    def member(self) -> Member:
        return self.sharing.member

    async def beat(self) -> None:
        """Do what is due."""
        self.sharing.write_due(self.clock.now_s())
        await self.sharing.settled()

    async def beats(self, count: int, every_s: float = 0.1) -> None:
        for _ in range(count):
            self.clock.advance(every_s)
            await self.beat()

    async def share(self) -> "SharingProxy":
        """Beat until rows and record are in the store."""
        for _ in range(8):
            await self.beats(1)
            if self.sharing.phase is StorePhase.SHARING:
                return self
        raise AssertionError(self.sharing)

    async def ask(self, demand: Demand) -> None:
        """A request comes; it has its place, or it waits, when this returns."""
        arrives = Arrive(replace(demand, arrived_s=self.clock.now_s()))
        place = self.dispatcher.place(arrives, demand.request_id, Client(nobody_leaves))
        self.waiting[demand.request_id] = asyncio.create_task(place)
        await self.quiet()

    async def quiet(self) -> None:
        """Let everything that needs no time happen."""
        for _ in range(5):
            await asyncio.sleep(0)
            await self.sharing.settled()

    def placed(self) -> list[str]:
        """Requests that have a place; raises what any of them met."""
        return [name for name, task in self.waiting.items() if task.done() and task.result()]

    async def finish(self, name: str) -> None:
        self.dispatcher.feed(Finished(name, Outcome.COMPLETED, 15, natural=True))
        del self.waiting[name]
        await self.quiet()

    def scrape(self, usage: float = 0.0) -> None:
        """Scrape the replica and tell the gate, as the watcher does."""
        now_s = self.clock.now_s()
        self.dispatcher.feed(Observed(scrape(REPLICA, now_s, engine_sample(usage=usage))))
        self.sharing.scraped([REPLICA])

    async def close(self) -> None:
        for task in self.waiting.values():
            task.cancel()
        await asyncio.gather(*self.waiting.values(), return_exceptions=True)
        self.dispatcher.close()
