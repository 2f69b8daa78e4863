"""The replicas that requests may go to, as they come and go while the process runs.

One that is added is probed before anything is sent there. One that is taken out *drains*: nobody is placed there any more, what runs there
ends as it would have, what waited for it is placed elsewhere; once nothing is left its watcher, its book, its connections and what it said
of its cache go. One that comes back before that is used again. The last one of a model is kept in use while a new one is being probed, for
``HANDOVER_S_MAX`` at most: a list that names other replicas than before is no outage.

A replica's name is what its ledger hangs on, in this proxy and in the store. The same name at another address is another engine: its book
begins anew at once, as after a restart, and what still runs at the old address goes on without being counted. Other changes of a replica
(credentials, a block count) take effect with the probe that follows them.

Fails: a replica whose last request never ends stays in sight, draining, for as long as the relay's own limits let it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from proxy.core.events import ReplicaGone
from proxy.core.policy import ReplicaPolicy, Scrape
from proxy.core.replica import AWAITED_PHASES, ReplicaPhase
from proxy.ports import Headers
from proxy.ports.replicas import ReplicaFeed
from proxy.serving.dispatcher import Dispatcher
from proxy.serving.guard import Guard, Part
from proxy.serving.watcher import ReplicaWatcher

RETIRED_LOOK_S = 0.25  # how often it is looked whether a draining replica has nothing left: nobody waits for it
HANDOVER_S_MAX = (
    10.0  # a probe of a server that is there takes less; one that is not there yet must not keep the old one for ever
)
TAKEN_OUT = "taken out"  # the reason to drain of one that is in no list any more

log = logging.getLogger("kvgate.replicas")


class ReplicaUnusableError(Exception):
    """What a policy says of a replica cannot be used here: a key that is not there, a package that is missing. One line for people."""


@dataclass(frozen=True, slots=True)
class ReplicaParts:
    """What one replica needs of the outside. ``beside`` are loops that run as long as it is watched (its KV events)."""

    feed: ReplicaFeed
    headers: Headers  # sent with every request to it
    beside: Callable[[ReplicaWatcher], list[Coroutine[Any, Any, None]]]


@dataclass(frozen=True, slots=True)
class ReplicaChanges:
    """What a new list of replicas means: names."""

    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        """Whether there is any."""
        return bool(self.added or self.removed or self.changed)


def changes_between(old: Iterable[ReplicaPolicy], new: Iterable[ReplicaPolicy]) -> ReplicaChanges:
    """What comes, goes, and stays under another description."""
    before, after = {one.name: one for one in old}, {one.name: one for one in new}
    return ReplicaChanges(
        added=tuple(name for name in after if name not in before),
        removed=tuple(name for name in before if name not in after),
        changed=tuple(name for name, one in after.items() if name in before and before[name] != one),
    )


def _together(listed: tuple[ReplicaPolicy, ...], found: tuple[ReplicaPolicy, ...]) -> list[ReplicaPolicy]:
    """Both, each address and each name once: what is listed counts before what was found."""
    urls, names = {one.url for one in listed}, {one.name for one in listed}
    return [*listed, *(one for one in found if one.url not in urls and one.name not in names)]


class ReplicaSet:
    """``watchers`` and ``credentials`` are by name and change in place; who holds a name across an await asks whether it is still there.

    ``make`` gives a replica its parts, or raises ReplicaUnusableError; ``watch`` makes its watcher; ``busy`` tells of
    requests out there beside the gate's; ``forget_url`` closes connections that nobody uses any more; ``on_gone`` is told the names that
    the gate knew one by that has left.
    """

    def __init__(
        self, make: Callable[[ReplicaPolicy], ReplicaParts], watch: Callable[[ReplicaPolicy, ReplicaFeed], ReplicaWatcher],
        dispatcher: Dispatcher, guard: Guard, forget_url: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.watchers: dict[str, ReplicaWatcher] = {}
        self.credentials: dict[str, Headers] = {}
        self.busy: Callable[[str], bool] = lambda _: False
        self.on_gone: Callable[[tuple[str, ...]], Awaitable[None]] | None = None
        self.discovered: tuple[ReplicaPolicy, ...] = ()
        self._listed: tuple[ReplicaPolicy, ...] = ()
        self._make = make
        self._watch = watch
        self._dispatcher = dispatcher
        self._guard = guard
        self._forget_url = forget_url
        self._parts: dict[str, ReplicaParts] = {}
        self._tasks: dict[str, list[asyncio.Task[None]]] = {}  # by name, while it is watched
        self._retiring: dict[str, asyncio.Task[None]] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._started = False

    def __repr__(self) -> str:
        """State for people and tests."""
        return f"<ReplicaSet {[f'{name}: {one.phase}' for name, one in self.watchers.items()]}>"

    @property
    def wanted(self) -> list[ReplicaPolicy]:
        """Those that are not on their way out."""
        return [watcher.policy for name, watcher in self.watchers.items() if name not in self._retiring]

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        """Every loop that runs for a replica."""
        return [task for many in self._tasks.values() for task in many]

    def parts_of(self, wanted: Iterable[ReplicaPolicy]) -> dict[str, ReplicaParts]:
        """Parts of those that are new or changed, which ``apply`` takes. Raises ReplicaUnusableError; nothing has changed then."""
        known = {name: watcher.policy for name, watcher in self.watchers.items()}
        return {replica.name: self._make(replica) for replica in wanted if known.get(replica.name) != replica}

    def apply(self, wanted: Iterable[ReplicaPolicy], parts: dict[str, ReplicaParts] | None = None) -> ReplicaChanges:
        """From now on these are the replicas. Raises ReplicaUnusableError, before anything has changed."""
        listed = tuple(wanted)
        return self._apply(listed, self.discovered, parts)

    def discover(self, found: tuple[ReplicaPolicy, ...]) -> ReplicaChanges:
        """From now on these are there besides those that the policy lists. Raises ReplicaUnusableError, before anything has changed."""
        return self._apply(self._listed, found, None)

    def changes_by(self, listed: tuple[ReplicaPolicy, ...]) -> ReplicaChanges:
        """What it would mean if the policy listed these."""
        return changes_between(self.wanted, _together(listed, self.discovered))

    def _apply(
        self, listed: tuple[ReplicaPolicy, ...], found: tuple[ReplicaPolicy, ...], parts: dict[str, ReplicaParts] | None
    ) -> ReplicaChanges:
        wanted = _together(listed, found)
        given = parts or {}
        parts = given | self.parts_of(one for one in wanted if one.name not in given)
        self._listed, self.discovered = listed, found
        changes = changes_between(self.wanted, wanted)
        for name in changes.removed:
            self._take_out(name)
        for replica in wanted:
            if replica.name not in self.watchers:
                self._add(replica, parts[replica.name])
            else:
                self._keep(replica, parts.get(replica.name))
        return changes

    def refresh(self) -> None:
        """Read all keys anew: who got another one is spoken to by it from now on. Raises ReplicaUnusableError."""
        for replica in self.wanted:
            parts = self._make(replica)
            if parts.headers != self.credentials[replica.name]:
                self._renew(self.watchers[replica.name], replica, parts)
            else:
                self._close_later(parts.feed, [])

    def follow(self, scrape: Scrape) -> None:
        """Look at all of them by these rules from now on."""
        for watcher in self.watchers.values():
            watcher.follow(scrape)

    def start(self) -> None:
        """Begin to watch."""
        self._started = True
        for name in self.watchers:
            self._begin(name)

    async def aclose(self) -> None:
        """End every loop and close every feed."""
        tasks = [*self.tasks, *self._retiring.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, *self._closing, return_exceptions=True)
        for parts in self._parts.values():
            await parts.feed.aclose()

    # ---- one replica

    def _add(self, replica: ReplicaPolicy, parts: ReplicaParts) -> None:
        name = replica.name
        self._parts[name], self.credentials[name] = parts, parts.headers
        self.watchers[name] = self._watch(replica, parts.feed)
        if self._started:
            log.info("replica.added replica=%s url=%s", name, replica.url)
            self._begin(name)

    def _begin(self, name: str) -> None:
        watcher = self.watchers[name]
        loops = [watcher.run(), *self._parts[name].beside(watcher)]
        self._tasks[name] = [asyncio.get_running_loop().create_task(one) for one in loops]

    def _keep(self, replica: ReplicaPolicy, parts: ReplicaParts | None) -> None:
        """It stays, or comes back; ``parts`` where anything about it has changed."""
        name = replica.name
        watcher, retiring = self.watchers[name], self._retiring.pop(name, None)
        if parts is not None:
            self._renew(watcher, replica, parts)
        if retiring is not None:
            retiring.cancel()
            log.info("replica.back replica=%s", name)
            watcher.resume(TAKEN_OUT)

    def _renew(self, watcher: ReplicaWatcher, replica: ReplicaPolicy, parts: ReplicaParts) -> None:
        name, old_url, old = watcher.name, watcher.policy.url, self._parts[watcher.name]
        running = self._tasks.pop(name, [])
        for task in running:
            task.cancel()
        self._close_later(old.feed, running)
        self._parts[name], self.credentials[name] = parts, parts.headers
        if replica.url != old_url:
            self._tell_gone(watcher)
        watcher.renew(replica, parts.feed)
        log.info("replica.changed replica=%s url=%s", name, replica.url)
        self._forget_unused(old_url)
        if self._started:
            self._begin(name)

    def _take_out(self, name: str) -> None:
        watcher = self.watchers[name]
        log.info("replica.leaving replica=%s requests=%d", name, self._dispatcher.gate.leases.on(watcher.names))
        self._retiring[name] = asyncio.get_running_loop().create_task(self._retire(name))

    def _needed(self, watcher: ReplicaWatcher) -> bool:
        """Whether a model would have nobody without it, where somebody new may turn out to have it."""
        kept = [one for name, one in self.watchers.items() if name not in self._retiring]
        if watcher.facts is None or not any(one.phase is ReplicaPhase.PROBING for one in kept):
            return False
        served = {model for one in kept if one.facts is not None and one.phase in AWAITED_PHASES for model in one.facts.models}
        return not served.issuperset(watcher.facts.models)

    async def _retire(self, name: str) -> None:
        """Wait until it can be done without, and then until nothing is left there, and let it go."""
        watcher = self.watchers[name]
        with suppress(TimeoutError):
            async with asyncio.timeout(HANDOVER_S_MAX):
                while self._needed(watcher):
                    await self._anybody_found()
        watcher.drain(TAKEN_OUT)
        while self._dispatcher.gate.leases.on(watcher.names) or self.busy(name):  # noqa: ASYNC110  no request pays for telling
            await asyncio.sleep(RETIRED_LOOK_S)
        del self._retiring[name]
        self._remove(name)
        log.info("replica.left replica=%s", name)

    async def _anybody_found(self) -> None:
        """Until one that was not found yet is, or a moment is over."""
        found = [asyncio.ensure_future(one.found.wait()) for one in self.watchers.values() if one.phase is ReplicaPhase.PROBING]
        try:
            await asyncio.wait(found, timeout=RETIRED_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for future in found:
                future.cancel()

    def _remove(self, name: str) -> None:
        watcher, running = self.watchers.pop(name), self._tasks.pop(name, [])
        for task in running:
            task.cancel()
        del self.credentials[name]
        self._close_later(self._parts.pop(name).feed, running, watcher.names)
        watcher.standing.forget()
        self._tell_gone(watcher)
        self._forget_unused(watcher.policy.url)

    def _tell_gone(self, watcher: ReplicaWatcher) -> None:
        for name in watcher.names:
            self._guard.run_now(Part.GATE, lambda name=name: self._dispatcher.feed(ReplicaGone(name)))  # type: ignore[misc]

    def _forget_unused(self, url: str) -> None:
        if all(watcher.policy.url != url for watcher in self.watchers.values()):
            self._forget_url(url)

    def _close_later(self, feed: ReplicaFeed, running: list[asyncio.Task[None]], gone: tuple[str, ...] = ()) -> None:
        async def close() -> None:
            await asyncio.gather(*running, return_exceptions=True)
            await feed.aclose()
            if gone and self.on_gone is not None:
                await self.on_gone(gone)

        task = asyncio.get_running_loop().create_task(close())
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
