"""How long an engine step takes.

Formula: ``seconds = (base + prefill·tokens fed to prefills + decode·decoding sequences + kv·KV tokens held) ÷ speed``. The
base is the weights' pass through memory, the last term the attention reads. Regimes: a long prefill dominates its step; below
that decode is flat in the batch until the KV term grows. Fails: real kernels have steps and graphs; the defaults resemble one
small model on one GPU and stand for no machine in particular.
"""

from dataclasses import dataclass

from proxy.sim.engine_requests import StepReport


@dataclass(frozen=True, slots=True)
class StepTimeModel:
    """Seconds per step, per prefill token, per decoding sequence and per KV token held; ``speed`` 2 halves them all."""

    base_s: float = 10e-3
    prefill_token_s: float = 0.03e-3
    decode_sequence_s: float = 0.04e-3
    kv_token_s: float = 20e-9
    speed: float = 1.0

    def __post_init__(self) -> None:
        if self.speed <= 0:
            raise ValueError(f"speed={self.speed}: must be above 0; 2 is twice as fast")

    def seconds(self, report: StepReport) -> float:
        """Duration of the step; one that fed nothing still takes the base, so virtual time always advances."""
        return (
            self.base_s
            + self.prefill_token_s * report.prefill_tokens
            + self.decode_sequence_s * report.decode_sequences
            + self.kv_token_s * report.kv_tokens
        ) / self.speed
