"""``kvgate bench``: put a load on a server, measure it from the client's side and the engine's at once, and write it down."""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import uvloop

from proxy.adapters.clock import SystemClock
from proxy.advise.result_file import BenchResult, Slo, encode
from proxy.advise.result_text import report
from proxy.advise.sweep import SweepPoint, chart, sweet_spot
from proxy.bench.plan import Shape
from proxy.bench.plot import can_plot, plot_sweep
from proxy.bench.run import BenchError, BenchSettings, bench
from proxy.bench.screen import Screen
from proxy.bench.sending import Course
from proxy.bench.sweeping import Sweep, sweep
from proxy.cli.reading import authorization, base_url, scalar, slo
from proxy.config.faults import quoted
from proxy.config.scalars import duration, number
from proxy.config.settings import SettingsError
from proxy.sim.workloads import WORKLOADS

FAILED = 1
TERMINATED = 143  # 128 + SIGTERM, as a shell would tell it
TIME = scalar(duration("1s", "24h"))
T = TypeVar("T")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    add = parser.add_argument
    add("url", nargs="?", type=base_url, metavar="URL", help="a vLLM server or a kvgate; not with --sweep, which starts its own")
    add("--workload", default="chat", metavar="NAME|FILE",
        help=f"{', '.join(WORKLOADS)}, fixed:PROMPT:OUTPUT in tokens, or a recorded trace (default: chat)")  # fmt: skip
    add(
        "--rate",
        type=scalar(number(0.001, 1_000_000)),
        metavar="R",
        help="open loop: requests per second, a Poisson process (a trace: as recorded)",
    )
    add("--concurrency", type=_count, metavar="N", help="closed loop: clients that each send when their last request ended")
    add("--duration", type=TIME, default=60.0, metavar="TIME", help="how long to send, as 60s or 5m (default: 60s)")
    add("--requests", type=_count, metavar="N", help="send at most so many (default: as many as the time allows)")
    add("--warmup", type=scalar(duration("0s", "24h")), default=0.0, metavar="TIME",
        help="leave what is planned before this out of the figures (default: 0s)")  # fmt: skip
    add("--drain", type=scalar(duration("0s", "24h")), default=60.0, metavar="TIME",
        help="how long to wait for open requests at the end (default: 60s)")  # fmt: skip
    add("--slo", type=slo, default={}, metavar="KEY=TIME,…", help="what a good answer keeps: ttft=2s,tpot=50ms,e2e=30s")
    add("--out", type=Path, metavar="FILE", help="write the result file, which kvgate compare reads")
    add("--label", default="", metavar="TEXT", help="what to call the run in the result file")
    add("--api", choices=("chat", "completions"), default="chat", help="which API to send to (default: chat)")
    add("--natural", action="store_true",
        help="let the model end its answers, capped as the workload says, instead of the workload's exact lengths")  # fmt: skip
    add("--shared-prefix", type=_count, default=0, metavar="TOKENS", help="put the same tokens before every prompt (default: 0)")
    add("--tenants", type=_count, default=1, metavar="N", help="spread requests over so many tenants (default: 1)")
    add(
        "--cancel",
        type=scalar(number(0, 1)),
        default=0.0,
        metavar="SHARE",
        help="share of the clients that leave early (default: 0)",
    )
    add("--cancel-after", type=TIME, default=2.0, metavar="TIME", help="when they leave, on average (default: 2s)")
    add("--seed", type=int, default=1, metavar="N", help="equal seeds send equal requests (default: 1)")
    add("--tokenizer", metavar="DIR|NAME", help="the model's tokenizer (default: as the server tells)")
    add("--model", metavar="NAME", help="the model to ask for (default: the first served)")
    add("--engine", type=base_url, action="append", default=[], metavar="URL",
        help="an engine to watch, where URL is a kvgate or a balancer; may be repeated")  # fmt: skip
    add("--api-key-env", metavar="NAME", help="the environment variable that holds the server's API key")
    add(
        "--sweep",
        type=_sweep,
        metavar="FLAG=V,V,…",
        help="start the engine behind -- once for each value and run the load on each",
    )
    add("--start-timeout", type=TIME, default=900.0, metavar="TIME", help="how long an engine may take to start (default: 15m)")
    add("--plot", type=Path, metavar="FILE", help="draw the sweep as PNG or SVG (needs matplotlib)")
    add("--json", action="store_true", help="print one JSON object on stdout: the result's summary, or the sweep's points")
    parser.set_defaults(engine_command=None)
    parser.usage = "kvgate bench URL [flags]\n       kvgate bench --sweep FLAG=V,V,… [flags] -- vllm serve …"


def run(arguments: argparse.Namespace) -> int:
    """Do the run, or the sweep: 0, or 1 when it could not be made or nothing was completed."""
    settings = settings_of(arguments)
    screen = Screen(sys.stderr, plain_every=5)
    clock = SystemClock()
    try:
        if arguments.sweep is not None:
            return _swept(arguments, settings, clock, screen)
        result = _in_loop(bench(settings, clock, screen))
    except BenchError as error:
        screen.say(f"kvgate bench: {error}")
        return FAILED
    except asyncio.CancelledError:
        screen.say("kvgate bench: terminated; every process it started is ended")
        return TERMINATED
    screen.clear()
    if arguments.out is not None:
        _write(arguments.out, result)
    print(json.dumps(msgspec.to_builtins(result.summary), indent=2) if arguments.json else report(result), end="")
    if arguments.json:
        print()
    return 0 if result.summary.outcomes.get("completed") else FAILED


def settings_of(arguments: argparse.Namespace) -> BenchSettings:
    """What the flags ask for. Raises SettingsError with everything that does not go together."""
    faults = []
    if arguments.sweep is None and arguments.url is None:
        faults.append("say what to load: kvgate bench URL")
    if (arguments.sweep is None) != (arguments.engine_command is None):
        faults.append("--sweep and the engine's command line go together: kvgate bench --sweep FLAG=V,V -- vllm serve …")
    if arguments.sweep is not None and arguments.url is not None:
        faults.append("--sweep starts its own engines: leave the URL out")
    if arguments.rate is not None and arguments.concurrency is not None:
        faults.append("--rate (open loop) and --concurrency (closed loop) exclude each other")
    generated = arguments.workload in WORKLOADS or arguments.workload.startswith("fixed:")
    if arguments.rate is None and arguments.concurrency is None and generated:
        faults.append("say how much: --rate R (open loop) or --concurrency N (closed loop)")
    if arguments.warmup >= arguments.duration:
        faults.append("--warmup leaves nothing of --duration to measure")
    if faults:
        raise SettingsError(faults)
    headers = authorization(arguments.api_key_env)
    return BenchSettings(
        url=arguments.url or "",
        workload=arguments.workload,
        course=Course(arguments.duration, arguments.drain, arguments.rate, arguments.concurrency, arguments.requests),
        shape=Shape(
            arguments.api, arguments.natural, arguments.tenants, arguments.cancel, arguments.cancel_after, arguments.seed,
            tuple((name.encode(), value.encode()) for name, value in headers.items()),
        ),
        slo=Slo(**{f"{key}_s": value for key, value in arguments.slo.items()}),
        engines=tuple(arguments.engine),
        tokenizer=arguments.tokenizer,
        model=arguments.model,
        shared_tokens=arguments.shared_prefix,
        warmup_s=arguments.warmup,
        headers=headers,
        label=arguments.label,
        command=tuple(sys.argv),
    )  # fmt: skip


def _swept(arguments: argparse.Namespace, settings: BenchSettings, clock: SystemClock, screen: Screen) -> int:
    flag, values = arguments.sweep
    plan = Sweep(flag, values, tuple(arguments.engine_command), arguments.start_timeout)
    found = _in_loop(sweep(settings, plan, clock, screen))
    points = [point for point, _ in found]
    spot = sweet_spot(points, settings.slo)
    for point, result in found:
        if arguments.out is not None and result is not None:
            _write(arguments.out.with_stem(f"{arguments.out.stem}-{flag}-{point.value}"), result)
    picture = arguments.plot or (arguments.out and arguments.out.with_name(f"{arguments.out.stem}-{flag}.png"))
    if picture is not None and can_plot():
        plot_sweep(picture, flag, points, spot)
        screen.say(f"the curves are drawn in {picture}")
    elif picture is not None:
        screen.say("no picture: matplotlib is not installed (pip install matplotlib)")
    if arguments.json:
        best = None if spot.index is None else points[spot.index].value
        told = {"flag": flag, "points": [_as_dict(point) for point in points], "sweet_spot": best, "reason": spot.reason}
        print(json.dumps(told, indent=2))
    else:
        print(chart(flag, points, spot))
    return 0 if any(point.completed for point in points) else FAILED


def _as_dict(point: SweepPoint) -> dict[str, Any]:
    return {name: getattr(point, name) for name in point.__slots__}


def _write(path: Path, result: BenchResult) -> None:
    try:
        path.write_bytes(encode(result))
    except OSError as error:
        raise SettingsError([f"--out: {path} cannot be written: {error.strerror}"]) from error


def _in_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run it to its end; SIGTERM cancels it as Ctrl-C does, so that no engine is left behind."""

    async def guarded() -> T:
        if task := asyncio.current_task():
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await work

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(guarded())


def _sweep(text: str) -> tuple[str, tuple[str, ...]]:
    flag, _, values = text.partition("=")
    found = tuple(value for value in values.split(",") if value)
    if not flag.strip("-") or len(found) < 2:
        raise argparse.ArgumentTypeError(f"got {quoted(text)}; allowed FLAG=VALUE,VALUE,… with two values or more")
    return flag.lstrip("-"), found


def _count(text: str) -> int:
    if not (text.isascii() and text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"got {quoted(text)}; allowed a whole number above 0")
    return int(text)
