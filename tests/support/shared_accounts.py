"""The plain account of proxies that share a store: what each has sent, with no idea of how the store adds it up, and what must hold."""

from dataclasses import dataclass, field
from math import floor

import numpy as np
import pytest

from proxy.core.grid import FloatArray
from proxy.core.shared import LOAD_FIELDS, Head, Others, Rank, ReserveAsk
from proxy.core.shared_ledger import SharedLedger
from tests.support.shared_rows import ENDS, plain_peak

LEASE_S = 2.0
CLOSE = 1e-6


@dataclass
class Account:
    """What one proxy has on one replica, as it was sent."""

    epoch: int
    stamp_s: float
    upto: int = -1
    row: tuple[FloatArray, float] | None = None
    grants: dict[int, tuple[FloatArray, float]] = field(default_factory=dict)

    def rows(self) -> list[tuple[FloatArray, float]]:
        return [*([self.row] if self.row else []), *self.grants.values()]


def read_later(row: FloatArray, steps: float) -> FloatArray:
    """A row some steps after its anchor, point by point."""
    if steps <= 0.0:
        return row
    curves = row[LOAD_FIELDS:].reshape(4, -1)
    read = []
    for curve in curves:
        for start, end in zip([0.0, *ENDS[:-1]], ENDS, strict=True):
            across = [
                value
                for value, lower, upper in zip(curve, [0.0, *ENDS[:-1]], ENDS, strict=True)
                if lower < end + steps and upper > start + steps
            ]
            read.append(max(across, default=curve[-1]))
    return np.array([*row[:LOAD_FIELDS], *read])


class PlainAccounts:
    """Who has what where, beside a ledger."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0
        self.ledger = SharedLedger(LEASE_S)
        self.registered: dict[str, int] = {}
        self.accounts: dict[tuple[str, str], Account] = {}
        self.heads: dict[tuple[str, str], tuple[Head, float, bool]] = {}  # by replica and proxy: head, stamp, offered

    def total(self, replica: str, but: str = "") -> FloatArray:
        anchor = self.ledger.accounts[replica].anchor_steps
        rows = [row for (where, who), one in self.accounts.items() if where == replica and who != but for row in one.rows()]
        return sum((read_later(row, floor(anchor - at)) for row, at in rows), np.zeros(LOAD_FIELDS + 4 * len(ENDS)))

    def sweep(self, replica: str) -> None:
        """Before a call that counts: those whose lease has passed lose what they have, and their registration if that was something."""
        for key in [key for key in self.accounts if key[0] == replica]:
            one = self.accounts[key]
            if self.now_s - one.stamp_s > LEASE_S:
                if one.rows() and self.registered.get(key[1]) == one.epoch:
                    del self.registered[key[1]]
                del self.accounts[key]

    def balanced(self, replica: str) -> None:
        account = self.ledger.accounts[replica]
        assert set(account.entries) == {who for where, who in self.accounts if where == replica}
        assert account.total == pytest.approx(self.total(replica), abs=CLOSE)

    def others_told(self, others: Others | None, proxy: str) -> None:
        assert others is not None
        assert others.row == pytest.approx(self.total(others.replica, but=proxy), abs=CLOSE)

    def fits(self, replica: str, row: FloatArray, slack: float) -> bool:
        known = self.ledger.accounts[replica].record
        seats = known.sequences_max is None or row[1] <= known.sequences_max
        return seats and plain_peak(row, known) <= known.usable_blocks + slack

    def better_heads(self, one: ReserveAsk) -> list[tuple[Head, bool]]:
        alive = [
            (head, proxy, offered)
            for (replica, proxy), (head, stamp_s, offered) in self.heads.items()
            if replica == one.replica and self.now_s - stamp_s <= LEASE_S
        ]
        told = [one.rank, *(head.rank for head, _, _ in alive)]

        def place(rank: Rank) -> tuple[float, float, float]:
            of_tenant = [r.virtual for r in told if (r.minus_priority, r.tenant) == (rank.minus_priority, rank.tenant)]
            return rank.minus_priority, min(of_tenant), rank.start_by_s

        better = [(head, offered) for head, proxy, offered in alive if proxy != one.proxy and place(head.rank) < place(one.rank)]
        return sorted(better, key=lambda pair: place(pair[0].rank))
