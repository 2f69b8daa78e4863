"""The difference between the ledger and the engine's own usage: traffic that bypasses us, template drift, our errors.

Formula. Each scrape is compared with the ledger *for the same instant*, as the interval [placed, placed + unplaced] of blocks shifted by
the bias ``b``. Only what lies outside moves the bias: ``b += GAIN * outside``; the outside's square feeds the spread ``sigma``. Blocks
shared between requests are already counted once in the ledger, so nothing is left to explain a negative bias and ``b`` stays at or
above zero.

Regimes. Nothing outside: b rests. Foreign traffic: b follows it within a few scrapes, and the spread covers the lag. Frozen: while the
engine has requests waiting or runs fewer than we know to be decoding, its usage tells of preemption, not of us. No measurement: the
bias stays and the spread grows with age; a missing measurement never reads as zero.

Fails: foreign requests that grow are forecast as if they stood still; the spread covers some of it. (The plain filter reads requests
still being tokenized as prefix sharing and admits more: 22 preemptions per 1,000 where there were 0, reference prototype.md.)
"""

from math import sqrt

GAIN_UP = 0.5  # foreign traffic takes room at once
GAIN_DOWN = 0.2
SPREAD_KEEP = 0.9
STALE_SPREAD_RATIO_PER_S = 0.01  # of the pool, per second beyond the policy's stale_s
STALE_SPREAD_RATIO_MAX = 0.1


class Reconciler:
    """Bias and its spread, both in blocks."""

    def __init__(self) -> None:
        self.bias_blocks = 0.0
        self.outside_blocks = 0.0  # of the last comparison, signed; for metrics
        self._variance = 0.0

    def __repr__(self) -> str:
        """Reading for people and tests."""
        return f"<Reconciler bias={self.bias_blocks:.1f} sigma={sqrt(self._variance):.1f}>"

    def compare(self, measured_blocks: float, low_blocks: float, high_blocks: float, *, frozen: bool) -> float:
        """Take in one scrape; return how far outside the biased interval it lay."""
        low, high = low_blocks + self.bias_blocks, high_blocks + self.bias_blocks
        outside = max(0.0, measured_blocks - high) - max(0.0, low - measured_blocks)
        self.outside_blocks = outside
        if frozen and outside < 0.0:
            return outside
        self.bias_blocks = max(0.0, self.bias_blocks + (GAIN_UP if outside > 0.0 else GAIN_DOWN) * outside)
        if outside > 0.0 or self.bias_blocks > 0.0:
            self._variance = SPREAD_KEEP * self._variance + (1.0 - SPREAD_KEEP) * outside * outside
        else:
            self._variance *= SPREAD_KEEP
        return outside

    def sigma_blocks(self, usable_blocks: int, age_s: float | None, stale_s: float) -> float:
        """Standard deviation of what we do not know of the present, growing while no measurement comes."""
        beyond_s = stale_s if age_s is None else max(0.0, age_s - stale_s)
        ratio = min(STALE_SPREAD_RATIO_MAX, STALE_SPREAD_RATIO_PER_S * beyond_s)
        return sqrt(self._variance) + ratio * usable_blocks

    def new_epoch(self) -> None:
        """The engine restarted: what was learned of its foreign traffic is void."""
        self.bias_blocks = self.outside_blocks = self._variance = 0.0
