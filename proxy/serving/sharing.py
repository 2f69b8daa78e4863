"""The live driver of ``core.member``: one proxy among several before the same replicas.

To the dispatcher it is the lease store, to the watchers it says whose turn a scrape is. It carries the member's calls to the store and
the answers back to the gate: a reservation is a call of its own, rewrites that fall together go in one round trip. What a call meets is
counted by kind; the log tells each kind once in ``TELL_S``.

No request waits for the store longer than ``store.timeout``, and none fails because of it: what the store did not answer is decided here,
by the proxy's own share (``core.member``). A fault of our own in all this is caught in the guarded place and treated as no answer.

Fails: an answer that comes after its time-out is not heard; the next rewrite settles what became of it.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from proxy.core.events import Event, Offered, Reserve
from proxy.core.member import Member
from proxy.core.shared import Answer
from proxy.core.shared_heads import OFFER_S
from proxy.core.store_calls import CallReserve, CallRewrite, StoreCall, StoreReply
from proxy.ports import Clock
from proxy.ports.store import SharedStore, StoreError, StorePhase
from proxy.serving.asking import asked
from proxy.serving.guard import Guard, InternalFaultError, Part

LISTEN_PAUSE_S = 0.5  # before offers are listened for again
TIMER_S = 0.001  # what timers tell apart: less would be waited for by going round the loop, four times for each beat
FAULT_PAUSE_S = 0.25  # after a fault of our own: the rows must not be forgotten
TELL_S = 10.0  # between two log lines about faults of one kind

Settle = Callable[[Sequence[Event]], None]

log = logging.getLogger("kvgate.store")


class Sharing:
    """``ports.LeaseStore`` and ``ports.store.ScrapeTurns`` over a ``SharedStore``. ``feed`` hands an event to the gate."""

    def __init__(
        self, member: Member, store: SharedStore, clock: Clock, guard: Guard, feed: Callable[[Event], None],
        called: Callable[[str, float], None],
    ) -> None:  # fmt: skip
        self.member = member
        self.store = store
        self.errors: Counter[str] = Counter()
        self.answers: Counter[str] = Counter()  # of the store to reservations
        self.rewrites = self.outages = self.offers_made = self.offers_claimed = self.offers_passed = 0
        self.last_error: str | None = None
        self.changed_s = clock.now_s()  # when the phase last changed
        self._phase = StorePhase.DEGRADED
        self._clock = clock
        self._guard = guard
        self.feed = feed
        self.called = called
        self._held: set[tuple[str, str]] = set()
        self._settling: dict[str, Settle] = {}  # requests that the store was asked about
        self._told_s: dict[str, float] = {}  # fault -> when the log told it
        self._answered_s = self._failed_s = self._recovering_s = float("-inf")
        self._offered_s: dict[str, float] = {}  # replica -> when room there was offered to a head of ours
        self._due = asyncio.Event()
        self._tasks: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        """State for people and tests."""
        return f"<Sharing {self.phase} held={len(self._held)} settling={len(self._settling)} {self.member!r}>"

    # ---- the dispatcher's side

    def reserve(self, effect: Reserve, done: Settle) -> None:
        """Ask the store, or decide here while it is out of touch."""
        self._held.add((effect.lease.replica, effect.lease.lease_id))
        events = self.member.reserve(effect, self._clock.now_s())
        if events:
            done(events)
        else:
            self._settling[effect.request_id] = done
        self._make_calls()

    def release(self, replica: str, lease_id: str) -> None:
        """A lease ended: its room is told to the others soon."""
        self._held.discard((replica, lease_id))
        due_s = self.member.due_s
        self.member.freed(replica, self._clock.now_s())
        self._hurry(due_s)

    def _hurry(self, due_s: float) -> None:
        """Let the loop know when its next beat came to be due before ``due_s``."""
        if self.member.due_s < due_s:
            self._due.set()

    def looked(self) -> None:
        """The gate has taken in an event: others may have come to be the heads of its queue."""
        due_s = self.member.due_s
        self.member.waiting(self._clock.now_s())
        self._hurry(due_s)

    def leases_held(self) -> int:
        """Reservations not yet released."""
        return len(self._held)

    # ---- the watchers' side

    def ours(self, replicas: Sequence[str]) -> bool:
        """Whether we are to scrape the server that these are the names of."""
        now_s = self._clock.now_s()
        return any(self.member.scrapes(replica, now_s) for replica in replicas)

    def scraped(self, replicas: Sequence[str]) -> None:
        """We did, and the gate has been told."""
        now_s = self._clock.now_s()
        for replica in replicas:
            self.member.scraped(replica, now_s)
        self._make_calls()

    # ---- loops

    async def run(self) -> None:
        """Write what is due and listen for offers, until cancelled."""
        listening = asyncio.create_task(self._listen_for_ever())
        try:
            while True:
                now_s = self._clock.now_s()
                self.write_due(now_s)
                self._due.clear()
                with suppress(TimeoutError):
                    async with asyncio.timeout(max(TIMER_S, self.member.due_s - now_s)):
                        await self._due.wait()
        finally:
            tasks = [listening, *self._tasks]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def write_due(self, now_s: float) -> None:
        """Make the calls that are due."""
        if now_s < self.member.due_s:
            return
        if not self._guard.run_now(Part.STORE, partial(self.member.beat, now_s)):
            self.member.due_s = now_s + FAULT_PAUSE_S
        self._make_calls()

    async def settled(self) -> None:
        """Wait until no call is under way."""
        while self._tasks:
            await asyncio.gather(*self._tasks)

    async def _listen_for_ever(self) -> None:
        while True:
            try:
                await self._guard.run(Part.STORE, self._listen(), (StoreError,))
            except (StoreError, InternalFaultError) as error:
                self.failed(error)
            await asyncio.sleep(LISTEN_PAUSE_S)

    async def _listen(self) -> None:
        async for replica in self.store.offers(self.member.name):
            self._pass_offers()
            if replica in self.member.gate.fleet.books:
                self._offered_s[replica] = self._clock.now_s()
                self._tell([Offered(replica)])

    def _pass_offers(self) -> None:
        """Count those that nobody took in time."""
        late_s = self._clock.now_s() - OFFER_S - self.member.timeout_s
        for replica in [replica for replica, offered_s in self._offered_s.items() if offered_s < late_s]:
            del self._offered_s[replica]
            self.offers_passed += 1

    async def leave(self) -> None:
        """Take everything of ours out of the store, so that the others have its room at once."""
        replicas = list(self.member.gate.fleet.books)
        if replicas and self.member.touch.sharing:
            with suppress(StoreError):
                await self.store.forget(self.member.name, replicas)

    # ---- calls

    def _make_calls(self) -> None:
        calls = self.member.take_calls()
        rewrites = [call for call in calls if isinstance(call, CallRewrite)]
        if rewrites:  # first: a reservation may be for the room that they tell of
            self._start(self._make(rewrites))
        for call in calls:
            if not isinstance(call, CallRewrite):
                self._start(self._make([call]))

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _make(self, calls: Sequence[StoreCall]) -> None:
        """Make one call, or several rewrites at once, and tell gate and member what came of it."""
        asked_s, due_s = self._clock.now_s(), self.member.due_s
        try:
            answers = await self._guard.run(Part.STORE, asked(self.store, calls), (StoreError,))
        except (StoreError, InternalFaultError) as error:
            self.failed(error)
            for call in calls:
                events = self.member.failed(call, asked_s=asked_s, now_s=self._clock.now_s())
                self._settle_or_tell(call, events)
        else:
            self._answered_s = self._clock.now_s()
            self.called(type(calls[0]).__name__.removeprefix("Call").lower(), self._answered_s - asked_s)
            for call, (reply, store_s) in zip(calls, answers, strict=True):
                now_s = self._clock.now_s()
                self._count(call, reply)
                self._settle_or_tell(call, self.member.answered(call, reply, store_s=store_s, asked_s=asked_s, now_s=now_s))
        self._note_phase()
        self._make_calls()
        self._hurry(due_s)

    def _settle_or_tell(self, call: StoreCall, events: Sequence[Event]) -> None:
        done = self._settling.pop(call.request_id, None) if isinstance(call, CallReserve) else None
        if done is None:
            self._tell(events)
        else:
            done(events)

    def _tell(self, events: Sequence[Event]) -> None:
        for event in events:
            self._guard.run_now(Part.GATE, partial(self.feed, event))

    # ---- accounts

    def _count(self, call: StoreCall, reply: StoreReply) -> None:
        if getattr(reply, "answer", None) is Answer.FENCED:
            log.warning("store.fenced store=%s; given up by the store, this proxy registers anew", self.store.shown)
        match call:
            case CallReserve(ask):
                answer = getattr(reply, "answer", Answer.UNKNOWN)
                self.answers[answer.value] += 1
                if answer is Answer.RECOVERING:
                    self._recovering_s = self._clock.now_s()
                if answer is Answer.GRANTED and self._offered_s.pop(ask.replica, None) is not None:
                    self.offers_claimed += 1
            case CallRewrite():
                self.rewrites += 1
                self.offers_made += len(getattr(reply, "offered", ()))
            case _:
                pass

    def failed(self, error: StoreError | InternalFaultError) -> None:
        """Count a call that failed, and tell it now and then."""
        now_s = self._failed_s = self._clock.now_s()
        fault = error.fault.value if isinstance(error, StoreError) else "internal"
        self.errors[fault] += 1
        self.last_error = f"{fault}: {error}"
        if now_s - self._told_s.get(fault, float("-inf")) >= TELL_S:
            self._told_s[fault] = now_s
            log.warning("store.failed fault=%s store=%s reason=%s", fault, self.store.shown, error)
        self._note_phase()

    @property
    def phase(self) -> StorePhase:
        """How we stand with the store."""
        if not self.member.touch.sharing:
            return StorePhase.RECOVERING if self._answered_s > self._failed_s else StorePhase.DEGRADED
        recovering = self._clock.now_s() - self._recovering_s < self.member.timeout_s
        return StorePhase.RECOVERING if recovering else StorePhase.SHARING

    def _note_phase(self) -> None:
        before, self._phase = self._phase, self.phase
        if before is self._phase:
            return
        now_s = self._clock.now_s()
        if before is StorePhase.SHARING:
            self.outages += 1
        if self._phase is StorePhase.DEGRADED:
            log.error(
                "store.lost store=%s reason=%s; every replica is filled to this proxy's own share, one of %d, until it is back",
                self.store.shown, self.last_error, self.member.proxies,
            )  # fmt: skip
        elif self._phase is StorePhase.SHARING and before is not StorePhase.SHARING:
            after_s = now_s - self.changed_s
            log.warning("store.sharing store=%s proxies=%d after=%.2fs", self.store.shown, self.member.proxies, after_s)
        self.changed_s = now_s
