"""What goes into the engine model and what comes out: settings, requests, step reports, counters, waiting queues.

Prompts are given as a length and, where sharing matters, the chained hashes of their full blocks: equal hashes mean equal content
from the first token to the end of that block. Token lists are never needed, so a simulated request costs its block count.
"""

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol


class SchedulingPolicy(StrEnum):
    """Order of the waiting queue and choice of the victim."""

    FCFS = "fcfs"
    PRIORITY = "priority"


class FinishReason(StrEnum):
    """Why a request left the engine."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """One engine, in vLLM's terms: ``num_gpu_blocks`` counts the null block; tokens and sequences are per step."""

    num_gpu_blocks: int
    block_size: int = 16
    max_num_batched_tokens: int = 2048
    max_num_seqs: int = 256
    max_num_active_seqs: int | None = None
    max_model_len: int = 8192
    long_prefill_token_threshold: int = 0
    watermark: float = 0.0
    reserve_full_isl: bool = True
    prefix_caching: bool = True
    chunked_prefill: bool = True
    policy: SchedulingPolicy = SchedulingPolicy.FCFS

    def __post_init__(self) -> None:
        for name in ("block_size", "max_num_batched_tokens", "max_num_seqs"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)}: must be at least 1")
        if not 0 <= self.watermark < 1:
            raise ValueError(f"watermark={self.watermark}: a share of the blocks, 0 to below 1")

    @property
    def running_max(self) -> int:
        """Requests that may be in the running list."""
        return self.max_num_seqs if self.max_num_active_seqs is None else min(self.max_num_seqs, self.max_num_active_seqs)


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One sequence. ``n`` > 1 is n of these with the same prompt hashes.

    ``output_tokens`` is where it would end by itself (the end token counted), None: never; ``output_tokens_max`` is
    ``max_tokens``. ``block_hashes`` are the chained hashes of the prompt's full blocks, as many from the front as are known;
    the rest is private. ``hash_block(index)`` names a block that generated tokens filled; without it such blocks are private
    to this request. ``arrival`` orders requests of equal priority under the priority policy. ``shares_prefix=False`` looks up
    no prefix (prompt_logprobs, echo) but still publishes its blocks.
    """

    request_id: str
    prompt_tokens: int
    output_tokens: int | None = None
    output_tokens_max: int | None = None
    block_hashes: tuple[int, ...] = ()
    priority: int = 0
    arrival: float = 0.0
    shares_prefix: bool = True
    hash_block: Callable[[int], int] | None = None


def chain_hashes(tokens: Sequence[int], block_size: int, parent: int = 0) -> tuple[int, ...]:
    """Chained hashes of the full blocks of ``tokens``: hash of block i covers its tokens and the hash of block i−1.

    Integers hash alike in every process, so equal prompts agree across runs. ``parent`` stands for model, adapter and salt.
    """
    hashes = []
    for end in range(block_size, len(tokens) + 1, block_size):
        parent = hash((parent, *tokens[end - block_size : end]))
        hashes.append(parent)
    return tuple(hashes)


class RunState:
    """The engine's side of one request. ``length`` is prompt plus sampled tokens, ``computed`` the tokens fed to the model."""

    __slots__ = (
        "blocks",
        "cached_tokens",
        "capacity",
        "chunk",
        "computed",
        "computed_most",
        "end",
        "hashes",
        "length",
        "preemptions_unexposed",
        "prompt_blocks",
        "reason",
        "request",
        "request_id",
        "serial",
        "silent",
        "was_preempted",
    )

    def __init__(self, request: EngineRequest, settings: EngineSettings, serial: int) -> None:
        self.request = request
        self.request_id = request.request_id
        self.serial = serial
        self.length = request.prompt_tokens
        self.computed = 0
        self.computed_most = 0  # what a preemption will have thrown away
        self.chunk = 0
        self.blocks: list[int] = []
        self.capacity = 0  # len(blocks) × block size
        self.prompt_blocks = request.prompt_tokens // settings.block_size  # full ones
        self.hashes = list(request.block_hashes[: self.prompt_blocks])
        self.cached_tokens = 0  # prefix hit of the first admission
        self.silent = True  # no output since it was added or last preempted
        self.was_preempted = False
        self.preemptions_unexposed = 0
        room = settings.max_model_len - request.prompt_tokens
        limit = room if request.output_tokens_max is None else min(room, request.output_tokens_max)
        natural = request.output_tokens
        # The end token is looked for before the length: an output that ends itself exactly at the limit stops.
        self.reason = FinishReason.STOP if natural is not None and natural <= limit else FinishReason.LENGTH
        self.end = request.prompt_tokens + (natural if natural is not None and natural <= limit else limit)

    def hash_at(self, index: int) -> int:
        """Hash of this request's full block ``index``; asked for in order."""
        if index == len(self.hashes):
            name = self.request.hash_block
            if name is not None and index >= self.prompt_blocks:
                self.hashes.append(name(index))
            else:  # unlike any other request's; a resumed request still finds its own
                self.hashes.append(hash((0x5EED, self.serial, index)))
        return self.hashes[index]


class WaitingQueue(Protocol):
    """Requests that hold no seat yet."""

    def __len__(self) -> int: ...
    def add(self, state: RunState) -> None:
        """A new request."""
        ...

    def put_back(self, state: RunState) -> None:
        """A preempted request."""
        ...

    def head(self) -> RunState:
        """The only one that may be admitted next."""
        ...

    def pop(self) -> RunState:
        """Take the head out."""
        ...

    def remove(self, state: RunState) -> None:
        """Take any one out."""
        ...


class FcfsQueue:
    """Order of arrival; a preempted request goes to the front."""

    def __init__(self) -> None:
        self._states: deque[RunState] = deque()

    def __len__(self) -> int:
        return len(self._states)

    def add(self, state: RunState) -> None:
        """To the end."""
        self._states.append(state)

    def put_back(self, state: RunState) -> None:
        """To the front."""
        self._states.appendleft(state)

    def head(self) -> RunState:
        """The oldest, or the last preempted."""
        return self._states[0]

    def pop(self) -> RunState:
        """Take the head out."""
        return self._states.popleft()

    def remove(self, state: RunState) -> None:
        """Linear: aborts of waiting requests are rare."""
        self._states.remove(state)


class PriorityQueue:
    """Lowest (priority, arrival, id) first; a preempted request takes its place by the same rank."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, float, str, RunState]] = []

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, state: RunState) -> None:
        """Push by rank."""
        request = state.request
        heapq.heappush(self._heap, (request.priority, request.arrival, request.request_id, state))

    put_back = add

    def head(self) -> RunState:
        """Lowest rank."""
        return self._heap[0][3]

    def pop(self) -> RunState:
        """Take the lowest rank."""
        return heapq.heappop(self._heap)[3]

    def remove(self, state: RunState) -> None:
        """Linear: aborts of waiting requests are rare."""
        self._heap = [entry for entry in self._heap if entry[3] is not state]
        heapq.heapify(self._heap)


def waiting_queue(policy: SchedulingPolicy) -> WaitingQueue:
    """The queue of a policy."""
    return FcfsQueue() if policy is SchedulingPolicy.FCFS else PriorityQueue()


@dataclass(slots=True)
class EngineCounters:
    """Totals since the engine's start, as vLLM counts them, plus three own measurements that vLLM does not expose.

    ``preemptions_exposed`` is what ``vllm:num_preemptions_total`` shows: counted with the victim's next output, never if it is
    aborted before. Own: ``preemptions`` (at once), ``recomputed_tokens`` (computed a second time after a preemption), ``steps``.
    """

    preemptions: int = 0
    preemptions_exposed: int = 0
    prompt_tokens: int = 0
    prompt_tokens_cached: int = 0
    generation_tokens: int = 0
    prefix_queries: int = 0
    prefix_hits: int = 0
    recomputed_tokens: int = 0
    steps: int = 0
    finished: dict[FinishReason, int] = field(default_factory=lambda: dict.fromkeys(FinishReason, 0))


@dataclass(frozen=True, slots=True)
class EngineGauges:
    """What ``/metrics`` would show since the last step."""

    running: int = 0
    waiting: int = 0
    usage_ratio: float = 0.0


@dataclass(slots=True)
class StepReport:
    """One step. Request ids are in scheduling order.

    ``sampled`` ids got exactly one new token each. ``kv_tokens`` are the KV tokens held once the step was computed, before
    finished requests left (what attention read); ``used_blocks``, ``running`` and ``waiting`` count after they left, as the
    gauges do.
    """

    index: int
    scheduled: dict[str, int]
    preempted: list[str]
    admitted: list[str]
    sampled: list[str]
    finished: list[tuple[str, FinishReason]]
    prefill_tokens: int
    decode_sequences: int
    kv_tokens: int
    used_blocks: int
    running: int
    waiting: int
