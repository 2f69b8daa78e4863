"""Limits of a replica other than KV blocks: a standstill, sequence slots, the engine's own queue, prefill backlog, and TPOT targets.

A request waiting inside the engine can be neither reordered, rerouted nor shed, so none should wait there.

*Standstill.* ``core.wedge``: a replica that does nothing gets nothing.
*Seats.* ``max_num_seqs`` where it is configured or told; else learned: the most seen running is a floor; what runs, unchanged over two
scrapes, while requests wait that were not just sent, with room in KV and in the token budget, is a ceiling, forgotten after
``CEILING_LIFE_S`` so that a wrong one does not stay. Sequences of others count; n takes n.
*Engine queue.* Whoever waits inside goes first: of ours those sent longer ago than their prefill should take, of the others' (and our own
preempted) the part that our share of the sequences makes. The replica takes nobody until as many of ours have ended.
*Prefill.* The backlog stays below ``BACKLOG_STEPS`` steps' token budget (learned), or below what ``BACKLOG_S`` suffice for at the rate
that the engine is seen to prefill at, where that is more (at most ``BACKLOG_TOKENS_AT_ONCE``); and below half the least TTFT target of
those on the replica; one request is always let through. One with a TTFT target of its own goes only where its forecast holds; where its
own prefill alone takes longer, or the target has passed, waiting cannot help and the target is left out.
*TPOT.* The outlook of the step time (``core.step_time``) with the candidate stays below the least TPOT target among it and those running.
Targets below what a sequence alone would see are left out: no admission could meet them.

Fails: engines before 0.20 do not say why requests wait; LoRA or grammar waits then close the replica as well.
"""

from enum import StrEnum
from math import inf

from proxy.core.demand import Demand
from proxy.core.ledger import Ledger
from proxy.core.metastability import MetastabilityGuard
from proxy.core.replica import EngineSample
from proxy.core.step_time import StepTime, StepWindow
from proxy.core.step_watch import KV_SPARE_RATIO, StepWatch
from proxy.core.targets import Targets, prefill_per_step
from proxy.core.units import blocks_for_tokens
from proxy.core.wedge import Wedge

BACKLOG_STEPS = 4.0  # enough that no step starves between two looks at the queue
BACKLOG_S = 0.1  # or so long at the rate it is seen to prefill at, if that is more: two or three steps of a large model
BACKLOG_TOKENS_AT_ONCE = 65_536.0  # that much at the most: a cache may have made it fast
TTFT_BACKLOG_SHARE = 0.5  # of the least target: room for whoever has that target and comes next
BUDGET_SPARE_RATIO = 0.8
CEILING_LIFE_S = 60.0
WAITING_SAMPLES = 2
FRESH_S = 0.1  # from our sending to the engine's queue and its next step, beside the prefill ahead
DEBT_MIN = 0.5


class Binding(StrEnum):
    """The limit that keeps a request out of a replica."""

    NONE = "none"
    KV = "kv"
    SEATS = "seats"
    PREFILL = "prefill"
    TPOT = "tpot"
    ENGINE_QUEUE = "engine_queue"
    PACING = "pacing"
    BURST = "preemption_burst"
    RECOVERY = "cache_recovery"
    PEERS = "peers"
    WEDGED = "wedged"
    SLOW_START = "slow_start"
    UNAVAILABLE = "unavailable"


class Saturation:
    """A replica's other limits, from its scrapes and from the leases on it."""

    def __init__(self, sequences_max: int | None, ledger: Ledger, usable_blocks: int) -> None:
        self.sequences_max = sequences_max
        self.sequences_floor = 0
        self.step_time = StepTime()
        self.targets = Targets()
        self.wedge = Wedge()
        self.guard = MetastabilityGuard()
        self._ledger = ledger
        self._usable_blocks = usable_blocks
        self._ceiling: tuple[int, float] | None = None
        self._waiting_samples = 0
        self._foreign = (0, 0)  # sequences of others at the last two scrapes: the lesser counts, since ours come and go meanwhile
        self._debt = 0.0
        self._debt_ended = 0
        self._unexpected = 0
        self._measured_ratio = 0.0
        self._running_last: int | None = None
        self._full_step_s, self._full_step_of = 0.0, (-1, -1, -1, 0.0)
        self._steps = StepWatch(ledger, usable_blocks)

    def new_epoch(self) -> None:
        """The engine restarted, perhaps with other settings. How fast the machine is remains known."""
        self.targets.clear()
        self.wedge = Wedge()
        self.guard = MetastabilityGuard()
        self._measured_ratio = 0.0
        self.step_time.interrupted()
        self._steps.forget()
        self.sequences_floor, self._ceiling, self._waiting_samples = 0, None, 0
        self._foreign, self._debt = (0, 0), 0.0

    # ---- what the engine says

    def observe(self, sample: EngineSample, now_s: float, sampled_s: float, *, held_for_kv: bool = False) -> None:
        """Take in one engine's gauges and counters of the instant ``sampled_s``; ``held_for_kv``: somebody waits here for its blocks."""
        self.guard.observe(sample, sampled_s, held_for_kv=held_for_kv)
        if sample.kv_usage_ratio is not None:
            self._measured_ratio = sample.kv_usage_ratio
        streamed = sum(lease.output_tokens for lease in self._ledger.leases.values())
        self.wedge.observe(sample, sampled_s, leases=len(self._ledger.leases), streamed_tokens=streamed)
        backlog = self.backlog_tokens(now_s)
        window = self._steps.window(
            sample, sampled_s, backlog_tokens=backlog, prefill_outlook=self.targets.prefill_outlook,
            token_budget=self.step_time.token_budget,
        )  # fmt: skip
        if window is None:
            self.step_time.interrupted()
        else:
            self.step_time.observe(window)
        self._observe_queue(sample, sampled_s, now_s)
        if sample.running is not None:
            self._observe_seats(sample, window, now_s)

    def _observe_queue(self, sample: EngineSample, sampled_s: float, now_s: float) -> None:
        """Who waits in the engine, beside those that were just sent."""
        waiting = sample.waiting_for_room or 0
        grace_s = FRESH_S + self._prefill_s(self.backlog_tokens(now_s))
        unplaced = [lease for lease in self.targets.unplaced(now_s) if lease.sent_s <= sampled_s]
        fresh = sum(lease.demand.sequences for lease in unplaced if lease.sent_s > sampled_s - grace_s)
        ours_waiting = sum(lease.demand.sequences for lease in unplaced)
        self._unexpected = max(0, waiting - fresh)
        overdue = min(ours_waiting - fresh, self._unexpected)
        everybody = max((sample.running or 0) + (sample.waiting or 0), self._ledger.sequences_total, 1)
        share = self._ledger.sequences / everybody  # other proxies see the same queue and take theirs
        self._debt = overdue + share * max(0, waiting - ours_waiting)
        self._debt_ended = self.targets.sequences_ended

    def _observe_seats(self, sample: EngineSample, window: StepWindow | None, now_s: float) -> None:
        running = sample.running or 0
        self._foreign = (self._foreign[1], max(0, running + (sample.waiting or 0) - self._ledger.sequences_total))
        again = running == self._running_last
        self._running_last = running
        self._waiting_samples = 0 if not self._unexpected else self._waiting_samples + 1 if again else 1
        self.sequences_floor = max(self.sequences_floor, running)
        full = self._waiting_samples >= WAITING_SAMPLES and running >= self.sequences_floor > 0
        if full and self._kv_spare(sample, now_s) and self._budget_spare(window, now_s):
            self._ceiling = (running, now_s)

    def _kv_spare(self, sample: EngineSample, now_s: float) -> bool:
        """Whether the pool has room for the largest prompt of ours that may be waiting for it."""
        if sample.kv_usage_ratio is None:
            return False
        largest = max((lease.demand.prompt_tokens_longest for lease in self.targets.unplaced(now_s)), default=0)
        need = blocks_for_tokens(largest + 1, self._ledger.block_size) / max(1, self._usable_blocks)
        return sample.kv_usage_ratio + need < KV_SPARE_RATIO

    def _budget_spare(self, window: StepWindow | None, now_s: float) -> bool:
        """Whether steps had room for more prefill. Where no step was seen: whether what waits would fit into one."""
        budget = self.step_time.token_budget
        if window is None or window.steps < 1.0:
            return self.backlog_tokens(now_s) < budget
        return (window.prefill_tokens + window.output_tokens) / window.steps < BUDGET_SPARE_RATIO * budget

    # ---- limits

    def seats(self, now_s: float) -> int | None:
        """Sequences the engine runs at most; None when not known."""
        if self.sequences_max is not None:
            return self.sequences_max
        if self._ceiling is not None and now_s - self._ceiling[1] < CEILING_LIFE_S:
            return max(self._ceiling[0], self.sequences_floor)
        return None

    def told_seats(self, seats: int | None, now_s: float) -> None:
        """Another proxy holds the replica for as wide as this; None: it does not know either."""
        if seats is not None and self.sequences_max is None:
            self._ceiling = (seats, now_s)

    @property
    def foreign_sequences(self) -> int:
        """Sequences in the engine that are not ours, at least."""
        return min(self._foreign)

    @property
    def queue_debt(self) -> float:
        """Sequences that wait inside the engine and go before anybody we might send."""
        return max(0.0, self._debt - (self.targets.sequences_ended - self._debt_ended))

    def backlog_tokens(self, now_s: float) -> float:
        """Prefill work ahead of whoever is sent now, in tokens."""
        peers = self._ledger.peers
        return self.own_backlog_tokens(now_s) + (0.0 if peers is None else peers.load.prefill_tokens)

    def own_backlog_tokens(self, now_s: float) -> float:
        """As ``backlog_tokens``, of our own leases alone."""
        if not self.targets.sent_tokens:
            return 0.0
        full_s = self.full_step_s
        return self.targets.backlog_tokens(now_s, self.step_time.token_budget / full_s if full_s > 0.0 else 0.0)

    def backlog_tokens_max(self) -> float:
        """Bound of the backlog in tokens."""
        at_once = min(BACKLOG_TOKENS_AT_ONCE, BACKLOG_S * self.targets.prefill_tokens_per_s)
        bound = max(BACKLOG_STEPS * self.step_time.token_budget, at_once)
        ttft_s = self.targets.ttft_s_min
        if ttft_s < inf and (full_s := self.full_step_s) > 0.0:
            bound = min(bound, TTFT_BACKLOG_SHARE * ttft_s / full_s * self.step_time.token_budget)
        return bound

    def ttft_s_forecast(self, demand: Demand, now_s: float, *, cached_tokens: float = 0.0, backlog: bool = True) -> float:
        """Seconds from arrival to the first token of a request sent now; ``backlog`` False: with no prefill ahead of it.

        A lower bound then: a request for which it exceeds its target misses it for certain. While nothing was measured it is what has
        passed since its arrival.
        """
        waited_s, own = now_s - demand.arrived_s, max(1.0, demand.prompt_tokens - cached_tokens)
        if not backlog:
            return waited_s + self._prefill_s(own)
        ahead = self.backlog_tokens(now_s)
        under_way_s = self.step_s(min(ahead, self.step_time.token_budget))  # nobody joins a step that has begun
        return waited_s + under_way_s + self._prefill_s(ahead + own)

    def binding(self, demand: Demand, now_s: float, *, cached_tokens: float = 0.0) -> Binding:
        """Which of these limits keeps ``demand`` out, ``cached_tokens`` of whose prompt need no prefill here."""
        held = self._ledger.sequences_total
        seats = self.seats(now_s)
        if seats is not None and held and held + self.foreign_sequences + demand.sequences > seats:
            return Binding.SEATS
        if held and self._debt >= DEBT_MIN and self.queue_debt >= DEBT_MIN:
            return Binding.ENGINE_QUEUE
        if self._prefill_binds(demand, now_s, cached_tokens):
            return Binding.PREFILL
        if held and (demand.tpot_s is not None or self.targets.any_tpot) and self._tpot_binds(demand):
            return Binding.TPOT
        if held and self.guard.recovering and self._keeps_cool(demand, cached_tokens):
            return Binding.RECOVERY
        return Binding.NONE

    def at_ease(self, demand: Demand, cached_tokens: float, now_s: float) -> bool:
        """Whether a glance tells that ``binding`` is NONE for ``demand``, which has no targets of its own."""
        seats = self.sequences_max if self._ceiling is None else self.seats(now_s)
        seated = seats is None or self._ledger.sequences_total + self.foreign_sequences + demand.sequences <= seats
        quiet = seated and self._debt < DEBT_MIN and not self.targets.any_tpot and not self.guard.recovering
        return quiet and self._little_ahead(demand.prompt_tokens - cached_tokens, now_s)

    def _keeps_cool(self, demand: Demand, cached_tokens: float) -> bool:
        """Whether the request is to wait until the replica's prefix cache is back."""
        usage = max(self._measured_ratio, self._ledger.blocks_now / self._usable_blocks)
        uncached = (demand.prompt_tokens - cached_tokens) / self._ledger.block_size / self._usable_blocks
        return self.guard.keeps_out(usage + uncached, cached_tokens / demand.prompt_tokens)

    def _prefill_binds(self, demand: Demand, now_s: float, cached_tokens: float) -> bool:
        if self._little_ahead(demand.prompt_tokens - cached_tokens, now_s) and demand.ttft_s is None:
            return False
        backlog = self.backlog_tokens(now_s)
        if backlog <= 0.0:
            return False
        if backlog + demand.prompt_tokens - cached_tokens > self.backlog_tokens_max():
            return True
        target_s, waited_s = demand.ttft_s, now_s - demand.arrived_s
        if target_s is None or waited_s >= target_s or self._prefill_s(demand.prompt_tokens - cached_tokens) > target_s:
            return False
        return self.ttft_s_forecast(demand, now_s, cached_tokens=cached_tokens) > target_s

    def _little_ahead(self, own_tokens: float, now_s: float) -> bool:
        """Whether the backlog is within its bound with ``own_tokens`` more, as a glance tells: by what was sent, done or not."""
        targets, peers = self.targets, self._ledger.peers
        targets.placed_go(now_s)
        ahead = targets.sent_tokens if peers is None else targets.sent_tokens + peers.load.prefill_tokens
        return not ahead or (targets.ttft_s_min == inf and ahead + own_tokens <= BACKLOG_STEPS * self.step_time.token_budget)

    def _tpot_binds(self, demand: Demand) -> bool:
        model, targets = self.step_time, self.targets
        wanted_s = demand.tpot_s
        alone_s = model.step_s(sequences=1.0, kv_tokens=demand.prompt_tokens)
        target_s = targets.tpot_s_min(alone_s)
        if wanted_s is not None and wanted_s >= alone_s:
            target_s = min(target_s, wanted_s)
        if target_s == inf:
            return False
        sequences = self._ledger.sequences_total + self.foreign_sequences + demand.sequences
        if sequences > model.sequences_known:
            return True
        prefill = targets.prefill_outlook + prefill_per_step(demand, targets.output_tokens_mean)
        kv_tokens = float(self._ledger.totals[0].max()) * self._ledger.block_size + demand.prompt_tokens
        mean = targets.output_tokens_mean
        return model.outlook_s(sequences=sequences, kv_tokens=kv_tokens, prefill_tokens=prefill, steps=mean) > target_s

    def _prefill_s(self, tokens: float) -> float:
        kv_tokens = self._ledger.blocks_now * self._ledger.block_size
        return self.step_time.prefill_s(tokens, sequences=self._ledger.sequences_total, kv_tokens=kv_tokens)

    @property
    def full_step_s(self) -> float:
        """As ``step_s``, of a step with as much prefill as it takes at most."""
        ledger, step_time = self._ledger, self.step_time
        of = ledger.changes, len(ledger.undrawn), step_time.windows, step_time.token_budget
        if of != self._full_step_of:  # each decision asks each replica several times
            self._full_step_of, self._full_step_s = of, self.step_s(step_time.token_budget)
        return self._full_step_s

    def step_s(self, prefill_tokens: float) -> float:
        """Forecast seconds of a step that feeds ``prefill_tokens`` beside what is here now; 0 while nothing was measured."""
        kv_tokens = self._ledger.blocks_now * self._ledger.block_size
        return self.step_time.step_s(sequences=self._ledger.sequences_total, kv_tokens=kv_tokens, prefill_tokens=prefill_tokens)
