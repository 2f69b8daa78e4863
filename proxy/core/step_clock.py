"""The replica's own time: how many decode steps it has done.

The running sequences of a replica advance about one token per step, so the forecast is a function of steps, not of seconds. The clock
moves by the most that any stream advanced since the last look (others may lag in buffers); with no stream to look at, by the rate, and
the rate is corrected by the engine's own token counter:

    rate = generated tokens / sequences running / seconds

Fails: with speculative decoding a "step" is one token of the fastest stream, which keeps curves in tokens and is what they need.
"""

from collections.abc import Iterable
from math import exp

from proxy.core.ledger import Lease

RATE_WINDOW_S = 2.0
RATE_START_PER_S = 20.0  # a large model under load; replaced by the first measurement
ADVANCE_S_MIN = 0.02


class StepClock:
    """Steps done since the clock was made, and steps per second."""

    def __init__(self, now_s: float) -> None:
        self.steps = 0.0
        self.rate_per_s = RATE_START_PER_S
        self.measured = False
        self._at_s = now_s
        self._seen: dict[str, float] = {}

    def __repr__(self) -> str:
        """Reading for people and tests."""
        return f"<StepClock steps={self.steps:.0f} rate={self.rate_per_s:.1f}/s>"

    def advance(self, now_s: float, leases: Iterable[Lease]) -> None:
        """Read every stream's progress and move on to ``now_s``. Looks closer together than 20 ms do nothing."""
        elapsed_s = now_s - self._at_s
        if elapsed_s < ADVANCE_S_MIN:
            return
        self._at_s = now_s
        seen: dict[str, float] = {}
        moved: float | None = None
        busy = False
        for lease in leases:
            busy = True
            if not lease.streaming or not lease.placed:
                continue
            tokens = lease.output_tokens / lease.demand.sequences
            seen[lease.lease_id] = tokens
            before = self._seen.get(lease.lease_id)
            if before is not None:
                moved = max(moved or 0.0, tokens - before)
        self._seen = seen
        if moved is not None:
            self.steps += moved
            self._learn(moved / elapsed_s, elapsed_s)
        elif busy:
            self.steps += self.rate_per_s * elapsed_s

    def counted(self, generated_tokens: float, sequences: float, elapsed_s: float) -> None:
        """Take in the engine's token counter over ``elapsed_s`` with ``sequences`` running on average; only where no stream shows it."""
        if self._seen or sequences < 1.0 or elapsed_s <= 0.0 or generated_tokens <= 0.0:
            return
        self._learn(generated_tokens / sequences / elapsed_s, elapsed_s)

    def _learn(self, rate_per_s: float, elapsed_s: float) -> None:
        weight = 1.0 if not self.measured else 1.0 - exp(-elapsed_s / RATE_WINDOW_S)
        if rate_per_s > 0.0:
            self.rate_per_s += weight * (rate_per_s - self.rate_per_s)
            self.measured = True
