"""What a baseline may see: a request's prompt and cap, what it has streamed so far, and the last scrape. Never a length to come."""

from dataclasses import dataclass, field

from proxy.core.replica import EngineSample, ReplicaSpec
from proxy.core.units import blocks_for_tokens


@dataclass(frozen=True, slots=True)
class Offer:
    """A request that asks for a place. ``output_tokens_max`` is its cap, or what the context leaves where that is less."""

    request_id: str
    prompt_tokens: int
    output_tokens_max: int
    streaming: bool = True


@dataclass(slots=True)
class Placed:
    """A request on a replica. ``first_s`` is when its first token came by; what does not stream shows neither that nor its progress."""

    offer: Offer
    forwarded_s: float
    first_s: float | None = None
    output_tokens: int = 0

    @property
    def held_tokens(self) -> int:
        """Prompt and output so far, tokens."""
        return self.offer.prompt_tokens + self.output_tokens

    def unplaced_at(self, at_s: float) -> bool:
        """Whether a scrape of that moment may not have counted its prompt yet. What does not stream is taken as placed at once."""
        if not self.offer.streaming:
            return self.forwarded_s >= at_s
        return self.first_s is None or self.first_s > at_s


@dataclass(slots=True)
class ReplicaView:
    """One replica as a proxy in front of it knows it.

    Before the first scrape it reads as empty, as a probe at the start would have found it. ``sampled_s`` is when the last scrape was
    true, ``received_s`` when it arrived; ``live`` are the own requests there, by id.
    """

    spec: ReplicaSpec
    live: dict[str, Placed] = field(default_factory=dict)
    kv_usage_ratio: float = 0.0
    running: int = 0
    waiting: int = 0
    preemptions_total: float = 0.0
    sampled_s: float = 0.0
    received_s: float = 0.0

    @property
    def usable_tokens(self) -> int:
        """Tokens that fill the pool."""
        return self.spec.usable_blocks * self.spec.block_size

    def blocks(self, tokens: int) -> int:
        """Blocks that so many tokens of one request take here."""
        return blocks_for_tokens(tokens, self.spec.block_size)

    def take_in(self, sample: EngineSample, sampled_s: float, received_s: float) -> None:
        """Keep a scrape. What it lacks keeps its last value: these rules know no better."""
        self.sampled_s, self.received_s = sampled_s, received_s
        if sample.kv_usage_ratio is not None:
            self.kv_usage_ratio = sample.kv_usage_ratio
        if sample.running is not None:
            self.running = sample.running
        if sample.waiting is not None:
            self.waiting = sample.waiting
        if sample.preemptions_total is not None:
            self.preemptions_total = sample.preemptions_total
