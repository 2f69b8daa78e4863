"""What a probe's answers say, as ``ReplicaFacts`` with warnings. Reads parsed JSON and metrics text; fetches nothing.

What is absent or of the wrong type is None. A configured pool size goes before the reported one, and the warning shows both.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from proxy.core.kv_shape import KvLayout
from proxy.core.replica import ModelCard, ReplicaFacts
from proxy.wire import report
from proxy.wire.kv_layout import CacheSizes, choose_layout
from proxy.wire.model_layers import ModelLayers
from proxy.wire.vllm_metrics import CacheConfig, Scrape, read_cache_config, usage_lookalikes, version_pair

# A replica may be anybody's: what it tells of itself is a label, a log line and a number to reckon with everywhere else.
MODELS_MAX = 4096  # with all its adapters
NAME_CHARS_MAX = 512
CARD_BYTES_MAX = 64 * 1024
VERSION_CHARS_MAX = 64
WHOLE_MAX = 10**12  # of tokens, blocks and sequences: more is none, and as a float still exact


@dataclass(frozen=True, slots=True)
class ModelList:
    """``/v1/models``: names, base models before LoRA adapters, and the shortest context in tokens (adapters tell none).

    Of more than ``MODELS_MAX`` the first count; a name that cannot be written, or is too long for one, is none.
    """

    names: tuple[str, ...]
    context_tokens_max: int | None
    root: str | None = None  # of the base model
    adapters: tuple[str, ...] = ()  # of the names
    cards: tuple[ModelCard, ...] = ()  # in the order of the answer

    @classmethod
    def read(cls, listing: Any) -> "ModelList | None":
        """None when ``listing`` is no list of models or an empty one."""
        entries = listing.get("data") if isinstance(listing, dict) else None
        if not isinstance(entries, list):
            return None
        cards = [card for card in entries if isinstance(card, dict) and _is_name(card.get("id"))][:MODELS_MAX]
        shown = tuple(ModelCard(card["id"], _whole(card.get("max_model_len")), _card_text(card)) for card in cards)
        cards.sort(key=lambda card: card.get("parent") is not None)
        lengths = [length for card in cards if (length := _whole(card.get("max_model_len"))) is not None]
        if not cards:
            return None
        root = cards[0].get("root")
        adapters = tuple(card["id"] for card in cards if card.get("parent") is not None)
        names = tuple(card["id"] for card in cards)
        return cls(names, min(lengths, default=None), root if isinstance(root, str) else None, adapters, shown)


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """What ``/server_info`` of a server in development mode adds; elsewhere all None."""

    sequences_max: int | None = None
    engines: int | None = None
    block_size: int | None = None
    num_gpu_blocks: int | None = None
    kv_cache_size_tokens: int | None = None
    prefix_caching: bool | None = None

    @classmethod
    def read(cls, answer: Any) -> "ServerInfo":
        """All None when ``answer`` is something else."""
        config = answer.get("vllm_config") if isinstance(answer, dict) else None
        if not isinstance(config, dict):
            return cls()

        def value(part: str, key: str) -> Any:
            section = config.get(part)
            return section.get(key) if isinstance(section, dict) else None

        caching = value("cache_config", "enable_prefix_caching")
        return cls(
            sequences_max=_whole(value("scheduler_config", "max_num_seqs")),
            engines=_whole(value("parallel_config", "data_parallel_size")),
            block_size=_whole(value("cache_config", "block_size")),
            num_gpu_blocks=_whole(value("cache_config", "num_gpu_blocks")),
            kv_cache_size_tokens=_whole(value("cache_config", "kv_cache_size_tokens")),
            prefix_caching=caching if isinstance(caching, bool) else None,
        )


@dataclass(frozen=True, slots=True)
class Seen:
    """Everything a probe gathered. ``metrics_text`` is empty, and ``metrics_fault`` says why, where ``/metrics`` was of no use."""

    url: str
    version: str | None
    models: ModelList
    server: ServerInfo
    metrics_text: bytes
    metrics_fault: str | None
    scrape: Scrape
    several: bool
    kv_blocks: int | None
    layers: ModelLayers | None = None  # None: no config.json could be read


def assemble(seen: Seen) -> ReplicaFacts:
    """The facts, with warnings."""
    cache = read_cache_config(seen.metrics_text)
    sized = _merge(cache, seen.server)
    engines = len(seen.scrape.engines) if seen.scrape.has_stats else seen.server.engines or 1
    layout, layout_warnings = _layout(seen, sized, engines)
    return ReplicaFacts(
        url=seen.url,
        models=seen.models.names,
        adapters=seen.models.adapters,
        context_tokens_max=seen.models.context_tokens_max,
        block_size=sized.block_size,
        kv_blocks_total=seen.kv_blocks or sized.num_gpu_blocks,
        engines=engines,
        version=seen.version,
        cards=seen.models.cards,
        model_root=seen.models.root,
        usage_metric=seen.scrape.usage_metric,
        log_stats=seen.scrape.has_stats,
        prefix_caching=layout.prefix_caching,
        sequences_max=seen.server.sequences_max,
        kv_cache_size_tokens=sized.kv_cache_size_tokens,
        kv_layout=layout,
        several_engines_behind=seen.several,
        warnings=(
            *_warn_metrics(seen, sized),
            *_warn_sizes(seen, cache, sized),
            *layout_warnings,
            *_warn_server(seen),
        ),
    )


def _merge(cache: CacheConfig | None, server: ServerInfo) -> CacheConfig:
    """Metrics first; ``/server_info`` fills in what they lack."""
    cache = cache or CacheConfig()
    return CacheConfig(
        block_size=cache.block_size or server.block_size,
        num_gpu_blocks=cache.num_gpu_blocks or server.num_gpu_blocks,
        kv_cache_size_tokens=cache.kv_cache_size_tokens or server.kv_cache_size_tokens,
        prefix_caching=server.prefix_caching if cache.prefix_caching is None else cache.prefix_caching,
    )


def _prefix_caching(reported: bool | None, version: str | None) -> bool:
    """Unreported it is vLLM's default: on since 0.8."""
    pair = version_pair(version)
    return reported if reported is not None else pair is None or pair >= (0, 8)


def _warn_metrics(seen: Seen, sized: CacheConfig) -> list[str]:
    size_known = bool(seen.kv_blocks or sized.num_gpu_blocks)
    if seen.metrics_fault is not None:
        return [report.warn_no_stats(size_known, f"no metrics ({seen.metrics_fault})")]
    if not seen.scrape.has_stats:
        return [report.warn_no_stats(size_known, "vllm:num_requests_running is not on /metrics (--disable-log-stats)")]
    warnings = [] if seen.scrape.usage_metric else [report.warn_no_usage(usage_lookalikes(seen.metrics_text))]
    if seen.scrape.lines_skipped:
        warnings.append(f"{seen.scrape.lines_skipped} lines of /metrics could not be read and count as missing.")
    return warnings


def _layout(seen: Seen, sized: CacheConfig, engines: int) -> tuple[KvLayout, tuple[str, ...]]:
    blocks = sized.num_gpu_blocks // engines if sized.num_gpu_blocks else None
    caching = _prefix_caching(sized.prefix_caching, seen.version)
    sizes = CacheSizes(sized.block_size, blocks, seen.models.context_tokens_max, sized.kv_cache_size_tokens, caching)
    return choose_layout(seen.layers, sizes)


def _warn_sizes(seen: Seen, cache: CacheConfig | None, sized: CacheConfig) -> list[str]:
    warnings = []
    if seen.kv_blocks and sized.num_gpu_blocks and seen.kv_blocks != sized.num_gpu_blocks:
        warnings.append(report.warn_blocks_differ(seen.kv_blocks, sized.num_gpu_blocks))
    if seen.scrape.has_stats and not seen.kv_blocks and not sized.num_gpu_blocks:
        missing = "vllm:cache_config_info tells no number of blocks" if cache else "vllm:cache_config_info is missing"
        warnings.append(report.warn_no_blocks(missing))
    return warnings


def _warn_server(seen: Seen) -> list[str]:
    pair = version_pair(seen.version)
    warnings = [report.warn_old_version(seen.version)] if seen.version and pair and pair < (0, 10) else []
    return [*warnings, report.warn_several()] if seen.several else warnings


def version_of(answer: Any) -> str | None:
    """What ``/version`` says; None where that is no version."""
    version = answer.get("version") if isinstance(answer, dict) else None
    return version if isinstance(version, str) and version.isprintable() and 0 < len(version) <= VERSION_CHARS_MAX else None


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= WHOLE_MAX else None


def _is_name(value: object) -> bool:
    """Whether it is a model's: anything printable, so no half of a surrogate pair and no line end."""
    return isinstance(value, str) and 0 < len(value) <= NAME_CHARS_MAX and value.isprintable()


def _card_text(card: dict[str, Any]) -> str:
    """The card as it is shown to clients; of one too long, or that no text can hold, what kvgate itself goes by."""
    with suppress(UnicodeEncodeError, RecursionError):
        text = json.dumps(card, ensure_ascii=False, separators=(",", ":"))
        if len(text.encode()) <= CARD_BYTES_MAX:
            return text
    return json.dumps({"id": card["id"], "object": "model", "max_model_len": _whole(card.get("max_model_len"))})
