"""``kvgate plan``: from a model and a card to blocks, sequences, and the flags to start vLLM with."""

import argparse
import json
from math import inf
from pathlib import Path

from proxy.adapters.model_config import read_config, weight_files_bytes
from proxy.adapters.tokenizer_files import TokenizerLoadError, model_folder
from proxy.advise.plan import BLOCK_SIZE_DEFAULT, GIB, UTILIZATION_DEFAULT, Card, Lengths, Question, plan
from proxy.advise.plan_advice import faults
from proxy.advise.plan_model import DTYPE_BYTES_DEFAULT, KvModel, PlanError, read_model
from proxy.advise.plan_weights import weight_bytes
from proxy.cli.plan_report import Subject, as_dict, text
from proxy.config.faults import quoted
from proxy.config.settings import SettingsError
from proxy.core.kv_shape import PLAIN
from proxy.sim.workloads import load_workload

PROMPT_TOKENS_ASSUMED, OUTPUT_TOKENS_ASSUMED = 1500, 500
PLAIN_NUMBERS = ("layers", "kv_heads", "head_dim")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    parser.add_argument(
        "model", nargs="?", metavar="MODEL",
        help="the model's folder, its config.json, or its Hugging Face name where that is in the local cache; or give plain numbers",
    )  # fmt: skip
    model = parser.add_argument_group("the model in plain numbers, which go before what config.json says")
    model.add_argument("--layers", type=_count, metavar="N", help="layers that keep keys and values")
    model.add_argument("--kv-heads", type=_count, metavar="N", help="KV heads of the whole model; for MHA all heads")
    model.add_argument("--head-dim", type=_count, metavar="N", help="size of a head")
    model.add_argument(
        "--dtype-bytes", type=_count, metavar="N", help="bytes of a cached value: 2, or 1 for an fp8 KV cache (default: 2)"
    )
    model.add_argument("--max-model-len", type=_count, metavar="N", help="context, tokens (default: the model's)")
    memory = parser.add_argument_group("memory of one card; or the pool alone")
    memory.add_argument("--gpu-memory-gib", type=_above, metavar="GIB", help="all of the card's memory")
    memory.add_argument(
        "--gpu-memory-utilization", type=_share, default=UTILIZATION_DEFAULT, metavar="SHARE",
        help=f"what vLLM may use of it (default: {UTILIZATION_DEFAULT})",
    )  # fmt: skip
    memory.add_argument(
        "--weights-gib",
        type=_least,
        metavar="GIB",
        help="weights on one card (default: the model's files, or an estimate, over the cards)",
    )
    memory.add_argument(
        "--reserve-gib", type=_least, default=0.0, metavar="GIB", help="activations and communication (default: 0)"
    )
    memory.add_argument("--kv-pool-gib", type=_above, metavar="GIB", help="memory for KV on one card, instead of all of these")
    engine = parser.add_argument_group("the engine")
    engine.add_argument(
        "--block-size", type=_count, default=BLOCK_SIZE_DEFAULT, metavar="N", help="tokens in a block (default: 16)"
    )
    engine.add_argument(
        "--tp", type=_count, default=1, metavar="N", help="tensor parallel size: cards that split each layer (default: 1)"
    )
    engine.add_argument("--pp", type=_count, default=1, metavar="N", help="pipeline stages, which split the layers (default: 1)")
    engine.add_argument(
        "--dp", type=_count, default=1, metavar="N", help="engines side by side, each with a pool of its own (default: 1)"
    )
    engine.add_argument(
        "--max-num-batched-tokens", type=_count, metavar="N", help="tokens in a step (default: the plan's advice)"
    )
    load = parser.add_argument_group("the requests that are expected")
    load.add_argument("--prompt-tokens", type=_count, metavar="N", help=f"mean prompt (default: {PROMPT_TOKENS_ASSUMED})")
    load.add_argument("--output-tokens", type=_count, metavar="N", help=f"mean output (default: {OUTPUT_TOKENS_ASSUMED})")
    load.add_argument(
        "--trace", metavar="NAME|FILE", help="take both from a recording or a workload, as kvgate simulate --workload does"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")


def run(arguments: argparse.Namespace) -> int:
    """Make the plan: 0 when the engine starts and holds what is expected, 1 when not."""
    try:
        subject = subject_of(arguments)
        made = plan(subject.question)
    except PlanError as error:
        raise SettingsError([str(error)]) from error
    print(json.dumps(as_dict(subject, made), indent=2) if arguments.json else text(subject, made))
    return 1 if any(faults(subject.question, made)) else 0


def subject_of(arguments: argparse.Namespace) -> Subject:
    """What the flags ask for. Raises PlanError and SettingsError."""
    folder, config = (None, None) if arguments.model is None else _config(arguments.model)
    model = _model(arguments, config)
    weights, weighed = _weights(arguments, folder, config)
    question = Question(
        model=model, lengths=_lengths(arguments), card=_card(arguments, weights),
        pool_given=None if arguments.kv_pool_gib is None else _bytes(arguments.kv_pool_gib),
        block_size=arguments.block_size, tp=arguments.tp, pp=arguments.pp, dp=arguments.dp,
        context_tokens_max=arguments.max_model_len, batched_tokens=arguments.max_num_batched_tokens,
        kv_cache_dtype="fp8" if arguments.dtype_bytes == 1 else None,
    )  # fmt: skip
    return Subject(question, arguments.model or "MODEL", weighed)


def _config(model: str) -> tuple[Path, object]:
    path = Path(model).expanduser()
    try:
        file = path if path.is_file() else model_folder(model) / "config.json"
        return file.parent, read_config(file)
    except TokenizerLoadError as error:
        raise SettingsError([str(error)]) from error
    except (OSError, ValueError) as error:
        raise SettingsError(
            [f"{model}: its config.json cannot be read ({error}); give the model's folder, or plain numbers"]
        ) from error


def _model(arguments: argparse.Namespace, config: object) -> KvModel:
    given = [getattr(arguments, name) for name in PLAIN_NUMBERS]
    if all(value is not None for value in given):
        layers, heads, size = given
        context = config.get("max_position_embeddings") if isinstance(config, dict) else None
        return KvModel(
            ((PLAIN.kind, layers),), heads, 2 * size, arguments.dtype_bytes or DTYPE_BYTES_DEFAULT,
            context_tokens_max=context if isinstance(context, int) else None,
        )  # fmt: skip
    flags = [f"--{name.replace('_', '-')}" for name in PLAIN_NUMBERS]
    if any(value is not None for value in given):
        missing = ", ".join(flag for flag, value in zip(flags, given, strict=True) if value is None)
        raise SettingsError([f"{missing} must be given too: plain numbers replace config.json only all together"])
    if config is None:
        raise SettingsError([f"give the model's folder, or {', '.join(flags)}"])
    return read_model(config, dtype_bytes=arguments.dtype_bytes)


def _weights(arguments: argparse.Namespace, folder: Path | None, config: object) -> tuple[int | None, str]:
    """Bytes on one card, and where they are from."""
    if arguments.weights_gib is not None:
        return _bytes(arguments.weights_gib), "given"
    if arguments.kv_pool_gib is not None:
        return None, ""
    cards = arguments.tp * arguments.pp
    if folder is not None and (weighed := weight_files_bytes(folder)) is not None:
        return weighed // cards, "its files over the cards"
    if isinstance(config, dict) and (estimated := weight_bytes(config)) is not None:
        return estimated // cards, "estimated from config.json"
    return None, ""


def _card(arguments: argparse.Namespace, weights: int | None) -> Card | None:
    if arguments.kv_pool_gib is not None:
        if arguments.gpu_memory_gib is not None:
            raise SettingsError(["--kv-pool-gib is the whole answer to --gpu-memory-gib: give one of them"])
        return None
    if arguments.gpu_memory_gib is None:
        raise SettingsError(["give the card's memory (--gpu-memory-gib 80) or the pool (--kv-pool-gib 30)"])
    if weights is None:
        raise SettingsError(["--weights-gib: the model's weights are not known here; give what one card holds of them"])
    return Card(_bytes(arguments.gpu_memory_gib), arguments.gpu_memory_utilization, weights, _bytes(arguments.reserve_gib))


def _lengths(arguments: argparse.Namespace) -> Lengths:
    prompt, output = arguments.prompt_tokens, arguments.output_tokens
    if arguments.trace is None:
        source = "given" if prompt and output else "assumed" if not (prompt or output) else "the other assumed"
        return Lengths(prompt or PROMPT_TOKENS_ASSUMED, output or OUTPUT_TOKENS_ASSUMED, source)
    if prompt or output:
        raise SettingsError(["--trace tells both lengths: leave --prompt-tokens and --output-tokens out"])
    try:
        stats = load_workload(arguments.trace, 1, block_size=arguments.block_size).stats
    except (ValueError, OSError) as error:
        raise SettingsError([f"--trace: {error}"]) from error
    return Lengths(stats.prompt_tokens_mean, stats.output_tokens_mean, f"means of {arguments.trace}, {stats.requests:,} requests")


def _bytes(gib: float) -> int:
    return round(gib * GIB)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{quoted(text)}: must be a whole number above 0")
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{quoted(text)}: must be a number") from None


def _above(text: str) -> float:
    value = _number(text)
    if not 0.0 < value < inf:
        raise argparse.ArgumentTypeError(f"{quoted(text)}: must be a number above 0")
    return value


def _least(text: str) -> float:
    value = _number(text)
    if not 0.0 <= value < inf:
        raise argparse.ArgumentTypeError(f"{quoted(text)}: must be a number, 0 or more")
    return value


def _share(text: str) -> float:
    value = _number(text)
    if not 0.0 < value <= 1.0:
        raise argparse.ArgumentTypeError(f"{quoted(text)}: must be a share of the card, above 0 and at most 1")
    return value
