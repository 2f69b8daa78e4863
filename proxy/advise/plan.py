"""The KV budget of one engine: from memory and a model to blocks, sequences and the limits to start with. Pure arithmetic.

Formula, on each card (vLLM 0.32 counts the same way, and the smallest card of an engine decides):

    pool    = card × utilisation - weights - reserve           or the pool as given (--kv-cache-memory-bytes)
    page    = block size × bytes one layer keeps for a token   (advise.plan_model)
    block   = page × layers of the largest group               one group: all layers of the pipeline stage
    blocks  = floor(pool / block), one of which is the null block
    tokens  = blocks × context / blocks of one request as long as the context       one full-attention group: blocks × block size

Layers with states: the engine lengthens the block until one page of attention holds a state, then pads the state to it.

Limits. A sequence is counted at its full expected length, and a fifth of the pool stays in hand: lengths vary, and what is not known yet
(prompts longer than expected, prefixes held by running requests) must fit as well. In a step that runs ``n`` sequences, each brings one
token of its own and, on average, ``prompt / output`` tokens of the prompt that follows it. The budget of a step is that, or all decodes
and one whole prompt where this is more, with the same fifth in hand.
Fails: an expected length is a mean. Where lengths are heavy-tailed, preemptions remain; that is what admission is for.
"""

from dataclasses import dataclass
from math import ceil, floor

import numpy as np

from proxy.advise.plan_model import KvModel, PlanError
from proxy.core.kv_shape import Attention, KvGroups, KvLayout, KvShape, grouped
from proxy.wire.kv_layout import longest_request_blocks

GIB = 2**30
IN_HAND = 0.2
BLOCK_SIZE_DEFAULT = 16
UTILIZATION_DEFAULT = 0.9
SEQUENCES_CAP = 1024  # the engine's own default on large cards; more sequences in a step need a measurement, not a plan
BATCHED_TOKENS_MIN = 2048  # the engine's default on small cards
BATCHED_TOKENS_STEP = 256
# The engine's default by card: beyond it activations take the memory that the plan gives to the pool.
BATCHED_TOKENS_BY_CARD_GIB = ((160, 16_384), (70, 8192), (0, 2048))
BATCHED_TOKENS_CARD_UNKNOWN = 8192
STEPS_IN_FLIGHT = 2  # asynchronous scheduling, the default on GPUs


@dataclass(frozen=True, slots=True)
class Card:
    """One card's memory, bytes. ``weights`` and ``reserve`` (activations, communication) are its own part."""

    memory: int
    utilization: float
    weights: int
    reserve: int

    @property
    def share(self) -> int:
        """What vLLM may use."""
        return floor(self.memory * self.utilization)

    @property
    def outside(self) -> int:
        """What is left to the system and to other processes."""
        return self.memory - self.share

    @property
    def pool(self) -> int:
        """What remains for KV; below 0 when it does not fit."""
        return self.share - self.weights - self.reserve


@dataclass(frozen=True, slots=True)
class Lengths:
    """Tokens of the request that is expected; ``source`` says who expects it."""

    prompt_tokens: float
    output_tokens: float
    source: str

    @property
    def total(self) -> int:
        """At the end of the output."""
        return ceil(self.prompt_tokens + self.output_tokens)


@dataclass(frozen=True, slots=True)
class Question:
    """What a plan is made for. Either ``card`` or ``pool_given``, in bytes of one card."""

    model: KvModel
    lengths: Lengths
    card: Card | None = None
    pool_given: int | None = None
    block_size: int = BLOCK_SIZE_DEFAULT
    tp: int = 1
    pp: int = 1
    dp: int = 1
    context_tokens_max: int | None = None
    steps_in_flight: int = STEPS_IN_FLIGHT
    batched_tokens: int | None = None  # None: the plan's own advice
    kv_cache_dtype: str | None = None  # as on the command line; None: the engine's own choice

    @property
    def pool(self) -> int:
        """Bytes for KV on one card."""
        if self.pool_given is not None:
            return self.pool_given
        if self.card is None:
            raise PlanError("give the card's memory or the pool")
        return self.card.pool

    @property
    def context(self) -> int | None:
        """The context in force."""
        return self.context_tokens_max or self.model.context_tokens_max


@dataclass(frozen=True, slots=True)
class Reading:
    """One way to count the same memory."""

    name: str
    kv_pool_bytes: int
    block_bytes: int
    kv_blocks: int
    kv_tokens: int


@dataclass(frozen=True, slots=True)
class Plan:
    """The answer, for one engine; bytes are of one card. ``sequences`` are of the expected length, None of the full where it is not known.

    ``block_size`` is the engine's, which states may have lengthened. ``batched_tokens_wanted`` is what the traffic asks for before the
    card's limit is applied.
    """

    bytes_per_token: int
    block_bytes: int
    block_size: int
    groups: tuple[KvGroups, ...]
    kv_pool_bytes: int
    kv_blocks: int
    kv_tokens: int
    sequences: int
    sequences_full_length: int | None
    blocks_per_sequence: int
    max_num_seqs: int
    max_num_batched_tokens: int
    batched_tokens_wanted: int
    readings: tuple[Reading, ...]

    @property
    def holds_the_context(self) -> bool:
        """Whether one request as long as the context fits; vLLM does not start otherwise."""
        return self.sequences_full_length is None or self.sequences_full_length >= 1

    @property
    def fits(self) -> bool:
        """Whether vLLM starts and can serve what is expected."""
        return self.sequences >= 1 and self.holds_the_context


def plan(question: Question) -> Plan:
    """Make the plan. Raises PlanError for what cannot be split or counted."""
    model, tp = question.model, question.tp
    size = engine_block_size(model, tp, question.block_size)
    groups, block_bytes = _block_bytes(model, tp, question.pp, size)
    blocks = max(0, question.pool) // block_bytes
    usable = max(0, blocks - 1)
    each = sequence_blocks(groups, size, question.lengths.total)
    sequences = usable // each
    seqs = min(SEQUENCES_CAP, max(1, floor(usable * (1 - IN_HAND) / each)))
    wanted = _batched_tokens_wanted(seqs, question.lengths)
    budget = question.batched_tokens or max(seqs, min(wanted, batched_tokens_of_card(question.card)))
    longest = _longest(question, groups, size, budget)
    tokens = blocks * size
    if longest is not None and question.context is not None:
        tokens = int(blocks / longest * question.context)  # as vLLM prints it
    elif len(groups) > 1:
        raise PlanError("layers of several kinds hold a number of tokens that depends on the context; give --max-model-len")
    return Plan(
        bytes_per_token=_bytes_per_token(model, tp, question.pp), block_bytes=block_bytes, block_size=size, groups=groups,
        kv_pool_bytes=question.pool, kv_blocks=blocks, kv_tokens=tokens,
        sequences=sequences, sequences_full_length=None if longest is None else usable // longest, blocks_per_sequence=each,
        max_num_seqs=seqs, max_num_batched_tokens=budget, batched_tokens_wanted=wanted,
        readings=_readings(question, groups, size),
    )  # fmt: skip


def engine_block_size(model: KvModel, tp: int, block_size: int) -> int:
    """The block size in force: with state layers the least multiple of ``block_size`` whose page holds a state."""
    if not model.has_states:
        return block_size
    if model.state is None:
        raise PlanError(
            "the size of its states is not known; start vLLM once and read its blocks, then give --kv-blocks to kvgate"
        )
    token = model.token_bytes(tp)
    return block_size * ceil(model.state.bytes_on(tp) / (block_size * token))


def sequence_blocks(groups: tuple[KvGroups, ...], block_size: int, tokens: int) -> int:
    """Blocks that a running sequence of ``tokens`` holds, over all groups; at least one."""
    return max(1, round(float(KvShape(block_size, KvLayout(groups)).blocks(np.array([float(tokens)]))[0])))


def batched_tokens_of_card(card: Card | None) -> int:
    """The engine's default for a card of this size."""
    if card is None:
        return BATCHED_TOKENS_CARD_UNKNOWN
    return next(tokens for gib, tokens in BATCHED_TOKENS_BY_CARD_GIB if card.memory >= gib * GIB)


def _block_bytes(model: KvModel, tp: int, pp: int, block_size: int) -> tuple[tuple[KvGroups, ...], int]:
    groups = grouped(model.layers)
    counts = dict(model.layers)
    largest = max(ceil(counts[each.kind] / each.count) for each in groups)
    return groups, block_size * model.token_bytes(tp) * ceil(largest / pp)


def _bytes_per_token(model: KvModel, tp: int, pp: int) -> int:
    """Of all layers that keep tokens, before any window has dropped one."""
    layers = sum(count for kind, count in model.layers if kind.attention is not Attention.STATE)
    return model.token_bytes(tp) * ceil(layers / pp)


def _batched_tokens_wanted(sequences: int, lengths: Lengths) -> int:
    steady = sequences * (1 + lengths.prompt_tokens / lengths.output_tokens)
    tokens = max(steady, sequences + lengths.prompt_tokens) / (1 - IN_HAND)
    return max(BATCHED_TOKENS_MIN, ceil(tokens / BATCHED_TOKENS_STEP) * BATCHED_TOKENS_STEP)


def _longest(question: Question, groups: tuple[KvGroups, ...], size: int, budget: int) -> int | None:
    if question.context is None:
        return None
    return longest_request_blocks(groups, size, question.context, budget * question.steps_in_flight)[1]


def _readings(question: Question, groups: tuple[KvGroups, ...], size: int) -> tuple[Reading, ...]:
    """The usual arithmetic, vLLM's without and with the split of the heads. One reading is left where all are the same."""
    card, model = question.card, question.model
    if card is None or (len(groups) > 1) or (card.reserve == 0 and question.tp == 1):
        return ()
    whole, split = (_block_bytes(model, tp, question.pp, size)[1] for tp in (1, question.tp))
    told = [
        ("the usual arithmetic: share - weights, every head on one card", card.pool + card.reserve, whole),
        ("with activations and communication taken out of the share, as vLLM does", card.pool, whole),
    ]
    if question.tp > 1:
        told.append((f"and with the KV heads split over TP {question.tp}: what vLLM will print", card.pool, split))
    return tuple(
        Reading(name, pool, block, blocks, blocks * size) for name, pool, block in told for blocks in [max(0, pool) // block]
    )
