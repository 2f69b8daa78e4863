"""What a decision costs: CPU of the gate by kind of event, with many requests in flight over many replicas.

    python -m tests.bench.decision [--in-flight 250,1000,4000] [--replicas 1,16] [--samples 400] [--json]

Requests stream one token per step at 30 steps a second, end at lognormal lengths, and each is replaced by a new one, in two worlds: one
with room for everybody (arrivals are admitted at once) and one whose pools are full with 500 requests waiting (arrivals are held).
Timed is what a driver calls for one event: ``Gate.handle`` and ``Gate.deadline_s_next``, in microseconds of this thread's CPU. The last
column is what Ticks and scrapes take of one core: the price of keeping the forecast current off the decision.
"""

import argparse
import json
import random
import sys
import time
from collections import defaultdict
from dataclasses import dataclass
from math import inf

import numpy as np

from proxy.core.demand import Demand, LengthClass, PromptPart
from proxy.core.events import Arrive, Event, Finished, Forward, Granted, Observed, ReplicaFound, Reserve, Tick
from proxy.core.gate import Gate
from proxy.core.ledger import Lease
from proxy.core.outcome import Outcome
from proxy.core.policy import Policy
from proxy.core.replica import EngineSample, ReplicaSample, ReplicaSpec

STEPS_PER_S = 30.0
SCRAPE_S = 0.5
MODEL = "m"
CONTEXT_TOKENS = 32_768
BLOCK_SIZE = 16
TENANTS = 8
WAITING = 500
LEARNED = 3000
ROOMY_BLOCKS_PER_REQUEST = 400
PREFIXES = 20  # system prompts, where prefixes are shared
KINDS = ("arrive_admitted", "arrive_held", "finished", "finished_waiting", "tick", "tick_waiting", "observed")


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table. ``usable_blocks`` is of each replica."""

    in_flight: int
    replicas: int
    samples: int
    shared: bool
    usable_blocks: int
    waiting: int
    brief: bool = False  # outputs of one to three tokens, and one tenant


class Traffic:
    """Plays steady traffic on a gate and times its events."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.rng = random.Random(1)
        self.now_s = 0.0
        self.gate = Gate(Policy(), 0.0)
        self.cost_us: dict[str, list[float]] = defaultdict(list)
        self.life_us: list[float] = []  # arrival, grant and end together, of those that came and went while it was timed
        self._begun_us: dict[str, float] = {}
        self.timed = False
        self.lengths: dict[str, int] = {}
        self.open: dict[str, Lease] = {}
        self._serial = 0
        self._due_s = inf
        self._step_s = 1.0 / STEPS_PER_S
        for index in range(case.replicas):
            spec = ReplicaSpec(f"r{index}", (MODEL,), case.usable_blocks, BLOCK_SIZE, CONTEXT_TOKENS, 100_000)
            self.feed(ReplicaFound(spec))
        self.learn()

    def feed(self, event: Event, kind: str = "") -> int:
        """Hand over one event and carry out its effects; how many requests were forwarded."""
        began_ns = time.thread_time_ns()
        effects = self.gate.handle(event, self.now_s)
        self._due_s = self.gate.deadline_s_next(self.now_s)
        spent_us = (time.thread_time_ns() - began_ns) / 1000.0
        forwarded = 0
        for effect in effects:
            if isinstance(effect, Reserve):
                forwarded += self.feed(Granted(effect.request_id))
            elif isinstance(effect, Forward):
                self.open[effect.request_id] = effect.lease
                # While filling up, and where the engine answers at once, no prefill backlog holds anybody.
                effect.lease.placed = not self.timed or self.case.brief
                forwarded += 1
        if kind and self.timed:
            if isinstance(event, Arrive):
                kind += "_admitted" if event.demand.request_id in self.open else "_held"
            elif len(self.gate.queue):
                kind += "_waiting"
            self.cost_us[kind].append(spent_us)
        if self.timed:
            self._note_life(event, spent_us)
        return forwarded

    def _note_life(self, event: Event, spent_us: float) -> None:
        """Add up one request's events. What an end costs of the admissions that it makes room for counts as its own."""
        begun_us = self._begun_us
        if isinstance(event, Arrive):
            name = event.demand.request_id
            begun_us[name] = begun_us.get(name, 0.0) + spent_us  # its grant may have been noted before
        elif isinstance(event, Granted):
            begun_us[event.request_id] = begun_us.get(event.request_id, 0.0) + spent_us
        elif isinstance(event, Finished) and event.request_id in begun_us:
            self.life_us.append(begun_us.pop(event.request_id) + spent_us)

    def request(self) -> Demand:
        """One more request; its length is kept for when it runs."""
        self._serial += 1
        name, rng = f"q{self._serial}", self.rng
        tokens = min(30_000, max(1, int(rng.lognormvariate(6.0, 0.8))))
        length = rng.randint(1, 3) if self.case.brief else int(rng.lognormvariate(5.5, 0.7))
        self.lengths[name] = min(4000, max(1, length))
        hashes: tuple[int, ...] = ()
        if self.case.shared:
            system, tokens = rng.randrange(PREFIXES), tokens + 64 * BLOCK_SIZE
            hashes = tuple(1000 * system + index if index < 64 else hash((name, index)) for index in range(tokens // BLOCK_SIZE))
        tenant = f"t{rng.randrange(1 if self.case.brief else TENANTS)}"
        return Demand(
            name, (PromptPart(tokens, hashes),), LengthClass(MODEL, tenant), self.now_s, self.now_s + 1e6, tenant=tenant,
            output_tokens_max=rng.choice((None, 1024, 4096)),
        )  # fmt: skip

    def learn(self) -> None:
        """Lengths are known well enough that an absent cap costs little."""
        model = self.gate.fleet.model
        for _ in range(LEARNED):
            demand = self.request()
            model.learn(demand, self.lengths.pop(demand.request_id), natural=True)
        model.rebuild(())

    def step(self) -> None:
        """One decode step of every replica: tokens, ends, and new requests for those that ended, spread over the step's time."""
        ended: list[str] = []
        for name, lease in self.open.items():
            lease.output_tokens += 1
            lease.placed = True
            if lease.output_tokens >= self.lengths[name]:
                ended.append(name)
        until_s = self.now_s + self._step_s
        for index, name in enumerate(ended):
            self._wait_until(self.now_s + (until_s - self.now_s) / (len(ended) - index + 1))
            lease = self.open.pop(name)
            self.feed(Finished(name, Outcome.COMPLETED, lease.output_tokens, True), "finished")
            self.fill()
        self._wait_until(until_s)

    def fill(self) -> None:
        """New requests until as many are in flight, or waiting, as the case wants."""
        case, queue = self.case, self.gate.queue
        while len(queue) < case.waiting if case.waiting else len(self.open) < case.in_flight:
            self.feed(Arrive(self.request(), streaming=True), "arrive")

    def _wait_until(self, at_s: float) -> None:
        while self._due_s <= at_s:
            self.now_s = max(self.now_s, self._due_s)
            self.feed(Tick(), "tick")
            self._due_s = max(self._due_s, self.now_s + 1e-4)
        self.now_s = at_s

    def scrape(self, index: int) -> None:
        """A scrape of one replica that sees what the gate expects."""
        book = list(self.gate.fleet)[index]
        usage = book.ledger.held_interval(book.clock.steps, 0.0)[0] / book.spec.usable_blocks
        engine = EngineSample("0", usage, book.ledger.sequences, 0, preemptions_total=0.0)
        self.feed(Observed(ReplicaSample(book.spec.name, self.now_s, (engine,))), "observed")

    def run(self) -> float:
        """Fill up, warm up, then time until every kind that occurs has its samples; seconds of traffic that were timed."""
        self.fill()
        steps_max = 40 + 4 * self.case.samples
        for index in range(steps_max):
            if index == 40:
                self.timed, began_s = True, self.now_s
            self.step()
            scrape_index = index % max(1, round(SCRAPE_S * STEPS_PER_S))
            for replica in range(self.case.replicas):
                if replica % max(1, round(SCRAPE_S * STEPS_PER_S)) == scrape_index:
                    self.scrape(replica)
            wanted = [kind for kind in self.cost_us if not kind.startswith(("observed", "tick"))]
            if self.timed and index > 60 and wanted and all(len(self.cost_us[kind]) >= self.case.samples for kind in wanted):
                break
        return self.now_s - began_s


def measure(in_flight: int, replicas: int, samples: int, *, shared: bool) -> dict[str, object]:
    """Both worlds of one size; microseconds p50 and p99 by kind, and the share of a core that upkeep takes."""
    roomy = Traffic(Case(in_flight, replicas, samples, shared, ROOMY_BLOCKS_PER_REQUEST * in_flight // replicas, 0))
    roomy_s = roomy.run()
    peaks = [book.peak_blocks(None, roomy.now_s) for book in roomy.gate.fleet]
    tight = Traffic(Case(in_flight, replicas, samples, shared, int(np.mean(peaks)), WAITING))
    tight_s = tight.run()
    cost_us = {kind: roomy.cost_us.get(kind, []) + tight.cost_us.get(kind, []) for kind in KINDS}
    cost_us["observed"] += tight.cost_us.get("observed_waiting", [])
    figures: dict[str, object] = {"in_flight": in_flight, "in_flight_full": len(tight.open), "replicas": replicas}
    for kind, values in cost_us.items():
        figures[kind] = {
            "count": len(values),
            "p50": float(np.percentile(values, 50)) if values else None,
            "p99": float(np.percentile(values, 99)) if values else None,
        }
    for name, world, seconds in (("upkeep_ratio", roomy, roomy_s), ("upkeep_ratio_full", tight, tight_s)):
        spent_us = sum(sum(values) for kind, values in world.cost_us.items() if kind.startswith(("tick", "observed")))
        figures[name] = spent_us / 1e6 / seconds
    return figures


def table(rows: list[dict[str, object]]) -> str:
    """A line per size, p50/p99 microseconds by kind."""
    lines = [f"{'in flight':>9} {'replicas':>8} " + " ".join(f"{kind:>16}" for kind in KINDS) + "   upkeep  (full)"]
    for row in rows:
        cells = []
        for kind in KINDS:
            figures = row[kind]
            assert isinstance(figures, dict)
            cells.append("-" if figures["p50"] is None else f"{figures['p50']:.0f}/{figures['p99']:.0f}")
        upkeep = f"{100 * float(str(row['upkeep_ratio'])):6.1f} % {100 * float(str(row['upkeep_ratio_full'])):6.1f} %"
        lines.append(
            f"{row['in_flight']!s:>9} {row['replicas']!s:>8} " + " ".join(f"{cell:>16}" for cell in cells) + f" {upkeep}"
        )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--in-flight", default="250,1000,4000", help="requests in flight, several by commas (default %(default)s)"
    )
    parser.add_argument("--replicas", default="1,16", help="replicas, several by commas (default %(default)s)")
    parser.add_argument("--samples", type=int, default=400, help="events of each kind, at least (default %(default)s)")
    parser.add_argument("--shared", action="store_true", help=f"prompts begin with one of {PREFIXES} system prompts")
    parser.add_argument("--json", action="store_true", help="one JSON list instead of the table")
    options = parser.parse_args(arguments)
    rows = [
        measure(int(in_flight), int(replicas), options.samples, shared=options.shared)
        for replicas in options.replicas.split(",")
        for in_flight in options.in_flight.split(",")
    ]
    sys.stdout.write((json.dumps(rows) if options.json else table(rows)) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
