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
from proxy.core.outcome import Outcome, Refusal
from proxy.core.retrying import may_go_on
from proxy.ports import Clock, LeaseStore, Receive
from proxy.serving.client import client_leaves
from proxy.serving.guard import Guard, InternalFaultError, Part

RETRY_TICK_S = 0.25  # after a fault: the queue must not be forgotten


class ShedError(Exception):
    """The gate refused the request; ``refusal`` says why and when to come back, ``considered`` what was seen of the replicas."""

    def __init__(self, refusal: Refusal, considered: Considered | None = None) -> None:
        super().__init__(refusal.message)
        self.refusal = refusal
        self.considered = considered


class ClientGoneError(Exception):
    """The client left while its request waited; ``considered`` is what was seen of the replicas until then."""

    considered: Considered | None = None


class Admission:
    """A granted place. The bracket's owner reports how it went with ``finish``; unreported, it counts as an internal end."""

    __slots__ = ("_dispatcher", "_receive", "finished", "lease", "reroutes", "tried", "waited_s")

    def __init__(self, dispatcher: "Dispatcher", lease: Lease, waited_s: float, receive: Receive) -> None:
        self.lease = lease
        self._receive = receive
        self.waited_s = waited_s
        self.reroutes = 0
        self.tried = frozenset((dispatcher.gate.fleet.server_of(lease.replica),))
        self.finished: Finished | None = None
        self._dispatcher = dispatcher

    def progress(self, output_tokens: int) -> None:
        """The stream shows ``output_tokens`` so far: the lease is placed and that long."""
        if not self.lease.placed:
            self.lease.placed, self.lease.placed_s = True, self._dispatcher.clock.now_s()
        self.lease.output_tokens = output_tokens

    def finish(self, outcome: Outcome, output_tokens: int | None, *, natural: bool) -> None:
        """Say how the request ended; takes effect when the bracket is left."""
        self.finished = Finished(self.lease.demand.request_id, outcome, output_tokens, natural)

    @property
    def untried(self) -> bool:
        """Whether a replica could take it that was not asked yet, so that this one's refusal need not be the client's answer."""
        gate, demand = self._dispatcher.gate, self.lease.demand
        return self.reroutes < gate.shedding.reroutes_max and gate.fleet.could_take(demand, self.tried | demand.kept_from)

    @property
    def may_go_on(self) -> bool:
        """Whether the gate would place it anew after this replica's failure."""
        gate, demand = self._dispatcher.gate, self.lease.demand
        if self.reroutes >= gate.shedding.reroutes_max:
            return False
        return may_go_on(
            gate.fleet, demand, self.tried, gate.fleet.server_of(self.lease.replica), held=gate.enforces(demand.tenant)
        )

    async def reroute(self) -> None:
        """The replica failed it before the first byte: wait for a place on another. Raises ShedError."""
        self.reroutes += 1
        request_id = self.lease.demand.request_id
        self.lease = await self._dispatcher.place(Reroute(request_id), request_id, self._receive)
        self.tried |= {self._dispatcher.gate.fleet.server_of(self.lease.replica)}


class Bracket:
    """What ``async with`` goes through: a place within it, and its end behind it."""

    __slots__ = ("_admission", "_demand", "_dispatcher", "_receive", "_streaming")

    def __init__(self, dispatcher: "Dispatcher", demand: Demand, receive: Receive, *, streaming: bool) -> None:
        self._dispatcher = dispatcher
        self._demand = demand
        self._receive = receive
        self._streaming = streaming

    async def __aenter__(self) -> Admission:
        dispatcher, demand = self._dispatcher, self._demand
        lease = await dispatcher.place(Arrive(demand, self._streaming), demand.request_id, self._receive)
        self._admission = Admission(dispatcher, lease, dispatcher.clock.now_s() - demand.arrived_s, self._receive)
        return self._admission

    async def __aexit__(self, *_: object) -> None:
        self._dispatcher.feed(self._admission.finished or Finished(self._demand.request_id, Outcome.INTERNAL))


class Dispatcher:
    """Drives one gate on the running event loop."""

    def __init__(self, gate: Gate, clock: Clock, store: LeaseStore, guard: Guard) -> None:
        self.gate = gate
        self.clock = clock
        self._store = store
        self._guard = guard
        self._waiting: dict[str, asyncio.Future[Lease]] = {}
        self._reserving: set[str] = set()
        self._owed: dict[str, Event] = {}  # ends that a fault kept from the gate
        self._timer: asyncio.TimerHandle | None = None
        self._timer_s = inf
        self._feeding = False

    def __repr__(self) -> str:
        """State for people and tests: waiting 0 and open 0 when idle."""
        return f"<Dispatcher waiting={len(self._waiting)} open={self.gate.open_requests} {self.gate!r}>"

    def admitted(self, demand: Demand, receive: Receive, *, streaming: bool) -> "Bracket":
        """Wait for a place; leaving ends the lease. Raises ShedError, and ClientGoneError when ``receive`` tells so meanwhile."""
        return Bracket(self, demand, receive, streaming=streaming)

    async def place(self, event: Arrive | Reroute, request_id: str, receive: Receive) -> Lease:
        """Feed ``event`` and wait until the request is forwarded or shed."""
        future: asyncio.Future[Lease] = asyncio.get_running_loop().create_future()
        self._waiting[request_id] = future
        try:
            self.feed(event)
            if not future.done():
                await self._wait(future, receive)
            return future.result()
        except BaseException as error:
            # Cancelled by the client, or a fault in gate or store: nothing of it may stay behind.
            if isinstance(error, ClientGoneError):
                error.considered = self.considered(request_id)
            if not future.cancel() and not future.cancelled():
                future.exception()  # else asyncio complains that nobody asked for it
            self.feed(Cancelled(request_id))
            raise
        finally:
            self._waiting.pop(request_id, None)
            self._reserving.discard(request_id)

    def considered(self, request_id: str) -> Considered | None:
        """What was seen of the replicas for a request that waits; None where it does not."""
        entry = self.gate.queue.get(request_id)
        return None if entry is None else entry.considered

    @staticmethod
    async def _wait(future: asyncio.Future[Lease], receive: Receive) -> None:
        """Until ``future`` is done. Raises ClientGoneError when the client is gone first."""
        watch = asyncio.ensure_future(client_leaves(receive))
        try:
            await asyncio.wait((future, watch), return_when=asyncio.FIRST_COMPLETED)
        finally:
            watch.cancel()
        if not future.done():
            raise ClientGoneError

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

    def _wake(self, request_id: str, result: Lease | ShedError | InternalFaultError) -> None:
        future = self._waiting.get(request_id)
        if future is None or future.done():
            return
        if isinstance(result, Lease):
            future.set_result(result)
        else:
            future.set_exception(result)

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
