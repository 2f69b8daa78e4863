"""What one request costs the dispatcher and the gate together, from the request for a place to its end, here and in another clone.

    python -m tests.bench.place_life [--against DIR] [--open 64] [--rounds 5] [--lives 6000] [--json]

As many tasks as are open ask for a place, hold it for three turns of the loop and end with 16 tokens out, on one replica with plenty of KV:
the real ``Dispatcher`` on uvloop, its memory store and its timer, answers that are not streamed, prompts of 2 KB. Told are microseconds of
the process's CPU for one request, Ticks included, less those of the same tasks without a place. A round is a process of its own, those of
both clones alternate; the least of the rounds is told, since what disturbs the machine only adds.
"""

import argparse
import asyncio
import json
import subprocess
import sys
import time
from pathlib import Path

import uvloop

from proxy.adapters.clock import SystemClock
from proxy.adapters.memory_store import MemoryStore
from proxy.core.demand import CountSource, Demand, LengthClass, PromptPart
from proxy.core.events import Observed, ReplicaFound
from proxy.core.gate import Gate
from proxy.core.outcome import Outcome
from proxy.core.policy import Policy
from proxy.core.replica import EngineSample, ReplicaSample, ReplicaSpec
from proxy.serving.dispatcher import Dispatcher
from proxy.serving.guard import Guard

HERE = Path(__file__).resolve().parents[2]
MODEL = "m"
USABLE_BLOCKS, BLOCK_SIZE, CONTEXT_TOKENS = 1_000_000, 16, 8_192
OUTPUT_TOKENS = 16
TURNS = 3  # of the loop, between a place and its end
SCRAPE_S = 0.5
CHILD = """
import sys
sys.path.insert(0, {clone!r})
import proxy
sys.path.insert(0, {here!r})
from tests.bench.place_life import child
child({open}, {lives})
"""


async def receive() -> dict[str, object]:
    """A client that stays."""
    await asyncio.sleep(3600.0)
    return {}


def demand(number: int, now_s: float) -> Demand:
    """One request, built as the proxy builds it: its prompt was not counted."""
    return Demand(
        request_id=f"r{number}", parts=(PromptPart(420 + number % 40),), length_class=LengthClass(MODEL, "default", False),
        arrived_s=now_s, deadline_s=now_s + 30.0, copies=1, output_tokens_max=256, count_source=CountSource.BOUND,
        traffic_class="default", tenant="default", tenant_weight=1.0, priority=0, may_queue=True, body_bytes=2_000,
        fingerprint=number + 1, session="", adapter="", beam_search=False, shares_prefix=True,
    )  # fmt: skip


async def lives(dispatcher: Dispatcher | None, clock: SystemClock, open_: int, count: int) -> float:
    """CPU seconds of so many requests; without a dispatcher, of what is around them."""
    numbers = iter(range(count))

    async def client() -> None:
        for number in numbers:
            asked = demand(number, clock.now_s())
            if dispatcher is None:
                for _ in range(TURNS):
                    await asyncio.sleep(0)
                continue
            async with dispatcher.admitted(asked, receive, streaming=False) as admission:
                for _ in range(TURNS):
                    await asyncio.sleep(0)
                admission.finish(Outcome.COMPLETED, OUTPUT_TOKENS, natural=True)

    async def scrapes() -> None:
        while dispatcher is not None:
            engine = EngineSample("0", 0.0, 0, 0, preemptions_total=0.0)
            dispatcher.feed(Observed(ReplicaSample("r0", clock.now_s(), (engine,))))
            await asyncio.sleep(SCRAPE_S)

    scraping = asyncio.create_task(scrapes())
    began_s = time.process_time()
    await asyncio.gather(*(client() for _ in range(open_)))
    spent_s = time.process_time() - began_s
    scraping.cancel()
    return spent_s


async def play(open_: int, count: int) -> float:
    """Microseconds for one request, after as many again have warmed everything up."""
    clock = SystemClock()
    gate = Gate(Policy(), clock.now_s())
    dispatcher = Dispatcher(gate, clock, MemoryStore(), Guard(clock, lambda _part: None))
    dispatcher.feed(ReplicaFound(ReplicaSpec("r0", (MODEL,), USABLE_BLOCKS, BLOCK_SIZE, CONTEXT_TOKENS)))
    await lives(dispatcher, clock, open_, count)
    with_us = await lives(dispatcher, clock, open_, count)
    around = await lives(None, clock, open_, count)
    dispatcher.close()
    return (with_us - around) / count * 1e6


def child(open_: int, count: int) -> None:
    """A round in a process of its own: its figure as a line."""
    sys.stdout.write(json.dumps(uvloop.run(play(open_, count))) + "\n")


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--against", metavar="DIR", help="another clone, to be measured in turns with this one")
    parser.add_argument("--open", type=int, default=64, help="requests in flight (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="of each clone (default %(default)s)")
    parser.add_argument("--lives", type=int, default=6000, help="requests in a round (default %(default)s)")
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a line")
    options = parser.parse_args(arguments)
    clones = {"here": str(HERE)} | ({"there": options.against} if options.against else {})
    found: dict[str, list[float]] = {name: [] for name in clones}
    for _ in range(options.rounds):
        for name, clone in clones.items():
            code = CHILD.format(clone=clone, here=str(HERE), open=options.open, lives=options.lives)
            ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
            found[name].append(json.loads(ran.stdout))
    least = {name: min(rounds) for name, rounds in found.items()}
    if options.json:
        sys.stdout.write(json.dumps(found) + "\n")
        return 0
    cells = [f"{name} {least[name]:.1f} us ({' '.join(f'{one:.0f}' for one in found[name])})" for name in found]
    if "there" in least:
        cells.append(f"ratio {least['here'] / least['there']:.2f}")
    sys.stdout.write("  ".join(cells) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
