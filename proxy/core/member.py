"""One proxy among several, without I/O: what it asks the shared store, when, and what it tells its gate of the answers.

A sans-IO state machine beside the gate. The driver hands it the time, the gate's ``Reserve`` effects, and what became of each call; it
takes the calls to make from ``take_calls`` and feeds the gate the events that the methods return. Rules, in the order of a life:

- it *registers*, writes the rows of all replicas, and *shares* from when the store has taken all of them; until then, and whenever the
  store is out of touch (``core.sharing``), the gate keeps to its own share and everything is granted here. At its very beginning, when it
  does not know of how many it is one, and when it begins anew, reservations wait for the store, no longer than it is given for one call;
- a *reservation* is one call. One that failed counts as granted where the proxy's own share has room for it, else as refused; nobody knows
  what the store made of it, and the next rewrite, which answers for its number, settles it either way;
  Where the replica is roomy, room for requests to come is reserved ahead, and those go without a call (``core.ahead``);
- a *rewrite* puts the row of a replica in the place of what the store had of it: soon after room came free (``core.soon``), and before a
  reservation there, which may be for that room, unless the replica is so roomy that nobody can be waiting for it; within ``rewrite_s`` of
  any other change, or ``ROOMY_S`` there, and thrice in a lease at the least, oftener where another holds the record
  (``core.rows_written``); one at a time for each replica. It tells what the others have, and the record;
- *scrapes* are taken by the holder of the replica's record, by the rule of ``core.records_known``; whoever took one publishes the record;
- *heads* of the queue are published soon after others came to be the heads, and anew every ``rewrite_s`` while any waits;
- FENCED: given up by the store, it begins anew. UNKNOWN: the store has no record, so it publishes its own.

Fails: the answer to a reservation that comes after its time-out is not heard; the row says what the gate made of it.
"""

from math import inf

from proxy.core.events import Event, Granted, Refused, Reserve
from proxy.core.member_parts import MemberParts
from proxy.core.rows_written import UNTOLD
from proxy.core.shared import LAST, Answer, Level, ReserveReply, RewriteAsk, RewriteReply
from proxy.core.shared_heads import OFFER_S
from proxy.core.shared_ledger import RECOVERY_S_MAX
from proxy.core.soon import HEADS
from proxy.core.store_calls import (
    CallAdvance,
    CallHeads,
    CallPublish,
    CallRegister,
    CallReserve,
    CallRewrite,
    StoreCall,
    StoreReply,
)

RENEWALS = 3.0  # of a row in one lease
RECORDS_HEARD = 4.0  # by those who do not hold it, in one scrape lease


class Member(MemberParts):
    """One gate's dealings with the store. Times are the proxy's own clock's unless they are named the store's.

    ``name`` must be that of one life of the process. ``proxies`` is how many there are as far as is known, this one included.
    """

    # ---- what the driver tells

    def beat(self, now_s: float) -> None:
        """Write what is due."""
        replicas, looked, every = list(self.gate.fleet.books), set[str](), False
        if now_s >= self._beat_s:
            self._beat_s = now_s + self._store.rewrite_s / self._written.turns(len(replicas))
            looked, every = self._written.next_turn(replicas)
        if self._epoch is None:
            self._ask(CallRegister(self.name))
        else:
            for replica in replicas:
                if self._soon.due(replica, now_s) or (replica in looked and self._stale(replica, now_s)):
                    self._rewrite(replica, now_s)
            self._calls += self._heads.calls(now_s, every=every)
            self._soon.told(HEADS, now_s)
        self.due_s = min(self._beat_s, self._soon.put_off(now_s, self.gate.fleet.books))

    def freed(self, replica: str, now_s: float) -> None:
        """A lease on the replica ended."""
        self.due_s = min(self.due_s, self._soon.changed(replica, now_s, wanted=self._wanted(replica, now_s)))

    def _wanted(self, replica: str, now_s: float) -> bool:
        """Whether anybody may be waiting for room there, or about to."""
        book = self.several.book(replica)
        return len(self.gate.queue) > 0 or book is None or not book.is_roomy(now_s)

    def waiting(self, now_s: float) -> None:
        """The gate has taken in an event: others may have come to be the heads of its queue."""
        if self._heads.changed:
            self.due_s = min(self.due_s, self._soon.changed(HEADS, now_s))

    def reserve(self, effect: Reserve, now_s: float) -> list[Event]:
        """The gate wants a place: one call; granted at once while the store is out of touch, or where it goes whether it fits or not."""
        if effect.row is None or (self._parked is None and not self.touch.sharing):
            self.granted_apart_total += effect.row is not None
            return [Granted(effect.request_id)]
        if self._parked is not None:
            self._parked.append(effect)
            return []
        usable = now_s >= self._recovered_s and not self._heads.published
        if self.advances.admits(effect, now_s, usable=usable):
            self._take_ahead(effect.lease.replica, now_s)
            return [Granted(effect.request_id)]
        self._reserve(effect, now_s)
        return []

    def _take_ahead(self, replica: str, now_s: float) -> None:
        """Ask for room for requests to come, where that is due."""
        row = self.advances.next_ask(replica, self.proxies, self._number + 1, now_s) if now_s >= self._recovered_s else None
        if row is not None:
            self._number += 1
            self._calls.append(CallAdvance(self._reserve_ask(replica, row, LAST, now_s)))

    def _reserve(self, effect: Reserve, now_s: float) -> None:
        lease = effect.lease
        assert effect.row is not None
        assert effect.rank is not None
        self._number = lease.store_number = self._number + 1
        row = effect.row.row() if isinstance(effect.row, Level) else effect.row
        ask = self._reserve_ask(lease.replica, row, effect.rank, now_s)
        call = self.reserving[effect.request_id] = CallReserve(ask, effect.request_id, lease)
        if lease.replica in self._soon and self._wanted(lease.replica, now_s):  # it may be for the room that we had there
            self._rewrite(lease.replica, now_s)
        self._calls.append(call)

    def _begin(self, now_s: float) -> None:
        """The store was reached, or not: from now on nothing waits to know."""
        parked, self._parked = self._parked, None
        for effect in parked or ():
            self._reserve(effect, now_s)

    def scrapes(self, replica: str, now_s: float) -> bool:
        """Whether the replica is ours to scrape now."""
        return not self.touch.sharing or self._records.to_scrape(replica, self.store_s(now_s), self.scrape_lease_s)

    def scraped(self, replica: str, now_s: float) -> None:
        """The gate has taken in a scrape of ours."""
        if self._epoch is not None:
            self._publish(replica, now_s)

    def answered(self, call: StoreCall, reply: StoreReply, *, store_s: float | None, asked_s: float, now_s: float) -> list[Event]:
        """A call was answered, at ``store_s`` of the store's clock where it tells. Returns what the gate is to be told, in order."""
        self.touch.answered(asked_s)
        self._asking.discard((type(call), call.key))
        if store_s is not None:
            self.clock.heard(store_s, asked_s, now_s)
        self.several.ahead_s = self.clock.offset_s
        match call, reply:
            case CallReserve(), ReserveReply():
                return self._settled(call, reply, now_s)
            case CallAdvance(), ReserveReply():
                return self._advanced(call, reply, asked_s, now_s)
            case CallRewrite(), RewriteReply():
                return self._rewritten(call, reply, asked_s, now_s)
            case CallHeads(), None:
                return []
            case CallPublish(), bool():
                if self._records.published(call.record, held=reply):
                    self._written.outdated(call.record.replica)  # the answer to the rewrite tells it by the store's number
            case CallRegister(), int():
                self._epoch, self._recovered_s = reply, now_s + RECOVERY_S_MAX
                self._written.clear()
                self._beat_s = self.due_s = now_s
            case _:
                raise AssertionError((call, reply))
        return []

    def failed(self, call: StoreCall, *, asked_s: float, now_s: float) -> list[Event]:
        """A call failed or timed out. Returns what the gate is to be told."""
        self._begin(now_s)
        if isinstance(call, CallAdvance):
            self.advances.answered(call.ask.replica, asked_s, now_s, granted=False)
        if self.touch.failed(asked_s):
            self._written.clear()
            self.advances.lose()
            self.several.lost(self.proxies, now_s)
        self._asking.discard((type(call), call.key))
        return self._unsettled(call, now_s) if isinstance(call, CallReserve) else []

    # ---- reservations

    def _settled(self, call: CallReserve, reply: ReserveReply, now_s: float) -> list[Event]:
        if self.reserving.pop(call.request_id, None) is None:
            return []
        if reply.answer is Answer.GRANTED:
            self.several.granted(call.ask.replica, reply.free_blocks)
            self._written.outdated(call.ask.replica)  # its client may have left: then the next row takes the grant back
            self._take_ahead(call.ask.replica, now_s)
            return [Granted(call.request_id)]
        told, retry_s = self._refused(call.ask.replica, reply, now_s), reply.retry_s
        if self._give_back(call.ask.replica, now_s, anyhow=True):  # the room that it is short of may be what was taken ahead
            retry_s = max(retry_s, OFFER_S)
        return [*told, Refused(call.request_id, reply.answer, retry_s)]

    def _advanced(self, call: CallAdvance, reply: ReserveReply, asked_s: float, now_s: float) -> list[Event]:
        """Room was reserved ahead, or was not; where it is roomy no more, it is given back."""
        replica, granted = call.ask.replica, reply.answer is Answer.GRANTED
        self.advances.answered(replica, asked_s, now_s, granted=granted)
        self.several.told_free(replica, reply.free_blocks if granted else 0.0)
        self._give_back(replica, now_s)
        return [] if granted else self._refused(replica, reply, now_s)

    def _give_back(self, replica: str, now_s: float, *, anyhow: bool = False) -> bool:
        if not self.advances.given_back(replica, now_s, anyhow=anyhow):
            return False
        self._written.outdated(replica)
        self._rewrite(replica, now_s)
        return True

    def _refused(self, replica: str, reply: ReserveReply, now_s: float) -> list[Event]:
        if reply.answer is Answer.FENCED:
            self._begin_anew(now_s)
        elif reply.answer is Answer.UNKNOWN:
            self._publish(replica, now_s)
        return self._told(reply.others, now_s)

    def _unsettled(self, call: CallReserve, now_s: float) -> list[Event]:
        if self.reserving.pop(call.request_id, None) is None:
            return []
        self.unanswered_total += 1
        replica = call.ask.replica
        self._written.outdated(replica)
        if self.several.has_share(replica, call.lease.lease_id, self.proxies, now_s):
            return [Granted(call.request_id)]
        return [Refused(call.request_id, Answer.ROOM, self._store.rewrite_s)]

    # ---- rows

    def _stale(self, replica: str, now_s: float) -> bool:
        if self.advances.given_back(replica, now_s):
            return True
        # Who does not hold the record hears of it by writing: often enough that it never seems to be older than it is.
        heard_s = inf if replica in self.holds else self.scrape_lease_s / RECORDS_HEARD
        ledger = self.gate.fleet.books[replica].ledger
        roomy = bool(ledger.leases) and not self._wanted(replica, now_s)
        renewed_s = min(self._store.lease_s / RENEWALS, heard_s)
        return self._written.stale(replica, ledger.own_changes, now_s, renewed_s, roomy=roomy)

    def _rewrite(self, replica: str, now_s: float) -> None:
        book = self.several.book(replica)
        if book is None or self._epoch is None or (CallRewrite, replica) in self._asking:
            return
        self._soon.told(replica, now_s)
        self.gate.fleet.draw(book.book, now_s)
        changes, number = book.book.ledger.own_changes, self._records.number(replica)
        upto = self._upto(replica)
        row, steps = self.advances.added(replica, book.row(now_s, upto)), self._steps(replica, now_s)
        ask = RewriteAsk(replica, self.name, self._epoch, upto, row, steps, number, self.proxies)
        self._ask(CallRewrite(ask, changes if upto == self._number else UNTOLD))

    def _rewritten(self, call: CallRewrite, reply: RewriteReply, asked_s: float, now_s: float) -> list[Event]:
        replica, told = call.ask.replica, list[Event]()
        if reply.record is not None:
            told += self._adopted(reply.record, now_s)
        if reply.answer is Answer.FENCED:
            self._begin_anew(now_s)
        elif reply.answer is Answer.UNKNOWN:
            self._publish(replica, now_s)
        elif reply.answer is Answer.GRANTED and call.ask.epoch == self._epoch:
            self._written.wrote(replica, call.changes, asked_s)
            told += self._told(reply.others, now_s)
            if not self._written.has_all(self.gate.fleet.books):
                return told
            self._begin(now_s)
            if self.touch.written():
                self.several.back()
                told += [event for others in list(self._others.values()) for event in self._told(others, now_s)]
        return told

    def _begin_anew(self, now_s: float) -> None:
        self._epoch, self._parked = None, self._parked or []
        self.advances.lose()
        self._beat_s = self.due_s = now_s
