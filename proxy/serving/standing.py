"""How one replica may be used: as looking at it found, whether an operator drains it, and whether it failed requests (``core.health``)."""

import logging
from collections.abc import Iterable

from proxy.core.health import Outliers, SlowStart
from proxy.core.replica import AWAITED_PHASES, ReplicaPhase
from proxy.ports import Clock

log = logging.getLogger("kvgate.health")


class Standing:
    """One replica's. ``outliers`` knows the others, without whom nobody is ejected."""

    def __init__(self, name: str, outliers: Outliers, clock: Clock) -> None:
        self.name = name
        self.seen = ReplicaPhase.PROBING  # by looking at it
        self.wedged = False  # it answers and does nothing (``core.wedge``)
        self._drained_by = frozenset[str]()
        self._outliers = outliers
        self._clock = clock
        self._models: tuple[str, ...] = ()

    @property
    def phase(self) -> ReplicaPhase:
        """As it was seen, unless it is kept out of use."""
        if self.draining and self.seen in AWAITED_PHASES:
            return ReplicaPhase.DRAINING
        if self.seen is ReplicaPhase.SERVING and self._outliers.ejected(self.name):
            return ReplicaPhase.EJECTED
        return self.seen

    @property
    def slow_start(self) -> SlowStart | None:
        """How it is coming back; None when it is not."""
        return self._outliers.slow_start_of(self.name, self._clock.now_s())

    def spared(self, requests: int) -> bool:
        """Whether it is coming back and has, with ``requests``, as many as it may."""
        ramp = self.slow_start
        return ramp is not None and ramp.closed(requests, self._clock.now_s())

    def see(self, phase: ReplicaPhase, models: Iterable[str]) -> None:
        """It was looked at."""
        cold = self.seen is ReplicaPhase.UNREACHABLE
        self.seen, self._models = phase, tuple(models)
        self._tell(cold=cold)

    @property
    def draining(self) -> bool:
        """Whether there is a reason to send nobody there."""
        return bool(self._drained_by)

    def drain(self, reason: str) -> bool:
        """There is one; False when it is no news."""
        return self._drain(self._drained_by | {reason}, reason)

    def resume(self, reason: str) -> bool:
        """It is gone; False when that changes nothing."""
        return self._drain(self._drained_by - {reason}, reason)

    def _drain(self, reasons: frozenset[str], reason: str) -> bool:
        before, self._drained_by = self.draining, reasons
        if before is self.draining:
            return False
        log.warning("replica.%s replica=%s reason=%s", "resumes" if before else "drains", self.name, reason)
        self._tell(cold=False)
        return True

    def stand_still(self, wedged: bool) -> None:
        """Whether nothing moves there though it answers."""
        if wedged is not self.wedged:
            self.wedged = wedged
            self._tell(cold=False)

    def _tell(self, *, cold: bool) -> None:
        usable = self.seen is ReplicaPhase.SERVING and not self.draining and not self.wedged
        self._outliers.seen(self.name, self._models, self._clock.now_s(), usable=usable, cold=cold)

    def forget(self) -> None:
        """Its engine is another one from now on, or it is none of ours any more."""
        self.seen, self._models, self.wedged = ReplicaPhase.PROBING, (), False
        self._outliers.forget(self.name)

    def answered(self) -> bool:
        """It answered a request; True when it need not be spared for what it failed before."""
        return self._outliers.answered(self.name, self._clock.now_s())

    def failed(self, why: str, sent_s: float) -> bool:
        """It failed a request that was sent at ``sent_s``; True when it is ejected for it, or spared."""
        before = self.slow_start
        reason = self._outliers.failed(self.name, self._clock.now_s(), sent_s)
        if reason is not None:
            log.error("replica.ejected replica=%s reason=%s last=%s", self.name, reason, why)
        return reason is not None or self.slow_start != before

    def acquitted(self, sent_s: float) -> bool:
        """What it failed then was the request's fault; True when it is used otherwise from now on."""
        return self._outliers.acquit(self.name, self._clock.now_s(), sent_s)

    def returns(self) -> bool:
        """Whether it was ejected and is used again from now on, or another proxy's word changed how it is used."""
        if not self._outliers.returns(self.name, self._clock.now_s()):
            return self._outliers.news(self.name)
        log.warning("replica.returns replica=%s", self.name)
        return True
