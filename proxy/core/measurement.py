"""What the engine's own metrics say of one replica, held to what its ledger says for the same instant.

Decides which of our leases the engine holds blocks for, by its count of running requests, and takes the difference between its usage and
ours to the bias (``core.reconcile``). What other proxies hold is part of the ledger's side, as the interval that their rows tell, read at
the steps of the instant.

Fails: where the scrape is late the interval is wide, and hides as much that bypasses us.
"""

from proxy.core.kv_fit import KvFit
from proxy.core.ledger import Ledger
from proxy.core.reconcile import Reconciler
from proxy.core.replica import EngineSample
from proxy.core.step_clock import StepClock

LAG_STEPS = 2.0  # a streamed token is on its way to us for about one step, asynchronous scheduling allocates one ahead


class Measurement:
    """The last scrape of one replica, and how it compares."""

    def __init__(self, ledger: Ledger, now_s: float) -> None:
        self.ledger = ledger
        self.clock = StepClock(now_s)
        self.kv_fit = KvFit(ledger.shape) if ledger.shape.layout.fitted else None
        self.reconciler = Reconciler()
        self.measured_blocks: float | None = None
        self.waiting: int | None = None
        self.running: int | None = None
        self.interval_blocks = (0.0, 0.0)  # [placed, placed + unplaced] at the last comparison
        self.unsettled = 0  # leases that may or may not have held blocks at that instant
        self.scrapes = 0
        self._counted_s = now_s
        self._sampled_s: float | None = None
        self.last_engine: EngineSample | None = None

    def sample_age_s(self, now_s: float) -> float | None:
        """Seconds since the last sample that had a usage; None when there was none."""
        return None if self._sampled_s is None else now_s - self._sampled_s

    def count_deltas(self, engine: EngineSample, sampled_s: float) -> int:
        """Take in the engine's counters; return how many preemptions they newly show."""
        last, before_s, self._counted_s = self.last_engine, self._counted_s, sampled_s
        if last is None:
            return 0
        if engine.generation_tokens_total is not None and last.generation_tokens_total is not None:
            running = ((engine.running or 0) + (last.running or 0)) / 2.0
            self.clock.counted(engine.generation_tokens_total - last.generation_tokens_total, running, sampled_s - before_s)
        if engine.preemptions_total is None or last.preemptions_total is None:
            return 0
        return max(0, round(engine.preemptions_total - last.preemptions_total))

    def infer_placement(self, engine: EngineSample, now_s: float) -> None:
        """Of our leases whose tokens we cannot see, the oldest that the engine's running count has room for are placed."""
        if engine.running is None:
            return
        free = engine.running - self.ledger.sequences_placed() - self.ledger.sequences_of_others
        for lease in self.ledger.unplaced():
            free -= lease.demand.sequences
            if free < 0:
                break
            if not lease.streaming:
                lease.placed, lease.placed_s = True, now_s

    def compare(self, engine: EngineSample, now_s: float, sampled_s: float, since_s: float) -> None:
        """Hold the ledger to the engine for the same instant, as far as it is known: between ``since_s`` and ``sampled_s``."""
        assert self.measured_blocks is not None
        rate = self.clock.rate_per_s
        lag, behind = LAG_STEPS + rate * max(0.0, now_s - sampled_s), rate * max(0.0, now_s - since_s)
        low, high = self.ledger.held_interval(self.clock.steps, lag, behind_steps=behind, since_s=since_s, running=engine.running)
        peers = self.ledger.peers
        if peers is not None:
            low, high = low + peers.interval(self.clock.steps - behind)[0], high + peers.interval(self.clock.steps + lag)[1]
        self.unsettled = self.ledger.unsettled(since_s, engine.running)
        frozen = bool(engine.waiting) or (engine.running is not None and engine.running < self.ledger.sequences_placed())
        if (
            self.kv_fit is not None and not frozen and not self.ledger.sequences_of_others
        ):  # what those hold is not counted in tokens
            known = self.ledger.decoding(since_s, engine.running)
            if self.kv_fit.scraped(self.ledger.leases, known, self.measured_blocks, engine.prefix_hits_tokens_total, since_s):
                self.ledger.reshape(self.kv_fit.shape)
        self.interval_blocks = (low, high)
        self.reconciler.compare(self.measured_blocks, low, high, frozen=frozen)

    def measured_anew(self) -> None:
        """The engine restarted: what was measured of the old one is void."""
        self.reconciler.new_epoch()
        if self.kv_fit is not None:
            self.kv_fit.new_epoch()
        self.last_engine = None
        self.measured_blocks = None
