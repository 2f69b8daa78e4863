"""Replicas that are alike, judged together.

Decides how much of each pool a request would leave at the forecast peak, for all replicas with the same models, context and block size in
one set of (R, G) array operations: their sums stand in one array, and a candidate's curves are the same on each of them but for blocks
that somebody shares there.

A candidate is forecast for the replica whose curves are the oldest: it grows from the anchor on and lives as long after it as that one's
age says, so on the others it is taken as a few steps longer than it is (``core.ledger``).

Fails: margins and biases are read when something of the replica's changes, and every ``RISK_S`` for the age of its metrics.
"""

from dataclasses import dataclass

import numpy as np

from proxy.core.book import Book
from proxy.core.curves import Curves
from proxy.core.demand import Demand
from proxy.core.grid import FloatArray
from proxy.core.newcomers import CurveCache, Newcomer, Newcomers, rounded_ahead
from proxy.core.replica import ReplicaPhase
from proxy.core.risk import Risk, level_of

RISK_S = 0.5  # what grows with a measurement's age alone grows slowly, and reading all costs as much as a decision

BankKey = tuple[tuple[str, ...], int, Newcomers]
BankState = tuple[int, int, Newcomers, int]


@dataclass(frozen=True, slots=True)
class BankVerdict:
    """By replica of a bank: the share of the pool left at the forecast peak. ``shared`` has curves that are not the newcomer's."""

    headroom_ratio: FloatArray
    newcomer: Newcomer
    shared: dict[int, Curves]

    def curves_on(self, index: int) -> Curves:
        """What the request adds to the forecast of replica ``index``."""
        return self.shared.get(index, self.newcomer.curves)


class Bank:
    """Books whose replicas differ in nothing but their pools and what runs on them."""

    def __init__(self, books: list[Book]) -> None:
        self.books = books
        spec = books[0].spec
        self.models = spec.models
        self._context_tokens_max = spec.context_tokens_max
        self._usable = np.asarray([book.spec.usable_blocks for book in books], dtype=np.float64)
        self._pools = np.maximum(self._usable, 1.0)
        self._base = np.zeros((4, len(books), len(books[0].grid)))  # sums of every replica, with what its risk adds to them
        self._sums = np.empty_like(self._base)  # with a candidate
        self._z = np.zeros((len(books), 1))
        self._ledgers = [book.ledger for book in books]
        self.names = [book.spec.name for book in books]
        self._seen = [-1] * len(books)
        self._risks: list[tuple[Risk, FloatArray]] = [(Risk(0.0, 0.0, 0.0), np.zeros((4, 1)))] * len(books)  # with their offsets
        self._ahead: list[tuple[float, float]] = [(0.0, 0.0)] * len(books)  # of those with leases, as ``Book.ahead_line``
        self._made: tuple[Demand, float, Newcomer] | None = None  # the last forecast, and for when
        self._risk_s = float("-inf")
        self._syncs = self._peaks_at = 0
        self._peaks = np.zeros(len(books))

    def __repr__(self) -> str:
        """Members for people and tests."""
        return f"<Bank {[book.spec.name for book in self.books]}>"

    def __len__(self) -> int:
        """Intervals of the grid its forecasts are on."""
        return self._base.shape[2]

    @staticmethod
    def key(book: Book) -> BankKey:
        """What the replicas of one bank have in common."""
        return book.spec.models, book.spec.context_tokens_max, book.ledger.newcomers

    def _sync(self, now_s: float) -> None:
        """Take over what changed."""
        every = not 0.0 <= now_s - self._risk_s < RISK_S
        changes = [ledger.changes for ledger in self._ledgers]
        if changes == self._seen and not every:
            return
        self._syncs += 1
        if every:
            self._risk_s = now_s
        for index, change in enumerate(changes):
            if every or change != self._seen[index]:
                self._take_over(index, now_s)
        self._seen = changes

    def _take_over(self, index: int, now_s: float) -> None:
        book = self.books[index]
        risk, (known, offsets) = book.risk(now_s), self._risks[index]
        if risk != known:
            offsets = risk.offsets
            self._risks[index], self._z[index] = (risk, offsets), risk.z
        np.add(book.ledger.totals, offsets, out=self._base[:, index])
        self._ahead[index] = book.ahead_line() if book.ledger.occupied else (0.0, 0.0)

    def _ahead_steps(self, now_s: float) -> int:
        """Steps since the oldest anchor, as candidates are forecast with."""
        return rounded_ahead(max([steps + rate * now_s for steps, rate in self._ahead]))

    def state(self, now_s: float) -> BankState:
        """What ``verdict`` rests on besides the request, where it shares nothing: while this is the same, so is that."""
        self._sync(now_s)
        newcomers = self._ledgers[0].newcomers
        return self._syncs, self._ahead_steps(now_s), newcomers, newcomers.model.version

    def newcomer(self, demand: Demand, now_s: float, cache: CurveCache) -> Newcomer:
        """The forecast of ``demand`` where it shares nothing."""
        made = self._made
        if made is not None and made[0] is demand and made[1] == now_s:
            return made[2]
        self._sync(now_s)
        first = self.books[0]
        newcomer = first.ledger.newcomer(demand, first.output_tokens_max(demand), cache, ahead_steps=self._ahead_steps(now_s))
        self._made = demand, now_s, newcomer
        return newcomer

    def verdict(self, demand: Demand, now_s: float, cache: CurveCache) -> BankVerdict:
        """What every replica would have left with ``demand`` on it."""
        newcomer = self.newcomer(demand, now_s, cache)
        self._sync(now_s)
        np.add(self._base, newcomer.sum[:, None, :], out=self._sums)
        peaks = np.maximum.reduce(level_of(self._sums, self._z), axis=1)
        shared: dict[int, Curves] = {}
        if demand.hashed:
            for index in [index for index, ledger in enumerate(self._ledgers) if ledger.any_held(demand)]:
                shared[index] = discounted = self._ledgers[index].discounted(newcomer, demand)
                peaks[index] = self.books[index].peak_blocks(discounted, now_s)
        np.subtract(self._usable, peaks, out=peaks)
        peaks /= self._pools
        return BankVerdict(peaks, newcomer, shared)

    def peaks(self, now_s: float) -> FloatArray:
        """The risk-adjusted forecast peak of every replica as it is, in blocks."""
        self._sync(now_s)
        if self._peaks_at != self._syncs:  # each look at somebody behind a head asks
            np.copyto(self._sums, self._base)
            self._peaks_at, self._peaks = self._syncs, level_of(self._sums, self._z).max(axis=1)
        return self._peaks

    def level(self, now_s: float) -> FloatArray:
        """Q(t) of all its replicas together, in blocks over the grid."""
        self._sync(now_s)
        np.copyto(self._sums, self._base)
        level: FloatArray = level_of(self._sums, self._z).sum(axis=0)
        return level

    def can_serve(self, demand: Demand) -> list[bool]:
        """Which replicas are there and could hold the request's longest prompt and one token."""
        longest = demand.prompt_tokens_longest
        if longest >= self._context_tokens_max and demand.count_is_exact:
            return [False] * len(self.books)
        need = self.books[0].ledger.shape.least(longest + 1)
        return [book.phase is ReplicaPhase.SERVING and need <= book.spec.usable_blocks for book in self.books]


def banks_of(books: list[Book]) -> list[Bank]:
    """Books grouped by what is alike."""
    groups: dict[BankKey, list[Book]] = {}
    for book in books:
        groups.setdefault(Bank.key(book), []).append(book)
    return [Bank(group) for group in groups.values()]
