"""Who goes first when the queue's heads wait at several proxies: the heads of one replica, and whom a newcomer has to let go first.

Rule. A newcomer of rank r is held up by a live head h of another proxy with a better rank, the best first, when

    h would fit now      and it was never offered the room: it is offered now; or it was, at most ``OFFER_S`` ago
    h would not fit now  unless with the newcomer and with h from its ready step on, Q(t) <= usable from then on (EASY backfilling)

Room is offered, whenever a rewrite or a grant may have left some, to the best head that this rule would let have it. (While heads were
offered what a better one then kept from them, and only after rewrites, the next head waited for a twentieth of a second or for the next
rewrite, with the room it needed free.) Of several better heads that do not fit none may be delayed, not only the first: where only the
first was spared, requests went past each other's deadlines, and the goodput of four proxies fell from 0.96 to 0.92 of one's.

A head that left an offer unclaimed for longer is passed over: it holds up nobody until its proxy publishes it anew, ``RENEW_S`` later or
under another id. Its rank stays. A head lives for one lease after its proxy published it. One that is short of sequence slots does not fit,
and holds up everybody: the record does not say when slots come free.

The least rank is the best. Proxies hear of each other's charges at different times, and by what one of them has not heard yet all that wait
there would go after everybody's (a second of service, and for as long as it is behind in it: it was seen to shed every request while the
others held nobody). So a tenant is taken to be at the least virtual time that any rank here tells of it, and within a tenant the deadline
counts. A newcomer's own proxy has compared it with its own heads already.

Fails: a head whose proxy stopped costs the others one offer; no more than ``HEADS_LOOKED_AT`` heads hold up a newcomer, so that one call
stays short.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf

from proxy.core.grid import FloatArray
from proxy.core.shared import Head, Rank, ReserveAsk
from proxy.core.shared_sum import SEQUENCES, ReplicaAccount

OFFER_S = 0.05
RENEW_S = 1.0
HEADS_LOOKED_AT = 8

Order = Callable[[Rank], tuple[float, float, float]]


@dataclass(slots=True)
class PublishedHead:
    """A head as the store keeps it; times by its clock, -inf: never."""

    head: Head
    proxy: str
    stamp_s: float
    offered_s: float = -inf
    passed_s: float = -inf


class Heads:
    """The heads that wait for one replica; each lives ``lease_s``."""

    def __init__(self, lease_s: float) -> None:
        self._lease_s = lease_s
        self._by_key: dict[tuple[str, str], PublishedHead] = {}

    def __len__(self) -> int:
        """How many are published, dead ones included."""
        return len(self._by_key)

    def publish(self, proxy: str, heads: list[Head], now_s: float) -> None:
        """Put a proxy's heads in the place of those it published before."""
        before = {key: self._by_key.pop(key) for key in list(self._by_key) if key[0] == proxy}
        for head in heads:
            published = PublishedHead(head, proxy, now_s)
            old = before.get((proxy, head.head_id))
            if old is not None and self._alive(old, now_s) and (old.passed_s == -inf or now_s < old.passed_s + RENEW_S):
                published.offered_s, published.passed_s = old.offered_s, old.passed_s
            self._by_key[proxy, head.head_id] = published

    def granted(self, proxy: str, rank: Rank) -> None:
        """The head of that rank has its place."""
        for key in [key for key, one in self._by_key.items() if key[0] == proxy and one.head.rank.waits == rank.waits]:
            del self._by_key[key]

    def anybody(self, now_s: float) -> bool:
        """Whether any head waits."""
        return any(self._alive(one, now_s) for one in self._by_key.values())

    def _alive(self, one: PublishedHead, now_s: float) -> bool:
        return abs(now_s - one.stamp_s) <= self._lease_s

    def _live(self, now_s: float, *newcomer: Rank) -> tuple[list[PublishedHead], Order]:
        """Those that may hold somebody up, the best first, at most ``HEADS_LOOKED_AT``, and the order among them and a newcomer."""
        alive = [one for one in self._by_key.values() if self._alive(one, now_s)]
        order = order_among([*newcomer, *(one.head.rank for one in alive)])
        live = [one for one in alive if one.passed_s == -inf]
        live.sort(key=lambda one: (order(one.head.rank), one.proxy, one.head.head_id))
        return live[:HEADS_LOOKED_AT], order

    def blocking(self, account: ReplicaAccount, ask: ReserveAsk, now_s: float) -> tuple[bool, PublishedHead | None]:
        """Whether a head holds the newcomer up, and the one that is to be offered the room for it."""
        newcomer = account.counted(ask.row, ask.anchor_steps)
        live, order = self._live(now_s, ask.rank)
        for one in live:
            if order(one.head.rank) >= order(ask.rank):
                break
            if one.proxy == ask.proxy:
                continue
            if not head_fits(account, one.head):
                one.offered_s = -inf
                if delays(account, newcomer, one.head):
                    return True, None
            elif not passed_over(one, now_s):
                return True, offer(one, now_s)
        return False, None

    def to_offer(self, account: ReplicaAccount, now_s: float) -> PublishedHead | None:
        """The best head that would be granted its place now, if it was never offered the room; it counts as offered then."""
        waiting: list[PublishedHead] = []  # better ones that do not fit
        for one in self._live(now_s)[0]:
            if not head_fits(account, one.head):
                waiting.append(one)
            elif not passed_over(one, now_s):
                newcomer = account.counted(one.head.row, one.head.anchor_steps)
                if not any(other.proxy != one.proxy and delays(account, newcomer, other.head) for other in waiting):
                    return offer(one, now_s)
        return None


def order_among(ranks: Iterable[Rank]) -> Order:
    """How these ranks compare: each tenant at the least virtual time that any of them tells of it."""
    least: dict[tuple[float, float], float] = {}
    for rank in ranks:
        key = rank.minus_priority, rank.tenant
        least[key] = min(rank.virtual, least.get(key, inf))
    return lambda rank: (rank.minus_priority, least[rank.minus_priority, rank.tenant], rank.start_by_s)


def head_fits(account: ReplicaAccount, head: Head) -> bool:
    """Whether a head would be granted its place now, were nobody before it."""
    if account.empty:
        return True
    return account.seats_free(head.row[SEQUENCES]) and account.fits(account.counted(head.row, head.anchor_steps))


def delays(account: ReplicaAccount, newcomer: FloatArray, head: Head) -> bool:
    """Whether a newcomer, as it counts in the total, would keep a head that does not fit now from starting when its proxy has promised."""
    if not account.seats_free(head.row[SEQUENCES] + newcomer[SEQUENCES]):
        return True
    return not account.fits_beside(newcomer, head.row, head.ready_steps)


def offer(one: PublishedHead, now_s: float) -> PublishedHead | None:
    """Mark a head as offered; None where it was before."""
    if one.offered_s != -inf:
        return None
    one.offered_s = now_s
    return one


def passed_over(one: PublishedHead, now_s: float) -> bool:
    """Whether a head let its offer go by; it is marked so."""
    if one.offered_s + OFFER_S >= now_s or one.offered_s == -inf:
        return False
    one.passed_s = now_s
    return True
