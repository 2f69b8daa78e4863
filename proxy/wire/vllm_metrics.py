"""vLLM's ``/metrics`` text into samples: names across versions, odd values, and blocks from usage ratios.

Names differ by version (reference vllm.md §1.2); ``NAMES`` is the only place that knows them, best first. For each purpose the first
name that occurs at all is read for every engine. What is missing, NaN, negative or beyond bounds is None, never zero: an unreadable
usage must not look like an empty cache, nor a full one. Ratios are clamped to 0..1 where a null block counted or not can explain it.

Before 0.9 the prefix counters count blocks and only the HELP line says so; they are turned into tokens where the block size is known
and are None elsewhere.

vLLM ≤ 0.11 with several API servers exposes the usage gauge once per process (label ``pid``); each shows the last step that happened
to be reported to it, and nothing tells which is newest. Then the largest counts: too high only delays, too low admits what does not
fit. ``PidUsage`` does better over successive scrapes, where a value that moved is newer than one that did not.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from proxy.core.replica import EngineSample
from proxy.wire.exposition import Scanner, Series


class Purpose(StrEnum):
    """What kvgate wants to know of an engine."""

    USAGE = "usage"
    RUNNING = "running"
    WAITING = "waiting"
    WAITING_BY_REASON = "waiting_by_reason"
    PREEMPTIONS = "preemptions"
    PROMPT_TOKENS = "prompt_tokens"
    GENERATION_TOKENS = "generation_tokens"
    PREFIX_QUERIES = "prefix_queries"
    PREFIX_HITS = "prefix_hits"


VALUE_MAX = 1e15  # of anything that is counted: more is none, NaN neither
DIGITS_MAX = 18  # of a number in a label: more is no number of tokens, and Python reads no more than 4,300
USAGE_SLACK = 0.1  # of a tiny pool, one null block
NAMES: dict[Purpose, tuple[str, ...]] = {
    Purpose.USAGE: ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
    Purpose.RUNNING: ("vllm:num_requests_running",),
    Purpose.WAITING: ("vllm:num_requests_waiting",),
    Purpose.WAITING_BY_REASON: ("vllm:num_requests_waiting_by_reason",),
    Purpose.PREEMPTIONS: ("vllm:num_preemptions_total",),
    Purpose.PROMPT_TOKENS: ("vllm:prompt_tokens_total",),
    Purpose.GENERATION_TOKENS: ("vllm:generation_tokens_total",),
    Purpose.PREFIX_QUERIES: ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total"),
    Purpose.PREFIX_HITS: ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total"),
}
START_TIME = "process_start_time_seconds"
CACHE_CONFIG = "vllm:cache_config_info"
SAMPLE_NAMES: tuple[str, ...] = (*(name for names in NAMES.values() for name in names), START_TIME)

_SCAN_ENGINES = Scanner((name for names in NAMES.values() for name in names), prefix="vllm:")
_SCAN_START = Scanner((START_TIME,))
_SCAN_CONFIG = Scanner((CACHE_CONFIG,), prefix="vllm:")
_HELP_BLOCKS = re.compile(rb"^# HELP vllm:gpu_prefix_cache_queries\S* [^\n]*queried blocks", re.MULTILINE)
_SERIES = re.compile(rb"^(vllm:[a-z_]+)[{ ]", re.MULTILINE)
_VERSION = re.compile(r"^(\d+)\.(\d+)")


@dataclass(frozen=True, slots=True)
class Scrape:
    """One exposition as read.

    ``engines`` is empty where the server keeps no statistics. ``usage_by_pid`` maps an engine to its usage per process, only where
    the exposition gives more than one. ``lines_skipped`` counts wanted lines that could not be read.
    """

    engines: tuple[EngineSample, ...]
    started_s: float | None = None
    usage_metric: str | None = None
    lines_skipped: int = 0
    usage_by_pid: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def has_stats(self) -> bool:
        """Whether the engine statistics are there at all (``--disable-log-stats`` removes them)."""
        return any(engine.running is not None for engine in self.engines)

    def counters(self) -> dict[str, float]:
        """Every counter that only a restart can set back, by a stable key."""
        totals: dict[str, float] = {}
        for engine in self.engines:
            for key, total in (
                ("preemptions", engine.preemptions_total),
                ("prompt_tokens", engine.prompt_tokens_total),
                ("generation_tokens", engine.generation_tokens_total),
            ):
                if total is not None:
                    totals[f"{key}/{engine.engine}"] = total
        return totals


@dataclass(frozen=True, slots=True)
class CacheConfig:
    """Labels of ``vllm:cache_config_info``; the text "None", an absent label and an unreadable number are None.

    ``num_gpu_blocks`` is the sum over the engines of this server, ``kv_cache_size_tokens`` is per engine (reference vllm.md §1.4).
    """

    block_size: int | None = None
    num_gpu_blocks: int | None = None
    kv_cache_size_tokens: int | None = None
    prefix_caching: bool | None = None


def read_scrape(text: bytes, *, block_size: int | None = None) -> Scrape:
    """Read a ``/metrics`` answer. ``block_size`` (tokens) turns the prefix counters of old versions into tokens."""
    scan = _SCAN_ENGINES.scan(text)
    # The start time comes early in the text: a plain search ends there.
    start_at = max(0, text.find(b"\n" + START_TIME.encode()))
    start = _SCAN_START.scan(text[start_at : text.find(b"\n", start_at + 1) + 1])
    by_name: dict[str, list[Series]] = {}
    for series in scan.series:
        by_name.setdefault(series.name, []).append(series)
    chosen = {purpose: next((name for name in names if name in by_name), None) for purpose, names in NAMES.items()}
    engines: dict[str, dict[Purpose, float]] = {}
    pids: dict[str, dict[str, float]] = {}
    for purpose, name in chosen.items():
        for series in by_name.get(name, ()) if name else ():
            engine = series.labels.get("engine", "0")
            values = engines.setdefault(engine, {})
            if purpose is Purpose.WAITING_BY_REASON and series.labels.get("reason") != "capacity":
                continue
            if not -VALUE_MAX <= series.value <= VALUE_MAX or (series.value < 0 and purpose is not Purpose.USAGE):
                continue
            if purpose is Purpose.USAGE and not -USAGE_SLACK <= series.value <= 1.0 + USAGE_SLACK:
                continue  # no ratio: whatever it is, it is not how full the cache is
            value = min(max(series.value, 0.0), 1.0) if purpose is Purpose.USAGE else series.value
            values[purpose] = max(value, values.get(purpose, 0.0))
            if purpose is Purpose.USAGE and "pid" in series.labels:
                pids.setdefault(engine, {})[series.labels["pid"]] = value
    prefix_unit = 1.0
    if chosen[Purpose.PREFIX_QUERIES] == NAMES[Purpose.PREFIX_QUERIES][1] and _HELP_BLOCKS.search(text):
        prefix_unit = float(block_size) if block_size else math.nan
    return Scrape(
        engines=tuple(_engine(name, engines[name], prefix_unit) for name in sorted(engines, key=_engine_order)),
        started_s=next((series.value for series in start.series if math.isfinite(series.value)), None),
        usage_metric=chosen[Purpose.USAGE],
        lines_skipped=scan.lines_skipped + start.lines_skipped,
        usage_by_pid={engine: by_pid for engine, by_pid in pids.items() if len(by_pid) > 1},
    )


def _engine(name: str, values: Mapping[Purpose, float], prefix_unit: float) -> EngineSample:
    def whole(purpose: Purpose) -> int | None:
        return round(values[purpose]) if purpose in values else None

    def tokens(purpose: Purpose) -> float | None:
        return values[purpose] * prefix_unit if purpose in values and not math.isnan(prefix_unit) else None

    return EngineSample(
        engine=name,
        kv_usage_ratio=values.get(Purpose.USAGE),
        running=whole(Purpose.RUNNING),
        waiting=whole(Purpose.WAITING),
        waiting_capacity=whole(Purpose.WAITING_BY_REASON),
        preemptions_total=values.get(Purpose.PREEMPTIONS),
        prompt_tokens_total=values.get(Purpose.PROMPT_TOKENS),
        generation_tokens_total=values.get(Purpose.GENERATION_TOKENS),
        prefix_queries_tokens_total=tokens(Purpose.PREFIX_QUERIES),
        prefix_hits_tokens_total=tokens(Purpose.PREFIX_HITS),
    )


def _engine_order(name: str) -> tuple[int, str]:
    return (int(name), "") if name.isdecimal() and len(name) <= DIGITS_MAX else (1 << 31, name)


def read_cache_config(text: bytes) -> CacheConfig | None:
    """The cache configuration of the first engine that shows one; None where there is none."""
    for series in _SCAN_CONFIG.scan(text).series:
        labels = series.labels
        return CacheConfig(
            block_size=_whole_label(labels.get("block_size")),
            num_gpu_blocks=_whole_label(labels.get("num_gpu_blocks")),
            kv_cache_size_tokens=_whole_label(labels.get("kv_cache_size_tokens")),
            prefix_caching={"True": True, "False": False}.get(labels.get("enable_prefix_caching", "")),
        )
    return None


def usage_lookalikes(text: bytes) -> tuple[str, ...]:
    """Exposed names that sound like a KV usage but are not known: candidates for a renamed metric. The CPU swap gauge is none."""
    names = {name.decode() for name in _SERIES.findall(text) if b"cache" in name and b"usage" in name}
    return tuple(sorted(names - {*NAMES[Purpose.USAGE], "vllm:cpu_cache_usage_perc"}))


def looks_like_exposition(text: bytes) -> bool:
    """Whether ``text`` is Prometheus text at all, rather than an error page."""
    return text.startswith((b"# HELP ", b"# TYPE ")) or b"\n# TYPE " in text or bool(read_scrape(text).engines)


def _whole_label(text: str | None) -> int | None:
    return int(text) or None if text is not None and text.isdecimal() and len(text) <= DIGITS_MAX else None


class PidUsage:
    """Chooses, scrape after scrape, among usage gauges that exist once per API server process.

    The processes whose value moved since the last scrape heard from the engine last: the largest of those counts. While none moves
    the last choice stays (at first sight: the largest). Fails on the safe side only at first sight; later it may trail by one step
    when two processes moved between scrapes.
    """

    def __init__(self) -> None:
        self._last: dict[str, dict[str, float]] = {}
        self._pid: dict[str, str] = {}

    def settle(self, scrape: Scrape) -> Scrape:
        """``scrape`` with one usage per engine; unchanged where the exposition gives one anyway."""
        if not scrape.usage_by_pid:
            return scrape
        return replace(scrape, engines=tuple(self._settle(engine, scrape.usage_by_pid) for engine in scrape.engines))

    def _settle(self, engine: EngineSample, usage_by_pid: Mapping[str, Mapping[str, float]]) -> EngineSample:
        now = usage_by_pid.get(engine.engine)
        if now is None:
            return engine
        before = self._last.get(engine.engine, {})
        moved = [pid for pid, usage in now.items() if before.get(pid) != usage]
        if moved or self._pid.get(engine.engine) not in now:
            self._pid[engine.engine] = max(moved or now, key=lambda pid: now[pid])
        self._last[engine.engine] = dict(now)
        return replace(engine, kv_usage_ratio=now[self._pid[engine.engine]])


def counts_null_block(version: str | None) -> bool:
    """Whether this vLLM counts its null block as used (up to 0.9.2, from 0.8, where the null block came).

    Unknown versions and the two point releases between 0.9.2 and 0.10.2 read as not: then the count is at most one block high.
    """
    pair = version_pair(version)
    return pair is not None and (0, 8) <= pair <= (0, 9)


def version_pair(version: str | None) -> tuple[int, int] | None:
    """Major and minor of "0.32.0", "0.11.2rc1+cpu"; None where the text does not begin with two numbers."""
    match = _VERSION.match(version or "")
    return (int(match.group(1)), int(match.group(2))) if match else None


def used_blocks(usage_ratio: float, blocks_total_per_engine: int, legacy: bool) -> int:
    """Blocks held by requests, exact to the block, null block excluded.

    Current: ``usage = used ÷ (total − 1)``. ``legacy`` (see ``counts_null_block``): ``usage = (used + 1) ÷ total``. A pool of one
    block or less has nothing to hold.
    """
    if blocks_total_per_engine <= 1:
        return 0
    exposed = usage_ratio * (blocks_total_per_engine if legacy else blocks_total_per_engine - 1)
    used = round(exposed) - (1 if legacy else 0)
    return min(max(used, 0), blocks_total_per_engine - 1)
