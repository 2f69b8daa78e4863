"""What a simulated client sends, and what became of it."""

from dataclasses import dataclass

from proxy.core.outcome import Outcome


@dataclass(frozen=True, slots=True)
class SimRequest:
    """One request of a workload. ``output_tokens`` is where it would end by itself; ``output_tokens_max`` its cap.

    ``wait_s_max`` is how long it may wait for a place (None: as the world's settings say); ``ttft_s`` and ``tpot_s`` are what its client
    calls good, for goodput only. ``block_hashes`` name the prompt's full blocks, ``output_hashes`` the blocks after those that
    its output fills, where a later turn repeats them.
    """

    request_id: str
    prompt_tokens: int
    output_tokens: int
    output_tokens_max: int | None = None
    arrival_s: float = 0.0
    tenant: str = "default"
    priority: int = 0
    block_hashes: tuple[int, ...] = ()
    streaming: bool = True
    session: str | None = None
    wait_s_max: float | None = None
    ttft_s: float | None = None
    tpot_s: float | None = None
    output_hashes: tuple[int, ...] = ()
    traffic_class: str = "default"
    tools: bool = False
    weight: float = 1.0
    waited_s: float = 0.0  # already, when it arrives in this world

    @property
    def length(self) -> int:
        """Output tokens it will really have where the context allows."""
        return self.output_tokens if self.output_tokens_max is None else min(self.output_tokens, self.output_tokens_max)

    def hash_block(self, index: int) -> int:
        """Name of the full block ``index`` of prompt and output. Raises IndexError past the blocks that have names."""
        prompt_blocks = len(self.block_hashes)
        return self.block_hashes[index] if index < prompt_blocks else self.output_hashes[index - prompt_blocks]


@dataclass(slots=True)
class SimResult:
    """What happened to one request. Times in seconds of the world; ``first_s`` and ``end_s`` None when shed."""

    request: SimRequest
    arrived_s: float
    outcome: Outcome | None = None
    forwarded_s: float | None = None
    replica: str | None = None
    first_s: float | None = None
    end_s: float | None = None
    output_tokens: int = 0
    retry_after_s: float | None = None
    bypassed: bool = False  # it went to the engine past whoever admits
