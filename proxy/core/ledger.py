"""The book of what one replica holds and will hold for requests that went through us.

One *row* per prompt part of each lease (``core.lease_rows``); the replica's forecast is the sum of its rows' curves plus the runs of
blocks that several rows share. A decision only reads the sums. They are adjusted when a lease comes or goes and made anew off the
decision (``refresh``), so a decision costs O(grid) however many requests are in flight.

Why a sum some steps old is safe. All curves of a ledger count steps from its *anchor*, the step of the last refresh. A sequence that
does a token per step follows the curve it had at the anchor, so the sum is not a forecast gone stale but the same forecast read in
absolute steps: an interval's blocks are those at its end, which has not come yet. What is read late errs upwards: a row that advances
slower than the clock ends later than its curve says but is still counted in the first interval, one that ended is taken out at once.
A lease booked ``ahead`` steps after the anchor is taken as growing from the anchor on and as living ``ahead`` steps longer.

A lease is *sent* (the engine may not have seen it), *placed* (it holds blocks), and ends exactly once. Placement is certain from the
first streamed token; for answers that are not streamed it is inferred from the engine's count of running requests.

Fails: progress of answers that are not streamed is the step clock's guess until they end; a clock that runs faster than before (the
batch shrank) makes ``ahead`` too small by the difference until the next refresh.
"""

from math import ceil, exp, inf

import numpy as np
from numpy.typing import NDArray

from proxy.core.curves import LEAD_STEPS, Curves, blocks_held, blocks_most
from proxy.core.demand import Demand
from proxy.core.grid import FloatArray, Grid
from proxy.core.kv_shape import KvShape
from proxy.core.lease import Lease, Leases
from proxy.core.lease_rows import LeaseRows
from proxy.core.newcomers import CurveCache, Newcomer, Newcomers
from proxy.core.pacing import CapEnds
from proxy.core.peers import Peers
from proxy.core.refresh import THOROUGH_EVERY, refresh_rows
from proxy.core.shared_demand import SharedDemand
from proxy.core.step_clock import Streams
from proxy.core.survival import SurvivalModel

PREFILL_DELAY_STEPS = 2.0  # a placed request decodes from the next step on; one being sent needs one or two more


__all__ = ["Lease", "Ledger"]


class Ledger(Leases):
    """Leases of one replica and their demand. Blocks are the engine's; steps are the replica's decode steps."""

    def __init__(self, shape: KvShape, grid: Grid, model: SurvivalModel, newcomers: Newcomers | None = None) -> None:
        super().__init__()
        self.shape, self.block_size = shape, shape.block_size
        self.model = model
        self.newcomers = Newcomers(grid, model, shape) if newcomers is None else newcomers
        self.anchor_steps = 0.0
        self._refreshes = 0
        self.changes = 0  # how often ``totals`` was made anew
        self.rows = LeaseRows(len(grid))
        self._grid = grid
        self._shared = SharedDemand(self.rows, shape, len(grid))
        self.sums = np.zeros((4, len(grid)))  # as ``totals``, were no block shared
        self.totals = np.zeros((4, len(grid)))  # mean, variance, ceiling and common of everything here, others' included
        self.peers: Peers | None = None  # what other proxies have here, where there are others
        self.own_changes = 0  # how often what we have here came to be another

    def __repr__(self) -> str:
        """Counts for people and tests."""
        placed = sum(lease.placed for lease in self.leases.values())
        return f"<Ledger leases={len(self.leases)} placed={placed} sequences={self.sequences} shared={len(self._shared)}>"

    @property
    def occupied(self) -> bool:
        """Whether anybody has anything here."""
        return bool(self.leases) or (self.peers is not None and self.peers.load.leases >= 0.5)

    @property
    def sequences_of_others(self) -> int:
        """Sequences of the other proxies' requests."""
        return 0 if self.peers is None else round(self.peers.load.sequences)

    @property
    def sequences_total(self) -> int:
        """Sequences of everybody's requests, ours and other proxies'."""
        return self.sequences + self.sequences_of_others

    def told(self, row: FloatArray, anchor_steps: float) -> None:
        """Other proxies have ``row`` here, counted from ``anchor_steps`` of our clock; from now on it is in every sum."""
        if self.peers is None:
            self.peers = Peers(self._grid)
        self.peers.told(row, anchor_steps)
        if not self.leases:
            self.anchor_steps = max(self.anchor_steps, anchor_steps)  # nothing of ours is counted from an earlier one
        self._sum_up(ours=False)

    def reshape(self, shape: KvShape) -> None:
        """What a request holds was learned anew: forecasts count by it from now on, sums from the next refresh."""
        self.shape = shape
        self.newcomers = Newcomers(self._grid, self.model, shape)

    @property
    def total(self) -> Curves:
        """The forecast of everything here."""
        return Curves(*self.totals)

    def ahead_steps(self, steps_now: float) -> int:
        """Whole steps since the anchor, rounded up."""
        return max(0, ceil(steps_now - self.anchor_steps))

    # ---- leases

    def demand_curves(
        self, demand: Demand, output_tokens_max: int, cache: CurveCache | None = None, *, ahead_steps: int = 0
    ) -> Curves:
        """What admitting ``demand`` now, ``ahead_steps`` after the anchor, adds to the forecast; blocks held by others not counted twice.

        ``cache`` belongs to the request: its own curves are computed once for each state of the survival model.
        """
        return self.discounted(self.newcomer(demand, output_tokens_max, cache, ahead_steps=ahead_steps), demand)

    def newcomer(
        self, demand: Demand, output_tokens_max: int, cache: CurveCache | None = None, *, ahead_steps: int = 0
    ) -> Newcomer:
        """The forecast of ``demand`` where it shares nothing."""
        return self.newcomers.cached(demand, output_tokens_max, PREFILL_DELAY_STEPS + ahead_steps, cache)

    def held_at_start(self, lease: Lease | None) -> float:
        """Blocks that a lease was expected to hold in the first interval, when its curves were made; 0 where it is not here."""
        return 0.0 if lease is None else sum(float(self.rows.curves[0, row, 0]) for row in lease.rows)

    def discounted(self, newcomer: Newcomer, demand: Demand) -> Curves:
        """Its curves without blocks that are held here already; the very same where there are none."""
        if not self._shared.any_held(demand):
            return newcomer.curves
        return self._shared.discounted(newcomer.curves, newcomer.living, demand)

    def add(self, lease: Lease, newcomer: Newcomer | None = None) -> None:
        """Book a lease that was just reserved, at the step it was sent; ``newcomer`` is the forecast with which it was, if any."""
        assert lease.lease_id not in self.leases, lease.lease_id
        demand, cap, rows = lease.demand, lease.output_tokens_max, self.rows
        if not self.leases:
            self.anchor_steps = lease.sent_steps  # nothing of ours that is counted from an earlier one
        delay = PREFILL_DELAY_STEPS + self.ahead_steps(lease.sent_steps)
        if newcomer is None:
            newcomer = self.newcomers.forecast(demand, cap, delay)
        leaf = self.model.leaf(demand)
        reach = exp(-self.model.hazard(leaf, cap))
        for index, part in enumerate(demand.parts):
            row = rows.take(lease)
            lease.rows.append(row)
            prompt = demand.kv_prompt_tokens(part)
            rows.fields[:, row] = (prompt, 0.0, cap, demand.copies, delay, demand.shares_prefix)
            rows.classes[row] = leaf
            rows.streaming[row], rows.sent_steps[row], rows.sequences[row] = lease.streaming, lease.sent_steps, demand.sequences
            rows.curves[:, row] = newcomer.rows[:, index]
            if demand.hashed:
                rows.alive[row] = newcomer.living
            at_cap = self.shape.held_by(prompt, prompt - 1 + cap, demand.copies, shares=demand.shares_prefix)
            rows.cap_ends[:, row] = cap + delay, at_cap * reach
            self._shared.add(row, demand, part)
        self.leases[lease.lease_id] = self._unplaced[lease.lease_id] = lease
        self.sequences += demand.sequences
        self.sums += newcomer.sum
        self._sum_up()

    def remove(self, lease_id: str, now_s: float | None = None) -> Lease | None:
        """Take a lease out of the book; None when it is not in it. What it held at ``now_s`` is kept for comparisons with the past."""
        lease = self.leases.pop(lease_id, None)
        if lease is None:
            return None
        self._unplaced.pop(lease_id, None)
        demand = lease.demand
        if now_s is not None:
            tokens = min(self.tokens_out(lease, lease.sent_steps) + LEAD_STEPS, lease.output_tokens_max)
            self.ended.append((now_s, self.blocks_at(demand, tokens)))
        self.sequences -= demand.sequences
        if self.leases:
            for row in lease.rows:
                self.sums -= self.rows.curves[:, row]
        else:
            self.sums[:] = 0.0  # nothing is left of rounding either
        for row, part in zip(lease.rows, demand.parts, strict=True):
            self._shared.remove(row, part)
        self.rows.free(lease.rows)
        self._sum_up()
        return lease

    def clear(self) -> list[Lease]:
        """A new engine epoch: everything it held is gone."""
        return [lease for lease_id in list(self.leases) if (lease := self.remove(lease_id)) is not None]

    # ---- sums

    def _sum_up(self, *, refreshed: bool = False, ours: bool = True) -> None:
        """Totals over rows, without what shared runs would count too often, and with what others have here."""
        self._shared.recount(force=refreshed)
        self.totals = self.own()
        if self.peers is not None:
            self.peers.align(self.anchor_steps)
            self.totals += self.peers.curves
        self.changes += 1
        self.own_changes += ours

    def own(self) -> FloatArray:
        """As ``totals``, of our own leases alone: a new array."""
        return self.sums - self._shared.doubled

    def refresh(self, steps_now: float) -> None:
        """Move the anchor to ``steps_now``, every row to what is known of its progress, and make the forecast anew."""
        self.rows.read()
        self.reforecast(steps_now)

    def cap_ends(self) -> CapEnds:
        """When blocks come free because requests reach their caps, in steps from the anchor."""
        return CapEnds(*self.rows.cap_ends[:, : self.rows.used])

    def look(self) -> Streams:
        """Read every stream's progress, for the step clock."""
        shown, moved = self.rows.look()
        return Streams(self.occupied, shown, moved)

    def _progress(self, steps_now: float) -> None:
        rows = self.rows
        rows.fields[1, : rows.used] = rows.tokens_out(steps_now, PREFILL_DELAY_STEPS)

    def reforecast(self, steps_now: float) -> None:
        """As ``refresh``, with the progress that was read last."""
        moved_steps, self.anchor_steps = steps_now - self.anchor_steps, steps_now
        rows = self.rows
        if not rows:
            if self.peers is not None:
                self._sum_up(ours=False)
            return
        self._progress(steps_now)
        rows.fields[4, : rows.used] = np.where(rows.placed[: rows.used], 0.0, PREFILL_DELAY_STEPS)
        self._refreshes += 1
        refresh_rows(
            rows, self.sums, self._grid, self.model, self.shape,
            moved_steps=moved_steps, thorough=self._refreshes % THOROUGH_EVERY == 0,
        )  # fmt: skip
        self._sum_up(refreshed=True)

    @staticmethod
    def tokens_out(lease: Lease, steps_now: float) -> float:
        """Output tokens of one sequence of a lease, below its cap: seen on the stream, else the step clock's guess."""
        if lease.streaming:
            tokens = lease.output_tokens / lease.demand.sequences
        else:
            tokens = max(0.0, steps_now - lease.sent_steps - PREFILL_DELAY_STEPS)  # at most: it may not be placed yet
        return min(tokens, lease.output_tokens_max - 1.0)

    def blocks_at(self, demand: Demand, output_tokens: float) -> float:
        """Blocks that ``demand`` holds with so many tokens out of each sequence, sharing nothing with others."""
        copies, shares = demand.copies, demand.shares_prefix
        if len(demand.parts) == 1:  # nearly all, and each decision asks six times
            prompt = demand.kv_prompt_tokens(demand.parts[0])
            return self.shape.held_by(prompt, prompt - 1 + output_tokens, copies, shares=shares)
        prompts = map(demand.kv_prompt_tokens, demand.parts)
        return sum(self.shape.held_by(prompt, prompt - 1 + output_tokens, copies, shares=shares) for prompt in prompts)

    def running(self) -> tuple[NDArray[np.intp], FloatArray]:
        """Survival classes and tokens out of every row, for the survival model's exposure."""
        live = np.flatnonzero(self.rows.live[: self.rows.used])
        return self.rows.classes[live], self.rows.fields[1, live]

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
        if not self.leases:
            return 0.0, gone
        known = self.decoding(since_s, running)
        self.rows.read()
        self._progress(steps_now)
        live = list(self.rows.owners)
        placed = {row: lease.lease_id in known for lease in self.leases.values() for row in lease.rows}
        sure = np.fromiter((placed[row] for row in live), np.bool_, len(live))
        states, shared = self.rows.states(np.asarray(live)), self._shared.now(placed)
        low = float(blocks_held(states, -behind_steps, self.shape)[sure].sum()) - shared[0]
        high = float(blocks_most(states, lag_steps, self.shape).sum()) - shared[1] + gone
        return max(0.0, low), max(0.0, high)
