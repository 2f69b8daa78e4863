"""How many standard deviations above the expected peak a forecast is read: z, from what the load is like and from what the engine does.

Formula. A prior from two figures of the load, and an integral correction by outcomes:

    z      = clip( z0 * calibration + delta, z_min, z_max )
    z0     = PHI^-1( 1 - aim * m / kappa(rho) )      m = SEQUENCES * (n / SEQUENCES)^(1/4),  kappa(rho) = KAPPA * exp(KAPPA_GROWTH * rho)
    delta += STEP * victims of a cluster (at most CLUSTER_MAX)                     when the engine preempts
    delta -= STEP * aim                                        for each completion while KV limited admission

``n`` is how many sequences are in flight when the pool is full, ``rho`` the share of what a request holds at its end that it had not
been admitted with (output tokens over prompt and output tokens), ``aim`` a share of the policy's target. Why: a full pool gets about
one chance to overflow for each turnover of its n sequences, which overflows with probability 1 - PHI(z) and then preempts the more
victims the faster the others grow while nobody ends, and in a larger pool more at a time: ``kappa * n / m`` victims per
turnover and unit of that probability; ``kappa`` is 0.3 where prompts rule (rho 0.04), 1 for chat (0.25), 17 for long reasoning (0.84).
(Taken as alike for all pools, one overflow of 160 long outputs cost 89 preemptions.) ``calibration`` is what past forecasts
were really off by (``core.calibration``). The correction rests where preemptions per completion equal the aim.

Anti-windup: only completions that fell while admission was limited by KV relax, and delta never takes z beyond its limits. A cluster is
one piece of evidence however many victims it has, so it counts no more than ``CLUSTER_MAX``. Several preemptions in one scrape are a
burst: admission pauses (``burst_until_s``). Of several proxies one holds z, and the others follow it: so many that react to one counter
would multiply the gain.

Fails: kappa was fitted to lognormal lengths of sigma 0.7 to 0.8 on steps of one length; where ends come in other ways the prior is off by
up to half a unit until outcomes correct it, which takes some hundred completions.
"""

from math import exp
from statistics import NormalDist

STEP = 0.06  # a cluster moves z by 0.18: twice that and z swings so far that a pinned one does better
AIM_RATIO = 0.55  # of the policy's target: clusters make the count noisy, and the target is a promise
CLUSTER_MAX = 3
CLUSTER_S = 2.0
Z_START = 2.5  # until the replica was measured under load
KAPPA = 0.28
KAPPA_GROWTH = 4.9
SEQUENCES = 30.0  # of the pools on which kappa was found
OVERFLOW_MIN, OVERFLOW_MAX = 3e-4, 0.5
BURST_PREEMPTIONS = 3
BURST_PAUSE_S = 1.0
OUTPUT_TOKENS_START, TOKENS_START = 36_000.0, 42_000.0  # twenty long answers: the first to complete are the short ones
REQUESTS_KEPT = 200.0  # rho is of about so many completions
SEQUENCES_KEEP = 0.95  # per scrape

NORMAL = NormalDist()


class Feedback:
    """Holds z between its limits. ``target_ratio`` is preemptions per completed request."""

    def __init__(self, *, target_ratio: float, z_min: float, z_max: float) -> None:
        self.target_ratio = target_ratio
        self.z_min = z_min
        self.z_max = z_max
        self.calibration = 1.0
        self.delta = 0.0
        self.z = min(max(Z_START, z_min), z_max)
        self.preemptions_total = 0
        self.burst_until_s = float("-inf")
        self.following = False  # another proxy holds z, and it is told here: delta is what makes it that
        self._sequences = 0.0
        self._output_tokens = OUTPUT_TOKENS_START
        self._tokens = TOKENS_START
        self._cluster = 0
        self._cluster_s = float("-inf")

    def __repr__(self) -> str:
        """Reading for people and tests."""
        return f"<Feedback z={self.z:.2f} z0={self.prior():.2f} preemptions={self.preemptions_total}>"

    def bound(self, *, target_ratio: float, z_min: float, z_max: float) -> None:
        """The policy says otherwise from now on: what was learned stays, within its limits."""
        self.target_ratio, self.z_min, self.z_max = target_ratio, z_min, z_max
        self.z = min(max(self.z, z_min), z_max)

    def prior(self) -> float:
        """z0: what the load alone says."""
        if not self._sequences:
            return Z_START
        kappa = KAPPA * exp(KAPPA_GROWTH * self._output_tokens / self._tokens)
        chances = SEQUENCES * (max(1.0, self._sequences) / SEQUENCES) ** 0.25
        overflow = AIM_RATIO * self.target_ratio * chances / kappa
        return NORMAL.inv_cdf(1.0 - min(max(overflow, OVERFLOW_MIN), OVERFLOW_MAX))

    def load(self, sequences: int, calibration: float, *, kv_limited: bool) -> None:
        """Take in, once for each scrape, how many sequences hold blocks or will, and what forecasts were off by.

        ``n`` is that of a full pool: sequences of one with room to spare count only where they are more than were known.
        """
        self.calibration = calibration
        if kv_limited or sequences > self._sequences:
            keep = SEQUENCES_KEEP if self._sequences else 0.0
            self._sequences = keep * self._sequences + (1.0 - keep) * sequences
        self._settle()

    def completed(self, prompt_tokens: float, output_tokens: float, *, kv_limited: bool) -> None:
        """One request finished; tokens are those it held. ``kv_limited`` says whether somebody waited for KV meanwhile."""
        keep = 1.0 - 1.0 / REQUESTS_KEPT
        self._output_tokens = keep * self._output_tokens + output_tokens
        self._tokens = keep * self._tokens + prompt_tokens + output_tokens
        if kv_limited:
            self._move(-STEP * AIM_RATIO * self.target_ratio)
        self._settle()

    def preempted(self, count: int, now_s: float) -> None:
        """The engine's counter rose by ``count`` since the last scrape."""
        self.preemptions_total += count
        if now_s - self._cluster_s > CLUSTER_S:
            self._cluster = 0
        self._cluster_s = now_s
        counted = min(count, CLUSTER_MAX - self._cluster)
        self._cluster += counted
        self._move(STEP * counted)
        if count >= BURST_PREEMPTIONS:
            self.burst_until_s = now_s + BURST_PAUSE_S
        self._settle()

    @property
    def learned(self) -> tuple[float, float, float, float]:
        """What outlasts a request: delta, the sequences of a full pool, and the sums of output tokens and of all tokens."""
        return self.delta, self._sequences, self._output_tokens, self._tokens

    def resume(self, learned: tuple[float, float, float, float]) -> None:
        """Go on from what was ``learned``."""
        self.delta, self._sequences, self._output_tokens, self._tokens = learned
        self._settle()

    def _start(self) -> float:
        return self.prior() * self.calibration

    def _move(self, step: float) -> None:
        """Correct delta, but no further than to where z meets its limit."""
        start = self._start()
        if step > 0.0:
            self.delta = max(self.delta, min(self.delta + step, self.z_max - start))
        else:
            self.delta = min(self.delta, max(self.delta + step, self.z_min - start))

    def follow(self, z: float, burst_until_s: float) -> None:
        """Another proxy holds the margin for all of them, and it is ``z``. Should it become ours to hold, it goes on from there."""
        self.following, self.z, self.burst_until_s = True, z, burst_until_s
        self._settle()

    def _settle(self) -> None:
        if self.following:
            self.delta = self.z - self._start()
            return
        self.z = min(max(self._start() + self.delta, self.z_min), self.z_max)
