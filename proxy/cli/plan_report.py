"""A plan for people: the picture of the card, the numbers, what to watch, and the lines to start with; and the same for programs."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from shlex import quote
from textwrap import wrap

from proxy.advise.plan import GIB, IN_HAND, SEQUENCES_CAP, Card, Plan, Question
from proxy.advise.plan_advice import chunked_prefill, faults, serve_flags, warnings

PICTURE_WIDTH = 64
TEXT_WIDTH = 110
ENGINE_IMAGE = "vllm/vllm-openai:v0.32.0"


@dataclass(frozen=True, slots=True)
class Subject:
    """What is planned, and how it is called. ``weighed`` says where the weights' size is from."""

    question: Question
    model: str
    weighed: str


def as_dict(subject: Subject, plan: Plan) -> dict[str, object]:
    """The plan for a program; bytes are of one card, counts of one engine."""
    question = subject.question
    return {
        "bytes_per_token": plan.bytes_per_token,
        "block_bytes": plan.block_bytes,
        "kv_pool_bytes": plan.kv_pool_bytes,
        "kv_blocks": plan.kv_blocks,
        "kv_tokens": plan.kv_tokens,
        "sequences": plan.sequences,
        "max_num_seqs": plan.max_num_seqs,
        "max_num_batched_tokens": plan.max_num_batched_tokens,
        "block_size": plan.block_size,
        "sequences_full_length": plan.sequences_full_length,
        "blocks_per_sequence": plan.blocks_per_sequence,
        "prompt_tokens": question.lengths.prompt_tokens,
        "output_tokens": question.lengths.output_tokens,
        "lengths_source": question.lengths.source,
        "engines": question.dp,
        "fits": not any(faults(question, plan)),
        "faults": list(faults(question, plan)),
        "warnings": list(warnings(question, plan)),
        "readings": [asdict(reading) for reading in plan.readings],
        "chunked_prefill": chunked_prefill(question, plan),
        "serve": [*("vllm", "serve", subject.model), *(word for flag in serve_flags(question, plan) for word in flag)],
        "kubernetes": kubernetes(subject, plan),
    }


def text(subject: Subject, plan: Plan) -> str:
    """The plan for people. What does not fit is said first, and then no command line is offered."""
    question = subject.question
    wrong = list(faults(question, plan))
    lines = [_head(subject), ""]
    if question.card is not None:
        lines += [*picture(question.card, subject.weighed), ""]
    lines += [*_numbers(question, plan), ""]
    if plan.readings:
        lines += [*_readings(plan), ""]
    if wrong:
        return "\n".join([*lines, "This does not work:", *_bullets(wrong)])
    lines += ["To start with:", *_limits(question, plan), ""]
    told = list(warnings(question, plan))
    if told:
        lines += ["Watch:", *_bullets(told), ""]
    lines += [
        *wrap(
            "Then load it and read KV usage, waiting, preemptions and latencies; change one knob, run the same load again, compare. Stop "
            "where usage is high, p99 is within the target and preemptions are gone; above that add replicas.",
            TEXT_WIDTH,
        ),
        "",
    ]
    return "\n".join([*lines, serve_line(subject, plan), "", kubernetes(subject, plan)])


def picture(card: Card, weighed: str = "") -> list[str]:
    """The card as one bar, with a line that says what is what."""
    parts = [
        ("█", f"weights{f' ({weighed})' if weighed else ''}", card.weights),
        ("▒", "reserve", card.reserve),
        ("░", "KV pool", max(0, card.pool)),
        ("·", "outside vLLM's share", card.outside),
    ]
    total = max(card.memory, sum(amount for _, _, amount in parts))
    ends = [0]
    for _, _, amount in parts:
        ends.append(ends[-1] + amount)
    bar = "".join(
        sign * (round(end / total * PICTURE_WIDTH) - round(start / total * PICTURE_WIDTH))
        for (sign, _, _), start, end in zip(parts, ends, ends[1:], strict=False)
    )
    known = "   ".join(f"{sign} {name} {_gib(amount)}" for sign, name, amount in parts if amount > 0)
    return [
        f"One card, {_gib(card.memory)}, of which {card.utilization:g} is vLLM's share, {_gib(card.share)}:",
        f"  [{bar}]",
        f"  {known}",
    ]


def serve_line(subject: Subject, plan: Plan) -> str:
    """The command line, one flag a line."""
    flags = [f"  {name} {value}" for name, value in serve_flags(subject.question, plan)]
    return " \\\n".join([f"vllm serve {quote(subject.model)}", *flags])


def kubernetes(subject: Subject, plan: Plan) -> str:
    """The container of a Deployment; cards of one engine share memory through /dev/shm."""
    question = subject.question
    flags = [f'    - "{name}={value}"' for name, value in serve_flags(question, plan)]
    cards = question.tp * question.pp * question.dp
    shared = cards > 1
    lines = [
        "containers:",
        f"- name: vllm\n  image: {ENGINE_IMAGE}",
        "  args:",
        f'    - "{subject.model}"',
        *flags,
        "  ports: [{name: http, containerPort: 8000}]",
        f'  resources: {{limits: {{nvidia.com/gpu: "{cards}"}}}}',
        "  startupProbe: {httpGet: {path: /health, port: http}, periodSeconds: 10, failureThreshold: 90}",
        "  readinessProbe: {httpGet: {path: /health, port: http}, periodSeconds: 5}",
    ]
    if shared:
        lines += ["  volumeMounts: [{name: shm, mountPath: /dev/shm}]", "volumes:", "- {name: shm, emptyDir: {medium: Memory}}"]
    return "\n".join(lines)


def _head(subject: Subject) -> str:
    model, question = subject.question.model, subject.question
    layers = " + ".join(
        f"{count} {kind.attention}{f' of {kind.span_tokens:,}' if kind.span_tokens else ''}" for kind, count in model.layers
    )
    if model.latent:
        kept = f"MLA, {model.values_per_token} values a token"
    else:
        name = f"{model.attention_name}, " if model.attention_name else ""
        kept = (
            f"{name}{model.kv_heads} KV head{'s' if model.kv_heads > 1 else ''} × {model.values_per_token} values (key and value)"
        )
    split = "".join(
        f", {name} {value}" for name, value in (("TP", question.tp), ("PP", question.pp), ("DP", question.dp)) if value > 1
    )
    name = Path(subject.model).name or subject.model
    return f"{name}: {layers} layers, {kept} × {model.dtype_bytes} bytes{split}"


def _numbers(question: Question, plan: Plan) -> Iterator[str]:
    lengths = question.lengths
    each = " on each card" if question.tp * question.pp > 1 else ""
    yield _row("bytes per token", f"{plan.bytes_per_token:,}{each} ({plan.bytes_per_token / 1e6:.3g} MB)")
    yield _row(
        "bytes per block",
        f"{plan.block_bytes:,}, of {plan.block_size:,} tokens" + ("" if len(plan.groups) == 1 else " in one group of layers"),
    )
    yield _row("KV pool", f"{_gib(plan.kv_pool_bytes)}{each}")
    yield _row("KV blocks", f"{plan.kv_blocks:,}, one of which is the null block")
    yield _row("KV tokens", f"{plan.kv_tokens:,}")
    expected = f"{lengths.prompt_tokens:,.0f} prompt + {lengths.output_tokens:,.0f} output; {lengths.source}"
    yield _row("sequences", f"{plan.sequences:,} of {lengths.total:,} tokens ({expected})")
    if plan.sequences_full_length is not None:
        yield _row("", f"{plan.sequences_full_length:,} at the full context of {question.context:,} tokens")
    if question.dp > 1:
        yield _row(
            "all engines", f"{question.dp} × this: {question.dp * plan.sequences:,} sequences, each bound to one engine's pool"
        )


def _readings(plan: Plan) -> Iterator[str]:
    yield "The same memory is often counted in other ways; which is which:"
    for reading in plan.readings:
        yield (
            f"  {_gib(reading.kv_pool_bytes):>9}  {reading.kv_blocks:>8,} blocks of {reading.block_bytes:>10,} bytes  "
            f"{reading.kv_tokens:>9,} tokens  {reading.name}"
        )


def _limits(question: Question, plan: Plan) -> Iterator[str]:
    hand = f"{IN_HAND:.0%}".replace("%", " %")
    capped = plan.max_num_seqs == SEQUENCES_CAP
    why = (
        f"what a plan should go to; KV would hold {plan.sequences:,}"
        if capped
        else f"{plan.sequences:,} sequences with {hand} in hand"
    )
    yield _row("max-num-seqs", f"{plan.max_num_seqs:,}  ({why})")
    asked = "given" if question.batched_tokens else f"the traffic asks for {plan.batched_tokens_wanted:,} with {hand} in hand"
    yield _row("max-num-batched-tokens", f"{plan.max_num_batched_tokens:,}  ({asked})")
    first, *more = wrap(chunked_prefill(question, plan), TEXT_WIDTH - 26)
    yield _row("chunked prefill", first)
    yield from (_row("", line) for line in more)


def _bullets(lines: list[str]) -> Iterator[str]:
    for line in lines:
        yield from wrap(line, TEXT_WIDTH, initial_indent="  - ", subsequent_indent="    ")


def _row(name: str, value: str) -> str:
    return f"  {name:<24}{value}"


def _gib(amount: float) -> str:
    return f"{amount / GIB:.1f} GiB"
