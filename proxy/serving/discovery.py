"""Keeps the replicas at what the policy lists and what its source tells.

The list and the source add up; of two that share an address or a name the listed one counts. While the source cannot be asked, or says
what cannot be used, the replicas it told last stand, and the log, ``/ready`` and ``kvgate_discovery_age_seconds`` say since when: whether
they answer, their own watchers tell.

Fails: before a source has told anything for the first time, only listed replicas are there.
"""

import asyncio
import logging
from collections.abc import Callable

from proxy.core.policy import Discovery, Policy, ReplicaPolicy
from proxy.ports import Clock
from proxy.ports.policy import DiscoveryState
from proxy.ports.replicas import DiscoveryError, ReplicaSource
from proxy.serving.guard import Guard, InternalFaultError, Part
from proxy.serving.replica_set import ReplicaSet, ReplicaUnusableError

AGAIN_S_MIN, AGAIN_S_MAX = (
    0.5,
    15.0,
)  # between two tries of a source that fails: soon at first, and never a load on what is not well

log = logging.getLogger("kvgate.discovery")


class Discoverer:
    """``source_of`` makes what a policy describes; None where it describes none."""

    def __init__(
        self, replicas: ReplicaSet, clock: Clock, guard: Guard, source_of: Callable[[Discovery], ReplicaSource | None]
    ) -> None:  # fmt: skip
        self.fault: str | None = None
        self._replicas = replicas
        self._clock = clock
        self._guard = guard
        self._source_of = source_of
        self._discovery = Discovery()
        self._source: ReplicaSource | None = None
        self._heard_s = clock.now_s()  # when the source last answered, or was first to be asked
        self._failures = 0
        self._changed = asyncio.Event()

    def __repr__(self) -> str:
        """State for people and tests."""
        return f"<Discoverer {self._source and self._source.shown} found={len(self._replicas.discovered)} fault={self.fault}>"

    def follow(self, policy: Policy) -> None:
        """Another policy rules: where its source is another, what the old one told stands until the new one tells."""
        if policy.discovery == self._discovery:
            return
        self._discovery, self.fault, self._failures = policy.discovery, None, 0
        self._source = self._source_of(policy.discovery)
        self._heard_s = self._clock.now_s()
        if self._source is None:
            self._replicas.discover(())
        self._changed.set()

    def state(self) -> DiscoveryState | None:
        """For metrics and people; None without a source."""
        if self._source is None:
            return None
        age_s = self._clock.now_s() - self._heard_s
        return DiscoveryState(self._source.shown, len(self._replicas.discovered), age_s, self.fault)

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            self._changed.clear()
            asking = asyncio.create_task(self._ask(self._source)) if self._source is not None else None
            try:
                await self._changed.wait()
            finally:
                if asking is not None:
                    asking.cancel()
                    await asyncio.gather(asking, return_exceptions=True)

    async def _ask(self, source: ReplicaSource) -> None:
        while True:
            try:
                await self._guard.run(Part.FEED, self._listen(source), (DiscoveryError, ReplicaUnusableError))
            except (DiscoveryError, ReplicaUnusableError, InternalFaultError) as error:
                self._failed(source, str(error))
            await asyncio.sleep(min(AGAIN_S_MAX, AGAIN_S_MIN * 2 ** min(self._failures - 1, 10)))

    async def _listen(self, source: ReplicaSource) -> None:
        async for told in source.tell():
            self._take(told)

    def _take(self, told: tuple[ReplicaPolicy, ...] | None) -> None:
        if told is not None:
            self._replicas.discover(told)
        if self.fault is not None:
            log.warning("discovery.answers_again after=%.1fs", self._clock.now_s() - self._heard_s)
        self._heard_s, self.fault, self._failures = self._clock.now_s(), None, 0

    def _failed(self, source: ReplicaSource, reason: str) -> None:
        self._failures += 1
        if self.fault != reason:
            log.error("discovery.failed source=%s reason=%s; the replicas it told last stand", source.shown, reason)
        self.fault = reason
