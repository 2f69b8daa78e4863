"""What was seen of engines while they were watched: numbers only, nothing is judged here.

None is not seen, never zero. ``latencies`` are those of the watch; where too little ended in it (``latencies_of_life``) those since the
engine's start, which the evidence then says.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from proxy.core.replica import ReplicaFacts
from proxy.core.units import usable_blocks
from proxy.wire.serve_command import ServeFlags
from proxy.wire.vllm_latencies import EngineLatencies
from proxy.wire.vllm_metrics import version_pair


@dataclass(frozen=True, slots=True)
class Spread:
    """A gauge over the watch."""

    first: float
    last: float
    least: float
    mean: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float | None]) -> "Spread | None":
        """None of nothing; what was not seen is left out."""
        seen = [value for value in values if value is not None]
        if not seen:
            return None
        return cls(seen[0], seen[-1], min(seen), sum(seen) / len(seen), max(seen))


@dataclass(frozen=True, slots=True)
class EngineWatch:
    """One engine. Gauges over the watch; counters as what was added in it, and ``…_total`` since the engine's start.

    ``still_s`` is how long it has had work while nothing moved, 0 where it moves or has none; ``wedged`` that this is too long.
    """

    engine: str
    usage_ratio: Spread | None = None
    running: Spread | None = None
    waiting: Spread | None = None
    preemptions: float | None = None
    preemptions_total: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    prefix_queries: float | None = None
    prefix_hits: float | None = None
    prefix_queries_total: float | None = None
    prefix_hits_total: float | None = None
    still_s: float = 0.0
    wedged: bool = False


@dataclass(frozen=True, slots=True)
class ReplicaWatch:
    """One server. ``facts`` is None where it could not be reached; ``fault`` says why, ``failures`` counts scrapes without an answer.

    ``up_s`` is the age of its process. ``gpu_util_ratio`` is of the cards that a DCGM exporter shows, None where none was given.
    """

    url: str
    watched_s: float
    scrapes: int = 0
    failures: int = 0
    fault: str | None = None
    facts: ReplicaFacts | None = None
    engines: tuple[EngineWatch, ...] = ()
    restarts: int = 0
    up_s: float | None = None
    latencies: EngineLatencies = field(default_factory=EngineLatencies)
    latencies_of_life: bool = False
    flags: ServeFlags = field(default_factory=ServeFlags)
    gpu_util_ratio: Spread | None = None

    @property
    def version(self) -> tuple[int, int] | None:
        """Major and minor; None where it is not told."""
        return None if self.facts is None else version_pair(self.facts.version)

    @property
    def pool_tokens(self) -> int | None:
        """KV cache of one engine in tokens."""
        facts = self.facts
        if facts is None or not facts.kv_blocks_total or not facts.block_size:
            return None
        return usable_blocks(facts.kv_blocks_total, facts.engines) * facts.block_size

    @property
    def seats(self) -> int | None:
        """``max_num_seqs`` of one engine, where anything tells it."""
        return self.flags.max_num_seqs or (None if self.facts is None else self.facts.sequences_max)

    @property
    def since(self) -> str:
        """Which time the latencies are of, for evidence."""
        return "since the engine's start" if self.latencies_of_life else f"in {self.watched_s:.0f} s"


@dataclass(frozen=True, slots=True)
class KvgateWatch:
    """A kvgate that stands in front. ``phases`` and ``binding`` by replica; counters as what was added in the watch."""

    url: str
    watched_s: float
    mode: str | None = None
    guard_tripped: bool = False
    queued: Spread | None = None
    refusals: Mapping[str, float] = field(default_factory=dict)  # by gate
    internal_errors: float = 0.0
    phases: Mapping[str, str] = field(default_factory=dict)
    binding: Mapping[str, str] = field(default_factory=dict)
    sample_age_s: Mapping[str, float] = field(default_factory=dict)
    observed_only: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Targets:
    """What the operator wants: time to first token and per output token, seconds. The defaults are a chat user's patience."""

    ttft_s: float = 2.0
    tpot_s: float = 0.05
