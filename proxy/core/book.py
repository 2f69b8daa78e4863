"""Everything the gate knows of one replica, and its verdict on one request.

Verdict. A request fits when the largest quantile of the replica's demand with it (``core.risk``) stays within the usable blocks,
and no other limit (``core.saturation``) binds. An empty replica takes anything whose prompt and one token fit: no deadlock.

Fails: as its parts do; each says how in its own header.
"""

from math import exp, inf

from proxy.core.calibration import Calibration
from proxy.core.curves import Curves
from proxy.core.demand import Demand
from proxy.core.feedback import Feedback
from proxy.core.grid import FloatArray, Grid
from proxy.core.health import SlowStart
from proxy.core.ledger import PREFILL_DELAY_STEPS, Lease, Ledger
from proxy.core.measurement import LAG_STEPS, Measurement
from proxy.core.newcomers import CurveCache, Newcomer, Newcomers, Undrawn, rounded_ahead
from proxy.core.pacing import REACH_MIN
from proxy.core.peak_bound import PeakBound
from proxy.core.replica import EngineSample, ReplicaPhase, ReplicaSample, ReplicaSpec, aggregate
from proxy.core.risk import Risk, peak_of, quantile_of
from proxy.core.saturation import Binding, Saturation
from proxy.core.step_clock import IDLE
from proxy.core.survival import SurvivalModel
from proxy.core.verdict import Outlook, Verdict

REFRESH_STEPS = 8.0  # half a block: see ``core.ledger`` for why a sum that old is safe
REFRESH_S_MIN, REFRESH_S_MAX = 0.1, 0.3  # less: a fast engine would keep us busy; more: what was learned would come late
REFRESH_LATE_RATIO = 4.0  # a decision does not trust a sum older than this many intervals: the driver is not sending its Ticks
STATS_LATE_S = 2.0  # a preemption is counted when its victim resumes


class Book(Measurement):
    """One replica's ledger, clock, bias, margin and limits. Every method is told the time; none awaits."""

    def __init__(
        self, spec: ReplicaSpec, model: SurvivalModel, feedback: Feedback, *, stale_s: float, now_s: float,
        newcomers: Newcomers | None = None,
    ) -> None:  # fmt: skip
        self.spec = spec
        self.grid = Grid(spec.context_tokens_max) if newcomers is None else newcomers.grid
        shape = spec.kv_shape if newcomers is None else newcomers.shape
        super().__init__(Ledger(shape, self.grid, model, newcomers), now_s)
        self.feedback = feedback
        self.calibration = Calibration(self.grid)
        self.saturation = Saturation(spec.sequences_max, self.ledger, spec.usable_blocks)
        self.phase = ReplicaPhase.SERVING
        self.slow_start: SlowStart | None = None
        self.binding_last = Binding.NONE
        self.kv_limited = False
        self.stale_s = stale_s
        self._refreshed_s = now_s
        self.foreign = False  # whether others send here too, as far as was seen
        self.room_ratio = 1.0  # about the share of the pool left at the forecast peak: who is asked first, nothing more
        self._peak_blocks = 0.0
        self.bound = PeakBound(self.ledger)

    def __repr__(self) -> str:
        """State for people and tests."""
        return f"<Book {self.spec.name} {self.phase} {self.ledger!r} {self.feedback!r} {self.reconciler!r} {self.clock!r}>"

    def refresh(self, now_s: float) -> None:
        """Read how far every stream came, move the clock and the forecast to now. O(leases): for Ticks and scrapes, not for decisions."""
        self.ledger.enter_rows()
        if self.clock.due(now_s):
            self.clock.advance(now_s, self.ledger.look())
        else:
            self.ledger.rows.read()
        self.ledger.reforecast(self.clock.steps)
        self.calibration.look(self.ledger, self.feedback.z)
        self._refreshed_s = now_s
        self.bound.forget()
        self._peaks_at(peak_of(self.ledger.totals.copy(), self.risk(now_s)))

    def _peaks_at(self, blocks: float) -> None:
        self._peak_blocks = blocks if self.ledger.occupied else self.reconciler.bias_blocks
        self.room_ratio = 1.0 - self._peak_blocks / (self.spec.usable_blocks or 1)

    def refresh_s(self) -> float:
        """How often the forecast is made anew."""
        return min(max(REFRESH_STEPS / self.clock.rate_per_s, REFRESH_S_MIN), REFRESH_S_MAX)

    def refresh_due_s(self) -> float:
        """When the forecast is to be made anew; infinite while nothing is here that could change it."""
        return self._refreshed_s + self.refresh_s() if self.ledger.occupied else inf

    def late_s(self) -> float:
        """From when on the forecast is so old that a decision has to renew it first; infinite while nothing is here."""
        return self._refreshed_s + REFRESH_LATE_RATIO * self.refresh_s() if self.ledger.occupied else inf

    def steps_now(self, now_s: float) -> float:
        """Where the step clock stands at ``now_s``, between looks as its rate says; it stands still while nothing is here."""
        if self.ledger.occupied:
            return self.clock.steps_at(now_s)
        self.clock.advance(now_s, IDLE)
        self._refreshed_s = now_s
        return self.clock.steps

    def ahead_line(self) -> tuple[float, float]:
        """``ahead_steps`` as a line over time: its value at second 0, and steps per second."""
        return self.clock.steps_at(0.0) - self.ledger.anchor_steps, self.clock.rate_per_s

    def ahead_steps(self, now_s: float) -> int:
        """Steps since the anchor of the ledger's curves."""
        return self.ledger.ahead_steps(self.clock.steps_at(now_s)) if self.ledger.occupied else 0

    def peak_blocks(self, curves: Curves | None, now_s: float) -> float:
        """Largest Q(t) with ``curves`` added, in blocks: the risk-adjusted forecast peak."""
        total = self.ledger.total if curves is None else self.ledger.total + curves
        return float(self.quantile(total, now_s).max())

    def outlook(self, now_s: float) -> Outlook:
        """The forecast peak and what it is made of."""
        risk = self.risk(now_s)
        level = quantile_of(self.ledger.total, risk)
        at = int(level.argmax())
        return Outlook(float(level[at]), float(self.ledger.totals[0, at]), risk.bias_blocks)

    def headroom_with(self, newcomer: Newcomer, now_s: float) -> float:
        """Share of the pool that would be left at the forecast peak with a request that shares nothing here."""
        peak = peak_of(self.ledger.totals + newcomer.sum, self.risk(now_s))
        return (self.spec.usable_blocks - peak) / max(1, self.spec.usable_blocks)

    def undrawn(self, demand: Demand, now_s: float) -> tuple[float, Undrawn] | None:
        """As ``headroom_with`` at the least, without drawing anybody (``core.peak_bound``); None where only drawing tells."""
        delay_steps = PREFILL_DELAY_STEPS + rounded_ahead(self.ahead_steps(now_s))
        found = self.bound.room(demand, self.output_tokens_max(demand), delay_steps, self.risk(now_s))
        return None if found is None else (1.0 - found[0] / (self.spec.usable_blocks or 1), found[1])

    def newcomer(self, demand: Demand, now_s: float, cache: CurveCache | None) -> Newcomer:
        """The forecast of ``demand`` where it shares nothing, ``cache`` being the waiting request's own."""
        ahead = rounded_ahead(self.ahead_steps(now_s))
        return self.ledger.newcomer(demand, self.output_tokens_max(demand), cache, ahead_steps=ahead)

    def quantile(self, total: Curves, now_s: float) -> FloatArray:
        """Q(t) of a sum of demand, in blocks over the grid."""
        return quantile_of(total, self.risk(now_s))

    def risk(self, now_s: float) -> Risk:
        """What of this replica enters its quantile, besides the demand."""
        sigma = self.reconciler.sigma_blocks(self.spec.usable_blocks, self.sample_age_s(now_s), self.stale_s)
        return Risk(self.feedback.z, sigma, self.reconciler.bias_blocks)

    def verdict(self, demand: Demand, now_s: float, cache: CurveCache | None = None) -> Verdict:
        """Whether ``demand`` fits now. ``cache`` is the waiting request's own."""
        cap = self.output_tokens_max(demand)
        curves = self.ledger.demand_curves(demand, cap, cache, ahead_steps=self.ahead_steps(now_s))
        usable = self.spec.usable_blocks
        headroom = (usable - self.peak_blocks(curves, now_s)) / max(1, usable)
        return Verdict(self.binding(demand, headroom, now_s), headroom, curves)

    def binding(self, demand: Demand, headroom_ratio: float, now_s: float, cached_tokens: float = 0.0) -> Binding:
        """What keeps ``demand`` out, given the share of the pool that its forecast peak leaves and what is cached of its prompt."""
        able = self.phase is ReplicaPhase.SERVING and self.fits_alone(demand)
        return self.limit(demand, headroom_ratio, now_s, cached_tokens) if able else Binding.UNAVAILABLE

    def limit(self, demand: Demand, headroom_ratio: float, now_s: float, cached_tokens: float) -> Binding:
        """As ``binding``, of a replica that serves and is large enough for ``demand``."""
        saturation, occupied, bias_blocks = self.saturation, self.ledger.occupied, self.reconciler.bias_blocks
        if saturation.wedge.since_s is not None and saturation.wedge.closed(len(self.ledger.leases), now_s):
            return Binding.WEDGED
        if self.slow_start is not None and self.spared(now_s):
            return Binding.SLOW_START
        if not occupied and bias_blocks < 1.0:
            return Binding.NONE
        if now_s < self.feedback.burst_until_s:
            return Binding.BURST
        other = saturation.binding(demand, now_s, cached_tokens=cached_tokens)
        if other is not Binding.NONE:
            return other
        # Where nobody has anything, what bypasses us need only leave room for the prompt, or we would wait for ever.
        full = headroom_ratio < 0.0 and (occupied or bias_blocks + self.prompt_blocks(demand) > self.spec.usable_blocks)
        return Binding.KV if full else Binding.NONE

    def at_ease(self, demand: Demand, cached_tokens: float, now_s: float) -> bool:
        """Whether a glance tells that nothing but KV keeps out ``demand``, which has no targets of its own."""
        quiet = self.saturation.wedge.since_s is None and self.slow_start is None and now_s >= self.feedback.burst_until_s
        return quiet and self.saturation.at_ease(demand, cached_tokens, now_s)

    def spared(self, now_s: float) -> bool:
        """Whether it is coming back and has as much as it may."""
        return self.slow_start is not None and self.slow_start.closed(len(self.ledger.leases), now_s)

    def paced_out(self, demand: Demand, curves: Curves, now_s: float) -> bool:
        """Whether the request would end together with too many others."""
        model, cap = self.ledger.model, self.output_tokens_max(demand)
        reach = exp(-model.hazard(model.leaf(demand), cap))
        if reach < REACH_MIN:
            return False
        blocks = self.ledger.blocks_at(demand, cap)
        end = cap + PREFILL_DELAY_STEPS + self.ahead_steps(now_s)
        return self.ledger.cap_ends().crowded(end, blocks * reach, self.block_steps(curves), self.spec.usable_blocks)

    def output_tokens_max(self, demand: Demand) -> int:
        """Output tokens of one sequence at most: the request's cap, clamped to the context as vLLM 0.32 does."""
        room, cap = self.spec.context_tokens_max - demand.prompt_tokens_longest, demand.output_tokens_max
        if cap is not None and cap < room:
            room = cap
        return max(1, room)

    def prompt_blocks(self, demand: Demand) -> float:
        """Blocks of the prompts and one token each: what the engine needs before it can start."""
        if self.ledger.shape.plain:
            return self.ledger.blocks_at(demand, 2.0)
        return sum(self.ledger.shape.least(part.tokens + 1) for part in demand.parts)  # copies may start one after the other

    def fits_alone(self, demand: Demand) -> bool:
        """Whether context and an empty pool have room for the longest prompt and one token; sequences are taken one by one.

        An estimated count does not rule out a replica by its context: that is the engine's to judge.
        """
        longest = demand.prompt_tokens_longest
        if longest >= self.spec.context_tokens_max and demand.count_is_exact:
            return False
        return self.ledger.shape.least(longest + 1) <= self.spec.usable_blocks

    def block_steps(self, curves: Curves) -> float:
        """KV token-time of a demand in blocks × steps."""
        return float(curves.mean.dot(self.grid.widths))

    # ---- leases

    def add(self, lease: Lease, newcomer: Newcomer | Undrawn | None = None) -> None:
        """Book a lease that was just reserved, with the forecast it was reserved with."""
        self.ledger.add(lease, newcomer)
        self.bound.came(newcomer)
        self.saturation.targets.add(lease)
        self._peaks_at(self._peak_blocks + self.ledger.held_at_start(lease))

    def remove(self, lease_id: str, now_s: float) -> None:
        """A lease ended; one of an earlier epoch is not here any more."""
        held = self.ledger.held_at_start(self.ledger.leases.get(lease_id))
        self.bound.went(lease_id)
        lease = self.ledger.remove(lease_id, now_s)
        if lease is not None:
            self.saturation.targets.remove(lease, now_s)
            self._peaks_at(self._peak_blocks - held)

    # ---- what the engine says

    def observe(self, sample: ReplicaSample, now_s: float) -> int:
        """Take in one scrape; return how many preemptions it newly shows."""
        engine = aggregate(sample.engines)
        if engine is None:
            return 0
        if self.ledger.undrawn:
            self.refresh(now_s)  # everybody at once: what follows reads the rows
        preemptions = self.count_deltas(engine, sample.sampled_s)
        since_s = (sample.sampled_s if sample.asked_s is None else sample.asked_s) - LAG_STEPS / self.clock.rate_per_s
        ours = self.ledger.occupied or any(ended_s >= since_s - STATS_LATE_S for ended_s, _ in self.ledger.ended)
        if preemptions and ours:  # of traffic that bypasses us they say nothing about our margin
            self.feedback.preempted(preemptions, now_s)
        self._look_at(engine, now_s, sample.sampled_s)
        if engine.kv_usage_ratio is not None:
            self.compare(engine, now_s, sample.sampled_s, since_s)
        self._looked(engine, now_s)
        return preemptions

    def told(self, engine: EngineSample, now_s: float, sampled_s: float) -> None:
        """Take in what another proxy saw of the engine, which has drawn its conclusions for the margin and the bias."""
        self.count_deltas(engine, sampled_s)
        self._look_at(engine, now_s, sampled_s)
        self._looked(engine, now_s)

    def _look_at(self, engine: EngineSample, now_s: float, sampled_s: float) -> None:
        self.scrapes, self.waiting, self.running = self.scrapes + 1, engine.waiting, engine.running
        self.feedback.load(self.ledger.sequences_total, self.calibration.scale, kv_limited=self.kv_limited)
        if self.clock.due(now_s):
            self.clock.advance(now_s, self.ledger.look())
        self.infer_placement(engine, now_s)
        self.saturation.observe(engine, now_s, sampled_s, held_for_kv=self.kv_limited)
        if engine.kv_usage_ratio is not None:
            self.measured_blocks = self.spec.used_blocks(engine.kv_usage_ratio)
            self._sampled_s = sampled_s

    def _looked(self, engine: EngineSample, now_s: float) -> None:
        if now_s - self._refreshed_s >= self.refresh_s() / 2.0:  # a forecast younger than that is as good as a new one
            self.refresh(now_s)
        self.foreign = self.saturation.foreign_sequences > 0
        self.ledger.changes += 1  # bias and margin did, if nothing else
        self.last_engine = engine

    def new_epoch(self) -> None:
        """The engine restarted: leases, bias and shared blocks of the old one are gone."""
        self.ledger.clear()
        self.calibration.new_epoch()
        self.saturation.new_epoch()
        self.measured_anew()
        self.ledger.changes += 1
        self.foreign = False
        self.bound.forget()
        self._peaks_at(0.0)
