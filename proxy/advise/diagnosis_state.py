"""What state a server is in: reachable, measured, moving, restarted, caching; and what of it could not be seen."""

from collections.abc import Iterator

from proxy.advise.diagnosis_load import HEADROOM, USAGE_LOW, quantile, tokens, usage_most
from proxy.advise.finding import Finding, weigh, where
from proxy.advise.watch import EngineWatch, ReplicaWatch, Targets

CONTEXT_SHARE = 0.5  # of the pool, that one request may fill
UP_S_YOUNG = 600.0
PREFIX_TOKENS_MIN = 10_000  # looked up, before a hit ratio says anything
THRASH_USAGE = 0.8
FAILURES_SHARE = 0.2
SLOW_STEP_SEQUENCES = 8  # that few share a step and it is still slow


def findings(replica: ReplicaWatch, targets: Targets) -> Iterator[Finding]:
    """Every rule of this module."""
    yield from _restarts(replica)
    if replica.facts is None:
        yield from _unreachable(replica)
        return
    yield from _metrics(replica)
    for engine in replica.engines:
        yield from _wedged(replica, engine)
        yield from _stale(replica, engine)
        yield from _prefix(replica, engine)
    yield from _context(replica)
    yield from _parallelism(replica, targets)
    yield from _idle_card(replica)


def unseen(replica: ReplicaWatch) -> Iterator[str]:
    """What would have helped to judge."""
    facts = replica.facts
    if facts is None:
        yield f"{replica.url}: nothing, it could not be reached"
        return
    if replica.gpu_util_ratio is None:
        yield "GPU utilisation: it is not in vLLM's metrics; give a DCGM exporter's address with --dcgm URL"
    if not facts.log_stats:
        yield f"{replica.url}: load, KV usage, preemptions and latencies, for its metrics are off"
        return
    if facts.usage_metric is None:
        yield f"{replica.url}: KV usage, for no usage metric is exposed"
    if replica.pool_tokens is None:
        yield f"{replica.url}: the size of its KV pool"
    if replica.seats is None:
        yield f"{replica.url}: max_num_seqs (only told by /server_info of a server in development mode, or by `-- vllm serve …`)"
    if replica.flags.max_num_batched_tokens is None:
        yield f"{replica.url}: max_num_batched_tokens and parallelism (told as max_num_seqs is)"
    yield from _latencies_unseen(replica)
    if facts.several_engines_behind:
        yield f"{replica.url}: any one engine, for the address balances over several: give each server's own"


def _latencies_unseen(replica: ReplicaWatch) -> Iterator[str]:
    absent = [
        name
        for name, one in (("TTFT", replica.latencies.ttft_s), ("time between tokens", replica.latencies.itl_s))
        if one is None
    ]
    if absent:
        yield f"{replica.url}: {', '.join(absent)}, which are not exposed"
    elif replica.latencies.ttft_s is not None and quantile(replica.latencies.ttft_s, 0.5) is None:
        yield f"{replica.url}: latencies, for hardly a request came {replica.since}: watch it under load, or longer (--watch)"


def _unreachable(replica: ReplicaWatch) -> Iterator[Finding]:
    yield Finding(
        "unreachable", replica.url, "no answer", replica.fault or "nothing came", "the server is down, starting, or not at this address",
        "read its log: an out-of-memory at start is cured by tensor or pipeline parallelism first, then a lower --gpu-memory-utilization"
        " and --max-num-batched-tokens", 1.0, 0,
    )  # fmt: skip


def _restarts(replica: ReplicaWatch) -> Iterator[Finding]:
    """Seen restarting, or young and losing answers."""
    gone = replica.facts is not None and replica.fault is not None
    if not replica.restarts and not gone:
        return
    shown = f"{replica.restarts} restart{'s' if replica.restarts != 1 else ''} seen in {replica.watched_s:.0f} s"
    if replica.failures:
        shown += f"; {replica.failures} of {replica.scrapes + replica.failures} scrapes failed"
    if replica.up_s is not None:
        shown += f"; its process is {replica.up_s:.0f} s old"
    if gone:
        shown += f"; last: {replica.fault}"
    young = None if replica.up_s is None else replica.up_s < UP_S_YOUNG
    yield Finding(
        "restarts", replica.url, "the engine restarts or dies under load", shown,
        "most often out of GPU memory (look for CUDA out of memory in its log, OOMKilled in the pod's state), else a crash",
        "spread the weights first (--tensor-parallel-size, then --pipeline-parallel-size), then lower --gpu-memory-utilization"
        " by 0.05, then"
        " --max-num-batched-tokens by half: prefill of a whole batch is what peaks",
        weigh(True, bool(replica.restarts) or gone, young), 0,
    )  # fmt: skip


def _metrics(replica: ReplicaWatch) -> Iterator[Finding]:
    facts = replica.facts
    if facts is not None and not facts.log_stats:
        yield Finding(
            "metrics_off", replica.url, "the engine says nothing of itself", "; ".join(facts.warnings[:1]) or "no vllm: series",
            "metrics are off (--disable-log-stats), or something else answers /metrics",
            "start vLLM without --disable-log-stats: the statistics cost little, and nothing can be tuned without them", 1.0,
        )  # fmt: skip
    asked = replica.scrapes + replica.failures
    if facts is not None and replica.fault is None and replica.scrapes and replica.failures >= max(2, FAILURES_SHARE * asked):
        yield Finding(
            "metrics_late", replica.url, "metrics come late or not at all", f"{replica.failures} of {asked} scrapes without an"
            " answer in time",
            "the API server is short of CPU (tokenizing, streaming), so its numbers are old when they come",
            "give its pod more CPU, or --api-server-count 2", weigh(True, None),
        )  # fmt: skip


def _wedged(replica: ReplicaWatch, engine: EngineWatch) -> Iterator[Finding]:
    """Work, and nothing moves."""
    if not engine.wedged:
        return
    running, waiting = engine.running, engine.waiting
    yield Finding(
        "wedged", where(replica, engine), "it answers its health check and does nothing",
        f"{running.last if running else 0:.0f} running and {waiting.last if waiting else 0:.0f} waiting, and for {engine.still_s:.0f} s no"
        " gauge and no counter has moved",
        "the engine is wedged: its head request can never be placed, a collective hangs, or it is paused or asleep",
        "stop routing to it and restart it (kvgate does the first by itself); keep its log and py-spy dump of EngineCore first",
        weigh(True, True, None if running is None else running.last > 0 or bool(waiting and waiting.last)), 0,
    )  # fmt: skip


def _stale(replica: ReplicaWatch, engine: EngineWatch) -> Iterator[Finding]:
    """Usage of nobody: an idle engine publishes nothing, so the last value of a mass abort stays."""
    usage = engine.usage_ratio
    if usage is None or engine.running is None or engine.waiting is None:
        return
    busy = engine.running.most or engine.waiting.most or engine.output_tokens or engine.prompt_tokens
    # Up to 0.9.2 the null block counts as used; a block or two is no stale load.
    if busy or usage.least < 0.05 or usage.least != usage.most:
        return
    yield Finding(
        "metrics_stale", where(replica, engine), "KV usage without a request",
        f"usage {usage.last:.0%} all the time, 0 running, 0 waiting, no token computed", "the gauge is stale: after its clients"
        " left at once"
        " an old engine publishes no further step (fixed in later versions); or a connector or a session holds blocks",
        "send one short request: if the usage falls, upgrade vLLM; alert on usage only together with running > 0",
        weigh(True, True, None if replica.version is None else replica.version < (0, 13)), 2,
    )  # fmt: skip


def _prefix(replica: ReplicaWatch, engine: EngineWatch) -> Iterator[Finding]:
    """Off, or on and losing what it has before it is asked for again."""
    facts = replica.facts
    prompt = tokens(replica, replica.latencies.prompt_tokens, 0.5)
    if facts is not None and not facts.prefix_caching:
        yield Finding(
            "prefix_caching_off", where(replica, engine), "no prompt is ever found in the cache",
            "enable_prefix_caching is False" + ("" if prompt is None else f"; prompts have {prompt:,.0f} tokens (p50)"),
            "prefix caching is off", "start without --no-enable-prefix-caching: it is on by default since 0.8, and costs about"
            " nothing where"
            " nothing repeats", weigh(True, None if prompt is None else prompt >= 256), 2,
        )  # fmt: skip
        return
    queries, hits, usage = engine.prefix_queries, engine.prefix_hits, engine.usage_ratio
    total, hits_total = engine.prefix_queries_total, engine.prefix_hits_total
    if queries is None or hits is None or total is None or hits_total is None or usage is None:
        return
    before = total - queries
    if queries < PREFIX_TOKENS_MIN or before < PREFIX_TOKENS_MIN:
        return
    now, earlier = hits / queries, (hits_total - hits) / before
    if earlier < 0.1 or now > 0.5 * earlier or usage.mean < USAGE_LOW:
        return
    yield Finding(
        "prefix_thrash", where(replica, engine), "prompts that used to be in the cache no longer are",
        f"{now:.0%} of the prompt tokens found in the cache in {replica.watched_s:.0f} s, {earlier:.0%} before; KV usage"
        f" {usage.mean:.0%} on"
        " average",
        "the prefix cache is thrashing: running requests take the blocks that prefixes lay in, before they are asked for again",
        f"run less at once (--max-num-seqs at {HEADROOM:.0%}), or send requests of one prefix to one replica (kvgate does);"
        " then a larger pool",
        weigh(True, True, usage.mean >= THRASH_USAGE, now < 0.25 * earlier),
    )  # fmt: skip


def _context(replica: ReplicaWatch) -> Iterator[Finding]:
    facts, pool = replica.facts, replica.pool_tokens
    if facts is None or pool is None or facts.context_tokens_max is None or facts.kv_layout.fitted:
        return
    share = facts.context_tokens_max / pool
    if share < CONTEXT_SHARE:
        return
    prompt, output = (
        tokens(replica, replica.latencies.prompt_tokens, 0.99),
        tokens(replica, replica.latencies.output_tokens, 0.99),
    )
    used = None if prompt is None or output is None else prompt + output
    lengths = "" if used is None else f"; 99 of 100 requests stay below {used:,.0f}, {replica.since}"
    goal = "" if used is None else f" to {_round_up(used / HEADROOM):,}"
    short = used is not None and used < 0.5 * facts.context_tokens_max
    yield Finding(
        "context_fills_pool", replica.url, "one request can fill the cache",
        f"max-model-len {facts.context_tokens_max:,} tokens against a pool of {pool:,}: {share:.0%}{lengths}",
        "the context length is set for the model, not for the pool: one long request evicts all others",
        f"lower --max-model-len{goal}" if short or used is None else "make the pool larger (--kv-cache-dtype fp8, tensor parallelism)",
        weigh(True, share >= 0.9, None if used is None else used > 0.25 * pool), 2,
    )  # fmt: skip


def _round_up(tokens: float) -> int:
    return -(-int(tokens) // 1024) * 1024


def _parallelism(replica: ReplicaWatch, targets: Targets) -> Iterator[Finding]:
    """Tensor parallelism buys speed and pool; replicas buy throughput. Which one is short tells which way to go."""
    flags, usage = replica.flags, usage_most(replica)
    itl = quantile(replica.latencies.itl_s, 0.5)
    running = max((engine.running.mean for engine in replica.engines if engine.running), default=None)
    if itl is None or usage is None or running is None or running < 0.5:
        return
    width = flags.tensor_parallel
    told = f"TP {width}" if width else "parallelism not told"
    shown = f"time between tokens p50 {1000 * itl:.0f} ms, {running:.1f} running, KV usage at most {usage:.0%}, {told}, {replica.since}"
    if itl > targets.tpot_s and running < SLOW_STEP_SEQUENCES and usage < USAGE_LOW:
        yield Finding(
            "parallelism_narrow", replica.url, "every token takes long though few requests share a step", shown,
            "parallelism the wrong way: one card (or replicas of it) is too slow for this model at any load",
            "raise --tensor-parallel-size (within one node with NVLink), instead of more replicas or data parallelism; or a smaller dtype",
            weigh(True, True, None if width is None else width == 1),
        )  # fmt: skip
    waiting = any(engine.waiting and engine.waiting.mean >= 0.5 for engine in replica.engines)
    if width is not None and width >= 2 and itl < 0.5 * targets.tpot_s and usage < 0.3 and not waiting:
        yield Finding(
            "parallelism_wide", replica.url, "cards are shared that one could do without", shown,
            "parallelism the wrong way: tensor parallelism splits a model that needs neither its speed nor its pool, and pays for it with"
            " communication in every layer",
            f"halve --tensor-parallel-size to {width // 2} and run twice the replicas (or --data-parallel-size 2): more throughput from the"
            " same cards", weigh(True, True, None, usage < 0.15), 2,
        )  # fmt: skip


def _idle_card(replica: ReplicaWatch) -> Iterator[Finding]:
    """Requests are there, the cards are not busy."""
    util = replica.gpu_util_ratio
    busy = [engine for engine in replica.engines if engine.running and engine.running.mean >= 1.0]
    if util is None or not busy or util.mean >= 0.5:
        return
    waiting = any(engine.waiting and engine.waiting.mean >= 0.5 for engine in busy)
    yield Finding(
        "gpu_idle", replica.url, "requests run and the GPUs are idle half of the time",
        f"GPU utilisation {util.mean:.0%} on average, {sum(engine.running.mean for engine in busy if engine.running):.1f} running",
        "the host is the limit: tokenizing, scheduling or streaming in Python is slower than the cards",
        "more CPU for the pod, --api-server-count, no --enforce-eager; then more load: --max-num-seqs", weigh(True, True, waiting, None),
    )  # fmt: skip
