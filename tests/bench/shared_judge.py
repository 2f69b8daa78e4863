"""Whether what proxies granted each other fits, judged outside the code under test.

The judge holds every row, grant, head and record of each replica as they were written to Redis (``tests.bench.shared_monitor`` reads
them off the wire) and adds them up anew, with arithmetic of its own, at every grant:

    M, V, C, K = sum over rows and grants, each read where the replica is now        s, b, z, usable: of the record in force
    Q(t) = min(M + z sqrt(V + K^2 + s^2), C + s) + b                                 fits: max over t of Q(t) <= usable

- A grant is *over* when the highest Q with it exceeds usable by more than a slack (``SLACK_SHARE``); a replica that held nothing takes
  anything, and while the store recovers from a loss each proxy keeps to its own share.
- A grant *passes a head by* when a head at another proxy that surely goes first (of a higher priority, of the same tenant with an earlier
  deadline, or of a tenant that was served less by what any of its heads tells) waited for the replica and fitted there, beside everybody
  before the grant and with the slack to spare, and had not been offered the room for as long as an offer lasts (``OFFER_S``). A reservation
  looks at the best ``LOOKED_AT`` heads that have not let an offer go by; a head behind those is counted apart (``grants_past_a_far_head``).
- A grant *delays* such a head that did not fit yet, and was never offered room, when with both of them Q exceeds usable by more than
  the slack at or after the step from which its proxy had promised it room.

When a sum is read. A row says of each 16 steps what is held at their end at most, so one that is read some steps earlier or later tells of
other ends: either way it is an upper bound, and the two differ by what a wave of requests grows meanwhile. The scripts keep their sum as it
reads at most ``FRAME_STEPS`` ago, and a row that is newer counts in it as if it began there: its blocks come and go up to that much too
early (``core.shared_sum`` says so). A grant is over only when, by that rule, it does not fit from any such step on. What it exceeds usable
by with the newer rows read where they are, exactly, is measured beside it (``excess_exact_blocks_max``): that is what the rule costs.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tests.bench.shared_verdict import Finding, Verdict

Array = NDArray[np.float64]

FIGURES = 6  # of a row, before its four curves
LEASES, SEQUENCES, LOW, HIGH = 0, 1, 2, 3
SLACK_BLOCKS, SLACK_SHARE = 1.0, 0.01  # the greater of the two: frames are four steps apart, and the sum's may lie between two
FRAME_STEPS, FRAMES = 16.0, 5
OFFER_S = 0.05
LOOKED_AT = 8


@dataclass(frozen=True, slots=True)
class Terms:
    """A record's figures that say what fits. Steps and seconds of the store's clock."""

    usable: float
    seats: float | None
    z: float
    sigma: float
    bias: float
    steps: float
    steps_per_s: float
    published_s: float

    def steps_at(self, now_s: float) -> float:
        """Where the replica is."""
        return self.steps + self.steps_per_s * max(0.0, now_s - self.published_s)


@dataclass(frozen=True, slots=True)
class Anchored:
    """A vector and the step from which it counts."""

    row: Array
    anchor: float


@dataclass(frozen=True, slots=True)
class Excess:
    """Blocks above usable: the least by the scripts' rule, the least and the most with every row read where it is."""

    kept: float
    exact: float
    most: float


def sum_of(rows: list[Array]) -> Array:
    """All of them together; there is one at least."""
    return np.add.reduce(rows)


@dataclass(slots=True)
class WaitingHead:
    """One head as it was published; ``since_s`` is when it, by that id, first waited here."""

    proxy: str
    head_id: str
    rank: tuple[float, ...]
    demand: Anchored | None  # what it asks for; written right after the head
    ready_steps: float
    since_s: float
    marked_s: float = -np.inf  # its offer, as written in the head
    passed: bool = False  # it let an offer go by, as written there
    offered_s: float | None = None  # when its proxy was first told of the offer that stands


def surely_first(one: tuple[float, ...], other: tuple[float, ...], told: list[tuple[float, ...]]) -> bool:
    """Whether a rank (priority, virtual time, deadline, tenant) goes first, whatever proxies have heard of the tenants' charges."""
    if (one[0], one[3]) == (other[0], other[3]):
        return one[2] < other[2]

    def virtuals(rank: tuple[float, ...]) -> list[float]:
        return [each[1] for each in told if (each[0], each[3]) == (rank[0], rank[3])]

    return one[0] < other[0] or (one[0] == other[0] and max(virtuals(one)) < min(virtuals(other)))


def places_of(heads: Iterable[WaitingHead], rank: tuple[float, ...]) -> dict[tuple[str, str], int]:
    """Where each head stands among those that have not let an offer go by: each tenant at the least virtual time that anybody tells."""
    heads = list(heads)
    least: dict[tuple[float, float], float] = {}
    for told in (*(one.rank for one in heads), *((rank,) if rank else ())):
        key = told[0], told[3]
        least[key] = min(told[1], least.get(key, np.inf))
    live = [one for one in heads if not one.passed]
    live.sort(key=lambda one: (one.rank[0], least[one.rank[0], one.rank[3]], one.rank[2], one.proxy, one.head_id))
    return {(one.proxy, one.head_id): place for place, one in enumerate(live)}


@dataclass(slots=True)
class JudgedReplica:
    """Everything written of one replica. ``ends`` are its grid's."""

    ends: Array
    terms: Terms
    rows: dict[str, Anchored] = field(default_factory=dict)
    grants: dict[tuple[str, int], Anchored] = field(default_factory=dict)
    heads: dict[tuple[str, str], WaitingHead] = field(default_factory=dict)
    steps: float = 0.0  # the furthest that the replica was said to be
    back_steps_max: float = 0.0  # by which a record once said less

    def steps_at(self, now_s: float) -> float:
        """Where the replica is; what it was said to have done stays done."""
        told = self.terms.steps_at(now_s)
        self.back_steps_max = max(self.back_steps_max, self.steps - told)
        self.steps = max(self.steps, told)
        return self.steps

    @property
    def slack_blocks(self) -> float:
        """What a grant may exceed usable by."""
        return max(SLACK_BLOCKS, SLACK_SHARE * self.terms.usable)

    def summed(self, now_s: float) -> Array:
        """Everything here, read where the replica is at ``now_s``."""
        total = np.zeros(FIGURES + 4 * len(self.ends))
        for one in (*self.rows.values(), *self.grants.values()):
            total += self.read(one, now_s)
        return total

    def excess(self, demand: Anchored, now_s: float) -> Excess:
        """By how much everything here and one more exceed usable, read from the steps in question."""
        now = self.steps_at(now_s)
        everything = [demand, *self.rows.values(), *self.grants.values()]
        kept, exact = [], []
        for step in np.linspace(now - FRAME_STEPS, now, FRAMES):
            kept.append(self.peak(sum_of([self.read_from(one, max(step, one.anchor)) for one in everything])))
            exact.append(self.peak(sum_of([self.read_from(one, step) for one in everything])))
        usable = self.terms.usable
        return Excess(min(kept) - usable, min(exact) - usable, max(exact) - usable)

    def read(self, one: Anchored, now_s: float) -> Array:
        """One vector, read at ``now_s``."""
        return self.read_from(one, self.steps_at(now_s))

    def read_from(self, one: Anchored, step: float) -> Array:
        """One vector, read from a step on: its curves that much later or earlier, its figures as they are."""
        at = self.ends + (step - one.anchor)
        curves = one.row[FIGURES:].reshape(4, -1)
        return np.concatenate([one.row[:FIGURES], *(np.interp(at, self.ends, curve) for curve in curves)])

    def levels(self, total: Array) -> Array:
        """Q(t) of a sum over the grid, in blocks."""
        terms = self.terms
        mean, variance, ceiling, common = total[FIGURES:].reshape(4, -1)
        spread = np.sqrt(np.maximum(0.0, variance) + common**2 + terms.sigma**2)
        return np.minimum(mean + terms.z * spread, ceiling + terms.sigma) + terms.bias

    def peak(self, total: Array) -> float:
        """The highest Q(t) of a sum, in blocks."""
        return float(self.levels(total).max())

    def excess_from(self, total: Array, head: "WaitingHead", now_s: float) -> float:
        """By how much a sum and a head that begins at its ready step exceed usable from then on; negative where they do not."""
        assert head.demand is not None
        ahead = max(0.0, head.ready_steps - self.steps_at(now_s))
        if ahead >= self.ends[-1]:
            return -self.terms.usable
        at = self.ends - ahead
        curves = [np.interp(at, self.ends, curve) for curve in head.demand.row[FIGURES:].reshape(4, -1)]
        levels = self.levels(total + np.concatenate([np.zeros(FIGURES), *curves]))
        return float(levels[self.ends > ahead].max()) - self.terms.usable

    def fits(self, head: "WaitingHead", before: Array, now_s: float) -> bool:
        """Whether a head certainly fits beside everything here, whichever step the sum is read from."""
        assert head.demand is not None
        seats = self.terms.seats
        if seats is not None and before[SEQUENCES] + head.demand.row[SEQUENCES] > seats:
            return False
        return self.excess(head.demand, now_s).most <= -self.slack_blocks


class Judge:
    """Told of what was written, in its order; says of every grant whether it fitted."""

    def __init__(self) -> None:
        self.replicas: dict[str, JudgedReplica] = {}
        self.verdict = Verdict()
        self.excused = False  # the store is recovering: proxies fill their own shares

    @property
    def clock_back_steps_max(self) -> float:
        """The most by which a replica's record once said less than one before it."""
        return max((known.back_steps_max for known in self.replicas.values()), default=0.0)

    def granted(self, replica: str, proxy: str, number: int, demand: Anchored, rank: tuple[float, ...], now_s: float) -> None:
        """A reservation was committed."""
        known = self.replicas[replica]
        before = known.summed(now_s)
        self.verdict.grants += 1
        if before[LEASES] < 0.5:
            self.verdict.grants_on_empty += 1
        elif not self.excused:
            excess = known.excess(demand, now_s)
            self.verdict.excess_blocks.append(excess.kept)
            self.verdict.excess_exact_blocks_max = max(self.verdict.excess_exact_blocks_max, excess.exact)
            if excess.kept > known.slack_blocks:
                self.verdict.over.append(Finding(now_s, replica, proxy, f"{before[LEASES]:g} leases before", excess.kept))
            self._look_at_heads(replica, proxy, rank, (before, before + known.read(demand, now_s)), now_s)
        known.grants[proxy, number] = demand

    def _look_at_heads(self, replica: str, proxy: str, rank: tuple[float, ...], sums: tuple[Array, Array], now_s: float) -> None:
        known, (before, after) = self.replicas[replica], sums
        told = [*(one.rank for one in known.heads.values()), rank]
        better = [
            one
            for one in known.heads.values()
            if one.proxy != proxy and one.demand is not None and surely_first(one.rank, rank, told)
        ]
        self.verdict.behind_heads += bool(better)
        places = places_of(known.heads.values(), rank)
        for one in better:
            offered_s = one.offered_s
            if one.passed:
                self.verdict.after_offers += 1
            elif places[one.proxy, one.head_id] >= LOOKED_AT:
                self.verdict.past_far_heads += int(known.fits(one, before, now_s))
            elif known.fits(one, before, now_s):
                if offered_s is not None and now_s - offered_s > OFFER_S:
                    self.verdict.after_offers += 1
                    continue
                asked = "was never offered it" if offered_s is None else f"was offered it {now_s - offered_s:.3f} s before"
                what = f"head {one.head_id} of {one.proxy} has waited {now_s - one.since_s:.3f} s, fitted and {asked}"
                self.verdict.passed_by.append(Finding(now_s, replica, proxy, what))
            elif offered_s is None and (excess := known.excess_from(after, one, now_s)) > known.slack_blocks:
                what = f"head {one.head_id} of {one.proxy} does not fit and is delayed"
                self.verdict.delayed.append(Finding(now_s, replica, proxy, what, excess))

    def offered(self, replica: str, proxy: str, now_s: float) -> None:
        """A proxy was told that there is room for a head of its own: the one in which an offer was written last, else its best."""
        waiting = [one for one in self.replicas[replica].heads.values() if one.proxy == proxy]
        if waiting:
            told = min(waiting, key=lambda one: (-one.marked_s, one.rank))
            told.offered_s = now_s if told.offered_s is None else told.offered_s

    def published(self, replica: str, head: WaitingHead) -> None:
        """A head was written: a new one, or the same again."""
        known = self.replicas[replica]
        old = known.heads.get((head.proxy, head.head_id))
        if old is not None:
            head.since_s, head.demand = old.since_s, old.demand
            head.offered_s = None if old.marked_s > head.marked_s else old.offered_s  # an offer taken back is none
        known.heads[head.proxy, head.head_id] = head

    def rewritten(self, replica: str, proxy: str, row: Anchored) -> None:
        """A proxy wrote its row anew."""
        self.verdict.rewrites += 1
        self.replicas[replica].rows[proxy] = row
