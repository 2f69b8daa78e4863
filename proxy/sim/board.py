"""What proxies tell each other at every beat besides their rows: who is there, what tenants were charged, what completed.

Every proxy writes the whole of what it ever charged, so a beat that is lost, or done twice, changes nothing; it reads what the others'
wholes have grown by since it last heard. The completions are a stream of which each reads on from where it is; those of a beat whose
answer was lost are written again, and count twice for the others.
"""

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from proxy.core.exchange import Completion, Exchange
from proxy.core.tenant_accounts import Levels, TenantKey

COMPLETIONS_MAX = 5000
PERIOD = 0  # the only one
HISTORY = 2000  # completions that a new proxy reads


@dataclass(frozen=True, slots=True)
class Beat:
    """What one proxy tells. ``charges`` are all it ever made; ``seen`` is up to where it has read the completions, -1: none yet."""

    proxy: str
    charges: Mapping[TenantKey, float]
    clocks: Mapping[int, float]
    levels: Levels
    completions: Sequence[Completion]
    seen: int


@dataclass(frozen=True, slots=True)
class BeatReply:
    """What the others told: ``charges`` are all that they ever made, together."""

    proxies: int  # that were there within a lease, the asker included
    charges: Mapping[TenantKey, float]
    clocks: Mapping[int, float]
    levels: Sequence[Levels]  # of everybody who is there, the asker left out
    completions: Sequence[Completion]
    seen: int
    history: bool  # the completions are from before the asker began


@dataclass
class Board:
    """Where beats are written. ``lease_s`` is how long a proxy counts as there."""

    lease_s: float
    beats: dict[str, tuple[float, Beat]] = field(default_factory=dict)
    stream: deque[tuple[int, str, Completion]] = field(default_factory=lambda: deque(maxlen=COMPLETIONS_MAX))
    written: int = 0

    def exchange(self, beat: Beat, now_s: float) -> BeatReply:
        """Write one proxy's beat and read the others'."""
        self.beats[beat.proxy] = now_s, beat
        unread = [one for number, proxy, one in self.stream if number > beat.seen and proxy != beat.proxy]
        for one in beat.completions:
            self.written += 1
            self.stream.append((self.written, beat.proxy, one))
        charges: dict[TenantKey, float] = {}
        clocks: dict[int, float] = {}
        for proxy, (_, other) in self.beats.items():
            if proxy != beat.proxy:
                for key, virtual in other.charges.items():
                    charges[key] = charges.get(key, 0.0) + virtual
                for priority, virtual in other.clocks.items():
                    clocks[priority] = max(virtual, clocks.get(priority, virtual))
        there = [other for at_s, other in self.beats.values() if now_s - at_s <= self.lease_s]
        levels = [other.levels for other in there if other.proxy != beat.proxy]
        return BeatReply(len(there), charges, clocks, levels, unread[-HISTORY:], self.written, history=beat.seen < 0)

    def clear(self) -> None:
        """A store that restarted empty."""
        self.beats.clear()
        self.stream.clear()


class Teller:
    """One proxy's side: what its ``exchange`` has to tell, kept until it is told, and what it makes of the answers."""

    def __init__(self, proxy: str, exchange: Exchange, lease_s: float) -> None:
        self.proxies = 1  # the most that were there within the last lease: a board that was cleared knows of few
        self._lease_s = lease_s
        self._counted_s = -inf
        self._proxy = proxy
        self._exchange = exchange
        self._charges: dict[TenantKey, float] = {}
        self._untold: list[Completion] = []
        self._heard: dict[TenantKey, float] = {}
        self._seen = -1

    def beat(self) -> Beat:
        """What there is to tell now."""
        for key, virtual in self._exchange.take_charges().items():
            self._charges[key] = self._charges.get(key, 0.0) + virtual
        self._untold += self._exchange.take_completions()
        return Beat(
            self._proxy,
            dict(self._charges),
            self._exchange.clocks(),
            self._exchange.accounts.levels(),
            tuple(self._untold),
            self._seen,
        )

    def told(self, beat: Beat, reply: BeatReply, now_s: float) -> None:
        """It was written, and the others told this."""
        if reply.proxies >= self.proxies or now_s - self._counted_s > self._lease_s:
            self.proxies, self._counted_s = reply.proxies, now_s
        del self._untold[: len(beat.completions)]
        grown = {key: virtual - self._heard.get(key, 0.0) for key, virtual in reply.charges.items()}
        self._heard.update(reply.charges)
        self._exchange.charged({key: virtual for key, virtual in grown.items() if virtual}, reply.clocks)
        totals = dict(beat.charges)
        for key, virtual in reply.charges.items():
            totals[key] = totals.get(key, 0.0) + virtual
        self._exchange.accounts.heard(totals, PERIOD, reply.levels)
        self._exchange.completed(reply.completions, history=reply.history)
        self._seen = reply.seen
