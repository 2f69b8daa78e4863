"""Whether traffic that bypasses us looks like that of another kvgate which does not share with us.

Two proxies behind one load balancer that share nothing each see the other's requests as foreign, and about as many as their own: that goes
on for as long as there is load, whatever its size. Each then fills the replica as if it were alone there, which costs preemptions, and the
remedy is a flag (``--redis``), so it is worth an alarm.

Rule: ``LOOKS`` scrapes in a row with at least ``SEQUENCES_MIN`` sequences of ours and between half and twice as many foreign ones.
Fails: other steady traffic of that size raises it as well; proxies with very unequal shares do not.
"""

import logging

from proxy.core.book import Book

LOOKS = 20  # ten seconds of scrapes: a burst of somebody's own tests is shorter
SEQUENCES_MIN = 4
RATIO = 2.0

log = logging.getLogger("kvgate.watcher")


class SecondProxyWatch:
    """Of one replica."""

    def __init__(self) -> None:
        self.suspected = False
        self._alike = 0

    def looked(self, ours: int, foreign: int) -> bool:
        """Take in one scrape's sequences; True when this makes it look so."""
        alike = ours >= SEQUENCES_MIN and ours <= RATIO * foreign and foreign <= RATIO * ours
        self._alike = self._alike + 1 if alike else 0
        before, self.suspected = self.suspected, self._alike >= LOOKS or (self.suspected and ours < SEQUENCES_MIN)
        return self.suspected and not before


class SecondProxies:
    """Of all engines of one server, by their names."""

    def __init__(self) -> None:
        self._watches: dict[str, SecondProxyWatch] = {}

    def look(self, server: str, book: Book) -> None:
        """Take in one scrape of an engine, and say so when it begins to look so."""
        ours, foreign = book.ledger.sequences_total, book.saturation.foreign_sequences
        if self._watches.setdefault(book.spec.name, SecondProxyWatch()).looked(ours, foreign):
            log.warning(
                "replica.second_proxy replica=%s ours=%d foreign=%d: as much bypasses this proxy as goes through it. Another kvgate there?"
                " Then give all of them the same --redis",
                server, ours, foreign,
            )  # fmt: skip

    def suspected(self, name: str) -> bool:
        """Whether it looks so on that engine."""
        return name in self._watches and self._watches[name].suspected

    def clear(self) -> None:
        """Another engine stands there from now on."""
        self._watches.clear()
