"""Sums of the curves of everything on one replica, drawn when somebody asks for them.

A lease is *drawn*, with its rows in ``core.lease_rows`` and its curves in the sums, or *undrawn*: where the pool is so roomy that a bound
decides (``core.roomy``) it costs no array operation, and one that ends before the next refresh never will. Whoever reads sums or rows
finds everybody drawn; a refresh draws everybody together.

Fails: who reads first after many came pays for all of them, some 40 microseconds each.
"""

from math import ceil, exp

import numpy as np

from proxy.core.curves import Curves
from proxy.core.grid import FloatArray, Grid
from proxy.core.kv_shape import KvShape
from proxy.core.lease import Lease, Leases
from proxy.core.lease_rows import LeaseRows
from proxy.core.newcomers import Newcomer, Newcomers, Undrawn, rounded_ahead
from proxy.core.peers import Peers
from proxy.core.shared_demand import SharedDemand
from proxy.core.survival import SurvivalModel

PREFILL_DELAY_STEPS = 2.0  # a placed request decodes from the next step on; one being sent needs one or two more


class LeaseSums(Leases):
    """Leases of one replica and the sums of their demand. Blocks are the engine's; steps are the replica's decode steps."""

    def __init__(self, shape: KvShape, grid: Grid, model: SurvivalModel, newcomers: Newcomers | None = None) -> None:
        super().__init__()
        self.shape, self.block_size = shape, shape.block_size
        self.model = model
        self.newcomers = Newcomers(grid, model, shape) if newcomers is None else newcomers
        self.anchor_steps = 0.0
        self._refreshes = 0
        self.changes = 0  # how often ``totals`` was made anew
        self._rows = LeaseRows(len(grid))
        self._grid = grid
        self._shared = SharedDemand(self._rows, shape, len(grid))
        self._sums = np.zeros((4, len(grid)))
        self._totals = np.zeros((4, len(grid)))
        self.undrawn: dict[str, Undrawn] = {}  # by lease, in the order of sending
        self._undrawn_held = 0.0  # their blocks in the first interval: whole ones, so the sum is exact
        self._bare = False  # whether there are rows without curves
        self.peers: Peers | None = None  # what other proxies have here, where there are others
        self.own_changes = self.others_changes = 0  # how often what we, and what others, have here came to be another

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
        return self.sequences if self.peers is None else self.sequences + self.sequences_of_others

    @property
    def rows(self) -> LeaseRows:
        """The rows of everybody here, all drawn."""
        if self.undrawn:
            self._draw()
        return self._rows

    @property
    def sums(self) -> FloatArray:
        """As ``totals`` of our own leases, were no block shared."""
        if self.undrawn:
            self._draw()
        return self._sums

    @property
    def totals(self) -> FloatArray:
        """Mean, variance, ceiling and common of everything here, others' included: (4, G)."""
        if self.undrawn:
            self._draw()
        return self._totals

    @property
    def totals_drawn(self) -> FloatArray:
        """As ``totals``, without the undrawn: a new array."""
        return self._totals.copy()

    @property
    def total(self) -> Curves:
        """The forecast of everything here."""
        return Curves(*self.totals)

    @property
    def blocks_now(self) -> float:
        """What is expected to be held in the first interval: as ``totals`` says, without drawing anybody."""
        return float(self._totals[0, 0]) + self._undrawn_held

    def ahead_steps(self, steps_now: float) -> int:
        """Whole steps since the anchor, rounded up."""
        return max(0, ceil(steps_now - self.anchor_steps))

    def held_at_start(self, lease: Lease | None) -> float:
        """Blocks that a lease was expected to hold in the first interval, when its curves were made; 0 where it is not here."""
        if lease is None:
            return 0.0
        undrawn = self.undrawn.get(lease.lease_id)
        return undrawn.held_blocks if undrawn is not None else sum(float(self._rows.curves[0, row, 0]) for row in lease.rows)

    def enter_rows(self) -> None:
        """Give rows to the undrawn: a refresh is about to draw everybody."""
        for lease in map(self.leases.__getitem__, self.undrawn):
            self._book(lease, None)
            self._bare = True
        self.undrawn.clear()
        self._undrawn_held = 0.0

    def _draw(self) -> None:
        """Draw those of whom nobody had asked, in the order of their coming."""
        undrawn, self.undrawn, self._undrawn_held = self.undrawn, {}, 0.0
        for lease in map(self.leases.__getitem__, undrawn):
            delay = PREFILL_DELAY_STEPS + rounded_ahead(self.ahead_steps(lease.sent_steps))
            newcomer = self.newcomers.forecast(lease.demand, lease.output_tokens_max, delay)
            self._book(lease, newcomer)
            self._sums += newcomer.sum
        self._make_totals()

    def _book(self, lease: Lease, newcomer: Newcomer | None) -> None:
        """Give it its rows; None: their curves are about to be drawn with everybody's."""
        demand, cap, rows = lease.demand, lease.output_tokens_max, self._rows
        delay = PREFILL_DELAY_STEPS + self.ahead_steps(lease.sent_steps)
        leaf = self.model.leaf(demand)
        reach = exp(-self.model.hazard(leaf, cap))
        for index, part in enumerate(demand.parts):
            row = rows.take(lease)
            lease.rows.append(row)
            prompt = demand.kv_prompt_tokens(part)
            rows.fields[:, row] = (prompt, 0.0, cap, demand.copies, delay, demand.shares_prefix)
            rows.classes[row] = leaf
            rows.streaming[row], rows.sent_steps[row], rows.sequences[row] = lease.streaming, lease.sent_steps, demand.sequences
            if newcomer is not None:
                rows.curves[:, row] = newcomer.rows[:, index]
                if demand.hashed:
                    rows.alive[row] = newcomer.living
            at_cap = self.shape.held_by(prompt, prompt - 1 + cap, demand.copies, shares=demand.shares_prefix)
            rows.cap_ends[:, row] = cap + delay, at_cap * reach
            self._shared.add(row, demand, part)

    def _sum_up(self, *, refreshed: bool = False, ours: bool = True) -> None:
        """Totals are to be others."""
        self._make_totals(refreshed=refreshed)
        self.changes += 1
        self.own_changes += ours

    def _make_totals(self, *, refreshed: bool = False) -> None:
        """Sums over rows, without what shared runs would count too often, and with what others have here."""
        self._shared.recount(force=refreshed)
        self._totals = self._sums - self._shared.doubled
        if self.peers is not None:
            self.peers.align(self.anchor_steps)
            self._totals += self.peers.curves

    def own(self) -> FloatArray:
        """As ``totals``, of our own leases alone: a new array."""
        return self.sums - self._shared.doubled
