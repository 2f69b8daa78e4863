"""What is known of a replica: facts found by probing, and one sample of its live metrics.

A value that was not seen is None, never zero: a usage metric that is missing or renamed must not read as an empty cache.
"""

from collections.abc import Set
from dataclasses import dataclass, field, replace
from enum import StrEnum

from proxy.core.kv_shape import PLAIN_LAYOUT, KvLayout, KvShape


class ReplicaPhase(StrEnum):
    """Where a replica is in its life as kvgate sees it."""

    PROBING = "probing"
    SERVING = "serving"
    UNREACHABLE = "unreachable"
    DRAINING = "draining"  # an operator's word: nobody new is sent there
    EJECTED = "ejected"  # it failed requests, and is left alone for a moment (core.health)
    STALLED = "stalled"  # takes connections and has answered nothing for a while: nobody is sent there, nobody refused for it
    WEDGED = "wedged"  # serving, by every look at it, but nothing moves (core.wedge): only shown, no book is put into it


AWAITED_PHASES = frozenset({ReplicaPhase.SERVING, ReplicaPhase.STALLED, ReplicaPhase.EJECTED})  # worth waiting for


@dataclass(frozen=True, slots=True)
class ModelCard:
    """One entry of an engine's ``/v1/models``; ``json_text`` is the whole of it."""

    name: str
    context_tokens_max: int | None
    json_text: str


@dataclass(frozen=True, slots=True)
class ReplicaFacts:
    """What the probe found (reference vllm.md §10.3). ``warnings`` are sentences for the operator, each with what to do."""

    url: str
    models: tuple[str, ...]
    context_tokens_max: int | None
    block_size: int | None
    kv_blocks_total: int | None  # num_gpu_blocks: summed over the engines of this server, null blocks included
    engines: int = 1
    adapters: tuple[str, ...] = ()  # of the models, those that are LoRA adapters of another
    version: str | None = None
    model_root: str | None = None  # where the engine loaded the base model from: a folder or a hub name
    usage_metric: str | None = None  # exposed name in use, e.g. "vllm:kv_cache_usage_perc"; None: not there
    log_stats: bool = True
    prefix_caching: bool = True
    sequences_max: int | None = None  # max_num_seqs where /server_info tells it
    kv_cache_size_tokens: int | None = None
    kv_layout: KvLayout = PLAIN_LAYOUT  # how tokens become blocks, from the model's layers and the engine's own account
    several_engines_behind: bool = False  # one URL balances over several servers: only observed
    cards: tuple[ModelCard, ...] = field(default=(), compare=False)  # of the models; their times and ids are new in every answer
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """What the gate needs to know of a replica. Blocks are those one engine can hand out, the null block excluded."""

    name: str
    models: tuple[str, ...]
    usable_blocks: int
    block_size: int
    context_tokens_max: int
    sequences_max: int | None = None
    enforced: bool = True  # False: only observed (several engines behind one URL)
    engines: int = 1
    server: str = ""  # of a data-parallel engine: it fails as its server does; "": it is a server
    prefix_caching: bool = True
    null_block_used: bool = False  # engines up to 0.9.2 count their null block as used and as part of the whole
    kv_layout: KvLayout = PLAIN_LAYOUT

    def among(self, names: Set[str]) -> bool:
        """Whether it, or the server it belongs to, is one of ``names``."""
        return self.name in names or self.server in names

    def used_blocks(self, usage_ratio: float) -> float:
        """Blocks that a usage gauge tells of."""
        nulls = self.engines if self.null_block_used else 0
        return max(0.0, float(round(usage_ratio * (self.usable_blocks + nulls)) - nulls))

    def usage_ratio(self, blocks: float) -> float:
        """What the usage gauge says while so many blocks are used."""
        nulls = self.engines if self.null_block_used else 0
        return (blocks + nulls) / max(1, self.usable_blocks + nulls)

    @property
    def kv_shape(self) -> KvShape:
        """How tokens become blocks, before anything was learned."""
        caching = self.prefix_caching and self.kv_layout.prefix_caching
        return KvShape(self.block_size, replace(self.kv_layout, prefix_caching=caching))


@dataclass(frozen=True, slots=True)
class EngineSample:
    """One engine's gauges and counters in one scrape. Ratios are 0..1; counters are totals since the engine's start."""

    engine: str
    kv_usage_ratio: float | None
    running: int | None
    waiting: int | None
    waiting_capacity: int | None = None
    preemptions_total: float | None = None
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    prefix_queries_tokens_total: float | None = None
    prefix_hits_tokens_total: float | None = None

    @property
    def waiting_for_room(self) -> int | None:
        """Requests waiting for capacity; all that wait where the engine does not tell why. None where it tells neither."""
        return self.waiting if self.waiting_capacity is None else self.waiting_capacity


@dataclass(frozen=True, slots=True)
class ReplicaSample:
    """One scrape. ``sampled_s`` is the injected clock at the moment the answer's first byte came, ``asked_s`` when it was asked for: the
    gauges are from between the two, or from a step before.

    ``started_s`` is ``process_start_time_seconds`` (None in multiprocess mode). ``new_epoch`` is set by the feed when the engine
    restarted since the previous sample: counters fell or the start time changed. ``several_engines`` is set when successive fresh
    connections reached different engines behind one URL.
    """

    replica: str
    sampled_s: float
    engines: tuple[EngineSample, ...]
    started_s: float | None = None
    asked_s: float | None = None
    new_epoch: bool = False
    several_engines: bool = False
    facts: ReplicaFacts | None = field(default=None)  # set when a new epoch was probed again


def aggregate(engines: tuple[EngineSample, ...]) -> EngineSample | None:
    """Engines of one data-parallel server as one pool: counts add, usage is the mean; what one engine does not tell is not known."""
    if len(engines) < 2:
        return engines[0] if engines else None

    def total(name: str) -> float | None:
        values = [getattr(engine, name) for engine in engines]
        return None if any(value is None for value in values) else sum(values)

    def whole(name: str) -> int | None:
        value = total(name)
        return None if value is None else round(value)

    usage = total("kv_usage_ratio")
    return EngineSample(
        engine="all",
        kv_usage_ratio=None if usage is None else usage / len(engines),
        running=whole("running"),
        waiting=whole("waiting"),
        waiting_capacity=whole("waiting_capacity"),
        preemptions_total=total("preemptions_total"),
        prompt_tokens_total=total("prompt_tokens_total"),
        generation_tokens_total=total("generation_tokens_total"),
        prefix_queries_tokens_total=total("prefix_queries_tokens_total"),
        prefix_hits_tokens_total=total("prefix_hits_tokens_total"),
    )
