"""The account of one replica as the store keeps it: every proxy's row, its grants since, their total, and whether one more fits.

Formula. With the total's anchor A, rows and grants x anchored at a_x,

    total = sum over x of shifted(x, [A - a_x])               fits:  max over t of Q(total + newcomer)(t) <= usable

with [] the whole steps in it, so that rows of an age are read at the same points. Q is that of ``core.risk`` with the margin z, spread s
and bias b of the replica's record: means and variances are summed first, what holds for the replica is applied once. Seats: sequences +
newcomer's <= sequences_max. A replica that holds nothing (no lease, bias below one block) takes anything, as invariant 4 has it; whoever
asks has checked that the prompt and one token fit.

The total is kept, not summed: a rewrite takes the old row out as it was counted and puts the new one in. It is made anew (``rebuild``)
``ANCHOR_STEPS`` steps or ``REBUILD_S`` seconds after the last time, or when a lease may have passed, whichever is first. Then A moves to
now, what no proxy has renewed for a lease is dropped, and rounding begins at nothing. A row newer than A counts as it is, so it ends up
to ``ANCHOR_STEPS`` steps early in the total; ``core.ledger`` says why a sum some steps old is safe.

Fails: a proxy that stops without a word counts for one lease; a row whose proxy lives but does not rewrite grows only as its curve said.
"""

from dataclasses import dataclass, field
from math import floor

import numpy as np

from proxy.core.grid import FloatArray
from proxy.core.risk import Risk, level_of, peak_of
from proxy.core.shared import LOAD_FIELDS, Others, Record, curves_of, read_at

ANCHOR_STEPS = 16.0
REBUILD_S = 2.0  # only where steps are slow, or the step clock went back
FIT_SLACK_BLOCKS = 1e-6  # sums of the same rows in another order differ by rounding
LEASES, SEQUENCES = 0, 1  # of a row's figures


@dataclass(slots=True)
class Entry:
    """One proxy's part of a replica. Anchors in steps of the record."""

    epoch: int
    stamp_s: float  # of its last rewrite or grant
    upto: int = -1  # -1: not rewritten yet
    row: FloatArray | None = None
    anchor_steps: float = 0.0
    grants: dict[int, tuple[FloatArray, float]] = field(default_factory=dict)  # number: row, anchor


class ReplicaAccount:
    """Rows of one replica. Times by the store's clock, steps by the record's."""

    def __init__(self, record: Record, ends: FloatArray) -> None:
        self.record = record
        self.holder, self.held_until_s = "", 0.0  # who may scrape the replica
        self.ends = ends
        self.starts = np.concatenate(([0.0], ends[:-1]))
        self.clear()

    def clear(self) -> None:
        """Forget all rows."""
        self.entries: dict[str, Entry] = {}
        self.total = np.zeros(LOAD_FIELDS + 4 * len(self.ends))
        self.anchor_steps, self.rebuilt_s = 0.0, -np.inf
        self.expires_s = np.inf  # no proxy's lease passes before, unless it is renewed

    def __repr__(self) -> str:
        """Counts for people and tests."""
        grants = sum(len(entry.grants) for entry in self.entries.values())
        return f"<ReplicaAccount {self.record.replica} proxies={len(self.entries)} grants={grants} leases={self.total[LEASES]:g}>"

    # ---- the total

    def counted(self, row: FloatArray, anchor_steps: float) -> FloatArray:
        """A row as it counts in the total."""
        late = floor(self.anchor_steps - anchor_steps)
        return read_at(row, late, self.ends) if late > 0.0 else row

    def rebuild_if_due(self, now_s: float, lease_s: float) -> list[tuple[str, int]]:
        """Make the total anew where it is time. Returns who was dropped with something to its name: proxy and epoch."""
        steps = self.record.steps_at(now_s)
        early = steps < self.anchor_steps + ANCHOR_STEPS and self.rebuilt_s <= now_s < self.rebuilt_s + REBUILD_S
        if early and now_s <= self.expires_s:
            return []
        gone = [proxy for proxy, entry in self.entries.items() if abs(now_s - entry.stamp_s) > lease_s]
        dropped = [(proxy, self.entries.pop(proxy)) for proxy in gone]
        self.anchor_steps, self.rebuilt_s = steps, now_s
        self.expires_s = min((entry.stamp_s for entry in self.entries.values()), default=now_s) + lease_s
        self.total = np.zeros_like(self.total)
        for entry in self.entries.values():
            self.total += self.own(entry)
        return [(proxy, entry.epoch) for proxy, entry in dropped if entry.row is not None or entry.grants]

    def own(self, entry: Entry) -> FloatArray:
        """What one proxy has in the total: a new array."""
        own = np.zeros_like(self.total)
        if entry.row is not None:
            own += self.counted(entry.row, entry.anchor_steps)
        for row, anchor in entry.grants.values():
            own += self.counted(row, anchor)
        return own

    def _settle(self) -> None:
        if self.total[LEASES] < 0.5:
            self.total = np.zeros_like(self.total)  # nothing is left of rounding either

    def others(self, proxy: str) -> Others:
        """What the others have here."""
        entry = self.entries.get(proxy)
        return Others(self.record.replica, self.total - self.own(entry) if entry else self.total.copy(), self.anchor_steps)

    def grant(self, proxy: str, epoch: int, number: int, row: FloatArray, anchor_steps: float, now_s: float) -> None:
        """Write a reservation down."""
        entry = self.entries.setdefault(proxy, Entry(epoch, now_s))
        entry.epoch, entry.stamp_s = epoch, now_s
        entry.grants[number] = row.copy(), anchor_steps
        self.total = self.total + self.counted(row, anchor_steps)

    def rewrite(self, proxy: str, epoch: int, upto: int, row: FloatArray | None, anchor_steps: float, now_s: float) -> None:
        """Put a proxy's row in the place of its old one and of its grants up to ``upto``."""
        entry = self.entries.setdefault(proxy, Entry(epoch, now_s))
        before = self.own(entry)
        entry.epoch, entry.stamp_s, entry.upto = epoch, now_s, upto
        entry.row, entry.anchor_steps = None if row is None else row.copy(), anchor_steps
        for number in [number for number in entry.grants if number <= upto]:
            del entry.grants[number]
        self.total = self.total - before + self.own(entry)
        self._settle()

    def forget(self, proxy: str) -> None:
        """Take a proxy out."""
        entry = self.entries.pop(proxy, None)
        if entry is not None:
            self.total = self.total - self.own(entry)
            self._settle()

    def rewritten(self) -> int:
        """Proxies whose account of the replica is here."""
        return sum(entry.upto >= 0 for entry in self.entries.values())

    # ---- what fits

    @property
    def empty(self) -> bool:
        """Whether the replica holds nothing, for invariant 4."""
        return self.total[LEASES] < 0.5 and self.record.bias_blocks < 1.0

    def shaped(self, row: FloatArray | None) -> bool:
        """Whether a row is of this replica's grid."""
        return row is None or row.shape == self.total.shape

    def seats_free(self, sequences: float) -> bool:
        """Whether so many more sequences have a slot."""
        most = self.record.sequences_max
        return most is None or self.total[SEQUENCES] + sequences <= most + FIT_SLACK_BLOCKS

    def free_blocks(self, newcomer: FloatArray | None = None) -> float:
        """Usable less the highest Q of everybody here and the newcomer, as it counts in the total."""
        record = self.record
        row = self.total if newcomer is None else self.total + newcomer
        risk = Risk(record.z, record.sigma_blocks, record.bias_blocks)
        return record.usable_blocks - peak_of(curves_of(row).copy(), risk)

    def fits(self, newcomer: FloatArray) -> bool:
        """Whether a newcomer's blocks fit, as it counts in the total."""
        return self.free_blocks(newcomer) >= -FIT_SLACK_BLOCKS

    def fits_share(self, proxy: str, newcomer: FloatArray, share_blocks: float) -> bool:
        """Whether a proxy stays within its share by its own account alone."""
        entry = self.entries.get(proxy)
        row = newcomer + self.own(entry) if entry else newcomer
        peak = peak_of(curves_of(row).copy(), Risk(self.record.z, 0.0, 0.0))
        return peak <= share_blocks + FIT_SLACK_BLOCKS

    def fits_beside(self, newcomer: FloatArray, head: FloatArray, ready_steps: float) -> bool:
        """Whether a newcomer leaves a head, which starts at ``ready_steps``, its room from then on."""
        ahead = max(0.0, ready_steps - self.anchor_steps)
        if ahead > self.ends[-1]:
            return True
        first = int(np.searchsorted(self.starts, ahead, side="right")) - 1
        record = self.record
        sums = curves_of(self.total + newcomer + read_at(head, -ahead, self.ends)).copy()
        sums += Risk(record.z, record.sigma_blocks, record.bias_blocks).offsets
        return float(level_of(sums, record.z)[first:].max()) <= record.usable_blocks + FIT_SLACK_BLOCKS


def stamp_ms(now_s: float) -> int:
    """Whole milliseconds of the store's clock: numbers made from it rise across a loss of everything else."""
    return floor(now_s * 1000.0)
