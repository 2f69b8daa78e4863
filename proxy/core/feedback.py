"""How many standard deviations above the expected peak a forecast is read: z, driven by what the engine does.

Formula (integral control, reference algorithms.md §6.3): a completion relaxes, a preemption tightens,

    z = clip(z + STEP * (preemptions - target * completions), z_min, z_max)

so that it rests where preemptions per completion equal the target. Relaxing counts only completions that fell while admission was
limited by KV: an idle replica proves nothing (anti-windup). Several preemptions in one scrape are a burst: admission pauses
(``burst_until_s``) and z moves at once, because the counter is late (it counts a victim when it resumes).

Fails: where events are rare and clustered (long outputs on a small pool) z overshoots after a cluster and comes back slowly.
"""

STEP = 0.12
Z_START = 2.0  # chat wants about 1.5, long reasoning outputs 2.5 to 3 (reference prototype.md)
BURST_PREEMPTIONS = 3
BURST_PAUSE_S = 1.0
BURST_COUNTED_MAX = 3  # one cluster is one piece of evidence, however many victims it had


class Feedback:
    """Holds z between its limits. ``target_ratio`` is preemptions per completed request."""

    def __init__(self, *, target_ratio: float, z_min: float, z_max: float) -> None:
        self.target_ratio = target_ratio
        self.z_min = z_min
        self.z_max = z_max
        self.z = min(max(Z_START, z_min), z_max)
        self.preemptions_total = 0
        self.burst_until_s = float("-inf")

    def __repr__(self) -> str:
        """Reading for people and tests."""
        return f"<Feedback z={self.z:.2f} preemptions={self.preemptions_total}>"

    def completed(self, *, kv_limited: bool) -> None:
        """One request finished; ``kv_limited`` says whether somebody waited for KV meanwhile."""
        if kv_limited:
            self.z = max(self.z_min, self.z - STEP * self.target_ratio)

    def preempted(self, count: int, now_s: float) -> None:
        """The engine's counter rose by ``count`` since the last scrape."""
        self.preemptions_total += count
        self.z = min(self.z_max, self.z + STEP * min(count, BURST_COUNTED_MAX))
        if count >= BURST_PREEMPTIONS:
            self.burst_until_s = now_s + BURST_PAUSE_S
