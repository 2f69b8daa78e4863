"""Whether a replica stands still: it answers its health check and its scrapes, has work, and does none.

Any step of an engine moves something: a gauge, a counter, or one of our streams. A chunked prefill of a long prompt emits no token for
seconds, but takes blocks with every step. So a replica is wedged when it has work, ours among it, and *nothing* has moved

    for QUIET_SAMPLES scrapes in a row  and  max(QUIET_S_MIN, 2 * the longest quiet that ended by itself, QUIET_S_MAX at most)

A scrape that comes late is no sample, so a busy server cannot become wedged by silence; the watcher judges that. Any movement ends it.
Without requests nothing need move again: ``RETRY_S`` after the last of ours left, a wedged replica is tried with one.

Fails: without engine gauges it is never found; an engine whose single step takes longer than ``QUIET_S_MIN`` is held for wedged once.
"""

from proxy.core.replica import EngineSample

QUIET_SAMPLES = 5
QUIET_S_MIN = 10.0  # a step of the largest token budget on a slow machine takes a few seconds
QUIET_S_MAX = 60.0
RETRY_S = 30.0

Reading = tuple[float | None, int | None, int | None, float | None, float | None, float | None]


class Wedge:
    """What the last scrapes say of one replica's progress."""

    def __init__(self) -> None:
        self.since_s: float | None = None  # when it was found wedged
        self.moved_s: float | None = None  # when something last moved
        self._reading: Reading | None = None
        self._streamed = 0
        self._busy_s = 0.0  # when it last had requests of ours
        self._quiet_samples = 0
        self._quiet_s_longest = 0.0

    @property
    def wedged(self) -> bool:
        """Nothing moves though there is work."""
        return self.since_s is not None

    def observe(self, sample: EngineSample, sampled_s: float, *, leases: int, streamed_tokens: int) -> None:
        """Take in a scrape, and the tokens that the streams of the ``leases`` now open have brought together."""
        reading = (
            sample.kv_usage_ratio, sample.running, sample.waiting,
            sample.generation_tokens_total, sample.prompt_tokens_total, sample.preemptions_total,
        )  # fmt: skip
        moved = reading != self._reading or streamed_tokens > self._streamed
        works = bool(sample.running) or bool(sample.waiting_for_room)
        self._reading, self._streamed = reading, streamed_tokens
        if moved or not works or self.moved_s is None:
            self._moved(sampled_s, busy=moved and works)
            return
        if leases:
            self._busy_s = sampled_s
        self._quiet_samples += 1
        enough = self._quiet_samples >= QUIET_SAMPLES and sampled_s - self.moved_s >= self.patience_s
        if leases and enough and self.since_s is None:
            self.since_s = sampled_s

    def closed(self, leases: int, now_s: float) -> bool:
        """Whether nobody is to be sent there."""
        return self.since_s is not None and (leases > 0 or now_s - self._busy_s < RETRY_S)

    @property
    def patience_s(self) -> float:
        """Seconds of standstill after which the replica counts as wedged."""
        return min(QUIET_S_MAX, max(QUIET_S_MIN, 2.0 * self._quiet_s_longest))

    def _moved(self, sampled_s: float, *, busy: bool) -> None:
        if busy and self.moved_s is not None and self._quiet_samples:
            self._quiet_s_longest = max(self._quiet_s_longest, sampled_s - self.moved_s)
        self.moved_s, self.since_s, self._quiet_samples = sampled_s, None, 0
