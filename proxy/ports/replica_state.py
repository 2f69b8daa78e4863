"""What is told of one replica."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReplicaState:
    """One replica at this moment, for metrics. Blocks; None where it is not known."""

    name: str
    phase: str
    enforced: bool
    usable_blocks: int | None = None
    forecast_peak_blocks: float | None = None
    ledger_low_blocks: float | None = None
    ledger_high_blocks: float | None = None
    measured_blocks: float | None = None
    bias_blocks: float | None = None
    z: float | None = None
    leases: int = 0
    running: int | None = None
    waiting: int | None = None
    preemptions_total: int = 0
    cache_recoveries_total: int = 0
    sample_age_s: float | None = None
    steps_per_s: float | None = None
    step_s: float | None = None  # forecast of a step at this moment's load, prefill aside; None: nothing measured yet
    prefill_token_s: float | None = None
    prefill_tokens: float | None = None
    prefill_tokens_max: float | None = None
    seats: int | None = None
    engine_queue: float | None = None
    foreign_sequences: int | None = None
    second_proxy: bool | None = None
    binding: str = ""
    prefix_hit_tokens_expected_total: int | None = None
    prefix_hit_tokens_counted_total: float | None = None
    prefix_hit_credit_ratio: float | None = None
