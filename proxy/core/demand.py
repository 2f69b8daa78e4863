"""What one request asks of a replica.

A request is a few *parts* (one per prompt; a completion may carry a list), each sampled ``copies`` times. Its KV need after ``g``
output tokens is the sum over parts of what the engine holds (reference vllm.md §2.8, §8): with ``n`` copies the full blocks before
the last prompt token are shared through the prefix cache and every copy has a private tail.
"""

from dataclasses import dataclass, field
from enum import StrEnum


class CountSource(StrEnum):
    """Where a prompt's token count came from, best first. A failed count is never zero."""

    EXACT = "exact"  # counted here with the model's own tokenizer and template
    REMOTE = "remote"  # the replica's /tokenize
    RATIO = "ratio"  # learned bytes per token with a safety factor
    BOUND = "bound"  # not counted: the bound that its bytes set was too small to matter (``core.plenty``)


def bucket(tokens: int | None) -> int:
    """Powers of four: lengths within a factor of four share a class. None (no cap) is its own bucket."""
    return -1 if tokens is None else (max(tokens, 1).bit_length() + 1) // 2


@dataclass(frozen=True, slots=True)
class PromptPart:
    """One prompt: its length in tokens and, where known, the chained hashes of its full blocks (``tokens // block_size`` of them).

    Equal hashes mean equal tokens from the start of the prompt to the end of that block, same model, LoRA and cache salt. An empty
    tuple means sharing is unknown, which is safe: nothing is discounted.
    """

    tokens: int
    block_hashes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LengthClass:
    """What groups requests whose outputs have similar lengths."""

    model: str
    tenant: str = ""
    tools: bool = False


@dataclass(slots=True)
class Demand:
    """A request as the gate sees it. Times are seconds of the injected clock.

    Not to be changed once it is made; not frozen either, since that costs a call for each field.
    """

    request_id: str
    parts: tuple[PromptPart, ...]
    length_class: LengthClass
    arrived_s: float
    deadline_s: float
    copies: int = 1
    output_tokens_max: int | None = None  # None: the rest of the context
    count_source: CountSource = CountSource.EXACT
    traffic_class: str = "default"
    tenant: str = "default"
    tenant_weight: float = 1.0
    priority: int = 0  # higher first
    degrade_tokens_min: int | None = None  # least cap that it may be let in with; None: its own
    degrade_first: bool = False  # rather than that it waits as it is
    may_queue: bool = True  # False: what does not fit at once is refused at once
    body_bytes: int = 0
    ttft_s: float | None = None  # target from arrival to the first token; None: no target
    tpot_s: float | None = None  # target per output token after the first
    session: str = ""  # what the client calls the conversation it belongs to; "": it does not say
    adapter: str = ""  # the LoRA adapter it runs with, "" for the base model
    fingerprint: int = 0  # of the body, to know it again when its client returns; 0: unknown
    beam_search: bool = False  # ``copies`` beams: the engine's front end asks for their tokens one at a time
    kept_from: frozenset[str] = frozenset()  # replicas that cannot serve it, whatever room they have: another keeps its history
    shares_prefix: bool = True  # False: the engine looks up no prefix for it (prompt_logprobs, echo)
    # What follows from the fields above, worked out once: a decision asks for it again and again.
    prompt_tokens: int = field(init=False, repr=False, compare=False)  # over all parts
    prompt_tokens_longest: int = field(init=False, repr=False, compare=False)  # of the longest part
    sequences: int = field(init=False, repr=False, compare=False)  # slots that the engine needs
    count_is_exact: bool = field(init=False, repr=False, compare=False)  # whether the engine would count the same
    hashed: bool = field(init=False, repr=False, compare=False)  # whether its blocks may be found among those of others
    length_name: tuple[str, str, bool, int, int] = field(init=False, repr=False, compare=False)  # ``core.length_names.leaf_name``

    def __post_init__(self) -> None:
        parts, kind = self.parts, self.length_class
        if len(parts) == 1:
            self.prompt_tokens = self.prompt_tokens_longest = parts[0].tokens
            any_hashes = bool(parts[0].block_hashes)
        else:
            tokens = [part.tokens for part in parts]
            self.prompt_tokens, self.prompt_tokens_longest = sum(tokens), max(tokens)
            any_hashes = any(part.block_hashes for part in parts)
        self.sequences = len(parts) * self.copies
        self.count_is_exact = self.count_source is CountSource.EXACT or self.count_source is CountSource.REMOTE
        self.hashed = self.shares_prefix and any_hashes
        lengths = bucket(self.prompt_tokens_longest), bucket(self.output_tokens_max)
        self.length_name = (kind.model, kind.tenant, kind.tools, *lengths)

    def kv_prompt_tokens(self, part: PromptPart) -> int:
        """The part's length as its KV goes. In a beam search the last token out is fed back as part of the grown prompt."""
        return part.tokens + self.beam_search
