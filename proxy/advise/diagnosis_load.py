"""What the load does to an engine: seats, pool, prefill, decode, stragglers."""

from collections.abc import Iterator
from math import ceil

from proxy.advise.finding import Finding, weigh, where
from proxy.advise.watch import EngineWatch, ReplicaWatch, Targets
from proxy.wire.histogram import Histogram

USAGE_LOW = 0.7  # below, the pool is not what requests wait for
USAGE_CEILING = 0.9  # above, vLLM is one long answer away from preempting
HEADROOM = 0.8  # what a knob aims at: 20 % in hand
WAITING_MIN = 0.5  # mean requests waiting that count as a queue and not as a blink
LATENCIES_MIN = 10  # observations below which a percentile says nothing
STEP_TOKENS_OLD = 512  # what chunked prefill was told to take at a time when it was new
BATCHED_TOKENS_TODAY = "2048, 8192 on cards of 70 GiB and more (A100: 2048), 16384 from 160 GiB"
STALL_RATIO = 4.0  # p99 over p50 of the time between tokens
STRAGGLER_RATIO = 5.0  # p99 over p50 of whole requests


def findings(replica: ReplicaWatch, targets: Targets) -> Iterator[Finding]:
    """Every rule of this module."""
    for engine in replica.engines:
        if engine.wedged:
            continue  # its gauges stand still: they describe nothing
        yield from _idle_pool(replica, engine)
        yield from _over_capacity(replica, engine)
    yield from _prefill_blocks(replica, targets)
    yield from _decode(replica, targets)
    yield from _small_batches(replica, targets)
    yield from _stragglers(replica)


def quantile(histogram: Histogram | None, share: float) -> float | None:
    """None also where too little was observed to say."""
    return histogram.quantile(share) if histogram is not None and histogram.count >= LATENCIES_MIN else None


def tokens(replica: ReplicaWatch, histogram: Histogram | None, share: float) -> float | None:
    """A quantile of lengths; buckets are coarse, but no request is longer than the context."""
    found = quantile(histogram, share)
    context = None if replica.facts is None else replica.facts.context_tokens_max
    return found if found is None or context is None else min(found, float(context))


def usage_most(replica: ReplicaWatch) -> float | None:
    """Of the fullest engine."""
    return max((engine.usage_ratio.most for engine in replica.engines if engine.usage_ratio), default=None)


def waits(engine: EngineWatch) -> bool:
    """Whether requests queued for more than a moment."""
    return engine.waiting is not None and engine.waiting.mean >= WAITING_MIN


def _idle_pool(replica: ReplicaWatch, engine: EngineWatch) -> Iterator[Finding]:
    """Requests wait though the pool has room: for a seat, or because the one at the head is too large for what is free."""
    usage, running, waiting = engine.usage_ratio, engine.running, engine.waiting
    if usage is None or running is None or waiting is None or not waits(engine) or usage.most >= USAGE_CEILING:
        return
    symptom = "requests wait while the KV cache has room"
    shown = (
        f"{waiting.mean:.1f} waiting on average (most {waiting.most:.0f}), {running.mean:.1f} running (most {running.most:.0f}),"
        f" KV usage at most {usage.most:.0%}"
    )
    seats = replica.seats
    flat = running.most > 0 and running.most - running.mean <= max(1.0, 0.05 * running.most)
    prompt = tokens(replica, replica.latencies.prompt_tokens, 0.99)
    large = None if prompt is None or replica.pool_tokens is None else prompt > (1.0 - usage.mean) * replica.pool_tokens
    full_seats = None if seats is None else running.most >= seats
    if not large and usage.most < USAGE_LOW and (full_seats or (full_seats is None and flat)):
        room = max(running.most + 1, running.most * HEADROOM / max(usage.most, 0.01))
        limit = (
            f"max_num_seqs is {seats}" if seats else f"running never exceeds {running.most:.0f}, which looks like max_num_seqs"
        )
        yield Finding(
            "seats_timid", where(replica, engine), symptom, f"{shown}; {limit}", "max-num-seqs is timid: all seats are taken,"
            " not the cache",
            f"raise --max-num-seqs from {seats or round(running.most)} to about {min(round(room), 8 * round(running.most))}, which fills"
            f" {HEADROOM:.0%} of the pool at this load, in steps: watch TPOT and preemptions",
            weigh(True, True, flat, full_seats, not engine.preemptions),
        )  # fmt: skip
    if large:
        yield Finding(
            "pool_small", where(replica, engine), symptom, f"{shown}; long prompts of {prompt:,.0f} tokens (p99) against a pool of"
            f" {replica.pool_tokens:,}", "the KV pool is small for these prompts: the one at the head does not fit what is free, and vLLM"
            " tries none behind it",
            "make the pool larger: quantise weights or KV (--kv-cache-dtype fp8), tensor parallelism, --gpu-memory-utilization up to 0.95;"
            " or send long prompts to a replica of their own",
            weigh(True, True, True, full_seats is not True, not engine.preemptions),
        )  # fmt: skip


def _over_capacity(replica: ReplicaWatch, engine: EngineWatch) -> Iterator[Finding]:
    """Preemptions grow, the pool is full."""
    usage, running = engine.usage_ratio, engine.running
    if not engine.preemptions:
        return
    per_minute = engine.preemptions / max(replica.watched_s, 1.0) * 60.0
    seats = replica.seats
    fewer = max(1, round(HEADROOM * (running.mean if running else 1.0)))
    shown = f"{engine.preemptions:,.0f} preemptions in {replica.watched_s:.0f} s ({per_minute:.0f} a minute)"
    if usage is not None:
        shown += f", KV usage {usage.mean:.0%} on average, at most {usage.most:.0%}"
    if running is not None:
        shown += f", {running.mean:.1f} running"
    watermark = replica.version is None or replica.version >= (0, 24)
    knob = f"lower --max-num-seqs {f'from {seats} ' if seats else ''}to about {fewer} (four fifths of what runs now)"
    knob += ", or keep the demand outside with kvgate, which admits what fits to its end"
    knob += "; --watermark 0.02 keeps a reserve in the engine" if watermark else ""
    yield Finding(
        "over_capacity", where(replica, engine), "the engine preempts: running requests lose their KV blocks and are computed again",
        shown, "more is admitted than the pool holds once answers have grown: vLLM looks at prompts only", knob,
        weigh(True, True, None if usage is None else usage.most >= USAGE_CEILING, waits(engine) if engine.waiting else None),
        0,
    )  # fmt: skip


def _prefill_blocks(replica: ReplicaWatch, targets: Targets) -> Iterator[Finding]:
    """First tokens are late, the others are not, and it is not the pool that makes them wait."""
    seen = replica.latencies
    ttft, itl = quantile(seen.ttft_s, 0.9), quantile(seen.itl_s, 0.5)
    usage = usage_most(replica)
    preempts = any(engine.preemptions for engine in replica.engines)
    if ttft is None or itl is None or ttft <= targets.ttft_s or itl > targets.tpot_s or preempts:
        return
    if usage is not None and usage >= USAGE_CEILING:
        return
    seated = any(engine.running and replica.seats and engine.running.most >= replica.seats for engine in replica.engines)
    queue, prefill = _mean(seen.queue_s), _mean(seen.prefill_s)
    step, budget = quantile(seen.step_tokens, 0.9), replica.flags.max_num_batched_tokens
    full_steps = None if step is None or budget is None else step > 0.5 * budget
    shown = f"TTFT p90 {ttft:.2f} s (target {targets.ttft_s:g} s), time between tokens p50 {1000 * itl:.0f} ms, {replica.since}"
    if queue is not None and prefill is not None:
        shown += f"; of it {queue:.2f} s in the engine's queue and {prefill:.2f} s of prefill, on average"
    if step is not None:
        shown += f"; p90 of the engine's steps takes {step:,.0f} tokens"
    off = replica.flags.chunked_prefill is False
    raised = f"from {budget} to {2 * budget}" if budget else f"(today's default: {BATCHED_TOKENS_TODAY})"
    knob = "switch chunked prefill on (--enable-chunked-prefill, the default since 0.8)" if off else "leave chunked prefill on"
    yield Finding(
        "prefill_blocks", replica.url, "first tokens are late, later ones are not", shown,
        "prompts queue for prefill: long prompts take the token budget of the steps, one after the other",
        f"{knob}; raise --max-num-batched-tokens {raised}; where a few long prompts hold up many short ones,"
        " --long-prefill-token-threshold of about a quarter of it",
        weigh(True, True, None if queue is None or prefill is None else prefill + queue > 0.5 * (_mean(seen.ttft_s) or 0.0), full_steps,
              not seated),
    )  # fmt: skip


def _decode(replica: ReplicaWatch, targets: Targets) -> Iterator[Finding]:
    """The time between tokens is long: always (too many at once, or too slow a step), or now and then (prefill in between)."""
    seen = replica.latencies
    half, tail = quantile(seen.itl_s, 0.5), quantile(seen.itl_s, 0.99)
    if half is None or tail is None:
        return
    running = max((engine.running.mean for engine in replica.engines if engine.running), default=None)
    step = quantile(seen.step_tokens, 0.99)
    shown = f"time between tokens p50 {1000 * half:.0f} ms, p99 {1000 * tail:.0f} ms (target {1000 * targets.tpot_s:.0f} ms)"
    shown += f", {replica.since}"
    shown += "" if running is None else f"; {running:.1f} requests decode together on average"
    if half > targets.tpot_s:
        few = running is not None and running < 8
        if few:
            return  # a slow step that few share: diagnosis_fleet.parallelism
        goal = "" if running is None else f" to about {max(1, round(running * targets.tpot_s / half))}"
        yield Finding(
            "decode_crowded", replica.url, "every token takes long", shown,
            "decode is crowded: each step carries more sequences than the target allows",
            f"lower --max-num-seqs{goal}, or set a tpot target in kvgate's policy; for the same throughput add replicas",
            weigh(True, True, None if running is None else running >= 16, tail < STALL_RATIO * half),
        )  # fmt: skip
    elif tail > max(STALL_RATIO * half, targets.tpot_s):
        large = None if step is None else step >= 1024
        yield Finding(
            "prefill_stalls_decode", replica.url, "streams stutter: most tokens come in time, some take very long",
            shown + ("" if step is None else f"; the largest hundredth of the steps takes {step:,.0f} tokens"),
            "steps that carry a large piece of a prompt hold up every stream in them"
            + (" (preemptions do too: see there)" if any(engine.preemptions for engine in replica.engines) else ""),
            "lower --max-num-batched-tokens by half, not below 2048, or set --long-prefill-token-threshold; TTFT pays for it",
            weigh(True, large, not any(engine.preemptions for engine in replica.engines)),
        )  # fmt: skip


def _small_batches(replica: ReplicaWatch, targets: Targets) -> Iterator[Finding]:
    """A token budget of 256 to 512 was right for the first chunked prefill; today's engines start at four times that."""
    budget = replica.flags.max_num_batched_tokens
    step = quantile(replica.latencies.step_tokens, 0.99)
    prompt = tokens(replica, replica.latencies.prompt_tokens, 0.5)
    ttft = quantile(replica.latencies.ttft_s, 0.9)
    told = budget is not None and budget <= STEP_TOKENS_OLD
    guessed = budget is None and step is not None and step <= STEP_TOKENS_OLD and prompt is not None and prompt > STEP_TOKENS_OLD
    if not told and not guessed:
        return
    late = None if ttft is None else ttft > targets.ttft_s
    yield Finding(
        "batched_tokens_small", replica.url, "prompts are computed in small pieces",
        f"--max-num-batched-tokens {budget}" if told else
        f"no step takes more than {step:,.0f} tokens though prompts have {prompt:,.0f} (p50), {replica.since}",
        "--max-num-batched-tokens of 256 to 512 is advice for chunked prefill before vLLM 0.8",
        f"leave the flag out: today's default is {BATCHED_TOKENS_TODAY} on GPUs; small pieces cost prefill throughput and TTFT",
        weigh(told or None, True, late), 2,
    )  # fmt: skip


def _stragglers(replica: ReplicaWatch) -> Iterator[Finding]:
    """Few requests take many times as long as most, because their answers are that long."""
    seen = replica.latencies
    half, tail = quantile(seen.e2e_s, 0.5), quantile(seen.e2e_s, 0.99)
    out_half, out_tail = tokens(replica, seen.output_tokens, 0.5), tokens(replica, seen.output_tokens, 0.99)
    if half is None or tail is None or not half or tail < STRAGGLER_RATIO * half:
        return
    longer = None if not out_half or out_tail is None else out_tail >= 0.6 * STRAGGLER_RATIO * out_half
    itl_half, itl_tail = quantile(seen.itl_s, 0.5), quantile(seen.itl_s, 0.99)
    even = None if itl_half is None or itl_tail is None else itl_tail < STALL_RATIO * itl_half
    if longer is False:
        return
    lengths = (
        "" if out_half is None or out_tail is None else f"; answers have {out_half:,.0f} tokens (p50) and {out_tail:,.0f} (p99)"
    )
    cap = "" if out_tail is None else f" {ceil(out_tail)}"
    yield Finding(
        "stragglers", replica.url, "the tail is many times slower than the middle",
        f"whole requests p50 {half:.1f} s, p99 {tail:.1f} s, {replica.since}{lengths}",
        "stragglers: a few very long answers hold blocks and seats, and set the p99, while steps are even",
        f"bound answers (max_tokens below{cap}, or --override-generation-config with max_new_tokens), or give long ones a class"
        " and a replica"
        " of their own",
        weigh(True, longer, even), 2,
    )  # fmt: skip


def _mean(histogram: Histogram | None) -> float | None:
    return None if histogram is None or histogram.count < LATENCIES_MIN else histogram.mean
