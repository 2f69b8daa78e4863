"""LightLLM's Past-Future rule (ASPLOS'25, arXiv 2507.10150): sample how long everybody will live from past lengths, admit what then fits.

For each running request with prompt P and g tokens out a length is drawn from ``[g] ∪ {past lengths > g} ∪ {its cap}``, uniformly with
linear interpolation; for the new one from the past lengths. With what they hold (P + g) sorted by what is still to come, R, descending:

    peak = max over i of ( Σ_{j ≤ i} (P_j + g_j)  +  i · R_i )        admit while  peak < (1 − reserve) · usable tokens

for the worst of at most five joint samples, fewer when many run. Samples are drawn afresh at every pass. The history is a window of ended
requests of all replicas, half filled at the start with a presumed length.

Fails: the worst of five is no quantile it could be held to, and drawing again is trying again; a change of regime poisons the window; ended
requests alone are biased short; prompts that share a prefix are counted twice; requests that do not stream look as if just begun.
"""

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
import numpy.typing as npt

from proxy.sim.baselines.rule import Rule
from proxy.sim.baselines.views import Offer, Placed, ReplicaView

FloatArray = npt.NDArray[np.float64]

SAMPLED_VALUES_MIN = 200
SAMPLES_MAX = 5


@dataclass(frozen=True, slots=True)
class Parameters:
    """``presumed_tokens`` None: each half of the window starts at the longest output the context allows."""

    window: int
    presumed_tokens: int | None
    reserve_ratio: float
    look_s: float
    admissions_per_look: float = inf


# They were published three times with different numbers. ``look_s`` are 10 decode steps of about 20 ms between prefills, or one.
PUBLISHED = {
    # LightLLM itself, PastFutureQueue; 1,024 is its default router_max_new_token_len.
    "code": Parameters(window=200, presumed_tokens=1024, reserve_ratio=0.05, look_s=0.2),
    # The paper's behaviour analysis.
    "paper": Parameters(window=1000, presumed_tokens=512, reserve_ratio=0.03, look_s=0.2),
    # The paper's artifact: a short window of mostly presumed maxima, and one request per pass. Its reserve is that of the code.
    "artifact": Parameters(window=40, presumed_tokens=None, reserve_ratio=0.05, look_s=0.02, admissions_per_look=1),
}


def peak_tokens(held: FloatArray, remaining: FloatArray) -> FloatArray:
    """Most tokens held at once by requests that advance together, per row (sample) of ``[samples, requests]``."""
    order = np.argsort(-remaining, axis=1)
    sums = np.cumsum(np.take_along_axis(held, order, axis=1), axis=1)
    steps = np.arange(1, held.shape[1] + 1) * np.take_along_axis(remaining, order, axis=1)
    found: FloatArray = np.max(sums + steps, axis=1)
    return found


class PastFuture(Rule):
    """One joint sample set per replica and pass; the admitted join it."""

    look_again = True

    def __init__(self, parameters: Parameters) -> None:
        self.parameters = parameters
        self.admissions_per_look = parameters.admissions_per_look
        self.look_s = parameters.look_s
        self._samples: dict[str, tuple[FloatArray, FloatArray]] = {}  # replica → held, remaining; of this pass
        self._tried: dict[str, tuple[FloatArray, FloatArray]] = {}  # the same with the head

    def start(self, replicas: Sequence[ReplicaView], seed: int) -> None:
        """Fill half of the history with the presumed length."""
        presumed = self.parameters.presumed_tokens or max(replica.spec.context_tokens_max for replica in replicas)
        window = self.parameters.window
        self.history: deque[int] = deque([presumed] * (window // 2), maxlen=window)
        self._rng = np.random.default_rng(seed)

    def look(self) -> None:
        """Draw anew."""
        self._samples.clear()
        self._tried.clear()

    def fits(self, offer: Offer, replica: ReplicaView, now_s: float) -> bool:
        """Whether the worst sampled peak stays within the pool; an empty replica takes anything."""
        del now_s
        name = replica.spec.name
        held, remaining = self._samples.get(name) or self._draw(replica)
        self._samples[name] = held, remaining
        count = len(held)
        drawn = self._rng.choice(np.array(self.history, dtype=np.float64), size=(count, 1))
        held = np.hstack([held, np.full((count, 1), float(offer.prompt_tokens))])
        remaining = np.hstack([remaining, np.minimum(drawn, offer.output_tokens_max)])
        self._tried[name] = held, remaining
        return not replica.live or float(peak_tokens(held, remaining).max()) < self._limit_tokens(replica)

    def forwarded(self, placed: Placed, replica: ReplicaView) -> None:
        """It is part of the rest of this pass."""
        del placed
        self._samples[replica.spec.name] = self._tried[replica.spec.name]

    def ended(self, placed: Placed, replica: ReplicaView) -> None:
        """Remember its length, also when its cap cut it."""
        del replica
        self.history.append(placed.output_tokens)

    def _limit_tokens(self, replica: ReplicaView) -> float:
        return (1.0 - self.parameters.reserve_ratio) * replica.usable_tokens

    def _draw(self, replica: ReplicaView) -> tuple[FloatArray, FloatArray]:
        """Joint samples for everybody on a replica: ``[samples, requests]`` of tokens held and of tokens to come."""
        live = list(replica.live.values())
        if not live:
            return np.empty((SAMPLES_MAX, 0)), np.empty((SAMPLES_MAX, 0))
        count = min(SAMPLES_MAX, SAMPLED_VALUES_MIN // len(live) + 1)
        past = np.sort(np.array(self.history, dtype=np.float64))
        out = np.array([float(placed.output_tokens) for placed in live])
        cap = np.array([float(placed.offer.output_tokens_max) for placed in live])
        first = np.searchsorted(past, out, side="right")
        longer = len(past) - first  # past lengths above g: a request's range has longer + 2 values
        at = self._rng.random((count, len(live))) * (longer + 1)
        index = at.astype(np.int64)

        def value(position: npt.NDArray[np.int64]) -> FloatArray:
            inside = past[np.clip(first + position - 1, 0, len(past) - 1)]
            return np.where(position == 0, out, np.where(position > longer, np.maximum(cap, out), inside))

        low = value(index)
        length = np.rint(low + (value(index + 1) - low) * (at - index))
        held = np.array([float(placed.held_tokens) for placed in live])
        return np.tile(held, (count, 1)), np.maximum(length - out, 0.0)
