"""Overload a replica through kvgate for minutes and hold kvgate's ledger against the engine's own usage at every scrape.

    python -m tests.bench.soak --vllm http://127.0.0.1:8104 --kvgate http://127.0.0.1:8080 --admin http://127.0.0.1:8081 --minutes 5

60 clients all the time and 30 more in every other quarter minute: prompts of 32 to 3,000 tokens (log-uniform), chat and completions,
streams and plain answers; one in ten leaves at a random moment. The judge is
``tests.bench.soak_verdict``. The exit status is 1 when the verdict has a fault.
"""

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import httpx
import uvloop

from tests.bench.admin import only_replica, why_not_deciding
from tests.bench.engine import model_name, prompt_tokens, scrape
from tests.bench.load import Fate, LoadRequest, Record, new_upstream, send, summarise
from tests.bench.loads import WORDS, as_request, chat, completion, distinct_words
from tests.bench.soak_verdict import END_S_MAX, EndState, OwnScrape, Soak, Verdict, judge, read_comparisons

CLIENTS, CLIENTS_MORE = 60, 30
MORE_S = 15.0  # the further clients come and go in this rhythm
OUTPUT_TOKENS_MAX = 600
LEAVING_SHARE = 0.1
PROMPT_TOKENS_MIN, PROMPT_TOKENS_MAX = 32, 3000
TEMPLATE_TOKENS = 30
PAUSE_S = 0.5  # after a refusal; a client that came back at once would only make the proxy busy
SCRAPE_S = 0.75
HISTORY_S = 15.0  # kvgate keeps the last 1,000 comparisons: minutes


def mixed_requests(model: str, tokens_per_word: float, seed: int) -> Iterator[LoadRequest]:
    """Yield requests without end. ``tokens_per_word`` is the mean over loads.WORDS, which depends on the tokenizer."""
    rng = random.Random(seed)
    while True:
        ratio = PROMPT_TOKENS_MAX / PROMPT_TOKENS_MIN
        prompt_tokens = PROMPT_TOKENS_MIN * ratio ** rng.random()
        api = rng.choice((chat, completion))
        words = max(2, round((prompt_tokens - (TEMPLATE_TOKENS if api is chat else 0)) / tokens_per_word))
        length = min(OUTPUT_TOKENS_MAX, max(1, round(rng.lognormvariate(4.6, 0.9))))  # median 100
        leave_after_s = rng.uniform(0.0, 20.0) if rng.random() < LEAVING_SHARE else None
        yield as_request(
            *api(model, distinct_words(rng, words), stream=rng.random() < 0.5, max_tokens=length, ignore_eos=True),
            leave_after_s=leave_after_s,
        )


async def _client(index: int, soak: Soak, upstream: Any, url: str, requests: Iterator[LoadRequest], until_s: float) -> None:
    loop = asyncio.get_running_loop()
    while (now_s := loop.time()) < until_s:
        quarter = int((now_s - soak.start_s) / MORE_S)
        if index >= CLIENTS and quarter % 2:
            await asyncio.sleep(min(soak.start_s + (quarter + 1) * MORE_S, until_s) - now_s)
            continue
        record = await send(upstream, url, next(requests))
        soak.records.append(record)
        if record.fate in (Fate.SHED, Fate.FAILED):
            await asyncio.sleep(PAUSE_S)


async def _read_history(client: httpx.AsyncClient, admin_url: str, soak: Soak) -> None:
    for comparison in read_comparisons(await only_replica(client, admin_url, "?history=1")):
        soak.comparisons[comparison.at_s] = comparison


async def _watch(soak: Soak, vllm_url: str, admin_url: str) -> None:
    """Scrape the engine and kvgate's ledger side by side, and collect kvgate's own comparisons, until cancelled."""
    loop = asyncio.get_running_loop()
    history_due_s = 0.0
    async with httpx.AsyncClient() as client:
        while True:
            before = await only_replica(client, admin_url)
            engine = await scrape(client, vllm_url)
            after = await only_replica(client, admin_url)
            soak.own.append(OwnScrape(engine, before, after))
            if loop.time() >= history_due_s:
                await _read_history(client, admin_url, soak)
                history_due_s = loop.time() + HISTORY_S
            await asyncio.sleep(SCRAPE_S)


async def _end_state(soak: Soak, vllm_url: str, admin_url: str) -> EndState:
    """Wait until both sides are empty, and return what they hold when they are or the time is over."""
    loop = asyncio.get_running_loop()
    give_up_s = loop.time() + END_S_MAX
    async with httpx.AsyncClient() as client:
        while True:
            replica = await only_replica(client, admin_url)
            end = EndState(
                await scrape(client, vllm_url),
                replica["leases"],
                replica["placed_blocks"] + replica["unplaced_blocks"],
            )
            if end.empty or loop.time() > give_up_s:
                await _read_history(client, admin_url, soak)
                return end
            await asyncio.sleep(SCRAPE_S)


async def run_soak(*, vllm: str, kvgate: str, admin: str, minutes: float, seed: int) -> Soak:
    """Overload for ``minutes``, wait for what is open, and return everything seen."""
    loop = asyncio.get_running_loop()
    model = await model_name(vllm)
    requests = mixed_requests(model, await prompt_tokens(vllm, model, " ".join(WORDS)) / len(WORDS), seed)
    upstream = new_upstream()
    async with httpx.AsyncClient() as client:
        preemptions_before = (await scrape(client, vllm)).preemptions
    soak = Soak(start_s=loop.time())
    until_s = soak.start_s + minutes * 60
    watch = asyncio.create_task(_watch(soak, vllm, admin))
    clients = [asyncio.create_task(_client(i, soak, upstream, kvgate, requests, until_s)) for i in range(CLIENTS + CLIENTS_MORE)]
    try:
        # a watch that ends has failed: say so now, not after minutes
        through = asyncio.gather(*clients)
        ends: list[asyncio.Future[Any]] = [watch, through]
        done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        for end in done:
            end.result()
        soak.elapsed_s = loop.time() - soak.start_s
    finally:
        for task in (watch, *clients):
            task.cancel()
        await asyncio.gather(watch, *clients, return_exceptions=True)
        await upstream.aclose()
    soak.end = await _end_state(soak, vllm, admin)
    soak.not_deciding = await why_not_deciding(admin)
    soak.preemptions = soak.end.engine.preemptions - preemptions_before
    return soak


def report(soak: Soak, verdict: Verdict) -> str:
    """The soak in lines for people."""
    got = summarise(soak.records, soak.elapsed_s)
    lines = [
        f"{got.elapsed_s:.0f} s: {got.requests} requests, completed {got.completed}, shed {got.shed}, cancelled {got.cancelled}",
        f"failed {got.failed}; {got.tokens_per_s:.0f} tokens/s; preemptions {soak.preemptions}",
        f"outcomes {got.outcomes}; prompt tokens mean {got.prompt_tokens_mean or 0:.0f}",
        *verdict.lines(),
        f"at the end: {soak.end}",
        *(f"failed {count} × {error}" for error, count in got.errors.items()),
        *(f"FAULT {fault}" for fault in verdict.faults),
        "verdict: " + ("FAILED" if verdict.faults else "held"),
    ]
    return "\n".join(lines)


def as_json(soak: Soak, verdict: Verdict) -> dict[str, Any]:
    """Everything seen, as plain values."""
    return {
        "summary": summarise(soak.records, soak.elapsed_s).as_json(),
        "preemptions": soak.preemptions,
        "faults": list(verdict.faults),
        "lines": verdict.lines(),
        "comparisons": [comparison.as_json() for comparison in soak.comparisons.values()],
        "own": [asdict(look) for look in soak.own],
        "failed": [_failed(record, soak.start_s) for record in soak.records if record.fate is Fate.FAILED],
    }


def _failed(record: Record, start_s: float) -> dict[str, Any]:
    return {"at_s": record.sent_s - start_s, "status": record.status, "outcome": record.outcome, "error": record.error}


def main(argv: list[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Overload a replica through kvgate and judge its ledger.")
    parser.add_argument("--vllm", required=True, metavar="URL", help="the engine")
    parser.add_argument("--kvgate", required=True, metavar="URL", help="kvgate, with that engine as its only replica")
    parser.add_argument("--admin", required=True, metavar="URL", help="kvgate's admin port")
    parser.add_argument("--minutes", type=float, default=5.0, help="how long (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the requests (default: %(default)s)")
    parser.add_argument(
        "--quiet-min", type=int, default=100, help="comparisons without a prefill to insist on (default: %(default)s)"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    arguments = parser.parse_args(argv)
    soak = uvloop.run(
        run_soak(
            vllm=arguments.vllm, kvgate=arguments.kvgate, admin=arguments.admin, minutes=arguments.minutes, seed=arguments.seed
        )
    )
    verdict = judge(soak, quiet_min=arguments.quiet_min)
    sys.stdout.write(report(soak, verdict) + "\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(as_json(soak, verdict), indent=1), encoding="utf-8")
    return 1 if verdict.faults else 0


if __name__ == "__main__":
    sys.exit(main())
