"""The result file of a benchmark run: written by ``kvgate bench``, read by ``kvgate compare``. Values and bytes; no file is touched here.

One JSON object. Times are seconds since ``started_at``. A request's latencies are counted from ``planned_s``, when the load wanted to
send it, so a client that fell behind cannot hide a slow server (coordinated omission); ``sent_s`` tells how far it fell behind.

    TTFT = first_token_s - planned_s                     TPOT = (ended_s - first_token_s) / (output_tokens - 1)
    E2E  = ended_s - planned_s                           ITL  = every gap between two chunks with content, over all requests

Gaps are kept as counts in bins half a per cent wide, so their percentiles are right to a quarter of a per cent; their mean is exact.
Requests planned before ``warmup_s`` are kept in the file and left out of every figure. ``advise.result_figures`` makes the figures.
"""

from typing import Annotated, Literal

import msgspec

SCHEMA = 1
Outcome = Literal["completed", "shed", "failed", "cancelled", "unfinished"]
Seconds = Annotated[float, msgspec.Meta(ge=0.0)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class ResultFileError(ValueError):
    """What is wrong with a file, and what to do about it."""


class _Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    pass


class EngineSeen(_Part, frozen=True):
    """A replica as it was found. ``flags``: those seen or given, named as on ``vllm serve`` without the dashes in front."""

    url: str
    version: str | None = None
    model: str | None = None
    block_size: Count | None = None
    kv_blocks: Count | None = None
    context_tokens_max: Count | None = None
    flags: dict[str, str] = {}


class WorkloadRun(_Part, frozen=True):
    """What was sent. Open loop: ``rate_per_s``; closed loop: ``concurrency``."""

    name: str
    seed: int
    rate_per_s: float | None = None
    concurrency: Count | None = None


class Slo(_Part, frozen=True):
    """What a good answer keeps; None: not asked for."""

    ttft_s: Seconds | None = None
    tpot_s: Seconds | None = None
    e2e_s: Seconds | None = None


class RequestSample(_Part, frozen=True):
    """One request. ``ended_s``: its last token, or when it failed or was given up; ``itl_counts``: as ``result_figures`` makes them.

    Outcomes: ``shed`` is an honest refusal (429, or 503 with advice to come back), ``cancelled`` is the load's own plan to leave,
    ``unfinished`` was still open when the run ended.
    """

    planned_s: Seconds
    sent_s: Seconds
    ended_s: Seconds
    outcome: Outcome
    first_token_s: Seconds | None = None
    prompt_tokens: Count = 0
    output_tokens: Count = 0
    tenant: str = "default"
    status: Count | None = None
    error: str | None = None
    itl_counts: dict[int, Count] = {}

    @property
    def ttft_s(self) -> float | None:
        """None before the first token."""
        return None if self.first_token_s is None else self.first_token_s - self.planned_s

    @property
    def e2e_s(self) -> float:
        """From the plan to the end."""
        return self.ended_s - self.planned_s

    @property
    def tpot_s(self) -> float | None:
        """None for fewer than two tokens."""
        if self.first_token_s is None or self.output_tokens < 2:
            return None
        return (self.ended_s - self.first_token_s) / (self.output_tokens - 1)


class Signals(_Part, frozen=True):
    """An engine's series in equal columns, one row a scrape; None where the engine did not tell. Counters as scraped."""

    url: str
    at_s: tuple[Seconds, ...]
    kv_usage_ratio: tuple[float | None, ...]
    running: tuple[float | None, ...]
    waiting: tuple[float | None, ...]
    preemptions_total: tuple[float | None, ...]
    engine: str = "0"
    scrapes_failed: Count = 0

    def __post_init__(self) -> None:
        """Raise ValueError for columns of unequal length."""
        lengths = {len(self.at_s), len(self.kv_usage_ratio), len(self.running), len(self.waiting), len(self.preemptions_total)}
        if len(lengths) > 1:
            raise ValueError("the columns of signals have unequal lengths")


class Spread(_Part, frozen=True):
    """A latency in seconds over ``count`` values; None without any."""

    count: Count
    mean: float | None = None
    p50: float | None = None
    p90: float | None = None
    p99: float | None = None


class Summary(_Part, frozen=True):
    """The figures of a run. Rates are per second of ``duration_s - warmup_s``; ``goodput_ratio`` is of all requests but the cancelled."""

    ttft_s: Spread
    tpot_s: Spread
    itl_s: Spread
    e2e_s: Spread
    outcomes: dict[str, Count]
    requests_per_s: float | None = None
    prompt_tokens_per_s: float | None = None
    output_tokens_per_s: float | None = None
    goodput_per_s: float | None = None
    goodput_ratio: float | None = None


class BenchResult(_Part, frozen=True):
    """The file. ``command`` is the command line; ``target`` the URL that was loaded; ``started_at`` is ISO 8601 with its zone."""

    schema: int
    kvgate_version: str
    command: tuple[str, ...]
    target: str
    workload: WorkloadRun
    started_at: str
    duration_s: Seconds
    slo: Slo
    summary: Summary
    requests: tuple[RequestSample, ...]
    signals: tuple[Signals, ...] = ()
    engines: tuple[EngineSeen, ...] = ()
    warmup_s: Seconds = 0.0
    label: str = ""
    notes: tuple[str, ...] = ()

    @property
    def measured(self) -> tuple[RequestSample, ...]:
        """The requests that count."""
        return tuple(one for one in self.requests if one.planned_s >= self.warmup_s)


class _Version(msgspec.Struct):
    schema: int


def encode(result: BenchResult) -> bytes:
    """The file's bytes."""
    return msgspec.json.encode(result) + b"\n"


def decode(text: bytes, name: str) -> BenchResult:
    """Read a file's bytes; ``name`` stands before what is wrong with them. Raises ResultFileError."""
    try:
        schema = msgspec.json.decode(text, type=_Version).schema
    except msgspec.DecodeError as error:
        raise ResultFileError(
            f"{name}: no result of kvgate bench ({error}); make one with kvgate bench URL --out {name}"
        ) from error
    if schema != SCHEMA:
        raise ResultFileError(
            f"{name}: result schema {schema}, this kvgate reads {SCHEMA}; run the benchmark again with this version"
        )
    try:
        return msgspec.json.decode(text, type=BenchResult)
    except msgspec.DecodeError as error:
        raise ResultFileError(f"{name}: a damaged result file: {error}; run the benchmark again") from error
