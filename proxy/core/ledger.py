"""The book of what one replica holds and will hold for requests that went through us.

One *row* per prompt part of each lease (``core.lease_rows``); the replica's forecast is the sum of its rows' curves plus the runs of
blocks that several rows share. A decision only reads the sums. They are adjusted when a lease comes or goes and made anew off the
decision (``refresh``), so a decision costs O(grid) however many requests are in flight.

Why a sum some steps old is safe. All curves of a ledger count steps from its *anchor*, the step of the last refresh. A sequence that
does a token per step follows the curve it had at the anchor, so the sum is not a forecast gone stale but the same forecast read in
absolute steps: an interval's blocks are those at its end, which has not come yet. What is read late errs upwards: a row that advances
slower than the clock ends later than its curve says but is still counted in the first interval, one that ended is taken out at once.
A lease booked ``ahead`` steps after the anchor is taken as growing from the anchor on and as living ``ahead`` steps longer.

Curves are drawn when somebody asks. Where the pool is so roomy that a bound decides (``core.roomy``) a lease is booked *undrawn*: it costs
no array operation, and one that ends before the next refresh never will. Whoever reads sums or rows finds everybody drawn.

A lease is *sent* (the engine may not have seen it), *placed* (it holds blocks), and ends exactly once. Placement is certain from the
first streamed token; for answers that are not streamed it is inferred from the engine's count of running requests.

Fails: progress of answers that are not streamed is the step clock's guess until they end; a clock that runs faster than before (the
batch shrank) makes ``ahead`` too small by the difference until the next refresh.
"""

from math import inf

import numpy as np
from numpy.typing import NDArray

from proxy.core.curves import LEAD_STEPS, Curves, blocks_held, prefill_blocks
from proxy.core.demand import Demand
from proxy.core.grid import FloatArray
from proxy.core.kv_shape import KvShape
from proxy.core.lease import Lease
from proxy.core.lease_sums import PREFILL_DELAY_STEPS, LeaseSums
from proxy.core.newcomers import CurveCache, Newcomer, Newcomers, Undrawn
from proxy.core.pacing import CapEnds
from proxy.core.peers import Peers
from proxy.core.refresh import THOROUGH_EVERY, refresh_rows
from proxy.core.step_clock import Streams

__all__ = ["PREFILL_DELAY_STEPS", "Lease", "Ledger"]


class Ledger(LeaseSums):
    """Leases of one replica and their demand. Blocks are the engine's; steps are the replica's decode steps."""

    def __repr__(self) -> str:
        """Counts for people and tests."""
        placed = sum(lease.placed for lease in self.leases.values())
        return f"<Ledger leases={len(self.leases)} placed={placed} sequences={self.sequences} shared={len(self._shared)}>"

    def told(self, row: FloatArray, anchor_steps: float) -> None:
        """Other proxies have ``row`` here, counted from ``anchor_steps`` of our clock; from now on it is in every sum."""
        if self.peers is None:
            self.peers = Peers(self._grid)
        self.peers.told(row, anchor_steps)
        if not self.leases:
            self.anchor_steps = max(self.anchor_steps, anchor_steps)  # nothing of ours is counted from an earlier one
        self.others_changes += 1
        self._sum_up(ours=False)

    def reshape(self, shape: KvShape) -> None:
        """What a request holds was learned anew: forecasts count by it from now on, sums from the next refresh."""
        self.shape = shape
        self.newcomers = Newcomers(self._grid, self.model, shape)

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

    def any_held(self, demand: Demand) -> bool:
        """Whether any of the demand's blocks is held here already."""
        if self.undrawn:
            self._draw()
        return self._shared.any_held(demand)

    def discounted(self, newcomer: Newcomer, demand: Demand) -> Curves:
        """Its curves without blocks that are held here already; the very same where there are none."""
        if not self.any_held(demand):
            return newcomer.curves
        return self._shared.discounted(newcomer.curves, newcomer.living, demand)

    def add(self, lease: Lease, newcomer: Newcomer | Undrawn | None = None) -> None:
        """Book a lease that was just reserved, at the step it was sent; ``newcomer`` is the forecast with which it was, if any."""
        assert lease.lease_id not in self.leases, lease.lease_id
        if not self.leases:
            self.anchor_steps = lease.sent_steps  # nothing of ours that is counted from an earlier one
        if isinstance(newcomer, Undrawn):
            self.undrawn[lease.lease_id] = newcomer
            self._undrawn_held += newcomer.held_blocks
            self.changes += 1
            self.own_changes += 1
        else:
            if newcomer is None:
                delay = PREFILL_DELAY_STEPS + self.ahead_steps(lease.sent_steps)
                newcomer = self.newcomers.forecast(lease.demand, lease.output_tokens_max, delay)
            sums = self.sums  # of those before it
            self._book(lease, newcomer)
            sums += newcomer.sum
            self._sum_up()
        self.leases[lease.lease_id] = self._unplaced[lease.lease_id] = lease
        self.sequences += lease.demand.sequences

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
        undrawn = self.undrawn.pop(lease_id, None)
        if undrawn is not None:
            self._undrawn_held -= undrawn.held_blocks
            self.changes += 1
            self.own_changes += 1
            return lease
        if len(self._rows) > len(lease.rows):
            for row in lease.rows:
                self._sums -= self._rows.curves[:, row]
        else:
            self._sums[:] = 0.0  # nothing is left of rounding either
        for row, part in zip(lease.rows, demand.parts, strict=True):
            self._shared.remove(row, part)
        self._rows.free(lease.rows)
        self._sum_up()
        return lease

    def clear(self) -> list[Lease]:
        """A new engine epoch: everything it held is gone."""
        return [lease for lease_id in list(self.leases) if (lease := self.remove(lease_id)) is not None]

    # ---- sums

    def refresh(self, steps_now: float) -> None:
        """Move the anchor to ``steps_now``, every row to what is known of its progress, and make the forecast anew."""
        self.enter_rows()
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
        self.enter_rows()
        rows = self._rows
        if not rows:
            if self.peers is not None:
                self._sum_up(ours=False)
            return
        self._progress(steps_now)
        rows.fields[4, : rows.used] = np.where(rows.placed[: rows.used], 0.0, PREFILL_DELAY_STEPS)
        self._refreshes += 1
        refresh_rows(
            rows, self._sums, self._grid, self.model, self.shape,
            moved_steps=moved_steps, thorough=self._bare or self._refreshes % THOROUGH_EVERY == 0,
        )  # fmt: skip
        self._bare = False
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
        held = blocks_held(states, np.array((-behind_steps, lag_steps)), self.shape)
        most = held[:, 1] if self.shape.plain else np.maximum(held[:, 1], prefill_blocks(states, self.shape))
        low, high = float(held[sure, 0].sum()) - shared[0], float(most.sum()) - shared[1] + gone
        return max(0.0, low), max(0.0, high)
