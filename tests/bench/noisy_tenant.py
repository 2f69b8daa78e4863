"""What a tenant at ten times its rate does to the others: their first tokens with it and without its excess, in pairs, over real HTTP.

    python -m tests.bench.noisy_tenant --policy policies/multi-tenant.yaml --kv-blocks 2049 --output-tokens 40 --pairs 3

kvgate as a process before one mock replica. Every tenant offers its rate, evenly and open-loop: requests are sent when they are due,
however many are still open. In one run of each pair the first tenant comes to offer ten times its rate after ten seconds, which are not
counted; the others send the same requests at the same times in both. The order alternates, and the buckets are full again before each.
TTFT is taken at the client; of the others everybody must be served.

``--policy FILE`` is the policy; the first tenant's rate is then the file's ``tenants.others.requests_per_s``. Without it kvgate gets rates
of tokens of our own, or with ``--unlimited`` none at all: then only fair queueing stands between the tenants.

``--over 1`` tells what the machine alone makes of the ratio: both runs of a pair are alike then. ``--virtual`` runs the same over real
HTTP in one process in virtual time, where programs cost nothing and no machine disturbs; ``--simulate`` in the simulator, without HTTP.
"""

import argparse
import asyncio
import json
import statistics
import sys
from contextlib import AbstractAsyncContextManager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import yaml

from tests.bench.load import new_upstream, percentile
from tests.bench.noisy_arms import OVER_RATE, WARM_S, Arm, Options, as_processes, in_this_loop, run_arm, simulate
from tests.support.virtual_loop import run_virtually

RATIO_MAX = 1.2


def order_of(pairs: int) -> list[tuple[int, bool]]:
    """Seed and whether it is loud, of every run in the order of time."""
    return [(pair, loud) for pair in range(1, pairs + 1) for loud in ((False, True) if pair % 2 else (True, False))]


def paired(order: list[tuple[int, bool]], arms: list[Arm]) -> list[tuple[Arm, Arm]]:
    """(quiet, loud) of every pair."""
    of = dict(zip(order, arms, strict=True))
    return [(of[seed, False], of[seed, True]) for seed in sorted({seed for seed, _ in order})]


async def run_pairs(options: Options, stage: AbstractAsyncContextManager[str]) -> list[tuple[Arm, Arm]]:
    """Return (quiet, loud) of every pair, over HTTP."""
    upstream, order, arms = new_upstream(), order_of(options.pairs), []
    async with stage as url:
        await run_arm(upstream, url, replace(options, seconds=WARM_S), 0, loud=False)
        for seed, loud in order:
            await asyncio.sleep(options.pause_s)
            arms.append(await run_arm(upstream, url, options, seed, loud=loud))
            if len(arms) % 2 == 0:
                sys.stdout.write(f"pair {seed}: {_line(*paired(order[len(arms) - 2 : len(arms)], arms[-2:])[0])}\n")
                sys.stdout.flush()
    await upstream.aclose()
    return paired(order, arms)


def _line(quiet: Arm, loud: Arm) -> str:
    return (
        f"others' TTFT p50 {quiet.ttft_p50_ms:.0f} -> {loud.ttft_p50_ms:.0f} ms, p99 {quiet.ttft_p99_ms:.0f} -> {loud.ttft_p99_ms:.0f} ms "
        f"({loud.ttft_p99_ms / max(quiet.ttft_p99_ms, 1e-9):.2f}x); not served {quiet.others_not_served} -> {loud.others_not_served} "
        f"of {loud.others}; loud: {loud.loud_outcomes}"
    )


def result_of(found: list[tuple[Arm, Arm]]) -> dict[str, Any]:
    """All pairs together. A single run's p99 is the second or third latest of its requests: a machine that stalls once moves it more than
    any tenant does.
    """
    quiet_ms, loud_ms = (percentile([one for pair in found for one in pair[side].ttfts_ms], 0.99) or 0.0 for side in (0, 1))
    return {
        "quiet_p99_ms": quiet_ms,
        "loud_p99_ms": loud_ms,
        "ratio": loud_ms / max(quiet_ms, 1e-9),
        "median": statistics.median(loud.ttft_p99_ms / max(quiet.ttft_p99_ms, 1e-9) for quiet, loud in found),
        "not_served": sum(arm.others_not_served for pair in found for arm in pair),
    }


def options_of(asked: argparse.Namespace) -> Options:
    """The series that was asked for."""
    said = None if asked.policy is None else yaml.safe_load(asked.policy.read_text(encoding="utf-8"))
    rate = (said or {}).get("tenants", {}).get("others", {}).get("requests_per_s")
    return Options(
        asked.pairs, asked.seconds, asked.tenants, asked.per_s, asked.unlimited, asked.over, asked.undisturbed_ratio,
        asked.loud_per_s if asked.loud_per_s is not None else rate, asked.output_tokens, asked.kv_blocks, said,
    )  # fmt: skip


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--tenants", type=int, default=5)
    parser.add_argument("--per-s", type=float, default=1.5, help="requests of each tenant")
    parser.add_argument(
        "--loud-per-s", type=float, help="of the first one, as its rate is; without it as the policy says, or as the others"
    )
    parser.add_argument("--over", type=float, default=OVER_RATE)
    parser.add_argument("--unlimited", action="store_true")
    parser.add_argument("--undisturbed-ratio", type=float, default=0.0, help="the policy's key of that name")
    parser.add_argument("--policy", type=Path, metavar="FILE", help="the policy, in the place of ours")
    parser.add_argument("--kv-blocks", type=int, default=257)
    parser.add_argument("--output-tokens", type=int, default=120)
    where = parser.add_mutually_exclusive_group()
    where.add_argument("--virtual", action="store_true", help="over HTTP in one process, in virtual time")
    where.add_argument("--simulate", action="store_true", help="in the simulator")
    parser.add_argument("--json", type=Path)
    return parser.parse_args()


def main() -> int:
    """Run the series; 1 when the ratio of the others' p99, of all pairs together, exceeds 1.2 or one of them was not served."""
    asked = _arguments()
    options = options_of(asked)
    if asked.simulate:
        order = order_of(options.pairs)
        found = paired(order, simulate(options, order))
        sys.stdout.writelines(f"pair {number}: {_line(*pair)}\n" for number, pair in enumerate(found, 1))
    elif asked.virtual:
        found = run_virtually(run_pairs(options, in_this_loop(options)))
    else:
        found = asyncio.run(run_pairs(options, as_processes(options)))
    result = result_of(found)
    sys.stdout.write(
        f"the others' p99 TTFT over {len(found)} pairs: {result['quiet_p99_ms']:.1f} -> {result['loud_p99_ms']:.1f} ms "
        f"({result['ratio']:.2f}x; median of the pairs {result['median']:.2f}x); not served {result['not_served']}\n"
    )
    if asked.json is not None:
        pairs = [[asdict(arm) for arm in pair] for pair in found]
        asked.json.write_text(
            json.dumps({"options": asdict(options), **result, "pairs": pairs}, indent=1) + "\n", encoding="utf-8"
        )
    return int(result["ratio"] > RATIO_MAX or result["not_served"] > 0)


if __name__ == "__main__":
    sys.exit(main())
