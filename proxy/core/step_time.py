"""How long a step of one replica takes, learned from what the gate sees of it.

Model, for a step with p prefill tokens, d decoding sequences and k KV tokens held (as SCORPIO, arXiv 2505.23022, without its products):

    seconds = base + prefill * p + decode * d + kv * k              all coefficients >= 0

Seconds and tokens add up over steps, so a window of many steps gives one equation of means; coefficients are their least squares,
non-negative, with exponential forgetting and a small ridge, solved exactly by trying all sets of zeros.

*Outlook.* What targets are held to is the step a set of requests will see while it runs: p is then not the prefill of this moment but
that of a population which is replaced as it ends, sum of prompt tokens / output tokens. How far windows were from that outlook has a mean
(prefix hits, a slower machine) and a spread; the outlook adds the mean and ``QUANTILE_Z`` spreads, divided by the root of the windows
that a request lives for.

*Token budget* (``max_num_batched_tokens``, which no metric tells): the most tokens per step seen; where prompts were waiting all the time,
what was seen then.

Regimes: nothing known until the first window, and then nothing said of batches above ``REACH`` times the largest one seen. Fails: prompts
are counted by the engine when they are done, so those of many windows' length blur the prefill term.
"""

from dataclasses import dataclass
from math import ceil, exp, sqrt

import numpy as np

from proxy.core.grid import FloatArray

WINDOW_STEPS_MIN = 24.0  # one step more or less at its ends is 4 % then
WINDOW_S_MAX = 4.0
MEMORY_WINDOWS = 240.0  # two to ten minutes: long against bursts, short against a day's change of load
ERROR_WINDOWS = 40.0
RIDGE = 0.01  # of one window's weight
QUANTILE_Z = 2.33  # 99 %: the percentile that latency targets are read at
CORRELATED_WINDOWS = 2.0  # neighbours see the same load: so many count as one when a request averages over them
REACH = 2.0
SEQUENCES_START = 8.0
TOKEN_BUDGET_START = 2048.0  # vLLM's default on most machines; the larger ones show themselves
TOKEN_BUDGET_WEIGHT = 0.2
_SCALE = np.array([1.0, 1e3, 1e2, 1e5])  # makes each term of the sum about one
_SETS = np.array([[bits >> term & 1 for term in range(4)] for bits in range(16)], dtype=np.float64)


@dataclass(frozen=True, slots=True)
class StepWindow:
    """What a replica did while it was busy.

    Sums over its ``steps``, except ``kv_tokens`` (mean held) and ``prefill_outlook`` (tokens per step, see above).
    """

    seconds: float
    steps: float
    prefill_tokens: float
    output_tokens: float
    kv_tokens: float
    prefill_outlook: float = 0.0
    prefill_waiting: bool = False  # prompts were waiting for a place in a step all the time

    def joined(self, later: "StepWindow") -> "StepWindow":
        """Both as one."""
        steps = self.steps + later.steps
        share = later.steps / steps if steps > 0.0 else 0.5
        return StepWindow(
            seconds=self.seconds + later.seconds,
            steps=steps,
            prefill_tokens=self.prefill_tokens + later.prefill_tokens,
            output_tokens=self.output_tokens + later.output_tokens,
            kv_tokens=self.kv_tokens + share * (later.kv_tokens - self.kv_tokens),
            prefill_outlook=self.prefill_outlook + share * (later.prefill_outlook - self.prefill_outlook),
            prefill_waiting=self.prefill_waiting and later.prefill_waiting,
        )


class StepTime:
    """One replica's step-time model."""

    def __init__(self) -> None:
        self.windows = 0
        self.sequences_seen = 0.0
        self.token_budget = TOKEN_BUDGET_START
        self._coefficients = (0.0, 0.0, 0.0, 0.0)
        self._gram: FloatArray = np.zeros((4, 4))
        self._moment: FloatArray = np.zeros(4)
        self._window_s = 0.0
        self._error_s = 0.0
        self._error_s2 = 0.0
        self._open: StepWindow | None = None

    def __repr__(self) -> str:
        """Coefficients for people and tests, in microseconds."""
        base, prefill, decode, kv = (1e6 * one for one in self._coefficients)
        return f"<StepTime {base:.0f}+{prefill:.2f}p+{decode:.1f}d+{kv:.4f}k us windows={self.windows} budget={self.token_budget:.0f}>"

    @property
    def learned(self) -> bool:
        """Whether anything was measured yet."""
        return self.windows > 0

    @property
    def coefficients(self) -> tuple[float, float, float, float] | None:
        """Base, per prefill token, per decoding sequence, per KV token, in seconds; None: nothing learned."""
        return self._coefficients if self.learned else None

    @property
    def prefill_token_s(self) -> float:
        """Seconds that one more prefill token adds to a step."""
        return self._coefficients[1]

    @property
    def error_s(self) -> tuple[float, float]:
        """Mean and spread of (measured - outlook) in seconds per step."""
        return self._error_s, sqrt(max(0.0, self._error_s2 - self._error_s**2))

    @property
    def sequences_known(self) -> float:
        """The largest batch that anything is said about."""
        return max(SEQUENCES_START, REACH * self.sequences_seen)

    def step_s(self, *, sequences: float, kv_tokens: float, prefill_tokens: float = 0.0) -> float:
        """Seconds of one step; 0 while nothing is known."""
        base, prefill, decode, kv = self._coefficients
        return base + prefill * prefill_tokens + decode * sequences + kv * kv_tokens

    def outlook_s(self, *, sequences: float, kv_tokens: float, prefill_tokens: float, steps: float = 1.0) -> float:
        """Seconds per step that 99 % of these sequences will see, each on average over its ``steps``; 0 while nothing is known."""
        mean_s, spread_s = self.error_s
        expected_s = self.step_s(sequences=sequences, kv_tokens=kv_tokens, prefill_tokens=prefill_tokens) + mean_s
        windows = max(1.0, steps * expected_s / max(self._window_s, 1e-9) / CORRELATED_WINDOWS)
        return max(0.0, expected_s + QUANTILE_Z * spread_s / sqrt(windows))

    def prefill_s(self, tokens: float, *, sequences: float, kv_tokens: float) -> float:
        """Seconds until ``tokens`` of prefill are done beside ``sequences`` that decode; 0 while nothing is known."""
        steps = ceil(tokens / max(1.0, self.token_budget - sequences))
        return tokens * self.prefill_token_s + steps * self.step_s(sequences=sequences, kv_tokens=kv_tokens)

    def observe(self, window: StepWindow) -> None:
        """Take in what a replica did since the last look; short looks are joined first."""
        joined = window if self._open is None else self._open.joined(window)
        if joined.steps < WINDOW_STEPS_MIN and (joined.seconds < WINDOW_S_MAX or joined.steps < 1.0):
            self._open = joined
            return
        self._open = None
        self._learn(joined)

    def interrupted(self) -> None:
        """The replica was idle, or cannot be seen: what was joined so far is no window."""
        self._open = None

    def _learn(self, window: StepWindow) -> None:
        step_s, sequences = window.seconds / window.steps, window.output_tokens / window.steps
        prefill = window.prefill_tokens / window.steps
        terms = np.array([1.0, prefill, sequences, window.kv_tokens]) / _SCALE
        keep = exp(-1.0 / MEMORY_WINDOWS)
        self._gram = keep * self._gram + np.outer(terms, terms)
        self._moment = keep * self._moment + step_s * terms
        solution = _least_squares(self._gram + RIDGE * np.eye(4), self._moment) / _SCALE
        self._coefficients = (float(solution[0]), float(solution[1]), float(solution[2]), float(solution[3]))
        outlook_s = self.step_s(sequences=sequences, kv_tokens=window.kv_tokens, prefill_tokens=window.prefill_outlook)
        self._note_error(step_s - outlook_s, window.seconds)
        self.windows += 1
        self.sequences_seen = max(self.sequences_seen, sequences)
        self._note_budget(prefill + sequences, waiting=window.prefill_waiting)

    def _note_error(self, error_s: float, window_s: float) -> None:
        weight = max(1.0 / (self.windows + 1.0), 1.0 / ERROR_WINDOWS)
        self._window_s += weight * (window_s - self._window_s)
        self._error_s += weight * (error_s - self._error_s)
        self._error_s2 += weight * (error_s * error_s - self._error_s2)

    def _note_budget(self, tokens_per_step: float, *, waiting: bool) -> None:
        if tokens_per_step > self.token_budget:
            self.token_budget = tokens_per_step
        elif waiting:
            self.token_budget += TOKEN_BUDGET_WEIGHT * (tokens_per_step - self.token_budget)


def _least_squares(gram: FloatArray, moment: FloatArray) -> FloatArray:
    """The non-negative x that minimises x'Gx/2 - m'x: of all 16 sets of terms left out, the best whose solution has no negative term."""
    masks = _SETS[:, :, None] * _SETS[:, None, :]
    systems = gram * masks + np.eye(4) * (1.0 - _SETS)[:, :, None]
    solutions = np.linalg.solve(systems, (moment * _SETS)[:, :, None])[:, :, 0]
    costs = 0.5 * np.einsum("si,ij,sj->s", solutions, gram, solutions) - solutions @ moment
    costs[(solutions < 0.0).any(axis=1)] = np.inf
    best: FloatArray = solutions[int(np.argmin(costs))]
    return best
