"""The book of what one replica holds and will hold for requests that went through us.

One *row* per prompt part of each lease, in parallel arrays; the replica's forecast is the sum of its rows' curves plus the runs of
blocks that several rows share. Sums are refreshed when the step clock has moved (``refresh``), and adjusted in between when a lease
comes or goes, so a decision costs O(grid) however many requests are in flight.

A lease is *sent* (the engine may not have seen it), *placed* (it holds blocks), and ends exactly once. Placement is certain from the
first streamed token; for answers that are not streamed it is inferred from the engine's count of running requests.

Fails: progress of answers that are not streamed is the step clock's guess until they end.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import inf

import numpy as np

from proxy.core.curves import LEAD_STEPS, Curves, RowStates, blocks_held, cap_ends, curves_of
from proxy.core.demand import Demand
from proxy.core.grid import FloatArray, Grid
from proxy.core.pacing import CapEnds
from proxy.core.prefix import SharedBlocks
from proxy.core.survival import SurvivalModel

CurveCache = dict[tuple["Ledger", int], tuple[Curves, FloatArray]]  # by ledger and survival version: summed curves, alive rows

ROWS_START = 64
CURVES_CACHED_MAX = 64  # replicas looked at for one waiting request
ENDED_MAX = 256
PREFILL_DELAY_STEPS = 2.0  # a placed request decodes from the next step on; one being sent needs one or two more


@dataclass(slots=True, eq=False)
class Lease:
    """One promise of blocks. ``output_tokens`` counts over all its sequences and is written by the relay as it looks on."""

    lease_id: str
    demand: Demand
    replica: str
    output_tokens_max: int  # per sequence, after the context's clamp
    sent_s: float
    sent_steps: float
    streaming: bool = False
    output_tokens: int = 0
    placed: bool = False
    placed_s: float = -inf  # when it was seen to be
    ended: bool = False
    output_tokens_forecast: float = 0.0
    cached_tokens: int = 0  # of the prompt, expected in the replica's prefix cache when it was sent
    rows: list[int] = field(default_factory=list)


class Ledger:
    """Leases of one replica and their demand. Blocks are the engine's; steps are the replica's decode steps."""

    def __init__(self, block_size: int, grid: Grid, model: SurvivalModel) -> None:
        assert block_size >= 1, block_size
        self.block_size = block_size
        self.leases: dict[str, Lease] = {}
        self.sequences = 0
        self._grid = grid
        self.model = model
        self._shared = SharedBlocks()
        self._free: list[int] = []
        self._used = 0
        self._fields = np.zeros((7, ROWS_START))
        self._classes = np.zeros(ROWS_START, dtype=np.intp)
        self._live = np.zeros(ROWS_START, dtype=bool)
        self._rows = np.zeros((4, ROWS_START, len(grid)))
        self._alive = np.zeros((ROWS_START, len(grid)))
        self._owner: dict[int, Lease] = {}
        self._sums = np.zeros((4, len(grid)))
        self.total = Curves.zero(len(grid))
        self.ended: deque[tuple[float, float]] = deque(maxlen=ENDED_MAX)  # (when, blocks held) of the last leases that ended
        self._cap_ends: CapEnds | None = None

    def __repr__(self) -> str:
        """Counts for people and tests."""
        placed = sum(lease.placed for lease in self.leases.values())
        return f"<Ledger leases={len(self.leases)} placed={placed} sequences={self.sequences} shared={len(self._shared)}>"

    # ---- rows

    def candidate(self, demand: Demand, output_tokens_max: int) -> RowStates:
        """Row states of a request that is not here yet."""
        count = len(demand.parts)
        return RowStates(
            prompt_tokens=np.fromiter((part.tokens for part in demand.parts), np.float64, count),
            output_tokens=np.zeros(count),
            output_tokens_max=np.full(count, float(output_tokens_max)),
            copies=np.full(count, float(demand.copies)),
            delay_steps=np.full(count, PREFILL_DELAY_STEPS),
            error_ratio=np.full(count, self.model.error_ratio(demand)),
            shares_prefix=np.full(count, float(demand.shares_prefix)),
            classes=np.full(count, self.model.leaf(demand), dtype=np.intp),
        )

    def demand_curves(self, demand: Demand, output_tokens_max: int, cache: CurveCache | None = None) -> Curves:
        """What admitting ``demand`` adds to this replica's forecast, blocks already held by others not counted twice.

        ``cache`` belongs to the request: its own curves are computed once for each state of the survival model.
        """
        key = (self, self.model.version)
        cached = None if cache is None else cache.get(key)
        if cached is None:
            curves, living = curves_of(self.candidate(demand, output_tokens_max), self._grid, self.model, self.block_size)
            cached = curves.total(), living
            if cache is not None:
                if len(cache) >= CURVES_CACHED_MAX:
                    cache.clear()
                cache[key] = cached
        added, living = cached
        if not demand.shares_prefix or not len(self._shared):
            return added
        added = Curves(*(curve.copy() for curve in added.arrays()))
        for index, part in enumerate(demand.parts):
            hits = self._shared.hits(part.block_hashes, (part.tokens - 1) // self.block_size)
            if hits:
                self._take_off_shared(added, part.block_hashes[:hits], living[index])
        return added

    def _take_off_shared(self, added: Curves, hashes: Iterable[int], living: FloatArray) -> None:
        """Subtract the part of the candidate's blocks that its sharers are expected to hold anyway."""
        for members, blocks in self._shared.sharers(hashes).items():
            others = 1.0 - np.prod(1.0 - self._alive[list(members)], axis=0)
            held = blocks * living * others
            added.mean -= held
            added.ceiling -= np.minimum(blocks * (others > 0.0), added.ceiling)

    def add(self, lease: Lease) -> None:
        """Book a lease that was just reserved."""
        assert lease.lease_id not in self.leases, lease.lease_id
        rows = self.candidate(lease.demand, lease.output_tokens_max)
        self.leases[lease.lease_id] = lease
        self.sequences += lease.demand.sequences
        for index, part in enumerate(lease.demand.parts):
            row = self._take_row()
            lease.rows.append(row)
            self._owner[row] = lease
            prompt, cap, copies = rows.prompt_tokens[index], rows.output_tokens_max[index], rows.copies[index]
            shares = rows.shares_prefix[index]
            self._fields[:, row] = (prompt, 0.0, cap, copies, PREFILL_DELAY_STEPS, rows.error_ratio[index], shares)
            self._classes[row] = rows.classes[index]
            self._live[row] = True
            hashes = part.block_hashes if lease.demand.shares_prefix else ()
            self._shared.add(row, hashes, (part.tokens - 1) // self.block_size)
        rows_new = np.asarray(lease.rows)
        self._recompute(rows_new)
        self._sums += self._rows[:, rows_new].sum(axis=1)
        self._sum_up()

    def remove(self, lease_id: str, now_s: float | None = None) -> Lease | None:
        """Take a lease out of the book; None when it is not in it. What it held at ``now_s`` is kept for comparisons with the past."""
        lease = self.leases.pop(lease_id, None)
        if lease is None:
            return None
        if now_s is not None:
            self._fields[1, lease.rows] = self.tokens_out(lease, lease.sent_steps)
            held = float(blocks_held(self._states(np.asarray(lease.rows)), LEAD_STEPS, self.block_size).sum())
            self.ended.append((now_s, held))
        self.sequences -= lease.demand.sequences
        self._sums -= self._rows[:, lease.rows].sum(axis=1)
        self._live[lease.rows] = False
        self._rows[:, lease.rows] = self._alive[lease.rows] = 0.0
        for row in lease.rows:
            self._shared.remove(row)
            del self._owner[row]
            self._free.append(row)
        self._sum_up()
        return lease

    def clear(self) -> list[Lease]:
        """A new engine epoch: everything it held is gone."""
        return [lease for lease_id in list(self.leases) if (lease := self.remove(lease_id)) is not None]

    def _take_row(self) -> int:
        if self._free:
            return self._free.pop()
        if self._used == len(self._live):
            more = self._used
            self._fields = np.concatenate((self._fields, np.zeros((7, more))), axis=1)
            self._classes = np.concatenate((self._classes, np.zeros(more, dtype=np.intp)))
            self._live = np.concatenate((self._live, np.zeros(more, dtype=bool)))
            self._rows = np.concatenate((self._rows, np.zeros((4, more, len(self._grid)))), axis=1)
            self._alive = np.concatenate((self._alive, np.zeros((more, len(self._grid)))))
        self._used += 1
        return self._used - 1

    # ---- curves

    def _states(self, rows: np.ndarray[tuple[int], np.dtype[np.intp]]) -> RowStates:
        prompt, out, cap, copies, delay, error, shares = self._fields[:, rows]
        return RowStates(prompt, out, cap, copies, delay, error, shares, self._classes[rows])

    def _recompute(self, rows: np.ndarray[tuple[int], np.dtype[np.intp]]) -> None:
        curves, living = curves_of(self._states(rows), self._grid, self.model, self.block_size)
        for plane, curve in enumerate(curves.arrays()):
            self._rows[plane, rows] = curve
        self._alive[rows] = living

    def cap_ends(self) -> CapEnds:
        """When blocks come free because requests reach their caps."""
        if self._cap_ends is None:
            rows = np.flatnonzero(self._live[: self._used])
            steps, blocks, reach = cap_ends(self._states(rows), self.model, self.block_size)
            self._cap_ends = CapEnds(steps, blocks * reach)
        return self._cap_ends

    def _sum_up(self) -> None:
        """Totals over rows, then what shared runs were counted too often."""
        self._cap_ends = None
        self.total = Curves(*self._sums.copy())
        for blocks, members in self._shared.runs():
            living = self._alive[list(members)]
            any_alive = 1.0 - np.prod(1.0 - living, axis=0)
            possible = (living > 0.0).sum(axis=0)
            self.total.mean -= blocks * (living.sum(axis=0) - any_alive)
            self.total.ceiling -= blocks * np.maximum(possible - 1, 0)

    def refresh(self, steps_now: float) -> None:
        """Move every row to what is known of its progress at step ``steps_now`` and recompute the forecast."""
        rows = np.flatnonzero(self._live[: self._used])
        if not len(rows):
            return
        for row in rows:
            lease = self._owner[int(row)]
            self._fields[1, row] = self.tokens_out(lease, steps_now)
            self._fields[4, row] = 0.0 if lease.placed else PREFILL_DELAY_STEPS
        self._recompute(rows)
        self._sums = self._rows[:, : self._used].sum(axis=1)
        self._sum_up()

    @staticmethod
    def tokens_out(lease: Lease, steps_now: float) -> float:
        """Output tokens of one sequence of a lease, below its cap: seen on the stream, else the step clock's guess."""
        if lease.streaming:
            tokens = lease.output_tokens / lease.demand.sequences
        else:
            tokens = max(0.0, steps_now - lease.sent_steps - PREFILL_DELAY_STEPS)  # at most: it may not be placed yet
        return min(tokens, lease.output_tokens_max - 1.0)

    def running(self) -> list[tuple[int, float]]:
        """(survival class row, tokens out) of every sequence, for the survival model's exposure."""
        return [(int(self._classes[row]), float(self._fields[1, row])) for row in np.flatnonzero(self._live[: self._used])]

    # ---- now

    def held_interval(
        self, steps_now: float, lag_steps: float, *, behind_steps: float = 0.0, since_s: float = inf, running: int | None = None
    ) -> tuple[float, float]:
        """Blocks the engine held at an instant between ``since_s`` and now: [placed, placed + unplaced].

        The lower end leaves out what was placed after ``since_s`` and takes tokens ``behind_steps`` back. The upper end allows for
        ``lag_steps`` the engine may be ahead of what we have seen of its streams, and for what ended after ``since_s``. Where the engine
        runs fewer sequences (``running``) than we know to be decoding, the youngest hold nothing: it preempts those first.
        """
        gone = sum(blocks for ended_s, blocks in self.ended if ended_s >= since_s)
        rows = np.flatnonzero(self._live[: self._used])
        if not len(rows):
            return 0.0, gone
        owners = [self._owner[int(row)] for row in rows]
        known = self._decoding(since_s, running)
        placed = np.fromiter((lease.lease_id in known for lease in owners), dtype=bool, count=len(rows))
        for row, lease in zip(rows, owners, strict=True):
            self._fields[1, row] = self.tokens_out(lease, steps_now)
        states = self._states(rows)
        shared = self._shared_now(dict(zip((int(row) for row in rows), placed, strict=True)))
        low = float(blocks_held(states, -behind_steps, self.block_size)[placed].sum()) - shared[0]
        high = float(blocks_held(states, lag_steps, self.block_size).sum()) - shared[1] + gone
        return max(0.0, low), max(0.0, high)

    def _decoding(self, since_s: float, running: int | None) -> set[str]:
        """Leases certain to have held blocks: placed before ``since_s``, and no more of them than the engine runs, the oldest first."""
        known: set[str] = set()
        room = inf if running is None else running
        for lease in self.leases.values():  # in the order of sending
            if lease.placed and lease.placed_s < since_s:
                room -= lease.demand.sequences
                if room < 0:
                    break
                known.add(lease.lease_id)
        return known

    def unsettled(self, since_s: float, running: int | None) -> int:
        """Leases that came or went after ``since_s``, or are not known to hold blocks: what makes the interval one."""
        gone = sum(ended_s >= since_s for ended_s, _ in self.ended)
        return len(self.leases) - len(self._decoding(since_s, running)) + gone

    def _shared_now(self, placed: dict[int, bool]) -> tuple[float, float]:
        """Blocks counted more than once: among the placed rows, among all rows."""
        among_placed = among_all = 0.0
        for blocks, members in self._shared.runs():
            among_all += blocks * (len(members) - 1)
            among_placed += blocks * max(0, sum(placed[row] for row in members) - 1)
        return among_placed, among_all
