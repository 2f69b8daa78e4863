"""What a ``Member`` is made of and what its rules (``core.member``) are told in: its name and numbers, calls to make, rows and records.

Decides nothing.
"""

from math import inf

from proxy.core.advances import Advances
from proxy.core.events import Event, PeersTold, RecordTold, Reserve
from proxy.core.gate import Gate
from proxy.core.grid import FloatArray
from proxy.core.policy import Policy
from proxy.core.published_heads import PublishedHeads
from proxy.core.records_known import RecordsKnown
from proxy.core.rows_written import RowsWritten
from proxy.core.shared import Others, Rank, Record, ReserveAsk
from proxy.core.sharing import StoreClock, Touch
from proxy.core.soon import Soon
from proxy.core.store_calls import CallPublish, CallReserve, StoreCall

SCRAPE_LEASE_RATIO = 2.0  # of the scrape interval


class MemberParts:
    """State of one gate's dealings with the store. Times are the proxy's own clock's unless they are named the store's."""

    def __init__(self, gate: Gate, name: str, policy: Policy, now_s: float) -> None:
        self.gate, self.name = gate, name
        self.several = gate.share()
        self.touch, self.clock = Touch(), StoreClock()
        self.proxies = 1
        self.due_s = now_s  # when ``beat`` is to be called next
        self.reserving: dict[str, CallReserve] = {}  # by request
        self.granted_apart_total = self.unanswered_total = 0
        self.timeout_s = policy.store.timeout_s
        self._store = policy.store
        self.scrape_lease_s = SCRAPE_LEASE_RATIO * policy.scrape.interval_s
        self._calls: list[StoreCall] = []
        self._asking: set[tuple[type, str]] = set()  # calls under way, but reservations
        self._epoch: int | None = None
        # A store that lost everything asks for a new epoch, and for the share of each until then at most.
        self._recovered_s = -inf
        self._number = 0
        self._beat_s = now_s
        self._written = RowsWritten()
        self._soon = Soon()  # replicas with room that the store does not know of, and ``HEADS``
        self._heads = PublishedHeads(gate, self.several, name)
        self._records = RecordsKnown()
        self.advances = Advances(gate, self.several, policy.store.ahead_ratio)
        self._others: dict[str, Others] = {}
        self._parked: list[Reserve] | None = []  # until the store was reached or not, for the first time
        self.several.lost(self.proxies, now_s)

    def __repr__(self) -> str:
        """State for people and tests."""
        return f"<Member {self.name} {self.touch!r} epoch={self._epoch} holds={len(self.holds)} reserving={len(self.reserving)}>"

    def take_calls(self) -> list[StoreCall]:
        """Calls to make now, in this order on one connection."""
        calls, self._calls = self._calls, []
        return calls

    @property
    def holds(self) -> set[str]:
        """Replicas whose record is ours to publish."""
        return self._records.holds

    def store_s(self, now_s: float) -> float:
        """The store's time."""
        return self.clock.store_s(now_s)

    # ---- calls

    def _ask(self, call: StoreCall) -> None:
        """Make a call unless one of its kind is under way."""
        if (type(call), call.key) not in self._asking:
            self._asking.add((type(call), call.key))
            self._calls.append(call)

    def _reserve_ask(self, replica: str, row: FloatArray, rank: Rank, now_s: float) -> ReserveAsk:
        share = self._share(replica, now_s) if now_s < self._recovered_s else 0.0
        return ReserveAsk(replica, self.name, self._epoch or 0, self._number, row, self._steps(replica, now_s), rank, share)

    # ---- rows

    def _upto(self, replica: str) -> int:
        """The last reservation there that was answered, as were all before it: those after it the store has as grants, or refuses."""
        numbers = [call.ask.number for call in self.reserving.values() if call.ask.replica == replica]
        ahead = self.advances.asked_since(replica)
        if ahead is not None:
            numbers.append(ahead)
        return min(numbers, default=self._number + 1) - 1

    def _told(self, others: Others | None, now_s: float) -> list[Event]:
        if others is None:
            return []
        before, self._others[others.replica] = self._others.get(others.replica), others
        if not self.touch.sharing or (before is not None and not before.somebody and not others.somebody):
            return []  # nobody had anything there, and nobody has
        return [PeersTold(others, self._steps(others.replica, now_s))]

    # ---- records

    def _publish(self, replica: str, now_s: float) -> None:
        record, book = self.several.record(replica, self.name, now_s), self.gate.fleet.books.get(replica)
        if record is not None and book is not None:
            self._ask(CallPublish(record, book.grid.ends, self.scrape_lease_s))

    def _adopted(self, record: Record, now_s: float) -> list[Event]:
        return [RecordTold(record, self.store_s(now_s))] if self._records.adopted(record, self.name) else []

    def _steps(self, replica: str, now_s: float) -> float:
        """Where the replica's shared step clock stands."""
        return self._records.steps(replica, self.store_s(now_s))

    def _share(self, replica: str, now_s: float) -> float:
        book = self.several.book(replica)
        return 0.0 if book is None else book.share_blocks(self.proxies, now_s)
