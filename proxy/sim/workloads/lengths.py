"""Laws of prompt and output lengths, and the three that the simulator's own workloads are made of.

The medians, the sigma of reasoning and the caps of chat and reasoning are those of the experiment that set our targets; the rest was chosen
before anything was tuned on it. ``proxy/sim/README.md`` has them in one table.
"""

from dataclasses import dataclass
from math import log
from random import Random


@dataclass(frozen=True, slots=True)
class Lognormal:
    """Whole numbers from 1 to ``most``: exp of a normal with mean ln(median) and deviation ``sigma``, rounded, cut."""

    median: float
    sigma: float
    most: int

    def draw(self, rng: Random) -> int:
        """Draw one. Takes one value from the generator's normal stream."""
        return min(self.most, max(1, round(rng.lognormvariate(log(self.median), self.sigma))))


@dataclass(frozen=True, slots=True)
class LengthLaw:
    """Prompt and natural output of a request, independent of each other, and the cap that all of them send."""

    prompt: Lognormal
    output: Lognormal
    output_tokens_max: int

    def draw(self, rng: Random) -> tuple[int, int]:
        """Draw (prompt tokens, output tokens before the cap)."""
        return self.prompt.draw(rng), self.output.draw(rng)


# A natural length beyond any context; where the cap cuts, only that it is beyond matters.
NATURAL_TOKENS_MOST = 1_000_000

CHAT = LengthLaw(Lognormal(545, 0.9, 4096), Lognormal(200, 0.8, NATURAL_TOKENS_MOST), 2048)
RAG = LengthLaw(Lognormal(4000, 0.5, 16384), Lognormal(150, 0.7, NATURAL_TOKENS_MOST), 1024)
REASONING = LengthLaw(Lognormal(245, 0.9, 4096), Lognormal(1340, 0.8, NATURAL_TOKENS_MOST), 8192)


def generator(seed: int, *names: str | int) -> Random:
    """A random generator of its own for one purpose, the same in every process."""
    return Random("/".join(map(str, (seed, *names))))
