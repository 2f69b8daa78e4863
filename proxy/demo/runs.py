"""The two runs: fresh replicas, the whole load, and what was counted. The second has kvgate in between."""

import asyncio
import re
from dataclasses import dataclass

from proxy.adapters.upstream import HttpUpstream
from proxy.bench.load import Tally, run_load
from proxy.bench.processes import START_S_MAX, Program, ProgramError, Programs, free_ports, until_ready
from proxy.bench.screen import Screen
from proxy.demo.counters import read_counts
from proxy.demo.progress import show_progress
from proxy.demo.report import Figures, figures
from proxy.demo.workload import DemoSettings, mock_words
from proxy.ports import Clock, UpstreamError
from proxy.sim.mock_text import TOKENIZER_DIRECTORY

LISTENS = re.compile(r"on (http://127\.0\.0\.1:\d+)")


@dataclass(frozen=True, slots=True)
class DemoRun:
    """One run and, in words, what went wrong with requests in it and what its programs warned of."""

    figures: Figures
    complaints: tuple[str, ...]


async def run_once(settings: DemoSettings, bodies: list[bytes], *, gated: bool, clock: Clock, screen: Screen) -> DemoRun:
    """Start the programs, send the load, read the counters and end the programs. Raises ProgramError."""
    upstream = HttpUpstream()
    name = "with kvgate" if gated else "without kvgate"
    try:
        async with Programs() as programs:
            screen.update(f"{name:<15} starting {settings.replicas} mock replicas" + (" and kvgate" if gated else ""))
            replicas = await _start_replicas(programs, settings)
            urls = [await _start_kvgate(programs, upstream, replicas)] if gated else replicas
            tally = Tally(len(bodies))

            async def load() -> None:
                progress = asyncio.create_task(show_progress(screen, name, tally, upstream, replicas, clock), name="progress")
                try:
                    await run_load(upstream, urls, bodies, clients=settings.clients, clock=clock, tally=tally)
                finally:
                    progress.cancel()
                    await asyncio.wait([progress])

            await programs.unless_one_ends(load())
            warned = programs.complaints()  # before they are told to end, of which they warn too
            try:
                counts = await read_counts(upstream, replicas)
            except UpstreamError as error:
                raise ProgramError(f"the counters of a mock replica could not be read: {error}") from error
    finally:
        await upstream.aclose()
    result = figures(tally, preemptions=counts.preemptions, recomputed_tokens=counts.recomputed_tokens)
    screen.say(
        f"{name:<15} {result.completed}/{tally.total} completed in {result.elapsed_s:.1f} s, {counts.preemptions} preemptions"
    )
    of_requests = [f"{name}: {count} × {reason}" for reason, count in tally.reasons().most_common(5)]
    return DemoRun(result, (*of_requests, *warned))


async def _start_replicas(programs: Programs, settings: DemoSettings) -> list[str]:
    started = [
        await programs.start(f"mock replica {index + 1}", ["mock-vllm", *mock_words(settings)])
        for index in range(settings.replicas)
    ]
    return [await _listening(program) for program in started]


async def _listening(program: Program) -> str:
    try:
        async with asyncio.timeout(START_S_MAX):
            return (await program.says(LISTENS))[1]
    except TimeoutError:
        raise program.failure(f"did not listen within {START_S_MAX:g} s") from None


async def _start_kvgate(programs: Programs, upstream: HttpUpstream, replicas: list[str]) -> str:
    port, admin_port = free_ports(2)
    words = ["serve", "--replica", *replicas, "--tokenizer", str(TOKENIZER_DIRECTORY), "--host", "127.0.0.1", "--port", str(port)]
    program = await programs.start("kvgate", [*words, "--admin-port", str(admin_port)])
    await programs.unless_one_ends(until_ready(program, upstream, f"http://127.0.0.1:{admin_port}"))
    return f"http://127.0.0.1:{port}"
