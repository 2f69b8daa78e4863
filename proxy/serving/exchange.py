"""What proxies tell each other beside the path of requests, once a beat: who is there and by which policy, the mode that rules, what
tenants were charged, and how long outputs were (``core.exchange``); which replicas fail requests (``core.shared_health``); and where
responses live that engines keep (``serving.stored_responses``).

A policy or version that differs is told in the log, in ``/ready`` and in a metric: proxies that treat requests differently are each right
by their own file, and together are what nobody wrote. What was said by hand to all proxies is heard with every beat (``serving.override``).

A beat that timed out may have been heard, so what it told is not told again; one that failed otherwise is. A proxy that has just started
reads the last completions first: a restarted fleet remembers.

Fails: while the store is out of touch the last answer stands. What others charged within their last beat of a period is not heard.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial

from proxy import __version__
from proxy.core.exchange import TenantKey
from proxy.core.health import Outliers
from proxy.core.member_parts import SCRAPE_LEASE_RATIO
from proxy.core.override import Override
from proxy.core.policy import Policy
from proxy.core.policy_version import policy_version
from proxy.core.shared_health import SharedHealth
from proxy.ports import Clock
from proxy.ports.store import Beat, BeatReply, ProxyCard, StoreError, StoreFault
from proxy.serving.guard import Guard, InternalFaultError, Part
from proxy.serving.override import Switches, shifted
from proxy.serving.sharing import Sharing
from proxy.serving.stored_responses import StoredResponses

ROUNDING = 1e-9  # of a total: the store adds up decimal numbers

log = logging.getLogger("kvgate.store")


def max_by_priority(clocks: Iterable[Iterable[tuple[int, float]]]) -> dict[int, float]:
    """The furthest of several queues' clocks."""
    furthest: dict[int, float] = {}
    for one in clocks:
        for priority, virtual in one:
            furthest[priority] = max(virtual, furthest.get(priority, virtual))
    return furthest


class Exchange:
    """The beat of one proxy."""

    def __init__(self, sharing: Sharing, policy: Policy, admin: str, clock: Clock, guard: Guard, switches: Switches) -> None:
        self.digest = policy_version(policy)
        self.proxies: tuple[ProxyCard, ...] = ()
        self.health = SharedHealth(Outliers(policy.health))
        self.stored = StoredResponses()
        self.on_health: Callable[[str], None] = lambda _: None  # a replica of which the others' word changed something
        self.sharing = sharing
        self._policy = policy
        self._admin = admin
        self._clock = clock
        self._guard = guard
        self._switches = switches
        switches.others = self
        self._differing: frozenset[str] = frozenset()
        self._told = Beat(ProxyCard("", "", "", "", ""))  # charges and completions of it are to be told still
        self._seen = self._responses_seen = ""
        self._names: set[str] = set()  # of proxies that count
        self._missed_s: dict[str, float] = {}  # of them, since when they are not heard of
        self._accounts: dict[TenantKey, float] | None = None  # as last heard; None: never
        self._period = 0

    def follow(self, policy: Policy) -> None:
        """Another policy rules: the others are told with the next beat."""
        self._policy, self.digest = policy, policy_version(policy)
        self.sharing.member.scrape_lease_s = SCRAPE_LEASE_RATIO * policy.scrape.interval_s

    async def replicas_gone(self, names: Sequence[str]) -> None:
        """They are none of ours any more, though they may be others' still."""
        member = self.sharing.member
        if member.touch.sharing:
            with suppress(StoreError):  # then the rows expire
                await self.sharing.store.drop(member.name, names)

    def differing(self) -> list[ProxyCard]:
        """Proxies with another policy or version than ours."""
        return [card for card in self.proxies if (card.policy_digest, card.version) != (self.digest, __version__)]

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            try:
                await self._guard.run(Part.STORE, self.beat(), (StoreError,))
            except StoreError as error:
                self.sharing.failed(error)
            except InternalFaultError:
                pass  # counted and told by the guard
            await asyncio.sleep(self._policy.store.beat_s)

    async def beat(self) -> None:
        """Tell and hear once. Raises StoreError."""
        member, store = self.sharing.member, self.sharing.store
        asked_s = self._clock.now_s()
        if not member.clock.known:
            member.clock.heard(await store.time_s(), asked_s, self._clock.now_s())
        gate, asked_s = member.gate, self._clock.now_s()
        ours = member.several.exchange
        if not self._told.charges and not self._told.completions and not self._told.responses:
            responses = self.stored.take_untold()
            self._told = replace(
                self._told, charges=ours.take_charges(), completions=ours.take_completions(), responses=responses
            )
        clocks = tuple(ours.clocks().items())
        seen_s = member.store_s(asked_s)
        notices = self.health.notices(seen_s - asked_s)
        card = ProxyCard(
            member.name, self.digest, __version__, gate.mode, self._admin, clocks, seen_s, notices, ours.accounts.levels()
        )
        beat, self._told = (
            replace(self._told, card=card, completions_seen=self._seen, responses_seen=self._responses_seen),
            replace(self._told, charges={}, completions=(), responses=()),
        )
        try:
            reply = await store.exchange(beat)
        except StoreError as error:
            if error.fault is not StoreFault.TIMEOUT:
                self._told = beat
            raise
        member.clock.heard(reply.store_s, asked_s, self._clock.now_s())
        self.sharing.called("exchange", self._clock.now_s() - asked_s)
        if reply.unread:
            self.sharing.failed(StoreError(StoreFault.ANSWER, f"{reply.unread} words there are no proxy's, and were passed over"))
        self._take(reply, asked_s)
        self._learn(beat, reply)

    def _learn(self, beat: Beat, reply: BeatReply) -> None:
        """Take in what others charged and who ended there."""
        ours = self.sharing.member.several.exchange
        before = self._accounts if self._period == reply.period else {}
        if before is not None:
            if 2 * len(before.keys() - reply.accounts.keys()) >= len(before) > 0:
                before = {}  # the store lost them: all that stands there was charged since
            charges = {
                key: charge
                for key, total in reply.accounts.items()
                if abs(charge := total - before.get(key, 0.0) - beat.charges.get(key, 0.0)) > abs(total) * ROUNDING
            }
            clocks = max_by_priority(card.clocks for card in reply.proxies if card.proxy != beat.card.proxy)
            self._guard.run_now(Part.STORE, partial(ours.charged, charges, clocks))
        levels = [card.levels for card in reply.proxies if card.proxy != beat.card.proxy]
        self._guard.run_now(Part.STORE, partial(ours.accounts.heard, reply.accounts, reply.period, levels))
        self._accounts, self._period = dict(reply.accounts), reply.period
        self._guard.run_now(Part.LEARNING, partial(ours.completed, reply.completions, history=not self._seen))
        self._guard.run_now(Part.STORE, partial(self.stored.hear, reply.responses, self._policy.limits.responses_max))
        self._seen, self._responses_seen = reply.completions_seen, reply.responses_seen

    def _hear_health(self, ahead_s: float) -> None:
        """What others found of replicas that fail requests."""
        told = {card.proxy: card.health for card in self.proxies if card.health and card.proxy != self.sharing.member.name}
        for replica in self.health.hear(told, ahead_s, self._clock.now_s()):
            log.warning("replica.heard_of replica=%s by=%s", replica, ",".join(sorted(told)))
            self.on_health(replica)

    def _count(self, names: set[str]) -> int:
        """How many may be there: whoever is not heard of counts for a lease more. After an outage each at first finds itself alone, and a
        share of all that is free would be too much.
        """
        now_s = self._clock.now_s()
        for name in names:
            self._missed_s.pop(name, None)
        for name in self._names - names:
            if now_s - self._missed_s.setdefault(name, now_s) >= self._policy.store.lease_s:
                self._names.discard(name)
                del self._missed_s[name]
        self._names |= names
        return max(1, len(self._names))

    async def say(self, override: Override) -> None:
        """Tell all proxies, which hear it within a beat. Raises StoreError."""
        member, now_s = self.sharing.member, self._clock.now_s()
        if not member.clock.known:
            raise StoreError(StoreFault.CONNECTION, self.sharing.last_error or "the store was not reached yet")
        await self.sharing.store.override(shifted(override, member.store_s(now_s) - now_s))

    def _take(self, reply: BeatReply, asked_s: float) -> None:
        member = self.sharing.member
        self.proxies = reply.proxies
        member.proxies = self._count({card.proxy for card in reply.proxies})
        member.gate.shares.proxies = member.proxies
        differing = frozenset(f"{card.proxy} ({card.policy_digest}, {card.version})" for card in self.differing())
        if differing - self._differing:
            log.warning(
                "store.policies_differ ours=%s (%s, %s) others=%s",
                member.name,
                self.digest,
                __version__,
                ", ".join(sorted(differing)),
            )
        self._differing = differing
        ahead_s = reply.store_s - self._clock.now_s()
        self._guard.run_now(Part.STORE, partial(self._hear_health, ahead_s))
        self._switches.hear({said.subject: shifted(said, -ahead_s) for said in reply.overrides}, asked_s)
