"""An hour at 80 % load before four mock replicas, with what every day brings: nothing may grow, and nothing may be left behind.

    python -m tests.bench.soak_hour --minutes 60 --json soak.json
    python -m tests.bench.soak_hour --minutes 20 --rate 10 --trace traces     # what holds the memory, by line and by type

kvgate and the replicas are processes of their own. One in a hundred requests leaves, one in a hundred is malformed, and every minute one
replica is killed and started anew and the policy file changes. Every ten seconds memory, descriptors, threads, tasks, ledger and
percentiles are looked at (``soak_hour_look``); the judge is ``soak_hour_verdict``. A burst of more requests than the hour has open at any
time comes first: memory keeps the most that was ever open, and a warm-up without it would leave that to chance. The load is a share of what
the replicas do in a closed loop before, or ``--rate``; they are slow, so that two cores are mostly idle. The exit status is 1 when the
verdict has a fault.

``--trace`` makes kvgate trace its allocations, which costs memory and time of its own: for finding a leak, not for judging one.
"""

import argparse
import asyncio
import json
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import httpx
import uvloop

from proxy.adapters.upstream import HttpUpstream
from tests.bench.admin import why_not_deciding
from tests.bench.left_over import left_over, metric
from tests.bench.load import new_upstream
from tests.bench.shared_processes import Fleet, FleetSettings
from tests.bench.soak_hour_load import MALFORMED, offer, requests_per_s
from tests.bench.soak_hour_look import Process, look, read_process
from tests.bench.soak_hour_page import report, write_page
from tests.bench.soak_hour_verdict import Soaked, faults

REPLICAS, KV_BLOCKS, CONTEXT_TOKENS, SPEED = 4, 100, 1024, 0.2
LOAD = 0.8
CALIBRATION_S, CALIBRATION_CLIENTS = 20.0, 60
BURST_CLIENTS = 500  # at once before all else, more than the load ever has open: what a burst took stays, and is no growth
PATIENCE_S = 120.0  # of a look: a machine that measures something else may give kvgate nothing for half a minute
TRACE_LOOKS = 30  # of them from one trace to the next
WARM_UP = 1 / 3  # of the time: the last thousand requests a replica and ten thousand in all are remembered, and fill up
SETTLE_S_MAX = 60.0
QUIET_S = 1.0
IDLE_S = 6.0  # kept connections are closed after four
WAITS = ("30s", "31s")  # what a change of policy changes
EXTRA = """\
tenants: {from: [user]}
limits: {responses_max: 500}
"""
TRACE = """\
import collections, gc, pathlib, signal, sys, tracemalloc
_folder, _numbers = pathlib.Path({folder!r}), iter(range(1 << 30))
def _dump(*_):
    gc.collect()
    number = next(_numbers)
    types = collections.Counter(type(one).__qualname__ for one in gc.get_objects())
    (_folder / f"types-{{number}}.txt").write_text("\\n".join(f"{{count}} {{name}}" for name, count in types.most_common(80)))
    tracemalloc.take_snapshot().dump(str(_folder / f"memory-{{number}}"))
if "serve" in sys.orig_argv:
    tracemalloc.start(4)
    signal.signal(signal.SIGUSR2, _dump)
"""


@dataclass(frozen=True, slots=True)
class SoakSettings:
    """How a run goes. ``load`` is a share of what the replicas do in a closed loop before; ``rate_per_s`` is in its place."""

    seconds: float = 3600.0
    load: float = LOAD
    rate_per_s: float | None = None
    malformed: float = MALFORMED  # share of the requests
    burst_clients: int = BURST_CLIENTS
    look_s: float = 10.0
    event_s: float = 60.0  # between two restarts, and two policies
    seed: int = 1
    startup: str = ""  # Python that kvgate runs first


class Soaking:
    """One run over a fleet that is up."""

    def __init__(
        self, settings: SoakSettings, fleet: Fleet, upstream: HttpUpstream, client: httpx.AsyncClient, soaked: Soaked
    ) -> None:
        self.settings, self.fleet, self.upstream, self.client, self.soaked = settings, fleet, upstream, client, soaked
        self.proxy = fleet.proxies[0]
        self._policy = fleet.settings.folder / "policy.yaml"
        self._text = self._policy.read_text("utf-8") + EXTRA
        self._start_s = 0.0
        self._looked_at = 0  # records

    async def run(self, say: Callable[[Soaked], None]) -> None:
        """Load, disturb and look, and wait for the quiet."""
        loop, soaked, known = asyncio.get_running_loop(), self.soaked, self.settings
        self.write_policy()
        url, calibration_s = self.proxy.url, min(CALIBRATION_S, known.seconds / 4)
        await requests_per_s(
            self.upstream, url, known.burst_clients, calibration_s / 4
        )  # memory sees its most before it is looked at
        measured = await requests_per_s(self.upstream, url, CALIBRATION_CLIENTS, calibration_s)
        soaked.rate_per_s = known.rate_per_s or known.load * measured
        soaked.quiet_before, soaked.tasks_before = await self.quiet()
        self._start_s = loop.time()
        until_s = self._start_s + known.seconds
        beside = [asyncio.create_task(work) for work in (self._watch(say), self._disturb(until_s))]
        try:
            work = offer(self.upstream, url, soaked.rate_per_s, until_s, soaked.met, malformed=known.malformed, seed=known.seed)
            loading = asyncio.create_task(work)
            beside.append(loading)
            await _until(loading, beside)
        finally:
            for task in beside:
                task.cancel()
            await asyncio.gather(*beside, return_exceptions=True)
        soaked.quiet_after, soaked.tasks_after = await self.quiet()
        metrics = (await self.client.get(f"{self.proxy.admin_url}/metrics")).text
        soaked.reloads_seen = int(metric(metrics, "kvgate_policy_reloads_total", 'result="good"'))
        soaked.not_deciding = await why_not_deciding(self.proxy.admin_url)

    def write_policy(self) -> None:
        """A good one that differs from the last, put in its place at once."""
        text = self._text.replace(f"wait_max: {WAITS[0]}", f"wait_max: {WAITS[self.soaked.reloads % 2]}")
        fresh = self._policy.with_suffix(".new")
        fresh.write_text(text, "utf-8")
        fresh.replace(self._policy)
        self.soaked.reloads += 1

    async def quiet(self) -> tuple[Process, int]:
        """Wait until all is at 0 or the time is over, then for idle connections to close; what kvgate has then."""
        loop, soaked = asyncio.get_running_loop(), self.soaked
        give_up_s = loop.time() + SETTLE_S_MAX
        while True:
            soaked.phases, soaked.left = await left_over(self.client, self.proxy.admin_url, self.fleet.replica_urls)
            settled = not any(soaked.left.values()) and all(phase == "serving" for phase in soaked.phases.values())
            if settled or loop.time() > give_up_s:
                break
            await asyncio.sleep(QUIET_S)
        await asyncio.sleep(IDLE_S)
        soaked.phases, soaked.left = await left_over(self.client, self.proxy.admin_url, self.fleet.replica_urls)
        metrics = (await self.client.get(f"{self.proxy.admin_url}/metrics")).text
        return read_process(self.proxy.child.pid), int(metric(metrics, "kvgate_process_tasks"))

    async def _disturb(self, until_s: float) -> None:
        """A replica restarts amid the minute and the policy changes at its end, until a little before the end of the load."""
        loop, urls, event_s = asyncio.get_running_loop(), self.fleet.replica_urls, self.settings.event_s
        while loop.time() + event_s < until_s:
            await asyncio.sleep(event_s / 2)
            index = self.soaked.restarts % len(urls)
            mock = self.fleet.mocks[index]
            mock.kill()
            mock.start()
            await mock.until(f"{urls[index]}/health")
            self.soaked.restarts += 1
            await asyncio.sleep(event_s / 2)
            self.write_policy()

    async def _watch(self, say: Callable[[Soaked], None]) -> None:
        """Look again and again, and tell of it."""
        loop, soaked = asyncio.get_running_loop(), self.soaked
        while True:
            await asyncio.sleep(self.settings.look_s)
            lately = soaked.met.records[self._looked_at :]
            self._looked_at += len(lately)
            at_s = loop.time() - self._start_s
            soaked.looks.append(
                await look(self.client, self.proxy.child.pid, self.proxy.admin_url, self.fleet.replica_urls, at_s, lately)
            )
            if self.settings.startup and len(soaked.looks) % TRACE_LOOKS == 0:
                os.kill(self.proxy.child.pid, signal.SIGUSR2)
            say(soaked)


async def _until(through: asyncio.Task[None], tasks: Sequence[asyncio.Task[None]]) -> None:
    """Wait for ``through``; a fault of any of them ends all."""
    waiting = set(tasks)
    while through in waiting:
        done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()


async def soak(folder: Path, settings: SoakSettings, say: Callable[[Soaked], None] = lambda _: None) -> Soaked:
    """Start everything, soak, and return what was seen. ``say`` is told after every look."""
    fleet_settings = FleetSettings(
        folder, proxies=1, replicas=REPLICAS, kv_blocks=KV_BLOCKS, context_tokens=CONTEXT_TOKENS, speed=SPEED, shared=False,
        wait_max=WAITS[0], startup=settings.startup,
    )  # fmt: skip
    soaked, upstream = Soaked(WARM_UP * settings.seconds, settings.burst_clients), new_upstream()
    async with Fleet(fleet_settings) as fleet, httpx.AsyncClient(timeout=PATIENCE_S) as client:
        try:
            await Soaking(settings, fleet, upstream, client, soaked).run(say)
        finally:
            await upstream.aclose()
    return soaked


def _teller(json_file: Path | None) -> Callable[[Soaked], None]:
    """Tells of every sixth look, and keeps the figures so far."""

    def say(soaked: Soaked) -> None:
        one, number = soaked.looks[-1], len(soaked.looks)
        if number % 6:
            return
        sys.stderr.write(
            f"{one.at_s / 60:5.1f} min: {len(soaked.met.records)} requests, {one.process.anonymous_mb:.2f} MB of its own, "
            f"{one.process.fds} fds, {one.tasks} tasks, {one.open_requests} open, e2e p50 {one.e2e_p50_s or 0:.2f} s, "
            f"machine at {one.machine_load:.1f}\n"
        )
        if json_file is not None:
            json_file.write_text(json.dumps([look.as_json() for look in soaked.looks]), encoding="utf-8")

    return say


def main(argv: Sequence[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=60.0, help="how long (default: %(default)s)")
    parser.add_argument("--load", type=float, default=LOAD, help="share of what the replicas can do (default: %(default)s)")
    parser.add_argument("--rate", type=float, metavar="PER_S", help="requests a second, in the place of --load")
    parser.add_argument("--seed", type=int, default=1, help="of the requests (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every look goes there, after each minute what there is")
    parser.add_argument("--page", type=Path, metavar="FILE", help="a page with a chart beside it, as RESULTS-soak.md")
    parser.add_argument(
        "--trace", type=Path, metavar="FOLDER", help="snapshots of allocations and counts of types, every five minutes"
    )
    options = parser.parse_args(argv)
    startup = ""
    if options.trace is not None:
        options.trace.mkdir(parents=True, exist_ok=True)
        startup = TRACE.format(folder=str(options.trace.absolute()))
    settings = SoakSettings(options.minutes * 60, options.load, options.rate, seed=options.seed, startup=startup)
    with tempfile.TemporaryDirectory() as folder:
        soaked = uvloop.run(soak(Path(folder), settings, _teller(options.json)))
    sys.stdout.write("\n".join(report(soaked)) + "\n")
    if options.json is not None:
        options.json.write_text(json.dumps([one.as_json() for one in soaked.looks]), encoding="utf-8")
    if options.page is not None:
        write_page(soaked, options.page, " ".join(["python -m tests.bench.soak_hour", *(argv or sys.argv[1:])]))
    return 1 if faults(soaked) else 0


if __name__ == "__main__":
    sys.exit(main())
