"""The advances of one proxy (``core.ahead``): by replica what it took ahead, and when it takes and gives back.

Decides with the gate's and the replica's state what ``core.ahead`` decides with amounts: an advance is used and asked for only where the
replica is roomy, the store in touch, and nobody waits at this proxy, so that no rank matters. Whoever waited goes by the store, which
drops its head.

Fails: as ``core.ahead`` does.
"""

from proxy.core.ahead import Advance, amounts_of, row_of_amounts
from proxy.core.events import Reserve
from proxy.core.gate import Gate
from proxy.core.grid import FloatArray
from proxy.core.several import Several
from proxy.core.shared import Amounts
from proxy.core.shared_book import SharedBook


class Advances:
    """Of one gate. ``ratio`` is the share of a pool that all proxies may take ahead together; 0: none."""

    def __init__(self, gate: Gate, several: Several, ratio: float) -> None:
        self.granted_total = 0  # requests that went by one
        self.refused_total = 0  # advances that the store refused, or did not answer
        self._gate = gate
        self._several = several
        self._ratio = ratio
        self._by_replica: dict[str, Advance] = {}
        self._amounts: dict[str, Amounts] = {}  # of the last request on each

    def __repr__(self) -> str:
        """For people and tests."""
        return f"<Advances {self._by_replica!r}>"

    @property
    def blocks(self) -> float:
        """Blocks that stand ahead, by their means."""
        return float(sum(one.left[1] for one in self._by_replica.values() if one.stands))

    def _book_of(self, replica: str, now_s: float) -> tuple[SharedBook | None, Advance | None]:
        book = self._several.book(replica)
        if book is None or not self._ratio:
            return book, None
        found = self._by_replica.get(replica)
        if found is None or (found.life != book.life and not found.stands):
            found = self._by_replica[replica] = Advance(book.life, now_s)
            for gone in self._by_replica.keys() - self._gate.fleet.books.keys():
                del self._by_replica[gone]
                self._amounts.pop(gone, None)
        return book, found

    def _is_free(self, book: SharedBook, advance: Advance, now_s: float) -> bool:
        """Whether the replica is roomy, nobody waits here, and the engine is that which the advance was taken for."""
        return not len(self._gate.queue) and advance.life == book.life and book.is_roomy(now_s)

    def admits(self, effect: Reserve, now_s: float, *, usable: bool) -> bool:
        """Whether a request goes by what was taken ahead, where that may be used."""
        replica, row = effect.lease.replica, effect.row
        book, advance = self._book_of(replica, now_s)
        if book is None or advance is None or row is None:
            return False
        amounts = self._amounts[replica] = amounts_of(row)
        advance.see(amounts, now_s)
        if not usable or not self._is_free(book, advance, now_s) or not advance.take(amounts, now_s):
            return False
        self.granted_total += 1
        return True

    def next_ask(self, replica: str, proxies: int, number: int, now_s: float) -> FloatArray | None:
        """The row to ask the store for now, as the call of that number, after a request there was granted; None for nothing."""
        book, advance = self._book_of(replica, now_s)
        amounts = self._amounts.get(replica)
        if book is None or advance is None or amounts is None or not self._is_free(book, advance, now_s):
            return None
        blocks_max = self._ratio * book.book.spec.usable_blocks / proxies
        wanted = advance.wants(amounts, blocks_max, book.book.feedback.z, now_s)
        if wanted is None:
            return None
        advance.asked, advance.number = wanted, number
        return row_of_amounts(wanted, len(book.book.grid))

    def asked_since(self, replica: str) -> int | None:
        """The number of the call for an advance there that was not answered; None: there is none."""
        advance = self._by_replica.get(replica)
        return None if advance is None or advance.asked is None else advance.number

    def answered(self, replica: str, asked_s: float, now_s: float, *, granted: bool) -> None:
        """What the store made of a call for an advance."""
        advance = self._by_replica.get(replica)
        if advance is None or advance.asked is None:
            return
        if granted:
            advance.granted(asked_s)
        else:
            self.refused_total += 1
            advance.refused(now_s)

    def added(self, replica: str, row: FloatArray | None) -> FloatArray | None:
        """The proxy's row on a replica with what it took ahead there."""
        advance, book = self._by_replica.get(replica), self._several.book(replica)
        if advance is None or book is None or not advance.stands or not any(advance.left):
            return row
        ahead = row_of_amounts(advance.left, len(book.book.grid))
        return ahead if row is None else row + ahead

    def given_back(self, replica: str, now_s: float, *, anyhow: bool = False) -> bool:
        """Give back what has lived long enough, or belongs to another engine, or stands where it is roomy no more; True where any was."""
        advance = self._by_replica.get(replica)
        if advance is None or not advance.stands:
            return False
        book = self._several.book(replica)
        kept = book is not None and now_s < advance.until_s and advance.life == book.life and book.is_roomy(now_s)
        if kept and not anyhow:
            return False
        advance.give_back()
        return True

    def lose(self) -> None:
        """The store knows of none any more, or not of us."""
        self._by_replica.clear()
