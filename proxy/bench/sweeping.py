"""Starts an engine once for each value of one of its flags, runs the same load against each, and stops it again.

The engine's command line is given; the flag is put behind it, where it wins over one that stands there already, and so is a free ``--port``
unless the command line has one. An engine that does not start is a point without figures: the sweep goes on.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from proxy.adapters.upstream import HttpUpstream
from proxy.advise.result_file import BenchResult
from proxy.advise.sweep import SweepPoint
from proxy.bench.processes import ProgramError, Programs, free_ports, until_ready
from proxy.bench.run import BenchError, BenchSettings, bench
from proxy.bench.screen import Screen
from proxy.ports import Clock
from proxy.wire.serve_command import read_command

ENGINE_END_S_MAX = 30.0  # vLLM takes a few seconds to let go of its workers


@dataclass(frozen=True, slots=True)
class Sweep:
    """``flag`` without dashes, its ``values``, the engine's ``command``, and how long a start may take."""

    flag: str
    values: tuple[str, ...]
    command: tuple[str, ...]
    start_s_max: float


async def sweep(
    settings: BenchSettings, plan: Sweep, clock: Clock, screen: Screen
) -> list[tuple[SweepPoint, BenchResult | None]]:
    """Run every value in turn."""
    found: list[tuple[SweepPoint, BenchResult | None]] = []
    for number, value in enumerate(plan.values, 1):
        name = f"--{plan.flag} {value}"
        screen.say(f"[{number}/{len(plan.values)}] {name}: starting")
        try:
            result = await _run(replace(settings, label=settings.label or name), plan, value, clock, screen)
        except (ProgramError, BenchError) as error:
            screen.say(f"[{number}/{len(plan.values)}] {name}: {error}")
            found.append((SweepPoint(value, fault=str(error)), None))
            continue
        point = SweepPoint.of(value, result)
        screen.say(f"[{number}/{len(plan.values)}] {name}: {point.output_tokens_per_s or 0.0:,.0f} output tokens/s")
        found.append((point, result))
    return found


async def _run(settings: BenchSettings, plan: Sweep, value: str, clock: Clock, screen: Screen) -> BenchResult:
    command, url = command_for(plan.command, plan.flag, value)
    upstream = HttpUpstream()
    try:
        async with Programs() as programs:
            program = await programs.start_command(f"the engine with --{plan.flag} {value}", command, end_s_max=ENGINE_END_S_MAX)
            await programs.unless_one_ends(until_ready(program, upstream, url, path=b"/health", s_max=plan.start_s_max))
            return await programs.unless_one_ends(bench(replace(settings, url=url), clock, screen))
    finally:
        await upstream.aclose()


def command_for(command: Sequence[str], flag: str, value: str) -> tuple[list[str], str]:
    """The command line of one value, and the address it will listen at."""
    given = read_command(command).given
    port = given.get("port") or str(free_ports(1)[0])
    host = given.get("host", "127.0.0.1")
    reached = "127.0.0.1" if host in {"0.0.0.0", "::", ""} else host  # noqa: S104 - every address includes this one
    words = [*command, f"--{flag}", value]
    return words if "port" in given else [*words, "--port", port], f"http://{reached}:{port}"
