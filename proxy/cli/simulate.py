"""``kvgate simulate``: try a policy on a workload in virtual time, beside what else one could do."""

import argparse
import json
import multiprocessing
import os
import sys
from collections.abc import Sequence
from concurrent.futures import Future, ProcessPoolExecutor, wait
from dataclasses import replace
from functools import partial
from math import inf
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from typing import Any

from proxy.adapters.clock import SystemClock
from proxy.cli.simulate_store import add_store_arguments, store_of
from proxy.cli.simulate_table import table, waits_table
from proxy.config.faults import quoted
from proxy.config.policy_file import load as load_policy
from proxy.config.settings import SettingsError
from proxy.core.policy import Policy
from proxy.sim.baselines import BASELINES, PASS_THROUGH
from proxy.sim.figures import Figures
from proxy.sim.replay import RECORDED, recorded_figures, world_of
from proxy.sim.scenario import FLUID, KVGATE, ORACLE, REQUESTS_DEFAULT, Scenario, play
from proxy.sim.workloads import WORKLOADS
from proxy.sim.workloads.recording import recorded_rows, recording_head
from proxy.sim.workloads.trace_text import kind_of

BASELINES_DEFAULT = (PASS_THROUGH, ORACLE)
POLL_S = 0.5
Progress = SimpleQueue[tuple[str, int]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags."""
    names = ", ".join(WORKLOADS)
    parser.add_argument("--policy", type=Path, metavar="FILE", help="the policy file to try (default: the shipped one)")
    parser.add_argument(
        "--workload",
        default="chat",
        metavar="NAME|FILE",
        help=f"{names}, or a recorded trace (proxy/sim/README.md) (default: chat)",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="equal seeds give equal worlds (default: 1)")
    parser.add_argument("--replicas", type=_count, metavar="N", help="engines (default: 1; a recording's own)")
    parser.add_argument(
        "--proxies", type=_count, default=1, metavar="N", help="gates in front of them, sharing one store if several (default: 1)"
    )
    add_store_arguments(parser)
    parser.add_argument(
        "--kv-blocks",
        type=_count,
        metavar="N",
        help="usable KV blocks of 16 tokens of each engine (default: 4000; a recording's own)",
    )
    parser.add_argument(
        "--metrics-age",
        type=_seconds,
        default=0.0,
        metavar="S",
        help="how old a scrape is when it arrives, in seconds (default: 0)",
    )
    parser.add_argument(
        "--load", type=_load, metavar="X",
        help="offered requests in shares of the engines' fluid capacity; inf: clients that always wait for each other, without deadlines "
        "(default: 1.3; the surge's own 0.8)",
    )  # fmt: skip
    parser.add_argument(
        "--requests", type=_count, metavar="N",
        help=f"end after so many arrivals (default: {REQUESTS_DEFAULT}; shift and surge end by the clock)",
    )  # fmt: skip
    parser.add_argument(
        "--baseline", default=",".join(BASELINES_DEFAULT), metavar="NAME[,NAME…]",
        help=f"what to compare with: {PASS_THROUGH}, {ORACLE} (kvgate told every true length), {FLUID} (an upper bound), "
        f"{', '.join(BASELINES)}; some take a parameter, as static:32 (default: {','.join(BASELINES_DEFAULT)})",
    )  # fmt: skip
    parser.add_argument("--jobs", type=_count, metavar="N", help="policies played at a time (default: one for each CPU)")
    parser.add_argument("--json", action="store_true", help="print one JSON object on stdout")


def run(arguments: argparse.Namespace) -> int:
    """Play every policy on the same requests and tell their figures."""
    scenario = scenario_of(arguments)
    names = [KVGATE, *dict.fromkeys(name for name in arguments.baseline.split(",") if name and name != KVGATE)]
    try:
        for name in names:
            if name != FLUID:
                scenario.admission(name)  # what is wrong is told before anything runs for minutes
        total = scenario.requests_expected
    except (ValueError, OSError) as error:
        raise SettingsError([str(error)]) from error
    jobs = min(arguments.jobs or os.cpu_count() or 1, len(names))
    found = play_all(scenario, names, jobs=jobs, total=total)
    if scenario.replay is not None:
        found = {RECORDED: recorded_figures(scenario.replay), **found}
    if arguments.json:
        print(json.dumps({"workload": scenario.workload, "seed": scenario.seed, "policies": _as_dicts(found)}, indent=2))
    else:
        print(table(scenario, found))
        if scenario.replay is not None:
            print("\n" + waits_table(found))
    return 0


def scenario_of(arguments: argparse.Namespace) -> Scenario:
    """What the flags ask for."""
    policy = Policy() if arguments.policy is None else load_policy(arguments.policy)
    scenario = Scenario(
        workload=arguments.workload, seed=arguments.seed, proxies=arguments.proxies, store=store_of(arguments),
        metrics_age_s=arguments.metrics_age, load=arguments.load, requests=arguments.requests, policy=policy,
        **_recorded(arguments.workload),
    )  # fmt: skip
    given = {"replicas": arguments.replicas, "kv_blocks": arguments.kv_blocks}
    return replace(scenario, **{name: value for name, value in given.items() if value is not None})


def _recorded(workload: str) -> dict[str, Any]:
    """What the workload says of its engines, where kvgate recorded it. Raises SettingsError."""
    path = Path(workload)
    try:
        found = recording_head(path) if kind_of(path) == ".jsonl" and path.is_file() else None
        return {} if found is None else world_of(*found, recorded_rows(path).values())
    except ValueError as error:
        raise SettingsError([str(error)]) from error


def _as_dicts(found: dict[str, Figures]) -> dict[str, dict[str, float | int | None]]:
    return {
        name: {key: round(value, 6) if isinstance(value, float) else value for key, value in figures.as_dict().items()}
        for name, figures in found.items()
    }


_progress: "Progress | None" = None


def _share_progress(queue: "Progress") -> None:
    global _progress  # noqa: PLW0603  (how a process pool hands its workers what cannot be pickled)
    _progress = queue


def _play_in_worker(scenario: Scenario, name: str) -> Figures:
    return play(scenario, name, partial(_tell, name))


def _tell(name: str, ended: int) -> None:
    if _progress is not None:
        _progress.put((name, ended))


def play_all(scenario: Scenario, names: Sequence[str], *, jobs: int, total: int) -> dict[str, Figures]:
    """Every policy's figures, in the order of ``names``; progress is told on stderr."""
    context = multiprocessing.get_context("spawn")
    queue: Progress = context.SimpleQueue()
    clock = SystemClock()
    begun_s = clock.now_s()
    fresh = replace(scenario)  # without what it has loaded, which need not travel
    with ProcessPoolExecutor(jobs, context, _share_progress, (queue,)) as pool:
        futures: dict[Future[Figures], str] = {pool.submit(_play_in_worker, fresh, name): name for name in names}
        left, ended = set(futures), dict.fromkeys(names, 0)
        while left:
            done, left = wait(left, POLL_S)
            while not queue.empty():
                name, count = queue.get()
                ended[name] = count
            for future in done:
                future.result()
                ended[futures[future]] = total
            _show(ended, total, clock.now_s() - begun_s)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return {name: future.result() for future, name in futures.items()}


def _show(ended: dict[str, int], total: int, elapsed_s: float) -> None:
    """One line that is overwritten on a terminal; nothing where nobody watches."""
    if sys.stderr.isatty():
        shares = "  ".join(f"{name} {min(1.0, count / max(1, total)):4.0%}" for name, count in ended.items())
        print(f"\r{elapsed_s:5.0f} s  {shares}", end="", file=sys.stderr, flush=True)


def _count(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"{quoted(text)}: must be a whole number above 0")
    return value


def _seconds(text: str) -> float:
    value = float(text)
    if not 0.0 <= value < inf:
        raise argparse.ArgumentTypeError(f"{quoted(text)}: must be seconds, 0 or more")
    return value


def _load(text: str) -> float:
    value = float(text)
    if not value > 0.0:
        raise argparse.ArgumentTypeError(f"{quoted(text)}: must be above 0; 1 is the engines' capacity, inf keeps them saturated")
    return value
