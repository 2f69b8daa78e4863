"""What a plan says beyond its numbers: what is wrong with it, what to watch, and the command line that carries it out."""

from collections.abc import Iterator
from math import ceil

from proxy.advise.plan import GIB, SEQUENCES_CAP, Plan, Question, batched_tokens_of_card
from proxy.core.kv_shape import Attention

UTILIZATION_RISKY = 0.95
OUTSIDE_GIB_MIN = 2
SEQUENCES_FEW = 4
TP_WITHIN_A_NODE = 8
HEADS_MANY = 32


def faults(question: Question, plan: Plan) -> Iterator[str]:
    """Why the engine would not start, or would serve nothing that is expected; each with what to change."""
    card = question.card
    if card is not None and card.pool <= 0:
        needed = card.weights + card.reserve
        cards = ceil(question.tp * card.weights / max(1, card.share - card.reserve)) if card.share > card.reserve else None
        split = "" if cards is None or cards <= question.tp else f" (weights alone would take TP {_power(cards)})"
        yield (
            f"the weights do not fit: weights and reserve take {_gib(needed)} of a share of {_gib(card.share)}; "
            f"use more cards{split}, a quantized checkpoint, or larger cards"
        )
        return
    if not plan.holds_the_context:
        yield (
            f"one request as long as the context ({question.context:,} tokens) does not fit into {plan.kv_tokens:,} tokens, and vLLM "
            f"will not start: set --max-model-len to {_shorter(question, plan):,} or less, or make the pool larger"
        )
    elif plan.sequences < 1:
        yield (
            f"one request of the expected {question.lengths.total:,} tokens takes {plan.blocks_per_sequence:,} of "
            f"{max(0, plan.kv_blocks - 1):,} blocks: make the pool larger"
        )
    if question.context is not None and question.lengths.total > question.context:
        yield f"the expected {question.lengths.total:,} tokens exceed the context of {question.context:,}: such requests are cut or refused"


def warnings(question: Question, plan: Plan) -> Iterator[str]:
    """What to know before relying on the plan."""
    yield from _memory_warnings(question)
    if plan.fits:
        yield from _load_warnings(question, plan)
    kinds = {each.kind.attention for each in plan.groups}
    if len(plan.groups) > 1:
        yield (
            f"layers of {len(plan.groups)} kinds share the pool: {plan.kv_tokens:,} tokens hold for requests as long as the context; "
            "shorter ones take more blocks a token, so go by the sequences"
        )
    if Attention.STATE in kinds:
        yield (
            f"the block of {plan.block_size:,} tokens is computed from the state's shape; vLLM tells its own at start "
            '("Setting attention block size to … tokens"): compare'
        )


def chunked_prefill(question: Question, plan: Plan) -> str:
    """What to do about chunked prefill."""
    longest = question.context or question.lengths.total
    steps = ceil(longest / plan.max_num_batched_tokens)
    if steps > 1:
        return (
            f"keep chunked prefill on (the default): the longest prompt takes {steps} steps of {plan.max_num_batched_tokens:,} tokens, "
            f"and others go on between them; without it a step would have to hold all {longest:,}"
        )
    return "keep chunked prefill on (the default): every prompt fits one step, so it costs nothing, and it lets decodes share that step"


def serve_flags(question: Question, plan: Plan) -> list[tuple[str, str]]:
    """The flags of ``vllm serve``, with their values."""
    flags = [
        ("--tensor-parallel-size", question.tp),
        ("--pipeline-parallel-size", question.pp),
        ("--data-parallel-size", question.dp),
    ]
    told = [(name, str(value)) for name, value in flags if value > 1]
    if question.card is not None:
        told.append(("--gpu-memory-utilization", f"{question.card.utilization:g}"))
    else:
        told.append(("--kv-cache-memory-bytes", str(question.pool)))
    told.append(("--block-size", str(question.block_size)))
    if question.context is not None:
        told.append(("--max-model-len", str(question.context)))
    if question.kv_cache_dtype is not None:
        told.append(("--kv-cache-dtype", question.kv_cache_dtype))
    told += [("--max-num-seqs", str(plan.max_num_seqs)), ("--max-num-batched-tokens", str(plan.max_num_batched_tokens))]
    return told


def _memory_warnings(question: Question) -> Iterator[str]:
    card = question.card
    if card is None:
        return
    if card.utilization >= UTILIZATION_RISKY:
        yield (
            f"utilisation {card.utilization:g}: near 0.95 one long prefill can spike past the card; stay at 0.90 to 0.92, and when usage "
            "stays above 90 % with a growing queue add replicas instead"
        )
    if card.outside < OUTSIDE_GIB_MIN * GIB:
        yield (
            f"only {_gib(card.outside)} stay outside vLLM's share: the CUDA context and any other process on the card must fit there, "
            "or the start fails"
        )
    if question.tp > 1 and card.reserve < GIB:
        yield (
            f"TP {question.tp} with {_gib(card.reserve)} of reserve: NCCL buffers and activations take 1 to 6 GiB of the share; "
            "give --reserve-gib, or start once and read it from vLLM's log"
        )
    elif card.reserve == 0:
        yield "no reserve: activations and CUDA graphs take 1 to 4 GiB of the share, so the pool will be smaller; give --reserve-gib"
    if question.tp > TP_WITHIN_A_NODE:
        yield f"TP {question.tp} spans nodes: every layer then waits for the network; prefer --pp across nodes and --tp within one"


def _load_warnings(question: Question, plan: Plan) -> Iterator[str]:
    model = question.model
    if not model.latent and question.tp > model.kv_heads:
        yield (
            f"TP {question.tp} copies {model.kv_heads} KV heads over {question.tp} cards: KV per card no longer shrinks; prefer "
            f"--tp {model.kv_heads} with --dp {question.tp // model.kv_heads}"
        )
    if not model.latent and model.attention_heads is None and model.kv_heads >= HEADS_MANY:
        yield (
            f"{model.kv_heads} KV heads keep every head, as MHA does; most newer models keep 8 or fewer (GQA): check num_key_value_heads "
            "in config.json, it divides everything here"
        )
    if model.latent and question.tp > 1:
        yield f"MLA keeps its whole cache on each of the {question.tp} cards: TP buys no KV; data parallelism (--dp) does"
    if plan.sequences < SEQUENCES_FEW:
        yield (
            f"only {plan.sequences} sequences of {question.lengths.total:,} tokens at a time: one long answer decides who waits; more pool "
            "(--tp, an fp8 KV cache, larger cards) helps more than any other knob"
        )
    longest = plan.sequences_full_length
    if longest is not None and longest < min(plan.max_num_seqs, SEQUENCES_FEW):
        yield (
            f"the pool holds {longest} as long as the context: if clients do not need it, a shorter --max-model-len bounds what one "
            "request can take"
        )
    if plan.max_num_seqs == SEQUENCES_CAP:
        yield f"KV would hold more than {SEQUENCES_CAP:,} sequences: beyond, the time of a step is the limit, which only a benchmark tells"
    limit = batched_tokens_of_card(question.card)
    if plan.batched_tokens_wanted > limit and plan.max_num_batched_tokens <= max(limit, plan.max_num_seqs):
        yield (
            f"prompts are the larger part of this traffic: {plan.max_num_seqs:,} sequences bring {plan.batched_tokens_wanted:,} tokens a "
            f"step, and a step of more than {limit:,} costs pool and ITL; expect prefill to be the limit, not KV: add replicas"
        )


def _shorter(question: Question, plan: Plan) -> int:
    return max(0, min(question.context or plan.kv_tokens, plan.kv_tokens - plan.block_size) // plan.block_size * plan.block_size)


def _power(cards: int) -> int:
    return int(1 << (cards - 1).bit_length())


def _gib(amount: float) -> str:
    return f"{amount / GIB:.1f} GiB"
