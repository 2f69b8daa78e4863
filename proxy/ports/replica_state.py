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
    pool: str = ""
    version: str = ""  # of the engine
    expected_blocks: float | None = None  # of the forecast peak, the expected demand at that moment
    margin_blocks: float | None = None  # of it, what comes on top of the demand and of what bypasses us
    estimate_error_blocks: float | None = (
        None  # how far the last measurement lay outside the estimate for its instant; None: none
    )
    calibration_ratio: float | None = None
    forecasts_covered: tuple[
        tuple[int, int, int], ...
    ] = ()  # by horizon in steps: bounds that held, and that did not, since the start

    @property
    def budget_blocks(self) -> float | None:
        """What the expected demand of requests through kvgate may come to."""
        if self.usable_blocks is None or self.margin_blocks is None:
            return None
        return self.usable_blocks - self.margin_blocks - (self.bias_blocks or 0.0)

    @property
    def headroom_blocks(self) -> float | None:
        """What the forecast peak leaves of the replica; negative where it is beyond."""
        if self.usable_blocks is None or self.forecast_peak_blocks is None:
            return None
        return self.usable_blocks - self.forecast_peak_blocks
