"""The live driver of the gate: feeds it events, carries out its effects, wakes whoever waits.

One writer: every event goes through ``feed``, which runs the gate to its end and then its effects; nothing awaits in between. A request
waits in one place only, ``async with dispatcher.admitted(...)``; leaving the bracket ends its lease, whatever happened inside. The gate
names its next deadline; the dispatcher owns the timer.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from math import inf

from proxy.core.considered import Considered
from proxy.core.demand import Demand
from proxy.core.events import (
    Arrive,
    Cancelled,
    Effect,
    Event,
    Finished,
    Forward,
    Release,
    Reroute,
    Reserve,
    Shed,
    Tick,
)
from proxy.core.gate import Gate
from proxy.core.ledger import Lease
from proxy.core.outcome import Refusal
from proxy.ports import ClientLink, Clock, LeaseStore, Receive
from proxy.serving.admission import Bracket, Client, ClientGoneError, ShedError
from proxy.serving.client import client_leaves
from proxy.serving.guard import Guard, InternalFaultError, Part

RETRY_TICK_S = 0.25  # after a fault: the queue must not be forgotten


_Answer = Lease | ShedError | InternalFaultError


class _Asked:
    """A request that has no answer yet, or has not taken it."""

    __slots__ = ("answer", "future")

    def __init__(self) -> None:
        self.answer: _Answer | None = None
        self.future: asyncio.Future[None] | None = None  # once somebody waits


class Dispatcher:
    """Drives one gate on the running event loop."""

    def __init__(self, gate: Gate, clock: Clock, store: LeaseStore, guard: Guard) -> None:
        self.gate = gate
        self.clock = clock
        self._store = store
        self._guard = guard
        self._waiting: dict[str, _Asked] = {}
        self._reserving: set[str] = set()
        self._owed: dict[str, Event] = {}  # ends that a fault kept from the gate
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = inf
        self._feeding = False

    def __repr__(self) -> str:
        """State for people and tests: waiting 0 and open 0 when idle."""
        return f"<Dispatcher waiting={len(self._waiting)} open={self.gate.open_requests} {self.gate!r}>"

    def admitted(self, demand: Demand, receive: Receive, *, streaming: bool, link: ClientLink | None = None) -> Bracket:
        """Wait for a place; leaving ends the lease. Raises ShedError, and ClientGoneError when the client leaves meanwhile."""
        return Bracket(self, demand, Client(receive, link), streaming=streaming)

    def ask(self, event: Arrive | Reroute, request_id: str) -> Lease | None:
        """Feed ``event``: the lease of a request that is forwarded at once; None where its answer is to be waited for. Raises ShedError."""
        asked = self._waiting[request_id] = _Asked()
        try:
            self.feed(event)
            return None if asked.answer is None else self._taken(request_id, asked.answer)
        except BaseException:
            self._give_up(request_id)
            raise

    async def place(self, event: Arrive | Reroute, request_id: str, client: Client) -> Lease:
        """Feed ``event`` and wait for its answer. Raises ShedError, ClientGoneError."""
        lease = self.ask(event, request_id)
        return lease if lease is not None else await self.wait(request_id, client)

    async def wait(self, request_id: str, client: Client) -> Lease:
        """The lease that was not to be had at once. Raises ShedError, ClientGoneError."""
        asked = self._waiting[request_id]
        try:
            return self._taken(request_id, asked.answer or await self._answer(asked, client))
        except BaseException as error:
            if isinstance(error, ClientGoneError):
                error.considered = self.considered(request_id)
            self._give_up(request_id)
            raise

    def _taken(self, request_id: str, answer: _Answer) -> Lease:
        if not isinstance(answer, Lease):
            raise answer
        del self._waiting[request_id]
        self._reserving.discard(request_id)
        return answer

    def _give_up(self, request_id: str) -> None:
        """Cancelled by the client, refused, or a fault in gate or store: nothing of it may stay behind."""
        try:
            self.feed(Cancelled(request_id))
        finally:
            self._waiting.pop(request_id, None)
            self._reserving.discard(request_id)

    def considered(self, request_id: str) -> Considered | None:
        """What was seen of the replicas for a request that waits; None where it does not."""
        entry = self.gate.queue.get(request_id)
        return None if entry is None else entry.considered

    @staticmethod
    async def _answer(asked: _Asked, client: Client) -> _Answer:
        """Wait for it. Raises ClientGoneError when the client is gone first."""
        future = asked.future = asyncio.get_running_loop().create_future()

        def left() -> None:
            if not future.done():
                future.set_result(None)

        if client.link is not None:
            client.link.on_leave(left)
            try:
                await future
            finally:
                client.link.forget(left)
        else:
            watch = asyncio.ensure_future(client_leaves(client.receive))
            try:
                await asyncio.wait((future, watch), return_when=asyncio.FIRST_COMPLETED)
            finally:
                watch.cancel()
        if asked.answer is None:
            raise ClientGoneError
        return asked.answer

    def feed(self, event: Event) -> None:
        """Hand one event to the gate and carry out what it answers. A fault of the gate passes, but not at others' cost."""
        try:
            effects = self.gate.handle(event, self.clock.now_s())
        except Exception:
            if isinstance(event, Finished | Cancelled):
                self._owed[event.request_id] = event
            self._carry_out(self.gate.take_effects())
            self._wake_lost()
            self._set_timer()
            raise
        self._feeding = True
        try:
            self._carry_out(effects)
        finally:
            self._feeding = False
        self._store.looked()
        self._set_timer()

    def _wake_lost(self) -> None:
        """Let those go on without the gate whom it took from its queue and forgot when it failed."""
        for request_id in list(self._waiting):
            if request_id not in self._reserving and self.gate.queue.position(request_id) is None:
                self._wake(request_id, InternalFaultError(Part.GATE))

    def _carry_out(self, effects: list[Effect]) -> None:
        for effect in effects:
            match effect:
                case Forward():
                    self._wake(effect.request_id, effect.lease)
                case Reserve():
                    self._reserve(effect)
                case Release():
                    self._guard.run_now(Part.STORE, self._store.release, effect.replica, effect.lease_id)
                case Shed():
                    self._wake(effect.request_id, ShedError(effect.refusal, effect.considered))

    def _reserve(self, effect: Reserve) -> None:
        request_id = effect.request_id
        self._reserving.add(request_id)
        if not self._guard.run_now(Part.STORE, self._store.reserve, effect, partial(self._settle, request_id)):
            self._wake(request_id, InternalFaultError(Part.STORE))

    def _settle(self, request_id: str, events: Sequence[Event]) -> None:
        """The store has answered; ``events`` are what the gate is to be told, its decision last."""
        if not self._guard.run_now(Part.STORE, self._settled, request_id, events):
            self._wake(request_id, InternalFaultError(Part.STORE))

    def _settled(self, request_id: str, events: Sequence[Event]) -> None:
        self._reserving.discard(request_id)
        for event in events:
            self._carry_out(self.gate.handle(event, self.clock.now_s()))
        if not self._feeding:  # else whoever feeds sets it, once for all
            self._set_timer()

    def _wake(self, request_id: str, answer: _Answer) -> None:
        asked = self._waiting.get(request_id)
        if asked is None or asked.answer is not None:
            return
        asked.answer = answer
        if asked.future is not None and not asked.future.done():
            asked.future.set_result(None)

    def _set_timer(self) -> None:
        now_s = self.clock.now_s()
        due_s = self.gate.deadline_s_next(now_s)
        if self._owed:
            due_s = min(due_s, now_s + RETRY_TICK_S)
        if self._timer is not None:
            if due_s >= self._timer_s:
                return
            self._timer.cancel()
            self._timer = None
        if due_s < inf:
            self._timer_s = due_s
            self._timer = asyncio.get_running_loop().call_later(max(0.0, due_s - now_s), self._tick)

    def _tick(self) -> None:
        self._timer = None
        owed, self._owed = self._owed, {}
        events: list[Event] = [Tick(), *owed.values()]
        failed = sum(not self._guard.run_now(Part.GATE, self.feed, event) for event in events)
        if not failed:
            return
        if self._guard.tripped:  # from now on everybody goes without the gate, and so do those it holds
            for request_id in list(self._waiting):
                self._wake(request_id, InternalFaultError(Part.GATE))
        self.close()
        self._timer_s = self.clock.now_s() + RETRY_TICK_S
        self._timer = asyncio.get_running_loop().call_later(RETRY_TICK_S, self._tick)

    def shed_waiting(self, refusal: Refusal) -> None:
        """Give everybody who waits for a place this answer."""
        for request_id in list(self._waiting):
            self._wake(request_id, ShedError(refusal))

    def close(self) -> None:
        """Stop the timer."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
