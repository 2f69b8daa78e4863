"""Worlds of several proxies over one store, and what judges them from outside the gates."""

from collections import Counter, defaultdict
from dataclasses import dataclass, field

import numpy as np

from proxy.core.grid import FloatArray
from proxy.core.ledger import Lease
from proxy.core.policy import Policy
from proxy.core.risk import Risk, peak_of
from proxy.core.shared import (
    LOAD_FIELDS,
    Answer,
    Load,
    ReserveAsk,
    ReserveReply,
    RewriteAsk,
    RewriteReply,
    curves_of,
    load_of,
    row_of,
)
from proxy.core.store_calls import CallAdvance, CallReserve, CallRewrite, StoreCall, StoreReply
from proxy.sim.proxies import Proxies
from proxy.sim.shared_proxy import SharedProxy
from proxy.sim.store import StoreSettings
from proxy.sim.world import Source, World, WorldSettings

OFFER_S = 0.05  # how long room is held for whoever is better placed
PUBLISHED_S = 0.15  # until a head is known at the store: a rewrite's interval and a way there
SAMPLE_S = 0.1


def later(row: FloatArray, steps: float, ends: FloatArray) -> FloatArray:
    """A row as it is expected to be some steps after its anchor: on straight lines, where who has to decide reads higher."""
    curves = [np.interp(ends + steps, ends, curve) for curve in curves_of(row)]
    return np.concatenate((row[:LOAD_FIELDS], *curves))


@dataclass
class Judge:
    """Looks on at every grant and ten times a second.

    ``over_blocks`` is by how much all proxies' own ledgers were above the pool at each grant, what is only asked for left out, with the
    margin, spread and bias that the store has in force. ``over_s`` are samples of the same between grants: (when, blocks).
    ``passed_over`` are grants to a low band while somebody of a higher one waited at another proxy for longer than an offer and would
    have fit: (when, lease, who waited, for how long). ``left``, ``shares`` and ``rows_later`` are for whoever looks at set times. Without
    ``samples`` only grants are looked at: of a thousand replicas a sample takes as long as a second of the world.
    """

    world: World
    proxies: Proxies
    samples: bool = True
    over_blocks: list[float] = field(default_factory=list)
    rows_over_blocks: list[float] = field(default_factory=list)
    answers: Counter[Answer] = field(default_factory=Counter)
    ahead: int = 0  # grants that the store was not asked for
    over_s: list[tuple[float, float]] = field(default_factory=list)
    left: dict[str, tuple[float, float, int]] = field(default_factory=dict)
    shares: dict[int, float] = field(default_factory=dict)
    rows_later: list[str] = field(default_factory=list)
    quiet: list["Quiet"] = field(default_factory=list)
    passed_over: list[tuple[float, str, str, float]] = field(default_factory=list)
    z: dict[str, list[tuple[float, float]]] = field(default_factory=lambda: defaultdict(list))

    def __post_init__(self) -> None:
        assert self.proxies.shared is not None
        self.shared = self.proxies.shared
        self.shared.onlookers.append(self)
        self._committed: set[str] = set()
        self._rows: dict[str, dict[str, tuple[int, FloatArray, float]]] = defaultdict(
            dict
        )  # by replica and proxy: upto, row, anchor
        self._grants: dict[str, dict[str, dict[int, tuple[FloatArray, float]]]] = defaultdict(lambda: defaultdict(dict))
        self._heard_s: dict[tuple[str, str], float] = {}
        if self.samples:
            self.world.at(SAMPLE_S, self._sample)

    @property
    def living(self) -> dict[int, SharedProxy]:
        """The proxies that live."""
        return {index: proxy for index, proxy in self.proxies.alive.items() if isinstance(proxy, SharedProxy)}

    def now_s(self, index: int) -> float:
        """The time of one proxy."""
        return self.world.now_s + index * self.shared.settings.skew_s

    def curves(self, replica: str) -> tuple[FloatArray, int]:
        """What all proxies' own ledgers have on a replica from now on, (4, G), and how many leases that is."""
        total, leases = None, 0
        for index, proxy in self.living.items():
            book = proxy.gate.fleet.books[replica]
            ledger = book.ledger
            own = ledger.own()
            counted = dict(ledger.leases)
            for lease_id in {call.lease.lease_id for call in proxy.member.reserving.values()} & ledger.leases.keys():
                if lease_id not in self._committed:
                    own -= ledger.rows.curves[:, ledger.leases[lease_id].rows].sum(axis=1)
                    del counted[lease_id]
            ahead = max(0.0, book.steps_now(self.now_s(index)) - ledger.anchor_steps) if counted else 0.0
            now = curves_of(later(row_of(Load(), own), ahead, book.grid.ends))
            total = now if total is None else total + now
            leases += len(counted)
        assert total is not None
        return total, leases

    def over(self, replica: str) -> float:
        """Blocks by which the highest Q(t) is above the pool; below 0 where there is room, or where no more than one is there."""
        account = self.shared.ledger.accounts.get(replica)
        if account is None or not self.living:
            return 0.0
        record = account.record
        curves, leases = self.curves(replica)
        if leases < 2:
            return 0.0
        return peak_of(curves, Risk(record.z, record.sigma_blocks, record.bias_blocks)) - record.usable_blocks

    def done(self, call: StoreCall, reply: StoreReply) -> None:
        """A call was just answered at the store."""
        if isinstance(call, CallReserve) and isinstance(reply, ReserveReply):
            self.answers[reply.answer] += 1
            if reply.answer is Answer.GRANTED:
                self._granted(call.ask, call.lease)
        if isinstance(call, CallAdvance) and isinstance(reply, ReserveReply) and reply.answer is Answer.GRANTED:
            self._written(call.ask)
            self.rows_over_blocks.append(self.rows_over(call.ask.replica))
        if isinstance(call, CallRewrite) and isinstance(reply, RewriteReply) and reply.answer is Answer.GRANTED:
            self._rewritten(call.ask)

    def _granted(self, ask: ReserveAsk, lease: Lease) -> None:
        self._committed.add(lease.lease_id)
        self._written(ask)
        self.over_blocks.append(self.over(ask.replica))
        self.rows_over_blocks.append(self.rows_over(ask.replica))
        self._look_for_better(ask, lease)

    def granted_ahead(self, lease: Lease) -> None:
        """A proxy granted a request out of room that it had taken ahead."""
        self.ahead += 1
        self._committed.add(lease.lease_id)
        self.over_blocks.append(self.over(lease.replica))
        self.rows_over_blocks.append(self.rows_over(lease.replica))

    def _written(self, ask: ReserveAsk) -> None:
        self._grants[ask.replica][ask.proxy][ask.number] = ask.row, ask.anchor_steps
        self._heard_s[ask.replica, ask.proxy] = self.world.now_s

    def _rewritten(self, ask: RewriteAsk) -> None:
        self._heard_s[ask.replica, ask.proxy] = self.world.now_s
        rows, grants = self._rows[ask.replica], self._grants[ask.replica][ask.proxy]
        rows.pop(ask.proxy, None)
        if ask.row is not None:
            rows[ask.proxy] = ask.upto, ask.row, ask.anchor_steps
        for number in [number for number in grants if number <= ask.upto]:
            del grants[number]

    def rows_over(self, replica: str) -> float:
        """As ``over``, of what every proxy wrote last and was granted since, as far as its lease has not passed."""
        account = self.shared.ledger.accounts[replica]
        record, now_s = account.record, self.world.now_s
        written = [(row, anchor) for proxy, (_, row, anchor) in self._rows[replica].items() if self._counts(replica, proxy)]
        written += [
            one for proxy, grants in self._grants[replica].items() if self._counts(replica, proxy) for one in grants.values()
        ]
        steps = record.steps_at(now_s)
        now = [later(row, max(0.0, steps - anchor), account.ends) for row, anchor in written]
        if sum(load_of(row).leases for row in now) < 2:
            return 0.0
        risk = Risk(record.z, record.sigma_blocks, record.bias_blocks)
        return peak_of(curves_of(np.sum(now, axis=0)).copy(), risk) - record.usable_blocks

    def _counts(self, replica: str, proxy: str) -> bool:
        heard_s = self._heard_s.get((replica, proxy))
        return heard_s is not None and self.world.now_s - heard_s <= self.shared.ledger.lease_s

    def _look_for_better(self, ask: ReserveAsk, lease: Lease) -> None:
        account = self.shared.ledger.accounts[ask.replica]
        record = account.record
        for index, proxy in self.living.items():
            head = next(iter(proxy.gate.queue.order()), None)
            if proxy.member.name == ask.proxy or head is None or head.demand.priority <= lease.demand.priority:
                continue
            waited_s = self.now_s(index) - head.enqueued_s
            if waited_s < PUBLISHED_S + OFFER_S:
                continue
            book = proxy.gate.fleet.books[ask.replica]
            newcomer = book.newcomer(head.demand, self.now_s(index), head.curves)
            curves = self.curves(ask.replica)[0] + newcomer.sum
            if peak_of(curves, Risk(record.z, record.sigma_blocks, record.bias_blocks)) <= record.usable_blocks:
                self.passed_over.append((self.world.now_s, lease.lease_id, head.demand.request_id, waited_s))

    def share_blocks(self, index: int, replica: str) -> float:
        """What a proxy may fill by itself, as it stands now."""
        member = self.living[index].member
        book = member.several.book(replica)
        assert book is not None
        return book.share_blocks(member.proxies, self.now_s(index))

    def _look_if_quiet(self) -> None:
        if self.proxies.queued or any(proxy.member.reserving for proxy in self.living.values()):
            return
        for replica, account in self.shared.ledger.accounts.items():
            steps = account.record.steps_at(self.world.now_s)
            rows = [
                (load_of(row), steps - anchor)
                for proxy, (_, row, anchor) in self._rows[replica].items()
                if self._counts(replica, proxy)
            ]
            if any(grants for proxy, grants in self._grants[replica].items() if self._counts(replica, proxy)):
                continue  # not in a row yet
            engine = self.world.engines[replica]
            low = sum(load.low_blocks for load, _ in rows)
            high = sum(load.high_blocks + load.growth_blocks_per_step * max(0.0, age) for load, age in rows)
            leases = sum(round(load.leases) for load, _ in rows)
            if leases != sum(len(proxy.gate.fleet.books[replica].ledger.leases) for proxy in self.living.values()):
                continue  # the end of one is not told yet
            running = sum(one.replica == replica and one.end_s is None for one in self.world.results.values())
            if engine.unfinished != running:
                continue  # the engine has let one go whose client hears of it at the end of this step
            self.quiet.append(Quiet(self.world.now_s, leases, running, low, engine.used_blocks, high))

    def _sample(self) -> None:
        self._look_if_quiet()
        self.over_s.append((self.world.now_s, max(self.over(name) for name in self.world.engines)))
        for name, account in self.shared.ledger.accounts.items():
            self.z[name].append((self.world.now_s, account.record.z))
        self.world.at(self.world.now_s + SAMPLE_S, self._sample)


@dataclass(frozen=True)
class Quiet:
    """A moment at which nobody waits or asks: what the store counts, and what the engine has. Blocks."""

    at_s: float
    leases: int
    running: int  # as their clients know
    low_blocks: float
    used_blocks: int
    high_blocks: float


def shared_world(
    settings: WorldSettings, source: Source, proxies: int, store: StoreSettings, policy: Policy | None = None
) -> tuple[World, Judge]:
    """A world of several proxies with its judge, not run yet."""
    admission = Proxies(Policy() if policy is None else policy, proxies, store=store, seed=1)
    world = World(settings, admission, source)
    return world, Judge(world, admission)


def left_over(judge: Judge) -> dict[str, tuple[float, float, int]]:
    """By replica: leases and blocks that the store still counts, and blocks that the engine still holds."""
    return {
        name: (float(account.total[0]), float(np.abs(curves_of(account.total)[:3]).max()), judge.world.engines[name].used_blocks)
        for name, account in judge.shared.ledger.accounts.items()
    }
