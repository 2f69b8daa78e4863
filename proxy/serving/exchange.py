"""What proxies tell each other beside the path of requests, once a beat: who is there and by which policy, and the mode that rules.

A policy or version that differs is told in the log, in ``/ready`` and in a metric: proxies that treat requests differently are each right
by their own file, and together are what nobody wrote. A mode set in the store rules over all proxies' policies until it is taken away.

Fails: while the store is out of touch the last answer stands.
"""

import asyncio
import hashlib
import logging
from functools import partial

from proxy import __version__
from proxy.core.events import Tick
from proxy.core.outcome import Mode
from proxy.core.policy import Policy
from proxy.ports import Clock
from proxy.ports.store import Beat, BeatReply, ProxyCard, StoreError
from proxy.serving.guard import Guard, InternalFaultError, Part
from proxy.serving.sharing import Sharing

log = logging.getLogger("kvgate.store")


def policy_digest(policy: Policy) -> str:
    """What tells two policies apart, whatever their files look like."""
    return hashlib.sha256(repr(policy).encode()).hexdigest()[:12]


class Exchange:
    """The beat of one proxy."""

    def __init__(self, sharing: Sharing, policy: Policy, admin: str, clock: Clock, guard: Guard) -> None:
        self.digest = policy_digest(policy)
        self.proxies: tuple[ProxyCard, ...] = ()
        self.sharing = sharing
        self._policy = policy
        self._admin = admin
        self._clock = clock
        self._guard = guard
        self._differing: frozenset[str] = frozenset()

    def differing(self) -> list[ProxyCard]:
        """Proxies with another policy or version than ours."""
        return [card for card in self.proxies if (card.policy_digest, card.version) != (self.digest, __version__)]

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            try:
                await self._guard.run(Part.STORE, self._beat(), (StoreError,))
            except StoreError as error:
                self.sharing.failed(error)
            except InternalFaultError:
                pass  # counted and told by the guard
            await asyncio.sleep(self._policy.store.beat_s)

    async def _beat(self) -> None:
        member, store = self.sharing.member, self.sharing.store
        asked_s = self._clock.now_s()
        if not member.clock.known:
            member.clock.heard(await store.time_s(), asked_s, self._clock.now_s())
        gate, asked_s = member.gate, self._clock.now_s()
        card = ProxyCard(member.name, self.digest, __version__, gate.mode, self._admin, member.store_s(asked_s))
        reply = await store.exchange(Beat(card))
        member.clock.heard(reply.store_s, asked_s, self._clock.now_s())
        self.sharing.called("exchange", self._clock.now_s() - asked_s)
        self._take(reply)

    def _take(self, reply: BeatReply) -> None:
        member = self.sharing.member
        self.proxies = reply.proxies
        member.proxies = max(1, len(reply.proxies))
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
        mode = self._policy.mode if reply.mode is None else Mode(reply.mode)
        if mode is not member.gate.mode:
            log.warning(
                "store.mode mode=%s because=%s", mode, "the store says so" if reply.mode else "the store says nothing any more"
            )
            member.gate.mode = mode
            self._guard.run_now(Part.GATE, partial(self.sharing.feed, Tick()))
