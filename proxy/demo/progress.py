"""How far a run is, told while it runs: one line updated in place on a terminal, else a new line every few seconds."""

import asyncio
from contextlib import suppress

from proxy.bench.load import Tally
from proxy.bench.screen import Screen
from proxy.demo.counters import ReplicaCounts, read_counts
from proxy.ports import Clock, Upstream, UpstreamError

UPDATE_S = 1.0
PLAIN_LINE_UPDATES = 5  # without a terminal, one line per this many updates


def progress_line(run: str, tally: Tally, counts: ReplicaCounts, now_s: float) -> str:
    """The state of a run in one line."""
    completed = tally.count("completed")
    seen = (("shed", tally.count("shed")), ("failed", tally.count("failed")))
    not_completed = "".join(f", {count} {outcome}" for outcome, count in seen if count)
    return (
        f"{run:<15} {completed:>4}/{tally.total} completed{not_completed}, {counts.running:>3} running, "
        f"{counts.preemptions:>4} preemptions, {now_s - tally.started_s:>3.0f} s"
    )


async def show_progress(screen: Screen, run: str, tally: Tally, upstream: Upstream, urls: list[str], clock: Clock) -> None:
    """Go on showing until cancelled. A scrape that fails leaves the counts as they were: whether a replica lives is watched elsewhere."""
    counts = ReplicaCounts()
    every = 1 if screen.out.isatty() else PLAIN_LINE_UPDATES
    updates = 0
    while True:
        await asyncio.sleep(UPDATE_S)
        updates += 1
        if (updates - 1) % every:
            continue
        with suppress(UpstreamError):
            counts = await read_counts(upstream, urls)
        screen.update(progress_line(run, tally, counts, clock.now_s()))
