"""One bench run: find out what is served, make the load, send it while the engines are watched, and write down what came of it."""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from proxy import __version__
from proxy.adapters.tokenizer_files import LoadedTokenizer, TokenizerLoadError, open_tokenizer
from proxy.adapters.upstream import HttpUpstream, UpstreamLimits
from proxy.adapters.upstream_bounds import Patience
from proxy.advise.result_figures import summarise
from proxy.advise.result_file import SCHEMA, BenchResult, EngineSeen, Signals, Slo, WorkloadRun
from proxy.bench.observer import ReplicaObserver
from proxy.bench.plan import Dresser, Shape, workload_of
from proxy.bench.prompts import PromptError, PromptMaker
from proxy.bench.screen import Screen
from proxy.bench.sending import Course, Sender
from proxy.core.replica import ReplicaFacts
from proxy.ports import Clock
from proxy.sim.percentile import percentile
from proxy.sim.workloads import Workload

LOOK_EVERY_S = 1.0
BLOCK_SIZE_DEFAULT = 16
SILENCE_S_MAX = 3600.0  # a head or a token that takes longer is a failure; a long queue is none
LATE_S_MAX = 0.05  # p99 of how late requests went out, beyond which the client is too slow to be trusted


class BenchError(Exception):
    """The run cannot be made; the message says what to do."""


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """What was asked for. ``engines`` are addresses to watch; none: the loaded one, if it is an engine."""

    url: str
    workload: str
    course: Course
    shape: Shape = field(default_factory=Shape)
    slo: Slo = field(default_factory=Slo)
    engines: tuple[str, ...] = ()
    tokenizer: str | None = None
    model: str | None = None
    shared_tokens: int = 0
    warmup_s: float = 0.0
    headers: Mapping[str, str] = field(default_factory=dict)
    label: str = ""
    command: tuple[str, ...] = ()


async def bench(settings: BenchSettings, clock: Clock, screen: Screen) -> BenchResult:
    """Do the run. Raises BenchError."""
    target = ReplicaObserver(settings.url, clock, headers=settings.headers)
    watched = [
        target,
        *(ReplicaObserver(url, clock, headers=settings.headers) for url in settings.engines if url != settings.url),
    ]
    upstream = HttpUpstream(UpstreamLimits(connect_s_max=30.0, patience=Patience(SILENCE_S_MAX, SILENCE_S_MAX)))
    try:
        await asyncio.gather(*(one.begin() for one in watched))
        if target.facts is None:
            raise BenchError(target.fault or f"{settings.url} does not answer")
        screen.update(f"preparing prompts for {settings.model or target.facts.models[0]}")
        workload, dresser = await asyncio.to_thread(_made, settings, target.facts, clock)
        sender = Sender(upstream, settings.url, workload, dresser, settings.course, clock)
        started_at = datetime.fromtimestamp(clock.wall_s(), tz=UTC).isoformat(timespec="seconds")
        watching = asyncio.create_task(_watch(watched, sender, settings, screen), name="watching")
        try:
            await sender.run()
        except ValueError as error:
            raise BenchError(str(error)) from error
        finally:
            watching.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watching
        await asyncio.gather(*(one.finish() for one in watched))
    finally:
        await asyncio.gather(*(one.aclose() for one in watched), upstream.aclose())
    return _result(settings, started_at, sender, dresser, watched)


def _made(settings: BenchSettings, facts: ReplicaFacts, clock: Clock) -> tuple[Workload, Dresser]:
    tokenizer = _tokenizer(settings, facts, clock)
    block_size = facts.block_size or BLOCK_SIZE_DEFAULT
    seed = settings.shape.seed
    try:
        prompts = PromptMaker(
            tokenizer, chat=settings.shape.api == "chat", block_size=block_size, seed=seed, shared_tokens=settings.shared_tokens
        )
        workload = workload_of(settings.workload, seed, block_size)
    except (PromptError, ValueError, OSError) as error:
        raise BenchError(str(error)) from error
    model = settings.model or facts.models[0]
    return workload, Dresser(model, prompts, settings.shape, facts.context_tokens_max, settings.shared_tokens)


def _tokenizer(settings: BenchSettings, facts: ReplicaFacts, clock: Clock) -> LoadedTokenizer:
    """The one given, or the served model's, as ``kvgate serve`` looks for it."""
    names = [settings.tokenizer] if settings.tokenizer else [name for name in (facts.model_root, *facts.models) if name]
    reasons = []
    for name in dict.fromkeys(names):
        try:
            return open_tokenizer(name, wall_s=clock.wall_s)
        except TokenizerLoadError as error:
            reasons.append(str(error))
    raise BenchError("; ".join([*reasons, "prompts of exact length need the model's tokenizer: give --tokenizer DIR|NAME"]))


async def _watch(watched: Sequence[ReplicaObserver], sender: Sender, settings: BenchSettings, screen: Screen) -> None:
    """Look at every engine once a second, and say how far the run is, until cancelled."""
    looks = 0
    while True:
        await asyncio.sleep(LOOK_EVERY_S)
        await asyncio.gather(*(one.look() for one in watched if one.facts is None or one.facts.log_stats))
        looks += 1
        if sender.sent.origin_s is not None:
            screen.update(_progress(sender, settings.course))


def _progress(sender: Sender, course: Course) -> str:
    samples = sender.sent.samples
    done = [one for one in samples if one.outcome == "completed"]
    ttft = percentile([one.ttft_s for one in done if one.ttft_s is not None], 0.5)
    others = len(samples) - len(done)
    return f"{sender.now_s():.0f}/{course.duration_s:.0f} s: {len(done)} completed, {others} not, {sender.sent.open} open" + (
        "" if ttft is None else f", TTFT p50 {ttft:.2f} s"
    )


def _result(
    settings: BenchSettings, started_at: str, sender: Sender, dresser: Dresser, watched: Sequence[ReplicaObserver]
) -> BenchResult:
    samples = sorted(sender.sent.samples, key=lambda one: one.planned_s)
    if not samples:
        raise BenchError(f"nothing was sent: {dresser.left_out} requests did not fit the context, or the run was too short")
    duration_s = max(one.ended_s for one in samples)
    return BenchResult(
        schema=SCHEMA,
        kvgate_version=__version__,
        command=settings.command,
        target=settings.url,
        workload=WorkloadRun(settings.workload, settings.shape.seed, settings.course.rate_per_s, settings.course.concurrency),
        started_at=started_at,
        duration_s=duration_s,
        slo=settings.slo,
        summary=summarise(samples, settings.slo, duration_s=duration_s, warmup_s=settings.warmup_s),
        requests=tuple(samples),
        signals=tuple(series for one in watched for series in _signals(one, sender.sent.origin_s or 0.0)),
        engines=tuple(_seen(one, one.facts) for one in watched if one.facts and (one.facts.log_stats or len(watched) == 1)),
        warmup_s=settings.warmup_s,
        label=settings.label,
        notes=tuple(_notes(settings, sender, dresser)),
    )


def _signals(observer: ReplicaObserver, origin_s: float) -> list[Signals]:
    found = []
    for name, series in observer.engines.items():
        looks = [(max(0.0, at_s - origin_s), sample) for at_s, sample in series.looks]
        found.append(
            Signals(
                url=observer.url,
                at_s=tuple(at_s for at_s, _ in looks),
                kv_usage_ratio=tuple(sample.kv_usage_ratio for _, sample in looks),
                running=tuple(sample.running for _, sample in looks),
                waiting=tuple(sample.waiting for _, sample in looks),
                preemptions_total=tuple(sample.preemptions_total for _, sample in looks),
                engine=name,
                scrapes_failed=observer.failures,
            )
        )
    return found


def _seen(observer: ReplicaObserver, facts: ReplicaFacts) -> EngineSeen:
    flags = observer.flags
    told = {
        "max-num-seqs": flags.max_num_seqs,
        "max-num-batched-tokens": flags.max_num_batched_tokens,
        "tensor-parallel-size": flags.tensor_parallel,
        "gpu-memory-utilization": flags.gpu_memory_utilization,
    }
    return EngineSeen(
        url=observer.url,
        version=facts.version,
        model=facts.models[0],
        block_size=facts.block_size,
        kv_blocks=facts.kv_blocks_total,
        context_tokens_max=facts.context_tokens_max,
        flags={name: str(value) for name, value in told.items() if value is not None},
    )


def _notes(settings: BenchSettings, sender: Sender, dresser: Dresser) -> list[str]:
    notes = []
    late_s = percentile([one.sent_s - one.planned_s for one in sender.sent.samples], 0.99)
    if late_s is not None and late_s > LATE_S_MAX:
        notes.append(f"this client sent its latest hundredth {late_s:.2f} s after plan: its machine is too busy for this rate")
    if dresser.left_out:
        notes.append(f"{dresser.left_out} requests of the workload were left out: prompt and answer do not fit the context")
    if dresser.inexact:
        notes.append(f"{dresser.inexact} prompts are not of the length asked for: the chat template alone is longer")
    if sender.sent.miscounted:
        notes.append(
            f"{sender.sent.miscounted} prompts were counted differently by the engine: is --tokenizer the served model's?"
        )
    if not settings.engines and not any(sample.prompt_tokens for sample in sender.sent.samples):
        notes.append("no answer told usage: output tokens are counted by events")
    return notes
