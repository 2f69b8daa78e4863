"""What a probe found, in sentences: warnings that say what to do, and the report an operator reads when a replica is taken up."""

from collections.abc import Sequence

from proxy.core.replica import ReplicaFacts
from proxy.core.units import usable_blocks
from proxy.wire.vllm_metrics import NAMES, Purpose, counts_null_block

NAMES_SHOWN_MAX = 20


def warn_no_stats(kv_blocks_known: bool, reason: str) -> str:
    """The replica reports nothing of its engine; ``reason`` says what was got instead."""
    fix = "Start vLLM without --disable-log-stats"
    if not kv_blocks_known:
        fix += (
            " or tell kvgate the size of its KV cache with --kv-blocks N (policy key kv_blocks): N is the number of tokens in vLLM's"
            " start log line 'GPU KV cache size: … tokens' divided by its block size"
        )
    return f"{reason}: kvgate cannot see this replica's load and runs on its own accounting. {fix}."


def warn_no_usage(lookalikes: tuple[str, ...]) -> str:
    """None of the known usage metrics is there; ``lookalikes`` are exposed names that may be its successor."""
    found = f" (exposed instead: {names_shown(lookalikes)})" if lookalikes else ""
    return (
        f"no usage metric found among {', '.join(NAMES[Purpose.USAGE])}{found}; kvgate runs on its own accounting."
        " Traffic that bypasses kvgate stays unseen: update kvgate if this vLLM is newer than it."
    )


def warn_no_blocks(found: str) -> str:
    """The pool size is unknown; ``found`` says what was there instead."""
    return (
        f"{found}: kvgate does not know how many KV blocks this replica has. Set --kv-blocks N (policy key kv_blocks); N is the number"
        " of tokens in vLLM's start log line 'GPU KV cache size: … tokens' divided by its block size."
    )


def warn_blocks_differ(configured: int, reported: int) -> str:
    """Policy and replica disagree on the pool size."""
    return (
        f"kv_blocks is set to {configured:,} but the replica reports {reported:,}; {configured:,} is used."
        " Remove the key unless it is meant to hold kvgate below the real size."
    )


def warn_odd_capacity(told: int, plain: int, doubt: str | None) -> str:
    """A request as long as the context takes ``told`` blocks by the engine's account, ``plain`` in one full-attention group.

    ``doubt`` is what the model's config.json says to it; None: it could not be read.
    """
    read = f"its config.json does not explain it ({doubt})" if doubt else "its config.json is not where kvgate runs"
    return (
        f"by kv_cache_size_tokens a request of full length takes {told:,} KV blocks, not {plain:,}: the model keeps several KV groups"
        f" (hybrid attention) and {read}. What a token costs is fitted from measurements; expect cautious admission at first. For exact"
        " counts put the model's folder, or at least its config.json, where the engine says it loaded it from."
    )


def warn_larger_capacity(told: int, plain: int, one_group: bool) -> str:
    """A request as long as the context takes fewer blocks than one full-attention group would need."""
    shape = f"takes {told:,} KV blocks, fewer than the {plain:,} of block_size"
    if one_group and told > 0 and plain // told > 1:
        factor = round(plain / told)
        return (
            f"by kv_cache_size_tokens a request of full length {shape}: each block seems to hold {factor} block sizes (decode context"
            f" parallelism). kvgate counts too many blocks until the replica's policy key block_size is set to {factor} times vLLM's."
        )
    return (
        f"by kv_cache_size_tokens a request of full length {shape}: the model keeps only a window of its tokens, and its config.json does"
        " not say so where kvgate can read it. Long requests are counted in full: put the config.json where the engine says it loaded"
        " the model from."
    )


def warn_layers_unknown(doubt: str) -> str:
    """A config.json that is not understood, on an engine that does not tell what a request takes."""
    return (
        f"the model's config.json describes layers that kvgate cannot place ({doubt}), and this vLLM does not tell kv_cache_size_tokens"
        " (0.24 and later do). What a token costs is fitted from measurements; admission is very cautious at first. Upgrade vLLM."
    )


def warn_several() -> str:
    """One URL, several engines."""
    return (
        "fresh connections reached different engines: this URL balances over several servers, so its metrics describe none of them and"
        " the replica is only observed. Give kvgate each server's own address (in Kubernetes a headless Service or pod discovery)."
    )


def warn_old_version(version: str) -> str:
    """Older than what kvgate serves fully."""
    return f"vLLM {version} is older than 0.10.2: what it does not report is learned or assumed. Upgrade for exact accounting."


def names_shown(names: Sequence[str]) -> str:
    """Names on one line; of very many the first."""
    more = len(names) - NAMES_SHOWN_MAX
    return ", ".join(names[:NAMES_SHOWN_MAX]) + (f" and {more:,} more" if more > 0 else "")


def describe(facts: ReplicaFacts, kv_blocks_override: int | None) -> list[str]:
    """Lines for the operator: what the replica is and what kvgate will do about it. ``kv_blocks_override`` counts like num_gpu_blocks."""
    context = f", context {facts.context_tokens_max:,} tokens" if facts.context_tokens_max else ""
    lines = [f"{facts.url}: vLLM {facts.version or 'of unknown version'} serves {names_shown(facts.models)}{context}"]
    lines.append(f"  {_pool(facts, kv_blocks_override)}")
    if not facts.log_stats:
        lines.append("  load: not reported; own accounting only")
    elif facts.usage_metric is None:
        lines.append("  load: running and waiting requests are measured, KV usage is not; own accounting for blocks")
    else:
        lines.append(f"  load: measured by {facts.usage_metric}{_null_block_note(facts)}")
    if not facts.kv_layout.plain:
        lines.append(f"  {_groups(facts)}")
    if facts.sequences_max is None:
        lines.append("  sequence slots: not reported; learned while serving")
    else:
        lines.append(f"  sequence slots: {facts.sequences_max} per engine")
    sharing = "on; prefixes shared by running requests count once" if facts.prefix_caching else "off; nothing is discounted"
    lines.append(f"  prefix caching: {sharing}")
    lines += [f"  warning: {warning}" for warning in facts.warnings]
    return lines


def _pool(facts: ReplicaFacts, kv_blocks_override: int | None) -> str:
    blocks = kv_blocks_override or facts.kv_blocks_total
    if blocks is None:
        return "KV cache: size unknown; nothing can be held against it until kv_blocks is set"
    usable = usable_blocks(blocks, facts.engines)
    source = "set by kv_blocks" if kv_blocks_override else "reported"
    size = f" of {facts.block_size} tokens" if facts.block_size else ""
    tokens = f" = {usable * facts.block_size:,} tokens" if facts.block_size else ""
    engines = "1 engine" if facts.engines == 1 else f"{facts.engines} engines, separate pools"
    return f"KV cache: {blocks:,} blocks{size} ({source}), {engines}; usable per engine {usable:,}{tokens}"


def _groups(facts: ReplicaFacts) -> str:
    if facts.kv_layout.fitted:
        return "KV groups: several, of unknown kinds; what a token costs is learned while serving"
    kinds = [
        f"{each.count} {each.kind.attention}" + (f" of {each.kind.span_tokens:,} tokens" if each.kind.span_tokens else "")
        for each in facts.kv_layout.groups
    ]
    return f"KV groups: {' + '.join(kinds)}, each with blocks of its own for every request"


def _null_block_note(facts: ReplicaFacts) -> str:
    return " (the null block counts as used)" if counts_null_block(facts.version) else ""
