"""``kvgate demo``: the same load without and with kvgate, on mock replicas, over real HTTP.

Two runs, each with fresh replicas (equal pools, empty caches): first straight to the replicas in turn, then through ``kvgate serve``
with its shipped policy and no warm-up, so what kvgate must first learn counts against it. Progress goes to stderr, the result to stdout.
"""

import argparse
import asyncio
import io
import json
import os
import signal
import sys
from collections.abc import Callable

import uvloop

from proxy.adapters.clock import SystemClock
from proxy.bench.processes import ProgramError
from proxy.bench.screen import Screen
from proxy.demo.report import as_dict, busy_warning, sentence, table
from proxy.demo.runs import DemoRun, run_once
from proxy.demo.workload import KV_BLOCKS_MIN, DemoSettings, request_bodies

__all__ = ["add_arguments", "run"]

TERMINATED = 143  # 128 + SIGTERM, as a shell would tell it


def _at_least(least: int) -> Callable[[str], int]:
    def read(text: str) -> int:
        if not (text.isascii() and text.isdigit() and least <= int(text) <= 1_000_000):
            raise argparse.ArgumentTypeError(f"got {text!r}; allowed a whole number from {least} to 1000000")
        return int(text)

    return read


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    default = DemoSettings()

    def count(flag: str, value: int, least: int, text: str) -> None:
        parser.add_argument(flag, type=_at_least(least), default=value, metavar="N", help=f"{text} (default: %(default)s)")

    count("--seed", default.seed, 0, "seed of prompts, output lengths and texts")
    count("--requests", default.requests, 1, "requests in each run")
    count("--clients", default.clients, 1, "clients that send at a time, each its next request when its last one ended")
    count("--replicas", default.replicas, 1, "mock replicas")
    count("--kv-blocks", default.kv_blocks, KV_BLOCKS_MIN, "KV blocks of each replica, of 16 tokens")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout instead of the table")


def run(args: argparse.Namespace) -> int:
    """Do both runs and tell them: 0, or 1 when a program did not run or requests failed. Ctrl-C ends every process first."""
    settings = DemoSettings(args.seed, args.requests, args.clients, args.replicas, args.kv_blocks)
    screen = Screen(sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without our signs gets question marks, not a traceback
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            direct, kvgate = runner.run(_both(settings, screen))
    except ProgramError as error:
        screen.say(f"kvgate demo: {error}")
        return 1
    except asyncio.CancelledError:
        screen.say("kvgate demo: terminated; every process it started is ended")
        return TERMINATED
    except KeyboardInterrupt:
        screen.say("kvgate demo: interrupted; every process it started is ended")
        raise
    for complaint in (*direct.complaints, *kvgate.complaints):
        screen.say(complaint)
    if busy := busy_warning(os.getloadavg()[0], os.cpu_count() or 1):
        screen.say(busy)
    if args.json:
        sys.stdout.write(json.dumps({"direct": as_dict(direct.figures), "kvgate": as_dict(kvgate.figures)}) + "\n")
    else:
        sys.stdout.write(f"\n{table(direct.figures, kvgate.figures)}\n\n{sentence(direct.figures, kvgate.figures)}\n")
    return 1 if direct.figures.failed or kvgate.figures.failed else 0


async def _both(settings: DemoSettings, screen: Screen) -> tuple[DemoRun, DemoRun]:
    # SIGINT is asyncio.run's own; a closed terminal or a stopped container must not leave processes behind either.
    if task := asyncio.current_task():
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
    bodies = request_bodies(settings)
    clock = SystemClock()
    direct = await run_once(settings, bodies, gated=False, clock=clock, screen=screen)
    return direct, await run_once(settings, bodies, gated=True, clock=clock, screen=screen)
