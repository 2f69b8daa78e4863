"""The replica's own time: how many decode steps it has done.

The running sequences of a replica advance about one token per step, so the forecast is a function of steps, not of seconds. The clock
moves by the most that any stream advanced since the last look (others may lag in buffers); with no stream to look at, by the rate, and
the rate is corrected by the engine's own token counter:

    rate = generated tokens / sequences running / seconds

Fails: with speculative decoding a "step" is one token of the fastest stream, which keeps curves in tokens and is what they need.
"""

from dataclasses import dataclass
from math import exp

RATE_WINDOW_S = 2.0
RATE_START_PER_S = 20.0  # a large model under load; replaced by the first measurement
ADVANCE_S_MIN = 0.02


@dataclass(frozen=True, slots=True)
class Streams:
    """What one look at a replica's streams showed: whether anybody is there, whether anybody streams tokens, and how many tokens of one
    sequence the fastest advanced since the look before; None where no stream was there both times.
    """

    busy: bool
    shown: bool
    moved: float | None


IDLE = Streams(busy=False, shown=False, moved=None)


class StepClock:
    """Steps done since the clock was made, and steps per second."""

    def __init__(self, now_s: float) -> None:
        self.steps = 0.0
        self.rate_per_s = RATE_START_PER_S
        self.measured = False
        self._at_s = now_s
        self._shown = False

    def __repr__(self) -> str:
        """Reading for people and tests."""
        return f"<StepClock steps={self.steps:.0f} rate={self.rate_per_s:.1f}/s>"

    def due(self, now_s: float) -> bool:
        """Whether it is time for another look: closer together than 20 ms they would see no more than noise."""
        return now_s - self._at_s >= ADVANCE_S_MIN

    def steps_at(self, now_s: float) -> float:
        """Steps at ``now_s`` of a replica that has been busy since the last look, as the rate says."""
        return self.steps + self.rate_per_s * (now_s - self._at_s)

    def advance(self, now_s: float, streams: Streams) -> None:
        """Take in one look at the streams and move on to ``now_s``. Does nothing where none was ``due``."""
        if not self.due(now_s):
            return
        elapsed_s = now_s - self._at_s
        self._at_s = now_s
        self._shown = streams.shown
        if streams.moved is not None:
            self.steps += streams.moved
            self._learn(streams.moved / elapsed_s, elapsed_s)
        elif streams.busy:
            self.steps += self.rate_per_s * elapsed_s

    def counted(self, generated_tokens: float, sequences: float, elapsed_s: float) -> None:
        """Take in the engine's token counter over ``elapsed_s`` with ``sequences`` running on average; only where no stream shows it."""
        if self._shown or sequences < 1.0 or elapsed_s <= 0.0 or generated_tokens <= 0.0:
            return
        self._learn(generated_tokens / sequences / elapsed_s, elapsed_s)

    def told(self, rate_per_s: float) -> None:
        """Another proxy has measured the rate, and we have not."""
        self.rate_per_s = rate_per_s

    def _learn(self, rate_per_s: float, elapsed_s: float) -> None:
        weight = 1.0 if not self.measured else 1.0 - exp(-elapsed_s / RATE_WINDOW_S)
        if rate_per_s > 0.0:
            self.rate_per_s += weight * (rate_per_s - self.rate_per_s)
            self.measured = True
