"""The way from proxies to the shared store and back, in virtual time: what Redis and the network to it are in serving.

Decides nothing: it lets calls travel to whatever ledger stands at the other end. A call takes a round trip of ``delay_s`` on average, half
of it sure and half exponential, split evenly between there and back; calls of one proxy stay in order, as on one connection. With the
probability ``loss`` a call or its answer is lost, as often before the store has seen it as after. Whoever has no answer in time
is told that it failed; an answer that comes later is thrown away, though what it tells of happened.

A proxy in a partition reaches the store as little as the store reaches it. A proxy that died asks nothing and hears nothing.

Deterministic for a seed: each proxy draws for itself, so one more call of another does not change what it draws.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Protocol, TypeVar

SURE_RATIO = 0.5  # of a round trip: the rest is drawn
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Span:
    """A time in which something is wrong with a proxy: seconds of the world, half open. ``proxy`` counts from 0."""

    proxy: int
    from_s: float
    until_s: float

    def __post_init__(self) -> None:
        if self.proxy < 0 or not 0.0 <= self.from_s < self.until_s:
            raise ValueError(
                f"{self.proxy}:{self.from_s:g}:{self.until_s:g}: must be a proxy from 0 on, and a start before an end"
            )


@dataclass(frozen=True, slots=True)
class StoreSettings:
    """How the proxies reach the store. How patient they are with it is the policy's (``store``).

    ``delay_s`` is the mean round trip, ``loss`` a probability. ``partitions`` cut proxies off from the store. ``deaths`` kill proxies with
    all they know; one comes back empty at the end of its span. Clocks of neighbouring proxies are ``skew_s`` apart. At ``flushes_s`` the
    store loses everything.
    """

    delay_s: float = 0.001
    loss: float = 0.0
    partitions: tuple[Span, ...] = ()
    deaths: tuple[Span, ...] = ()
    skew_s: float = 0.0
    flushes_s: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if not 0.0 <= self.loss <= 1.0:
            raise ValueError(f"loss={self.loss}: must be a probability")
        if self.delay_s < 0.0:
            raise ValueError(f"delay_s={self.delay_s}: must be seconds, 0 or more")

    def cut_off(self, proxy: int, now_s: float) -> bool:
        """Whether the proxy is parted from the store."""
        return any(span.proxy == proxy and span.from_s <= now_s < span.until_s for span in self.partitions)


class Timeline(Protocol):
    """Where calls wait until they arrive."""

    @property
    def now_s(self) -> float:
        """The world's time."""
        ...

    def at(self, at_s: float, action: Callable[[], None]) -> None:
        """Do something later."""
        ...


class StoreLink:
    """One proxy's connection. ``calls`` and ``failures`` count."""

    def __init__(self, proxy: int, settings: StoreSettings, timeline: Timeline, *, timeout_s: float, seed: int = 0) -> None:
        self.calls = self.failures = 0
        self.alive = True
        self._proxy = proxy
        self._settings = settings
        self._timeline = timeline
        self._timeout_s = timeout_s
        self._random = Random(f"store {seed} {proxy}")
        self._there_s = self._back_s = 0.0  # when the last call arrived there, and the last answer here

    def call(self, ask: Callable[[float], T], answered: Callable[[T], None], failed: Callable[[], None] | None = None) -> None:
        """Let the store do ``ask``, told its own time; then ``answered`` or, after the time-out, ``failed`` happens here."""
        settings, timeline, random = self._settings, self._timeline, self._random
        self.calls += 1
        asked_s = timeline.now_s
        there_s, back_s = self._way_s(), self._way_s()
        lost = random.random() < settings.loss
        lost_there = lost and random.random() < 0.5
        pending = [True]

        def arrive() -> None:
            if lost_there or settings.cut_off(self._proxy, asked_s) or settings.cut_off(self._proxy, timeline.now_s):
                return
            answer = ask(timeline.now_s)
            if not lost:
                self._back_s = max(self._back_s, timeline.now_s + back_s)
                timeline.at(self._back_s, lambda: hear(answer))

        def hear(answer: T) -> None:
            if pending and self.alive and not settings.cut_off(self._proxy, timeline.now_s):
                pending.clear()
                answered(answer)

        def give_up() -> None:
            if pending and self.alive:
                pending.clear()
                self.failures += 1
                if failed is not None:
                    failed()

        self._there_s = max(self._there_s, asked_s + there_s)
        timeline.at(self._there_s, arrive)
        timeline.at(asked_s + self._timeout_s, give_up)

    def push(self, hear: Callable[[], None]) -> None:
        """The store tells the proxy something on its own: half a round trip, and nobody notices when it is lost."""
        way_s, lost = self._way_s(), self._random.random() < self._settings.loss

        def arrive() -> None:
            if self._reached():
                hear()

        if not lost:
            self._timeline.at(self._timeline.now_s + way_s, arrive)

    def _reached(self) -> bool:
        return self.alive and not self._settings.cut_off(self._proxy, self._timeline.now_s)

    def _way_s(self) -> float:
        half_s = self._settings.delay_s / 2.0
        return half_s * (SURE_RATIO + (1.0 - SURE_RATIO) * self._random.expovariate(1.0))
