"""Replicas that are alike, judged together.

Decides how much of each pool a request would leave at the forecast peak, for all replicas with the same models, context and block size in
one set of (R, G) array operations: their sums stand in one array, and a candidate's curves are the same on each of them but for blocks
that somebody shares there.

A candidate is forecast for the replica whose curves are the oldest: it grows from the anchor on and lives as long after it as that one's
age says, so on the others it is taken as a few steps longer than it is (``core.ledger``).

Fails: margins and biases are read every ``RISK_S`` at most, unless a replica was just scraped.
"""

from dataclasses import dataclass
from math import ceil

import numpy as np

from proxy.core.book import Book
from proxy.core.curves import Curves, Newcomers
from proxy.core.demand import Demand
from proxy.core.grid import FloatArray
from proxy.core.ledger import CurveCache
from proxy.core.replica import ReplicaPhase
from proxy.core.risk import Risk, quantile_of

RISK_S = 0.01  # margin, bias and spread move with scrapes and completions; reading them all costs as much as a verdict

BankKey = tuple[tuple[str, ...], int, Newcomers]


@dataclass(frozen=True, slots=True)
class BankVerdict:
    """By replica of a bank: the share of the pool left at the forecast peak. ``shared`` has the curves where they are not ``curves``."""

    headroom_ratio: FloatArray
    curves: Curves
    shared: dict[int, Curves]

    def curves_on(self, index: int) -> Curves:
        """What the request adds to the forecast of replica ``index``."""
        return self.shared.get(index, self.curves)


class Bank:
    """Books whose replicas differ in nothing but their pools and what runs on them."""

    def __init__(self, books: list[Book]) -> None:
        self.books = books
        spec = books[0].spec
        self.models = spec.models
        self._context_tokens_max = spec.context_tokens_max
        self._usable = np.asarray([book.spec.usable_blocks for book in books], dtype=np.float64)
        self._totals = np.zeros((4, len(books), len(books[0].grid)))
        self._seen = [(-1, -1)] * len(books)
        self._ahead = np.full(
            (2, len(books)), -np.inf
        )  # steps since the anchor at time 0 as the clock's rate says, and that rate
        self._risk = Risk(0.0, 0.0, 0.0)
        self._risk_s = float("-inf")

    def __repr__(self) -> str:
        """Members for people and tests."""
        return f"<Bank {[book.spec.name for book in self.books]}>"

    @staticmethod
    def key(book: Book) -> BankKey:
        """What the replicas of one bank have in common."""
        return book.spec.models, book.spec.context_tokens_max, book.ledger.newcomers

    def _sync(self, now_s: float) -> None:
        """Take over the sums that changed, and margins and biases when it is time."""
        told = now_s - self._risk_s >= RISK_S or now_s < self._risk_s
        for index, book in enumerate(self.books):
            state = (book.ledger.changes, book.scrapes)
            if state != self._seen[index]:
                told = told or state[1] != self._seen[index][1]
                self._totals[:, index] = book.ledger.totals
                self._ahead[:, index] = book.ahead_line() if book.ledger.leases else (-np.inf, 0.0)
                self._seen[index] = state
        if told:
            self._risk_s = now_s
            risks = [book.risk(now_s) for book in self.books]
            self._risk = Risk(
                z=np.asarray([[risk.z] for risk in risks]),
                sigma_blocks=np.asarray([[risk.sigma_blocks] for risk in risks]),
                bias_blocks=np.asarray([[risk.bias_blocks] for risk in risks]),
            )

    def own_curves(self, demand: Demand, now_s: float, cache: CurveCache) -> tuple[Curves, FloatArray]:
        """Curves of ``demand`` where it shares nothing, and the probability that its sequences live."""
        self._sync(now_s)
        ahead = max(0, ceil((self._ahead[0] + self._ahead[1] * now_s).max(initial=0.0)))
        first = self.books[0]
        return first.ledger.own_curves(demand, first.output_tokens_max(demand), cache, ahead_steps=ahead)

    def verdict(self, demand: Demand, now_s: float, cache: CurveCache) -> BankVerdict:
        """What every replica would have left with ``demand`` on it."""
        curves, living = self.own_curves(demand, now_s, cache)
        total = Curves(*(sums + mine for sums, mine in zip(self._totals, curves.arrays(), strict=True)))
        peaks = quantile_of(total, self._risk).max(axis=1)
        shared: dict[int, Curves] = {}
        hashed = demand.shares_prefix and any(part.block_hashes for part in demand.parts)
        for index, book in enumerate(self.books if hashed else ()):
            discounted = book.ledger.discounted(curves, living, demand)
            if discounted is not curves:
                shared[index] = discounted
                peaks[index] = book.peak_blocks(discounted, now_s)
        return BankVerdict((self._usable - peaks) / np.maximum(self._usable, 1.0), curves, shared)

    def peaks(self, now_s: float) -> FloatArray:
        """The risk-adjusted forecast peak of every replica as it is, in blocks."""
        self._sync(now_s)
        peaks: FloatArray = quantile_of(Curves(*self._totals), self._risk).max(axis=1)
        return peaks

    def can_serve(self, demand: Demand) -> list[bool]:
        """Which replicas are there and could hold the request's longest prompt and one token."""
        longest = demand.prompt_tokens_longest
        if longest >= self._context_tokens_max and demand.count_is_exact:
            return [False] * len(self.books)
        need = self.books[0].least_blocks(longest + 1)
        return [book.phase is ReplicaPhase.SERVING and need <= book.spec.usable_blocks for book in self.books]


def banks_of(books: list[Book]) -> list[Bank]:
    """Books grouped by what is alike."""
    groups: dict[BankKey, list[Book]] = {}
    for book in books:
        groups.setdefault(Bank.key(book), []).append(book)
    return [Bank(group) for group in groups.values()]
