"""What proxies tell each other of replicas that fail requests: who ejected one, and whom it answered since.

Decides who is believed. A notice of an ejection makes a replica *suspected* at every other proxy (``core.health``), once for each ejection,
and only where it answered nobody since, neither there nor anywhere. A proxy whose own way to a replica is broken thus takes it from nobody:
the others' first answered request makes it trusted again. A proxy tells of its answers only while another has the replica ejected.

Bounds: ``NOTICES_MAX`` notices of one proxy, the latest ejections first; what was heard is kept as long as it is told. Notices leave with
the card that carries them: at the end of the ejection, or a lease after the proxy was last heard of.

Fails: a long answer that began before the fault ends after it and counts as one that was served; then each proxy finds out by itself.
"""

from collections.abc import Mapping, Sequence
from math import inf
from typing import NamedTuple

from proxy.core.health import Outliers

NOTICES_MAX = 64  # a card stays within some kilobytes


class Notice(NamedTuple):
    """One proxy's word on one replica; times are the store's. ``ejected_s`` None: it has not ejected it."""

    replica: str
    ejected_s: float | None = None
    until_s: float = 0.0
    streak: int = 0
    answered_s: float | None = None  # last; None: not since another ejected it


class SharedHealth:
    """One proxy's side."""

    def __init__(self, outliers: Outliers) -> None:
        self._outliers = outliers
        self._told: dict[str, tuple[float, Notice]] = {}  # of ours: since when by our clock, and as it was told first
        self._heard: dict[tuple[str, str], Notice] = {}  # by proxy and replica, of those that others have ejected

    def __repr__(self) -> str:
        """Counts for people and tests."""
        return f"<SharedHealth told={len(self._told)} heard={len(self._heard)}>"

    def notices(self, ahead_s: float) -> tuple[Notice, ...]:
        """What we have to tell, by a store's clock that is so far ahead of ours. One ejection is always told by the same figures."""
        kept: dict[str, tuple[float, Notice]] = {}
        for name, since_s, until_s, streak in self._outliers.ejections_now():
            known = self._told.get(name)
            said = Notice(name, since_s + ahead_s, until_s + ahead_s, streak)
            kept[name] = known if known is not None and known[0] == since_s else (since_s, said)
        self._told = kept
        answers = {
            notice.replica: Notice(notice.replica, answered_s=answered_s)
            for notice in self._heard.values()
            if notice.replica not in kept
            and notice.ejected_s is not None
            and (answered_s := self._outliers.answered_s(notice.replica) + ahead_s) > notice.ejected_s
        }
        ours = sorted((notice for _, notice in kept.values()), key=lambda notice: -(notice.ejected_s or 0.0))
        return (*ours, *answers.values())[:NOTICES_MAX]

    def hear(self, told: Mapping[str, Sequence[Notice]], ahead_s: float, now_s: float) -> list[str]:
        """All that the others tell now, by proxy. Returns replicas of which something came to be another here."""
        answered: dict[str, float] = {}
        for notices in told.values():
            for notice in notices:
                if notice.answered_s is not None:
                    answered[notice.replica] = max(notice.answered_s, answered.get(notice.replica, -inf))
        changed = [name for name, at_s in answered.items() if self._outliers.trust(name, at_s - ahead_s)]
        before, self._heard = self._heard, {}
        for proxy, notices in told.items():
            for notice in notices:
                if notice.ejected_s is None:
                    continue
                self._heard[proxy, notice.replica] = notice
                if before.get((proxy, notice.replica)) != notice and self._suspected(notice, answered, ahead_s, now_s):
                    changed.append(notice.replica)
        return changed

    def _suspected(self, notice: Notice, answered: Mapping[str, float], ahead_s: float, now_s: float) -> bool:
        assert notice.ejected_s is not None
        last_s = max(answered.get(notice.replica, -inf), self._outliers.answered_s(notice.replica) + ahead_s)
        lasts_s = notice.until_s - notice.ejected_s
        return last_s <= notice.ejected_s and self._outliers.suspect(
            notice.replica, now_s, until_s=notice.until_s - ahead_s, lasts_s=lasts_s, streak=notice.streak
        )
