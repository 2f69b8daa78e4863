"""Beside the path: one loop per replica that probes it, scrapes it, and tells the gate.

A replica is *probing* until its first answer, *serving* while scrapes come, *unreachable* after ``FAILURES_MAX`` failed ones in a row; then
it is probed again every ``PROBE_S``. One that takes connections and is only late may be busy: it is *stalled* once nothing was heard of it
for ``LATE_S_MAX``, not on its streams either, and is scraped on. Nobody is sent to either kind, and both are used at once when they
answer; but for a stalled one requests wait in the queue, as long as they may, instead of being told that there is none. One that answers
and does nothing is shown as *wedged* (``core.wedge``). Of several data-parallel engines what happens to the server is told of all, and one
that stands still while others move is *wedged* by itself. One that is drained, or ejected for failing requests, is looked at as before
(``serving.standing``).

Where several proxies share the replicas, one of them scrapes each at a time (``ports.store.ScrapeTurns``) and the others hear of it. Every
proxy probes for itself.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace

from proxy.core.book import Book
from proxy.core.events import Observed, ReplicaChanged, ReplicaFound
from proxy.core.health import Outliers
from proxy.core.policy import Health, ReplicaPolicy, Scrape
from proxy.core.replica import AWAITED_PHASES, ReplicaFacts, ReplicaPhase, ReplicaSample, ReplicaSpec
from proxy.ports.replicas import ReplicaFeed, ReplicaUnreachableError
from proxy.ports.store import ScrapeTurns
from proxy.serving.comparison import Comparison, compared
from proxy.serving.dispatcher import Dispatcher
from proxy.serving.guard import Guard, InternalFaultError, Part
from proxy.serving.ranks import engines_apart, split_sample, split_spec
from proxy.serving.replica_spec import spec_of
from proxy.serving.second_proxy import SecondProxies
from proxy.serving.standing import Standing

FAILURES_MAX = 3
LATE_S_MAX = 10.0  # a busy API server was seen to answer after 4 s. One whose engine outran it was silent for 40 s, and came back
PROBE_S = 1.0
HISTORY_MAX = 1000
BY_OPERATOR = "operator"  # why one is drained; another reason is that no list names it any more (``serving.replica_set``)
LOOKS_PER_SCRAPE = 4  # how often a proxy that does not scrape looks whether it has to: take-over is late by one such look at most

log = logging.getLogger("kvgate.watcher")


class ReplicaWatcher:
    """Keeps one replica's state fresh."""

    def __init__(
        self, policy: ReplicaPolicy, scrape: Scrape, feed: ReplicaFeed, dispatcher: Dispatcher, guard: Guard,
        report: Callable[[ReplicaFacts, ReplicaPolicy], None], turns: ScrapeTurns | None = None,
        outliers: Outliers | None = None,
    ) -> None:  # fmt: skip
        self.policy = policy
        self.name = policy.name
        self.standing = Standing(policy.name, outliers or Outliers(Health()), dispatcher.clock)
        self.facts: ReplicaFacts | None = None
        self.failures = 0  # looks that failed since one did not
        self._refusals = 0  # the latest of them that failed otherwise than by being late
        self.fault: str | None = None
        self.found = asyncio.Event()
        self.history: dict[str, deque[Comparison]] = {self.name: deque(maxlen=HISTORY_MAX)}
        self._scrape = scrape
        self._feed = feed
        self._dispatcher = dispatcher
        self._guard = guard
        self._report = report
        self._turns = turns
        self._nudge = asyncio.Event()
        self._heard_s = dispatcher.clock.now_s()  # when it last answered or one of our streams on it went on
        self._streamed = 0
        self._wedged: set[str] = set()
        self._second = SecondProxies()
        self._specs: tuple[ReplicaSpec, ...] = ()
        self.names: tuple[str, ...] = (self.name,)  # what the gate knows it by: its own name, or those of its engines by rank

    @property
    def phase(self) -> ReplicaPhase:
        """How it is used."""
        return self.standing.phase

    @property
    def draining(self) -> bool:
        """Whether there is a reason to send nobody there."""
        return self.standing.draining

    def drain(self, reason: str = BY_OPERATOR) -> None:
        """Send nobody there any more; what runs there finishes (``Outstanding.on`` tells how much). Idempotent for one reason."""
        if self.standing.drain(reason):
            self._tell_phase()

    def resume(self, reason: str = BY_OPERATOR) -> None:
        """Use it again, unless there is another reason not to. Idempotent."""
        if self.standing.resume(reason):
            self._tell_phase()

    def answered_request(self) -> None:
        """It answered a request."""
        if self.standing.answered():
            self._tell_phase()

    def failed_request(self, why: str, sent_s: float) -> None:
        """It failed a request that was sent at ``sent_s``, and may be ejected for it."""
        if self.standing.failed(why, sent_s):
            self._tell_phase()

    def acquitted(self, sent_s: float) -> None:
        """The request that was sent then is at fault itself."""
        if self.standing.acquitted(sent_s):
            self.suspect()  # an ejection ends with the next look
            self._tell_phase()

    def follow(self, scrape: Scrape) -> None:
        """Look by these rules from the next look on."""
        self._scrape = scrape
        self._feed.bound(scrape.timeout_s)

    def renew(self, policy: ReplicaPolicy, feed: ReplicaFeed) -> None:
        """It is described otherwise from now on; at another address it is another engine. Not to be called while ``run`` runs."""
        if policy.url != self.policy.url:
            self.facts, self.fault, self._specs, self.names = None, None, (), (self.name,)
            self.standing.forget()
            self.failures, self._refusals = 0, 0
            self.found.clear()
            self._wedged.clear()
            self._second.clear()
        self.policy, self._feed = policy, feed

    def phase_seen(self, name: str) -> ReplicaPhase:
        """The phase of one of ``names``, and of a serving one whether it does anything."""
        return ReplicaPhase.WEDGED if self.phase is ReplicaPhase.SERVING and name in self._wedged else self.phase

    def books(self) -> list[Book]:
        """Those of ``names`` that the gate keeps."""
        books = self._dispatcher.gate.fleet.books
        return [books[name] for name in self.names if name in books]

    def suspect(self) -> None:
        """A request failed on it: look at once instead of at the next interval."""
        self._nudge.set()

    async def run(self) -> None:
        """Watch until cancelled."""
        turn = -1  # whatever it was before, it is probed first
        while True:
            turn += 1
            if self.standing.returns():
                self._tell_phase()
            if self.standing.seen in AWAITED_PHASES and turn % self._scrape.probe_every:
                if await self._ours():
                    await self._guarded(self._sample_once())
                    await self._pause(self._scrape.interval_s)
            elif not await self._guarded(self._probe_once()):
                await self._pause(PROBE_S)

    async def _guarded(self, look: Awaitable[bool]) -> bool:
        """Whatever a replica answers, its watcher goes on: a fault of ours here is counted and the look has failed."""
        try:
            return await self._guard.run(Part.FEED, look, ())
        except InternalFaultError as fault:
            self._failed(str(fault))
            return False

    async def _ours(self) -> bool:
        """Whether this scrape is ours. Another proxy's is waited for as long as one takes to come again, unless there is cause to look."""
        for _ in range(LOOKS_PER_SCRAPE):
            if self._turns is None or self._turns.ours(self.names):
                return True
            if await self._pause(self._scrape.interval_s / LOOKS_PER_SCRAPE):
                return True
        self._answered()  # as another proxy's record says, whose age has just been looked at
        for book in self.books():
            self._look_for_standstill(book)
        return False

    async def _pause(self, seconds: float) -> bool:
        """Wait; True when it was cut short because there is cause to look."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._nudge.wait()
        nudged = self._nudge.is_set()
        self._nudge.clear()
        return nudged

    async def _probe_once(self) -> bool:
        try:
            facts = await self._feed.probe()
        except ReplicaUnreachableError as error:
            self._failed(str(error), late=error.late)
            return False
        self._found(facts)
        return True

    def _found(self, facts: ReplicaFacts) -> None:
        if facts != self.facts:
            self._report(facts, self.policy)
        self.facts = facts
        self._answered()
        self.standing.see(ReplicaPhase.SERVING, facts.models)
        self._tell_specs(split_spec(spec_of(facts, self.policy, self.name), engines_apart(facts)))
        self.found.set()

    def _tell_specs(self, specs: tuple[ReplicaSpec, ...]) -> None:
        before, self._specs = self._specs, specs
        self.names = tuple(spec.name for spec in specs) or (self.name,)
        for spec in before:
            if (
                spec.name not in self.names
            ):  # so many engines, or it as a whole, are there no more: nothing is served under that name
                self._tell(ReplicaFound(replace(spec, models=())))
                self._tell(ReplicaChanged(spec.name, ReplicaPhase.UNREACHABLE))
                self._wedged.discard(spec.name)
        self.history = {name: self.history.get(name, deque(maxlen=HISTORY_MAX)) for name in self.names}
        for spec in specs:
            self._tell(ReplicaFound(spec, self.phase, self.standing.slow_start))

    async def _sample_once(self) -> bool:
        try:
            sample = await self._feed.sample()
        except ReplicaUnreachableError as error:
            self._failed(str(error), late=error.late)
            return False
        self._answered()
        if sample.facts is not None:
            self._found(sample.facts)
        self._several(sample)
        for of_engine in split_sample(sample, self.names):
            self._tell(Observed(of_engine))
        if self.standing.seen is ReplicaPhase.STALLED:
            log.warning("replica.answers_again replica=%s", self.name)
            self._enter(ReplicaPhase.SERVING)
        for book in self.books():
            self.history[book.spec.name].append(compared(book, sample.sampled_s))
            self._look_for_standstill(book)
            self._second.look(self.name, book)
        if self._turns is not None:
            self._turns.scraped(self.names)
        return True

    def _look_for_standstill(self, book: Book) -> None:
        name, wedged = book.spec.name, book.saturation.wedge.wedged
        if wedged and name not in self._wedged:
            log.error("replica.wedged replica=%s running=%s waiting=%s", name, book.running, book.waiting)
            self._wedged.add(name)
        if name in self._wedged and not wedged:
            log.warning("replica.moves_again replica=%s", name)
            self._wedged.discard(name)
        self.standing.stand_still(self._wedged.issuperset(self.names))

    def second_proxy(self, name: str) -> bool:
        """Whether what bypasses us on one of ``names`` looks like another kvgate."""
        return self._second.suspected(name)

    def _several(self, sample: ReplicaSample) -> None:
        """Whether the URL balances over several engines shows only after a while, and may end again."""
        facts = self.facts
        if facts is not None and sample.several_engines != facts.several_engines_behind:
            self._found(replace(facts, several_engines_behind=sample.several_engines))

    def _answered(self) -> None:
        self.failures, self._refusals, self.fault = 0, 0, None
        self._heard_s = self._dispatcher.clock.now_s()

    def _failed(self, reason: str, *, late: bool = False) -> None:
        """One look failed. A server that is late may be busy, and is while our streams on it go on: its measurements only get stale."""
        self.failures += 1
        self._refusals = 0 if late else self._refusals + 1
        if self.fault is None:
            log.warning("replica.failed replica=%s reason=%s", self.name, reason)
        self.fault = reason
        streamed = sum(lease.output_tokens for book in self.books() for lease in book.ledger.leases.values())
        if streamed != self._streamed:
            self._streamed, self._heard_s = streamed, self._dispatcher.clock.now_s()
        silent = self._dispatcher.clock.now_s() - self._heard_s >= LATE_S_MAX
        seen = self.standing.seen
        if seen in AWAITED_PHASES and self._refusals >= FAILURES_MAX:
            log.error("replica.unreachable replica=%s reason=%s", self.name, reason)
            self._enter(ReplicaPhase.UNREACHABLE)
        elif seen is ReplicaPhase.SERVING and late and silent and self.failures >= FAILURES_MAX:
            log.error("replica.stalled replica=%s reason=%s", self.name, reason)
            self._enter(ReplicaPhase.STALLED)

    def _enter(self, phase: ReplicaPhase) -> None:
        self.standing.see(phase, () if self.facts is None else self.facts.models)
        self._tell_phase()

    def _tell_phase(self) -> None:
        for name in self.names:
            self._tell(ReplicaChanged(name, self.phase, self.standing.slow_start))

    def _tell(self, event: Observed | ReplicaFound | ReplicaChanged) -> None:
        self._guard.run_now(Part.GATE, lambda: self._dispatcher.feed(event))
