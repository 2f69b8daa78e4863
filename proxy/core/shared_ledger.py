"""The store that several proxies share, as a plain object: what the scripts in ``adapters/lua`` do, and the model they are held against.

One ledger is one pool of replicas. It keeps who is registered, and for each replica its record, the account (``core.shared_sum``) and the
heads (``core.shared_heads``). Every call is one step of the store: nothing comes between its check and its commit. A reservation is

    UNKNOWN     no record of the replica, or a row of another grid          FENCED  the proxy is not registered under this epoch
    STALE       a rewrite that answers for this number was here first: not committed, its lease is settled by that rewrite
    HEAD        somebody better placed is to have the room                  RECOVERING  beyond the proxy's own share, see below
    GRANTED     the replica is empty, or seats and blocks fit               SEATS, ROOM  they do not

Fencing. An epoch is given at registration and rises even across a loss of the store, being made from its clock. A proxy that let a row with
something in it expire loses its registration, so what it sends from before is refused until it registers anew and rewrites all.

Recovery. A store without a generation has lost its rows. It begins one and recovers for a lease, but ``RECOVERY_S_MAX`` at most, or for a
replica until as many proxies have rewritten it as any of them knew. Meanwhile a proxy that has written what it has there gets what keeps
it within its own last share, and the empty replica's rule is set aside: that nothing is written proves nothing. Who has not written by
then died, or is cut off: it takes no more than its last share either way, and what its requests hold shows in the measurement.

Scrape lease. The first to publish a replica's record may go on to do so; another takes over when the lease has passed, with a record that
goes on from the one that stands: the replica's step clock never goes back, for rows are anchored in it. Only of a record that nobody has
renewed for a lease it need not have heard, and no right lasts longer than the lease of whoever asks for it.

Fails: rows lost without the generation (a replica of the store that lagged and took over) are missing until their next rewrite. A proxy's
name must be that of one life of a process: numbers begin anew with it.
"""

from dataclasses import replace

import numpy as np

from proxy.core.grid import FloatArray
from proxy.core.shared import Answer, Head, Record, ReserveAsk, ReserveReply, RewriteAsk, RewriteReply
from proxy.core.shared_heads import OFFER_S, Heads, PublishedHead
from proxy.core.shared_sum import SEQUENCES, ReplicaAccount, stamp_ms

BEHIND_STEPS_MAX = 1.0  # of a record that takes over: rounding, and two readings of the store's clock
LEASE_S = 2.0
# Full sharing is to be back two seconds after the store. A proxy that lives has written anew by then: a call to a store that was gone is
# given up after a second, the next goes out within 0.1 s, and it takes three. (Waiting for a lease, all waited for one that was killed.)
RECOVERY_S_MAX = 1.25


class SharedLedger:
    """One pool. ``now_s`` is always the store's clock; ``lease_s`` is how long a proxy may be silent."""

    def __init__(self, lease_s: float = LEASE_S) -> None:
        self.lease_s = lease_s
        self.flush()

    def __repr__(self) -> str:
        """Counts for people and tests."""
        return f"<SharedLedger proxies={len(self._epochs)} replicas={len(self.accounts)} generation={self._generation}>"

    def flush(self) -> None:
        """Lose everything, as a store that restarted empty."""
        self.accounts: dict[str, ReplicaAccount] = {}
        self._heads: dict[str, Heads] = {}
        self._epochs: dict[str, int] = {}
        self._epoch_last = 0
        self._generation: int | None = None
        self._recovering_until_s = 0.0
        self._proxies_expected = 0
        self._offers: dict[str, list[str]] = {}

    def _begin(self, now_s: float) -> None:
        if self._generation is None:
            self._generation, self._recovering_until_s = stamp_ms(now_s), now_s + min(self.lease_s, RECOVERY_S_MAX)

    def _recovering(self, account: ReplicaAccount, now_s: float) -> bool:
        if now_s >= self._recovering_until_s:
            return False
        return self._proxies_expected == 0 or account.rewritten() < self._proxies_expected

    # ---- proxies

    def register(self, proxy: str, now_s: float) -> int:
        """A new epoch for a proxy."""
        self._begin(now_s)
        self._epoch_last = max(self._epoch_last + 1, stamp_ms(now_s))
        self._epochs[proxy] = self._epoch_last
        return self._epoch_last

    def forget(self, proxy: str) -> None:
        """A proxy leaves: its rows, heads, offers, scrape leases and its registration go."""
        self._epochs.pop(proxy, None)
        self._offers.pop(proxy, None)
        self._proxies_expected = max(1, self._proxies_expected - 1)
        for replica in self.accounts:
            self.drop(proxy, replica)

    def drop(self, proxy: str, replica: str) -> None:
        """A replica is none of a proxy's any more: its row, heads and scrape lease there go, the proxy stays."""
        account = self.accounts.get(replica)
        if account is not None:
            account.forget(proxy)
            self._heads[replica].publish(proxy, [], 0.0)
            if account.holder == proxy:
                account.holder = ""

    def _fence_expired(self, account: ReplicaAccount, now_s: float) -> None:
        for proxy, epoch in account.rebuild_if_due(now_s, self.lease_s):
            if self._epochs.get(proxy) == epoch:
                del self._epochs[proxy]

    # ---- records

    def publish(self, record: Record, ends: FloatArray, scrape_lease_s: float, now_s: float) -> bool:
        """Publish a replica's record, and keep the right to scrape it for so long; False: another has it, or who takes it over has not
        heard of the record that stands: its steps are behind.

        The ledger numbers the record. ``ends`` are those of the replica's grid: with others than before all rows there are dropped.
        """
        self._begin(now_s)
        account = self.accounts.get(record.replica)
        if account is None:
            account = self.accounts[record.replica] = ReplicaAccount(replace(record, number=0), ends.copy())
            self._heads[record.replica] = Heads(self.lease_s)
        elif account.holder != record.holder:
            held = bool(account.holder) and now_s < account.held_until_s <= now_s + max(self.lease_s, scrape_lease_s)
            behind = record.steps + BEHIND_STEPS_MAX < account.record.steps_at(record.published_s)
            if held or (behind and abs(now_s - account.record.published_s) <= self.lease_s):
                return False
        number = max(account.record.number + 1, stamp_ms(now_s))
        if not np.array_equal(account.ends, ends):
            account = self.accounts[record.replica] = ReplicaAccount(record, ends.copy())
            self._heads[record.replica] = Heads(self.lease_s)
        account.record = replace(record, number=number)
        account.holder, account.held_until_s = record.holder, now_s + scrape_lease_s
        return True

    # ---- reservations

    def reserve(self, ask: ReserveAsk, now_s: float) -> ReserveReply:
        """Check one request and commit it."""
        self._begin(now_s)
        account = self.accounts.get(ask.replica)
        if account is None or not account.shaped(ask.row):
            return ReserveReply(Answer.UNKNOWN, now_s)
        self._fence_expired(account, now_s)
        if self._epochs.get(ask.proxy) != ask.epoch:
            return ReserveReply(Answer.FENCED, now_s)
        answer, retry_s = self._answer(account, ask, now_s)
        if answer is not Answer.GRANTED:
            return ReserveReply(answer, now_s, account.others(ask.proxy), account.free_blocks(), retry_s)
        account.grant(ask.proxy, ask.epoch, ask.number, ask.row, ask.anchor_steps, now_s)
        heads = self._heads[ask.replica]
        heads.granted(ask.proxy, ask.rank)
        free_blocks = 0.0 if heads.anybody(now_s) else account.free_blocks()
        self._offer_rest(account, ask.replica, now_s)
        return ReserveReply(answer, now_s, free_blocks=free_blocks)

    def _answer(self, account: ReplicaAccount, ask: ReserveAsk, now_s: float) -> tuple[Answer, float]:
        """What becomes of a reservation, and when to ask again."""
        entry = account.entries.get(ask.proxy)
        if entry is not None and (ask.number <= entry.upto or ask.number in entry.grants):
            return Answer.STALE, 0.0
        held_up, to_offer = self._heads[ask.replica].blocking(account, ask, now_s)
        if to_offer is not None:
            self._offer(to_offer, ask.replica)
        if held_up:
            return Answer.HEAD, OFFER_S
        newcomer = account.counted(ask.row, ask.anchor_steps)
        if self._recovering(account, now_s):
            if entry is None or entry.upto < 0:
                return Answer.RECOVERING, OFFER_S
            if not account.fits_share(ask.proxy, newcomer, ask.own_share_blocks):
                return Answer.RECOVERING, self._recovering_until_s - now_s
        elif account.empty:
            return Answer.GRANTED, 0.0
        if not account.seats_free(ask.row[SEQUENCES]):
            return Answer.SEATS, 0.0
        return Answer.GRANTED if account.fits(newcomer) else Answer.ROOM, 0.0

    def rewrite(self, ask: RewriteAsk, now_s: float) -> RewriteReply:
        """Take a proxy's account of a replica, and tell it the others'."""
        self._begin(now_s)
        account = self.accounts.get(ask.replica)
        if account is None:
            return RewriteReply(Answer.UNKNOWN, now_s)
        record = account.record if account.record.number != ask.record_number else None
        if not account.shaped(ask.row):
            return RewriteReply(Answer.UNKNOWN, now_s, record=record)
        self._fence_expired(account, now_s)
        if self._epochs.get(ask.proxy) != ask.epoch:
            return RewriteReply(Answer.FENCED, now_s, record=record)
        entry = account.entries.get(ask.proxy)
        if entry is not None and ask.upto < entry.upto:
            return RewriteReply(Answer.STALE, now_s, record=record)
        self._proxies_expected = max(self._proxies_expected, ask.proxies_known)
        account.rewrite(ask.proxy, ask.epoch, ask.upto, ask.row, ask.anchor_steps, now_s)
        offered = self._offer_rest(account, ask.replica, now_s)
        told = () if offered is None else (offered.proxy,)
        return RewriteReply(Answer.GRANTED, now_s, account.others(ask.proxy), record, told)

    # ---- heads

    def set_heads(self, proxy: str, replica: str, heads: list[Head], now_s: float) -> None:
        """Put a proxy's heads on a replica in the place of those before; nothing of one that is not registered, or of another grid."""
        self._begin(now_s)
        account = self.accounts.get(replica)
        if account is None or proxy not in self._epochs or not all(account.shaped(head.row) for head in heads):
            return
        self._heads[replica].publish(proxy, heads, now_s)

    def _offer_rest(self, account: ReplicaAccount, replica: str, now_s: float) -> PublishedHead | None:
        """Offer what is free on a replica to whoever is to have it."""
        offered = self._heads[replica].to_offer(account, now_s)
        if offered is not None:
            self._offer(offered, replica)
        return offered

    def _offer(self, published: PublishedHead, replica: str) -> None:
        self._offers.setdefault(published.proxy, []).append(replica)

    def offered_to(self) -> frozenset[str]:
        """Proxies whose heads were offered room since they last took it up; of a thousand calls most offer nobody anything."""
        return frozenset(self._offers)

    def take_offers(self, proxy: str) -> list[str]:
        """Replicas on which room was offered to a proxy's heads since the last call."""
        return self._offers.pop(proxy, [])
