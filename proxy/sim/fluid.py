"""The most that any policy can get out of given engines for a workload: a fluid bound, no simulation.

Formula, per replica, for prompts P, of which F are in no earlier prompt, outputs L, and token-steps w = Σ over a request's steps of the KV
tokens it holds:

    n       = min( usable tokens · E[L] / E[w],  max_num_seqs,  max_num_batched_tokens · E[L] / (E[F] + E[L] − 1) )
    step_s  = base + decode · n · (1 − 1/E[L]) + kv · n · E[w] / E[L] + prefill · E[F] · n / E[L]
    requests/s = n / (E[L] · step_s)        tokens/s = n / step_s

A request takes L steps: one feeds the prompt's end and yields the first token, L − 1 decode; it holds P, P + 1, …, P + L − 1 tokens, so
E[w] = E[P·L + L(L − 1)/2] (``LengthStats.token_steps_mean`` counts L(L + 1)/2: one token more per step). Steps are the only cost that
depends on n, and n is what the cache, the seats or the token budget can carry on average (λ·E[w] ≤ M: Dong and Cao, arXiv 2604.11001), so
no order and no foresight beats it. Regimes: long outputs are bound by the cache, short prompts by seats, long prompts by the budget.

Fails: it is no bound for a policy that serves only the cheap requests, nor where running ones share more than what all share. Part-filled
blocks, chunked prompts and the ends of a run cost a few per cent that it does not count; prefixes are taken as always found.
"""

from dataclasses import dataclass
from typing import Protocol

from proxy.sim.engine_requests import EngineSettings
from proxy.sim.step_time import StepTimeModel


class MeanLengths(Protocol):
    """Means over a workload's requests, tokens; outputs are cut at the cap. ``LengthStats`` of the workloads is one."""

    @property
    def prompt_tokens_fresh_mean(self) -> float:
        """E[F]: prompt tokens that even an endless prefix cache has to compute."""
        ...

    @property
    def output_tokens_mean(self) -> float:
        """E[L]."""
        ...

    @property
    def token_steps_mean(self) -> float:
        """E[P·L + L(L + 1)/2]."""
        ...


@dataclass(frozen=True, slots=True)
class Fluid:
    """The bound for one replica: mean sequences in flight, seconds per step, and what they yield."""

    sequences: float
    step_s: float
    requests_per_s: float
    tokens_per_s: float


def fluid_bound(engine: EngineSettings, step_time: StepTimeModel, lengths: MeanLengths) -> Fluid:
    """Bound of one replica. Raises ValueError for outputs shorter than one token on average."""
    prompt, output = lengths.prompt_tokens_fresh_mean, lengths.output_tokens_mean
    if output < 1.0:
        raise ValueError(f"output_tokens_mean={output}: every request yields at least one token")
    token_steps = lengths.token_steps_mean - output
    usable_tokens = (engine.num_gpu_blocks - 1) * engine.block_size
    sequences = min(
        usable_tokens * output / token_steps,
        float(engine.running_max),
        engine.max_num_batched_tokens * output / (prompt + output - 1.0),
    )
    per_sequence_s = (
        step_time.decode_sequence_s * (output - 1.0)
        + step_time.kv_token_s * token_steps
        + step_time.prefill_token_s * prompt
    ) / output  # fmt: skip
    step_s = (step_time.base_s + sequences * per_sequence_s) / step_time.speed
    return Fluid(sequences, step_s, sequences / (output * step_s), sequences / step_s)


def capacity_requests_per_s(engine: EngineSettings, step_time: StepTimeModel, lengths: MeanLengths, replicas: int = 1) -> float:
    """Requests per second that ``replicas`` such engines can carry at most: what a load of 1 means."""
    return replicas * fluid_bound(engine, step_time, lengths).requests_per_s
