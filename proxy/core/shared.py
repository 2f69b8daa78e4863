"""What proxies in front of the same replicas tell each other, and how it is written down.

Decides nothing: plain values. One proxy's account of one replica is its *row*, a vector of numbers, so that rows add up by adding numbers
and a script can add them without knowing what they mean:

    row = (LOAD_FIELDS figures of the present, then M(t), V(t), C(t), K(t) over the replica's grid)       shape (LOAD_FIELDS + 4 G,)

The curves are those of ``core.ledger``: mean, variance, ceiling and common error in blocks, counted from the row's *anchor*. A *grant* is
the same vector of one request, written when its place was taken and dropped when a rewrite of the row includes it. The *sum* of a replica
is all rows and all grants.

Steps and time. Proxies' own step clocks and own clocks differ; what they share is the replica's *record*, which says how many steps it had
done at a moment of the store's clock, and how many it does per second. Anchors are steps of that clock. A row is read ``shift`` steps
after its anchor by ``shifted``. A curve holds for each interval who lives at its beginning with the blocks at its end (``core.curves``),
so an interval that then lies across two of the row's reads the higher of both; past the horizon they stay as they are. (Read on a
straight line between the ends, requests faded out before they reached their caps: 25 to 50 preemptions per 1,000 where one proxy had none.)

Fails: with one more proxy than there are, or with rates that differ from the record's, anchors are off by the difference times the age of
a row, which is a fraction of a second unless its proxy has stopped.
"""

from dataclasses import dataclass
from enum import StrEnum
from math import inf
from typing import NamedTuple
from zlib import crc32

import numpy as np

from proxy.core.grid import FloatArray, Grid
from proxy.core.replica import ReplicaPhase

Amounts = tuple[float, ...]  # sequences, M, V, C and K at their highest


class Load(NamedTuple):
    """A row's figures of the present; those of several rows add up."""

    leases: float = 0.0
    sequences: float = 0.0
    low_blocks: float = 0.0  # certainly held at the anchor
    high_blocks: float = 0.0  # held at the anchor at most
    growth_blocks_per_step: float = 0.0  # by which both grow while its sequences decode
    prefill_tokens: float = 0.0  # sent and not known to be computed


LOAD_FIELDS = len(Load._fields)


def row_of(load: Load, curves: FloatArray) -> FloatArray:
    """One row from its figures and its curves (4, G)."""
    row = np.empty(LOAD_FIELDS + curves.size)
    row[:LOAD_FIELDS] = load
    row[LOAD_FIELDS:] = curves.reshape(-1)
    return row


def level_row(load: Load, amounts: Amounts, points: int) -> FloatArray:
    """One row whose curves are the same at every step of a grid of so many points."""
    row = np.empty(LOAD_FIELDS + 4 * points)
    row[:LOAD_FIELDS] = load
    for curve, amount in zip(curves_of(row), amounts, strict=True):
        curve.fill(amount)
    return row


class Level(NamedTuple):
    """A row of one request that is the same at every step (``level_row``), not made yet: most go by an advance and need none."""

    load: Load
    amounts: Amounts
    points: int

    def row(self) -> FloatArray:
        """The row itself."""
        return level_row(self.load, self.amounts[1:], self.points)


def load_of(row: FloatArray) -> Load:
    """The figures of a row."""
    return Load(*row[:LOAD_FIELDS].tolist())


def curves_of(row: FloatArray) -> FloatArray:
    """The curves of a row: (4, G), a view."""
    return row[LOAD_FIELDS:].reshape(4, -1)


def read_at(row: FloatArray, steps: float, ends: FloatArray) -> FloatArray:
    """The row as it reads ``steps`` after its anchor, or before it where that is negative, on a grid with these ends."""
    last, later = len(ends) - 1, ends + steps
    starts = np.empty_like(later)
    starts[0], starts[1:] = steps, later[:-1]
    begins = np.minimum(ends.searchsorted(starts, side="right"), last)
    closes = np.minimum(ends.searchsorted(later, side="left"), last)
    curves, read = curves_of(row), row.copy()
    np.maximum(curves.take(begins, axis=1), curves.take(closes, axis=1), out=curves_of(read))
    return read


def shifted(row: FloatArray, steps: float, grid: Grid) -> FloatArray:
    """The row as it reads ``steps`` after its anchor; the very same where that is not after it. Its figures stay as they are."""
    return row if steps <= 0.0 else read_at(row, steps, grid.ends)


class Rank(NamedTuple):
    """Who goes first, whichever proxy it waits at: the least, once all of a tenant are at one virtual time (``core.shared_heads``).

    ``virtual`` is its tenant's token-time per weight, as far as its proxy has heard.
    """

    minus_priority: float
    virtual: float
    start_by_s: float  # by the store's clock
    tenant: float = 0.0  # the same number for the same tenant: ``tenant_number``

    @property
    def waits(self) -> tuple[float, float, float]:
        """What stays the same for as long as a request waits."""
        return self.minus_priority, self.tenant, self.start_by_s


LAST = Rank(inf, inf, inf)  # after everybody who waits


def tenant_number(tenant: str) -> float:
    """A number that every proxy has for a tenant. Two of one number are ranked as one; they are still charged apart."""
    return float(crc32(tenant.encode()))


class Answer(StrEnum):
    """What became of a reservation."""

    GRANTED = "granted"
    ROOM = "room"  # it does not fit beside what all proxies have there
    SEATS = "seats"  # no sequence slots are left
    HEAD = "head"  # somebody better placed waits for this room
    FENCED = "fenced"  # the proxy had been given up: it must register anew
    STALE = "stale"  # a rewrite sent later than this reservation has been there first
    RECOVERING = "recovering"  # the store lost its rows: no more than its last share is to be had
    UNKNOWN = "unknown"  # no record of the replica


@dataclass(frozen=True, slots=True)
class Others:
    """What the other proxies have on a replica: the sum of their rows and grants, counted from ``anchor_steps``."""

    replica: str
    row: FloatArray
    anchor_steps: float

    @property
    def somebody(self) -> bool:
        """Whether they have any lease; what is left without one is rounding."""
        return bool(self.row[0] >= 0.5)


@dataclass(frozen=True, slots=True)
class Record:
    """What all proxies hold of one replica, published by the one that scrapes it. Blocks, steps, seconds of the store's clock."""

    replica: str
    holder: str
    number: int  # of the publication; rises
    engine_epoch: int
    phase: ReplicaPhase
    published_s: float
    steps: float  # done at ``published_s``
    steps_per_s: float
    usable_blocks: int
    sequences_max: int | None
    z: float
    sigma_blocks: float
    bias_blocks: float
    burst_until_s: float
    measured_blocks: float | None
    running: int | None
    waiting: int | None
    preemptions_total: int
    sampled_s: float | None = None  # when the engine was looked at; the rest is what it told then
    waiting_for_room: int | None = None
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    prefix_hits_tokens_total: float | None = None

    def steps_at(self, store_s: float) -> float:
        """The replica's steps at a moment of the store's clock."""
        return self.steps + self.steps_per_s * max(0.0, store_s - self.published_s)


@dataclass(frozen=True, slots=True)
class Head:
    """The first of one band at one proxy, waiting for one replica."""

    head_id: str  # of the request; the same for as long as the same one waits
    rank: Rank
    row: FloatArray  # of the request, were it admitted at ``anchor_steps``
    anchor_steps: float
    ready_steps: float  # from which its proxy has promised it room; infinite: from no step within the horizon


@dataclass(frozen=True, slots=True)
class ReserveAsk:
    """One request's place on a replica, asked for by a proxy. Steps are of the replica's record."""

    replica: str
    proxy: str
    epoch: int
    number: int  # the proxy's own count of its reservations: rises, from 1
    row: FloatArray  # of the request alone
    anchor_steps: float  # from which ``row`` counts: now
    rank: Rank
    own_share_blocks: float  # what the proxy may fill while the store is recovering


@dataclass(frozen=True, slots=True)
class ReserveReply:
    """What became of it, and by which moment of the store's clock. ``others`` is told where the request was refused for them.

    ``free_blocks`` is usable less the highest Q of everybody there: without a request that was refused, and negative where they are over
    it; with one that was granted, and zero where anybody waits for the replica.
    """

    answer: Answer
    store_s: float
    others: Others | None = None
    free_blocks: float = 0.0
    retry_s: float = 0.0  # when it is worth asking again, where the answer knows


@dataclass(frozen=True, slots=True)
class RewriteAsk:
    """A proxy's account of a replica, written anew."""

    replica: str
    proxy: str
    epoch: int
    upto: int  # what became of its reservations up to this number is in the row, 0: none; later grants stay beside it
    row: FloatArray | None  # None: it has nothing there. A row of no leases has no curves
    anchor_steps: float
    record_number: int = 0  # of the record the proxy has
    proxies_known: int = 1  # how many proxies it last knew, itself included


@dataclass(frozen=True, slots=True)
class RewriteReply:
    """``record`` is None where the proxy has it already; ``others`` where the answer is not GRANTED."""

    answer: Answer  # GRANTED, FENCED, STALE (a later rewrite has been there) or UNKNOWN (no record, or rows of another grid)
    store_s: float
    others: Others | None = None
    record: Record | None = None
    offered: tuple[str, ...] = ()  # proxies whose heads were told that there is room now
