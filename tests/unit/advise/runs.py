"""Benchmark results made up for tests: single answers, and whole runs whose queue comes and goes as a real one's does."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from proxy.advise.result_figures import itl_bin, summarise
from proxy.advise.result_file import SCHEMA, BenchResult, EngineSeen, RequestSample, Signals, Slo, WorkloadRun

SLO = Slo(ttft_s=1.0, tpot_s=0.05)


def sample(planned_s: float = 0.0, *, tokens: int = 11, ttft_s: float = 0.5, gap_s: float = 0.02, **fields: Any) -> RequestSample:
    """An answer of ``tokens`` tokens, one a chunk."""
    first_s = planned_s + ttft_s
    ended_s = first_s + gap_s * (tokens - 1)
    given: dict[str, Any] = {
        "sent_s": planned_s,
        "ended_s": ended_s,
        "first_token_s": first_s,
        "output_tokens": tokens,
        "prompt_tokens": 100,
        "outcome": "completed",
        "itl_counts": {itl_bin(gap_s): tokens - 1} if tokens > 1 else {},
    }
    return RequestSample(planned_s=planned_s, **(given | fields))


def result(requests: Iterable[RequestSample], **fields: Any) -> BenchResult:
    """A whole file around some requests."""
    rows = tuple(requests)
    given: dict[str, Any] = {
        "schema": SCHEMA,
        "kvgate_version": "0",
        "command": ("kvgate", "bench", "http://a"),
        "target": "http://a",
        "workload": WorkloadRun(name="chat", seed=1, rate_per_s=2.0),
        "started_at": "2026-01-01T00:00:00+00:00",
        "duration_s": 10.0,
        "slo": SLO,
        "requests": rows,
    }
    given |= fields
    return BenchResult(
        **(
            {"summary": summarise(rows, given["slo"], duration_s=given["duration_s"], warmup_s=given.get("warmup_s", 0.0))}
            | given
        )
    )


def run(
    seed: int,
    *,
    load_seed: int = 1,
    slower: float = 1.0,
    gaps_slower: float = 1.0,
    preempted_per_s: float = 0.0,
    usage: float = 0.8,
    waiting: float = 0.0,
    duration_s: float = 300.0,
    rate_per_s: float = 5.0,
    **fields: Any,
) -> BenchResult:
    """An open loop of ``load_seed`` against an engine whose queue drifts with ``seed``: latencies of neighbours in time are alike."""
    load, engine = np.random.default_rng(load_seed), np.random.default_rng(seed + 1000)
    planned = np.cumsum(load.exponential(1 / rate_per_s, int(rate_per_s * duration_s)))
    planned = planned[planned < duration_s - 10.0]
    tokens = load.lognormal(4.0, 0.8, planned.size).astype(int) + 2
    drift = np.zeros(int(duration_s) + 1)
    for second in range(1, drift.size):
        drift[second] = 0.8 * drift[second - 1] + engine.normal(0.0, 0.15)
    rows = []
    for at, length in zip(planned, tokens, strict=True):
        queue = float(np.exp(drift[int(at)] + engine.normal(0.0, 0.3)))
        gap_s = 0.02 * gaps_slower * float(np.exp(0.3 * drift[int(at)] + engine.normal(0.0, 0.05)))
        rows.append(sample(float(at), tokens=int(length), ttft_s=0.3 * slower * queue, gap_s=gap_s))
    seconds = np.arange(int(duration_s))
    signals = Signals(
        "http://a",
        tuple(map(float, seconds)),
        tuple(float(min(1.0, usage + 0.05 * drift[second])) for second in seconds),
        tuple(float(30 + 5 * drift[second]) for second in seconds),
        tuple(float(waiting) for _ in seconds),
        tuple(float(round(preempted_per_s * second)) for second in seconds),
    )
    given: dict[str, Any] = {
        "workload": WorkloadRun(name="chat", seed=load_seed, rate_per_s=rate_per_s),
        "duration_s": duration_s,
        "signals": (signals,),
        "engines": (EngineSeen("http://a", "0.32.0", flags={"max-num-seqs": "64"}),),
    }
    return result(rows, **(given | fields))
