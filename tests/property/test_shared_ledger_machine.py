"""Random proxies at one store: every grant fits, no rewrite loses a grant, what is late or given up is refused, nobody's share is lost.

``test_shared_scripts_machine`` runs the same machine with the scripts beside the ledger.
"""

from math import floor, inf
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from proxy.core.grid import FloatArray
from proxy.core.shared import Answer, Head, Rank, ReserveAsk, ReserveReply, RewriteAsk, RewriteReply
from tests.support.shared_accounts import Account, PlainAccounts, read_later
from tests.support.shared_rows import ENDS, ask, blocks_row, record, rewriting

PROXIES = ("p0", "p1", "p2", "p3")
REPLICAS = ("r0", "r1")
ROWS = st.builds(
    blocks_row,
    st.sampled_from([0.0, 3.0, 10.0, 25.5, 70.0, 130.0]),
    until_steps=st.sampled_from([16.0, 64.0, 256.0]),
    alive=st.sampled_from([1.0, 1.0, 0.8, 0.3]),
    sequences=st.sampled_from([1.0, 1.0, 3.0]),
)
RankDrawn = tuple[float, float, float]  # priority, virtual time, tenant
RANKS = st.tuples(st.sampled_from([0.0, -1.0]), st.sampled_from([1.0, 2.5, 4.0]), st.sampled_from([1.0, 2.0]))
WHO = st.integers(0, 11)  # counted round: two to four are there
REPLICA = st.sampled_from(["r0", "r0", "r0", "r1"])
LATE_STEPS = st.sampled_from([0.0, 0.0, 2.5, 40.0, -5.0])


def ranked(drawn: RankDrawn, proxy: str) -> Rank:
    """No two waiting requests of different proxies are of one rank: their deadlines differ."""
    priority, virtual, tenant = drawn
    return Rank(priority, virtual, PROXIES.index(proxy), tenant)


class SharedMachine(PlainAccounts, RuleBasedStateMachine):
    """Two to four proxies before two replicas."""

    def __init__(self) -> None:
        super().__init__()
        self.proxies = PROXIES[:2]
        self.numbers = dict.fromkeys(PROXIES, 0)
        self.held: dict[str, int] = {}  # epoch that a proxy believes in
        self.old: list[tuple[str, int]] = []
        self.late: list[ReserveAsk] = []

    # ---- the store, and its twin where there is one

    def call(self, name: str, *arguments: Any) -> Any:
        return getattr(self.ledger, name)(*arguments, self.now_s)

    def name(self, who: int) -> str:
        return self.proxies[who % len(self.proxies)]

    def lost(self) -> None:
        self.ledger.flush()

    def gone(self, proxy: str) -> None:
        self.ledger.forget(proxy)

    # ---- the plain account

    def steps(self, replica: str) -> float:
        account = self.ledger.accounts.get(replica)
        return account.record.steps_at(self.now_s) if account else 0.0

    def read_offers(self) -> None:
        for proxy in PROXIES:
            for replica in self.ledger.take_offers(proxy):
                self.heads[replica, proxy] = *self.heads[replica, proxy][:2], True

    # ---- calls with what must hold of them

    def reserve_now(self, one: ReserveAsk) -> None:
        heads = self.better_heads(one)
        if one.replica in self.ledger.accounts:
            self.sweep(one.replica)
        reply: ReserveReply = self.call("reserve", one)
        if one.replica not in self.ledger.accounts:
            assert reply.answer is Answer.UNKNOWN
            return
        before = self.accounts.get((one.replica, one.proxy))
        if self.registered.get(one.proxy) != one.epoch:
            assert reply.answer is Answer.FENCED
        elif before and (one.number <= before.upto or one.number in before.grants):
            assert reply.answer is Answer.STALE
        else:
            assert reply.answer in {Answer.GRANTED, Answer.ROOM, Answer.SEATS, Answer.HEAD, Answer.RECOVERING}
            assert heads or reply.answer is not Answer.HEAD
            self.head_goes_first(one, heads, reply.answer)
        if reply.answer is Answer.GRANTED:
            self.granted(one)
        elif reply.answer is not Answer.FENCED:
            self.others_told(reply.others, one.proxy)
        self.read_offers()
        self.balanced(one.replica)

    def granted(self, one: ReserveAsk) -> None:
        anchor = self.ledger.accounts[one.replica].anchor_steps
        there = self.total(one.replica)
        empty = there[0] == 0.0 and self.ledger.accounts[one.replica].record.bias_blocks < 1.0
        assert empty or self.fits(one.replica, there + read_later(one.row, floor(anchor - one.anchor_steps)), 1e-5)
        account = self.accounts.setdefault((one.replica, one.proxy), Account(one.epoch, self.now_s))
        account.epoch, account.stamp_s = one.epoch, self.now_s
        account.grants[one.number] = one.row, one.anchor_steps
        head = self.heads.get((one.replica, one.proxy))
        if head and head[0].rank.waits == one.rank.waits:
            del self.heads[one.replica, one.proxy]

    def head_goes_first(self, one: ReserveAsk, heads: list[tuple[Head, bool]], answer: Answer) -> None:
        if heads and not heads[0][1]:
            head, anchor = heads[0][0], self.ledger.accounts[one.replica].anchor_steps
            if self.fits(one.replica, self.total(one.replica) + read_later(head.row, floor(anchor - head.anchor_steps)), -1e-5):
                assert answer is Answer.HEAD

    def rewrite_now(self, one: RewriteAsk) -> None:
        if one.replica in self.ledger.accounts:
            self.sweep(one.replica)
        reply: RewriteReply = self.call("rewrite", one)
        if one.replica not in self.ledger.accounts:
            assert reply.answer is Answer.UNKNOWN
            return
        before = self.accounts.get((one.replica, one.proxy))
        if self.registered.get(one.proxy) != one.epoch:
            assert reply.answer is Answer.FENCED
        elif before and one.upto < before.upto:
            assert reply.answer is Answer.STALE
        else:
            assert reply.answer is Answer.GRANTED
            account = self.accounts.setdefault((one.replica, one.proxy), Account(one.epoch, self.now_s))
            account.epoch, account.stamp_s, account.upto = one.epoch, self.now_s, one.upto
            account.row = None if one.row is None else (one.row, one.anchor_steps)
            account.grants = {number: grant for number, grant in account.grants.items() if number > one.upto}
            self.others_told(reply.others, one.proxy)
        self.read_offers()
        self.balanced(one.replica)

    # ---- rules

    @initialize(count=st.integers(2, 4))
    def begin(self, count: int) -> None:
        self.proxies = PROXIES[:count]
        for proxy in self.proxies:
            self.register(proxy)
        for replica in REPLICAS:
            self.publish(replica, "p0", 2.0, 0.0, 0.0, 100, None, 30.0, 0.0)
            for who in range(count):
                self.rewrite(who, replica, None, 0, 0.0)

    def register(self, proxy: str) -> None:
        if proxy in self.held:
            self.old.append((proxy, self.held[proxy]))
        epoch = self.call("register", proxy)
        assert epoch > self.held.get(proxy, 0)
        self.held[proxy] = self.registered[proxy] = epoch

    @rule(who=WHO, always=st.sampled_from([False, False, True]))
    def join(self, who: int, always: bool) -> None:
        proxy = self.name(who)
        if always or proxy not in self.registered:
            self.register(proxy)

    @rule(
        replica=REPLICA, holder=st.sampled_from(PROXIES), z=st.sampled_from([0.5, 2.0]), sigma=st.sampled_from([0.0, 4.0]),
        bias=st.sampled_from([0.0, -2.0, 6.0]), usable=st.sampled_from([60, 100]), seats=st.sampled_from([None, 4]),
        rate=st.sampled_from([0.0, 30.0, 70.0]), late=st.sampled_from([0.0, 0.0, 40.0]),
    )  # fmt: skip
    def publish(
        self, replica: str, holder: str, z: float, sigma: float, bias: float, usable: int, seats: int | None, rate: float, late: float
    ) -> None:  # fmt: skip
        known = self.ledger.accounts.get(replica)
        late *= (another := known is not None and known.holder != holder)  # a holder knows what it told
        stands = known is not None and self.now_s - known.record.published_s <= self.ledger.lease_s
        taken = another and ((late > 0.0 and stands) or (known.holder != "" and self.now_s < known.held_until_s))
        one = record(
            replica, holder=holder, z=z, sigma_blocks=sigma, bias_blocks=bias, usable_blocks=usable, sequences_max=seats,
            steps_per_s=rate, published_s=self.now_s - 0.01, steps=self.steps(replica) - late,
        )  # fmt: skip
        assert self.call("publish", one, ENDS, 1.0) is not taken

    @rule(
        asks=st.lists(st.tuples(WHO, ROWS, RANKS, LATE_STEPS, st.booleans()), min_size=1, max_size=5), replica=REPLICA,
        share=st.sampled_from([0.0, 30.0]),
    )  # fmt: skip
    def reserve(self, asks: list[tuple[int, FloatArray, RankDrawn, float, bool]], replica: str, share: float) -> None:
        for index, (who, row, rank, late_steps, held_back) in enumerate(asks):
            proxy = self.name(who)
            self.numbers[proxy] += 1
            one = ask(
                self.numbers[proxy], proxy=proxy, replica=replica, epoch=self.held[proxy], row=row, own_share_blocks=share,
                anchor=self.steps(replica) - late_steps, rank=ranked(rank, proxy),
            )  # fmt: skip
            if held_back and index == len(asks) - 1:
                self.late.append(one)
            else:
                self.reserve_now(one)

    @rule(who=WHO, replica=REPLICA, row=ROWS)
    def overtaken(self, who: int, replica: str, row: FloatArray) -> None:
        """A rewrite that answers for a reservation, then the reservation."""
        proxy = self.name(who)
        self.numbers[proxy] += 1
        number, epoch, anchor = self.numbers[proxy], self.held[proxy], self.steps(replica)
        self.rewrite_now(rewriting(row, number, proxy=proxy, replica=replica, epoch=epoch, anchor=anchor))
        self.reserve_now(ask(number, proxy=proxy, replica=replica, epoch=epoch, anchor=anchor))

    @rule(who=WHO, replica=REPLICA, row=ROWS)
    def race(self, who: int, replica: str, row: FloatArray) -> None:
        """A grant, and a rewrite that was sent before it."""
        self.reserve([(who, row, (-1.0, 1.0, 1.0), 0.0, False)], replica, 1000.0)
        self.rewrite(who, replica, row, 1, 0.0)

    @precondition(lambda self: self.late)
    @rule()
    def late_reserve(self) -> None:
        self.reserve_now(self.late.pop(0))

    @rule(
        who=WHO, replica=REPLICA, row=st.one_of(st.none(), ROWS), behind=st.sampled_from([0, 0, 1, 3]),
        late_steps=LATE_STEPS,
    )  # fmt: skip
    def rewrite(self, who: int, replica: str, row: FloatArray | None, behind: int, late_steps: float) -> None:
        proxy = self.name(who)
        number = self.ledger.accounts[replica].record.number if behind and replica in self.ledger.accounts else 0
        self.rewrite_now(
            rewriting(
                row, max(0, self.numbers[proxy] - behind), proxy=proxy, replica=replica, epoch=self.held[proxy],
                anchor=self.steps(replica) - late_steps, known=len(self.proxies), record_number=number,
            )
        )  # fmt: skip

    @precondition(lambda self: self.old)
    @rule(data=st.data(), replica=REPLICA, row=ROWS, reserving=st.booleans())
    def zombie(self, data: st.DataObject, replica: str, row: FloatArray, reserving: bool) -> None:
        proxy, epoch = data.draw(st.sampled_from(self.old))
        if reserving:
            self.reserve_now(ask(999, proxy=proxy, replica=replica, epoch=epoch, row=row))
        else:
            self.rewrite_now(rewriting(row, 999, proxy=proxy, replica=replica, epoch=epoch))

    @rule(
        who=WHO, replica=REPLICA, row=ROWS, rank=RANKS, head_id=st.sampled_from(["", "x", "x", "y"]),
        ready=st.sampled_from([0.0, 20.0, 100.0, inf]),
    )  # fmt: skip
    def head(self, who: int, replica: str, row: FloatArray, rank: RankDrawn, head_id: str, ready: float) -> None:
        proxy = self.name(who)
        steps = self.steps(replica)
        heads = [Head(head_id, ranked(rank, proxy), row, steps, steps + ready)] if head_id else []
        self.call("set_heads", proxy, replica, heads)
        if replica in self.ledger.accounts and proxy in self.registered:
            self.heads.pop((replica, proxy), None)
            if heads:
                self.heads[replica, proxy] = heads[0], self.now_s, False
                self.offers_may_come_again(replica, proxy)

    def offers_may_come_again(self, replica: str, proxy: str) -> None:
        head, stamp_s, _ = self.heads[replica, proxy]
        offered_s = self.ledger._heads[replica]._by_key[proxy, head.head_id].offered_s
        self.heads[replica, proxy] = head, stamp_s, offered_s > -inf

    @rule(seconds=st.sampled_from([0.01, 0.03, 0.06, 0.3, 0.6, 1.1, 2.5]))
    def pass_time(self, seconds: float) -> None:
        self.now_s += seconds
        for replica, proxy in self.heads:
            self.offers_may_come_again(replica, proxy)

    @rule(back=st.lists(WHO, max_size=4), often=st.integers(0, 3))
    def flush(self, back: list[int], often: int) -> None:
        """The store loses everything, and some of the proxies write again."""
        if often:
            return
        self.now_s += 0.01  # a store does not come back within a millisecond
        self.lost()
        self.accounts, self.heads, self.registered = {}, {}, {}
        for who in back:
            self.register(self.name(who))
            for replica in REPLICAS:
                self.publish(replica, "p0", 2.0, 0.0, 0.0, 100, None, 30.0, 0.0)
                self.rewrite(who, replica, None, 0, 0.0)

    @rule(who=WHO, often=st.integers(0, 3))
    def forget(self, who: int, often: int) -> None:
        if often:
            return
        self.gone(proxy := self.name(who))
        self.registered.pop(proxy, None)
        for replica in REPLICAS:
            self.accounts.pop((replica, proxy), None)
            self.heads.pop((replica, proxy), None)


def test_laws_hold_on_the_plain_ledger() -> None:
    run_state_machine_as_test(SharedMachine, settings=settings(max_examples=40, stateful_step_count=40, deadline=None))
