"""Limits of a replica other than KV blocks: sequence slots, prefill backlog, and the engine's own queue.

A request waiting inside the engine can be neither reordered, rerouted nor shed, so none should wait there.

*Seats.* ``max_num_seqs`` where it is configured or told; else learned: the most seen running is a floor; running while requests wait for
capacity with KV to spare is a ceiling, forgotten after ``CEILING_LIFE_S`` so that a wrong one does not stay.
*Prefill backlog.* Prompt tokens sent and not yet placed stay below a few steps' worth; one request is always let through.
*Engine queue.* Two scrapes in a row with requests waiting for capacity close the replica until one without.

Fails: engines before 0.20 do not say why requests wait; LoRA or grammar waits then close the replica as well.
"""

from enum import StrEnum

from proxy.core.replica import EngineSample

PREFILL_TOKENS_MAX = 8192  # one to four engine steps' token budget: enough that no step starves
KV_SPARE_RATIO = 0.9
CEILING_LIFE_S = 60.0
WAITING_SAMPLES = 2


class Binding(StrEnum):
    """The limit that keeps a request out of a replica."""

    NONE = "none"
    KV = "kv"
    SEATS = "seats"
    PREFILL = "prefill"
    ENGINE_QUEUE = "engine_queue"
    PACING = "pacing"
    BURST = "preemption_burst"
    UNAVAILABLE = "unavailable"


class Saturation:
    """What the last samples say of a replica's other limits."""

    def __init__(self, sequences_max: int | None) -> None:
        self.sequences_max = sequences_max
        self.sequences_floor = 0
        self._ceiling: tuple[int, float] | None = None
        self._waiting_samples = 0

    def observe(self, sample: EngineSample, now_s: float) -> None:
        """Take in one engine's gauges."""
        waiting = sample.waiting_capacity if sample.waiting_capacity is not None else sample.waiting
        self._waiting_samples = self._waiting_samples + 1 if waiting else 0
        if sample.running is None:
            return
        self.sequences_floor = max(self.sequences_floor, sample.running)
        spare = sample.kv_usage_ratio is not None and sample.kv_usage_ratio < KV_SPARE_RATIO
        if spare and self._waiting_samples >= WAITING_SAMPLES and sample.running >= self.sequences_floor > 0:
            self._ceiling = (sample.running, now_s)

    def seats(self, now_s: float) -> int | None:
        """Sequences the engine runs at most; None when not known."""
        if self.sequences_max is not None:
            return self.sequences_max
        if self._ceiling is not None and now_s - self._ceiling[1] < CEILING_LIFE_S:
            return max(self._ceiling[0], self.sequences_floor)
        return None

    def binding(self, *, sequences: int, sequences_held: int, prompt_tokens: int, prefill_tokens: int, now_s: float) -> Binding:
        """Whether one of these limits keeps out a request of ``sequences`` sequences and ``prompt_tokens``."""
        seats = self.seats(now_s)
        if seats is not None and sequences_held and sequences_held + sequences > seats:
            return Binding.SEATS
        if self._waiting_samples >= WAITING_SAMPLES and sequences_held:
            return Binding.ENGINE_QUEUE
        if prefill_tokens and prefill_tokens + prompt_tokens > PREFILL_TOKENS_MAX:
            return Binding.PREFILL
        return Binding.NONE
