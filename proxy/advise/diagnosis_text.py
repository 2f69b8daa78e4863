"""A diagnosis for people and for programs."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Any

from proxy.advise.diagnosis import Diagnosis
from proxy.advise.finding import Finding
from proxy.advise.watch import EngineWatch, KvgateWatch, ReplicaWatch, Spread
from proxy.wire.histogram import Histogram

WIDTH = 118
LABEL = 12
MILLI = 1000.0


def report(diagnosis: Diagnosis, replicas: Sequence[ReplicaWatch], gates: Sequence[KvgateWatch]) -> str:
    """The whole report."""
    lines = [line for replica in replicas for line in _replica(replica)]
    lines += [f"{gate.url}  kvgate, mode {gate.mode or 'not told'}, {_mean(gate.queued)} requests queued" for gate in gates]
    lines.append("")
    if not diagnosis.findings:
        lines += ["Nothing wrong was seen.", ""]
    for number, finding in enumerate(diagnosis.findings, 1):
        lines += [*_finding(number, finding), ""]
    for title, sentences in (("Not seen", diagnosis.unseen), ("For this version", diagnosis.notes)):
        if sentences:
            lines += [f"{title}:", *(line for sentence in sentences for line in _wrapped("  - ", sentence)), ""]
    return "\n".join(lines).rstrip() + "\n"


def as_json(diagnosis: Diagnosis, replicas: Sequence[ReplicaWatch], gates: Sequence[KvgateWatch]) -> dict[str, Any]:
    """The same for programs."""
    return {
        "findings": [
            {
                "case": one.case,
                "where": one.where,
                "confidence": one.confidence,
                "symptom": one.symptom,
                "evidence": one.evidence,
                "cause": one.cause,
                "knob": one.knob,
            }
            for one in diagnosis.findings
        ],
        "unseen": list(diagnosis.unseen),
        "notes": list(diagnosis.notes),
        "replicas": [_figures(replica) for replica in replicas],
        "gates": [{"url": gate.url, "mode": gate.mode, "queued_mean": gate.queued and gate.queued.mean} for gate in gates],
    }


def progress(replicas: Sequence[ReplicaWatch], elapsed_s: float, watch_s: float) -> str:
    """One line while watching."""
    engines = [engine for replica in replicas for engine in replica.engines]
    usage = max((engine.usage_ratio.last for engine in engines if engine.usage_ratio), default=None)
    running = sum(engine.running.last for engine in engines if engine.running)
    waiting = sum(engine.waiting.last for engine in engines if engine.waiting)
    preempted = sum(engine.preemptions or 0.0 for engine in engines)
    told = "KV usage not told" if usage is None else f"KV usage {usage:.0%}"
    return f"watching {elapsed_s:.0f}/{watch_s:.0f} s: {told}, {running:.0f} running, {waiting:.0f} waiting, {preempted:.0f} preemptions"


def _finding(number: int, finding: Finding) -> Iterator[str]:
    yield f"{number}. {finding.symptom}  [{finding.where}, confidence {finding.confidence:.2f}]"
    for label, text in (("evidence", finding.evidence), ("cause", finding.cause), ("first try", finding.knob)):
        yield from _wrapped(f"   {label}".ljust(LABEL + 2), text)


def _wrapped(lead: str, text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, initial_indent=lead, subsequent_indent=" " * len(lead), break_on_hyphens=False)


def _replica(replica: ReplicaWatch) -> Iterator[str]:
    facts = replica.facts
    if facts is None:
        yield f"{replica.url}  not reached"
        return
    pool = "pool not told" if replica.pool_tokens is None else f"pool of {replica.pool_tokens:,} tokens"
    engines = f", {len(replica.engines)} engines" if len(replica.engines) > 1 else ""
    version = facts.version or "of unknown version"
    yield f"{replica.url}  vLLM {version}, {', '.join(facts.models)}, {pool}{engines}, watched {replica.watched_s:.0f} s"
    for engine in replica.engines:
        name = f"  engine {engine.engine}: " if len(replica.engines) > 1 else "  "
        total = engine.preemptions_total or 0.0
        preempted = "not told" if engine.preemptions is None else f"{engine.preemptions:.0f} ({total:.0f} since its start)"
        yield (
            f"{name}KV usage {_share(engine.usage_ratio)}, running {_mean(engine.running)}, waiting {_mean(engine.waiting)},"
            f" preemptions {preempted}"
        )
    seen = replica.latencies
    if seen.ttft_s is not None and seen.ttft_s.count:
        yield (
            f"  TTFT p50 {_s(seen.ttft_s, 0.5)}, p99 {_s(seen.ttft_s, 0.99)}; between tokens p50 {_ms(seen.itl_s, 0.5)},"
            f" p99 {_ms(seen.itl_s, 0.99)} ({seen.ttft_s.count:.0f} requests {replica.since})"
        )


def _figures(replica: ReplicaWatch) -> dict[str, Any]:
    facts, seen = replica.facts, replica.latencies
    return {
        "url": replica.url,
        "version": facts and facts.version,
        "watched_s": round(replica.watched_s, 3),
        "scrapes": replica.scrapes,
        "failures": replica.failures,
        "restarts": replica.restarts,
        "pool_tokens": replica.pool_tokens,
        "gpu_util_ratio_mean": replica.gpu_util_ratio and replica.gpu_util_ratio.mean,
        "latencies_of": "life" if replica.latencies_of_life else "watch",
        "ttft_s_p50": seen.ttft_s and seen.ttft_s.quantile(0.5),
        "ttft_s_p99": seen.ttft_s and seen.ttft_s.quantile(0.99),
        "itl_s_p50": seen.itl_s and seen.itl_s.quantile(0.5),
        "itl_s_p99": seen.itl_s and seen.itl_s.quantile(0.99),
        "engines": [_engine_figures(engine) for engine in replica.engines],
    }


def _engine_figures(engine: EngineWatch) -> dict[str, Any]:
    return {
        "engine": engine.engine,
        "kv_usage_ratio_mean": engine.usage_ratio and engine.usage_ratio.mean,
        "kv_usage_ratio_max": engine.usage_ratio and engine.usage_ratio.most,
        "running_mean": engine.running and engine.running.mean,
        "waiting_mean": engine.waiting and engine.waiting.mean,
        "preemptions": engine.preemptions,
        "output_tokens": engine.output_tokens,
    }


def _mean(spread: Spread | None) -> str:
    return "not told" if spread is None else f"{spread.mean:.1f}"


def _share(spread: Spread | None) -> str:
    return "not told" if spread is None else f"{spread.mean:.0%} (most {spread.most:.0%})"


def _s(histogram: Histogram | None, share: float) -> str:
    value = None if histogram is None else histogram.quantile(share)
    return "not told" if value is None else f"{value:.2f} s"


def _ms(histogram: Histogram | None, share: float) -> str:
    value = None if histogram is None else histogram.quantile(share)
    return "not told" if value is None else f"{MILLI * value:.0f} ms"
