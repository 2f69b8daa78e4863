"""What a tenant at ten times its rate does to the others: their first tokens with it and without its excess, in pairs, over real HTTP.

    python -m tests.bench.noisy_tenant --pairs 5 --seconds 30 --json out.json

kvgate as a process before one mock replica. Every tenant offers its rate, evenly and open-loop: requests are sent when they are due,
however many are still open. In one run of each pair the first tenant offers ten times its rate; the others send the same requests at the
same times in both. The order alternates, and the buckets are full again before each. TTFT is taken at the client; of the others everybody
must be served.

``--over 1`` tells what the machine alone makes of the ratio: both runs of a pair are alike then. ``--unlimited`` leaves the rates out of
the policy: then only fair queueing stands between the tenants.
"""

import argparse
import asyncio
import json
import random
import statistics
import sys
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import yaml

from proxy.adapters.upstream import HttpUpstream
from proxy.bench.processes import Programs, free_ports, until_ready
from proxy.sim.mock_text import TOKENIZER_DIRECTORY
from tests.bench.load import Fate, LoadRequest, Record, new_upstream, percentile, send
from tests.bench.loads import as_request, chat, distinct_words

LOUD = "t0"
OVER_RATE = 10.0
PROMPT_WORDS, OUTPUT_TOKENS = 60, 120
KV_BLOCKS = 257  # what the others hold at once is about half of it; with ten times one rate it is not enough
TOKENS_PER_REQUEST = 260.0  # above what one takes, prompt and output: nobody who keeps to his rate is refused
BURST_S = 5


@dataclass(frozen=True, slots=True)
class Options:
    """One series."""

    pairs: int
    seconds: float
    tenants: int
    per_s: float  # requests of each tenant
    unlimited: bool
    over: float = OVER_RATE
    undisturbed_ratio: float = 0.0


@dataclass(frozen=True, slots=True)
class Arm:
    """One run. Times are the others'."""

    loud: bool
    others: int
    others_not_served: int
    ttft_p50_ms: float
    ttft_p99_ms: float
    loud_outcomes: dict[str, int]
    ttfts_ms: tuple[float, ...]


def policy(options: Options) -> dict[str, object]:
    """What kvgate is told."""
    rate = {"tokens_per_min": round(options.per_s * 60.0 * TOKENS_PER_REQUEST, 1), "burst": f"{BURST_S}s"}
    tenants: dict[str, object] = {"from": "header", "undisturbed_ratio": options.undisturbed_ratio}
    return {"tenants": tenants if options.unlimited else tenants | {"others": rate}, "relay": {"drain_accept": "0s"}}


def arrivals(options: Options, seed: int, *, loud: bool) -> list[tuple[float, str, LoadRequest]]:
    """When, whose and what, in the order of time. The others' are the same with and without the excess."""
    found = []
    for index in range(options.tenants):
        tenant, rng = f"t{index}", random.Random(f"{seed} {index}")
        per_s = options.per_s * (options.over if loud and tenant == LOUD else 1.0)
        for number in range(int(options.seconds * per_s)):
            due_s = (number + rng.random()) / per_s  # one in each interval: the rate is kept at every moment
            target, fields = chat("mock", distinct_words(rng, PROMPT_WORDS), max_tokens=OUTPUT_TOKENS, ignore_eos=True)
            found.append((due_s, tenant, as_request(target, fields)))
    return sorted(found, key=lambda one: one[0])


async def run_arm(upstream: HttpUpstream, url: str, options: Options, seed: int, *, loud: bool) -> Arm:
    """Send everything when it is due, and wait for the last."""
    loop = asyncio.get_running_loop()
    begin_s = loop.time()

    async def one(due_s: float, tenant: str, request: LoadRequest) -> tuple[str, Record]:
        await asyncio.sleep(begin_s + due_s - loop.time())
        return tenant, await send(upstream, url, replace(request, headers=((b"x-kvgate-tenant", tenant.encode()),)))

    met = await asyncio.gather(*(one(*arrival) for arrival in arrivals(options, seed, loud=loud)))
    others = [record for tenant, record in met if tenant != LOUD]
    served = [record for record in others if record.fate is Fate.COMPLETED and record.first_s is not None]
    ttfts_ms = [1e3 * (record.first_s - record.sent_s) for record in served if record.first_s is not None]
    return Arm(
        loud, len(others), len(others) - len(served), percentile(ttfts_ms, 0.5) or 0.0, percentile(ttfts_ms, 0.99) or 0.0,
        dict(Counter(record.outcome or record.fate for tenant, record in met if tenant == LOUD)),
        tuple(round(ttft_ms, 2) for ttft_ms in ttfts_ms),
    )  # fmt: skip


async def run_pairs(options: Options) -> list[tuple[Arm, Arm]]:
    """Return (quiet, loud) of every pair."""
    mock_port, port, admin_port = free_ports(3)
    mock_url, url = f"http://127.0.0.1:{mock_port}", f"http://127.0.0.1:{port}"
    upstream = new_upstream()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.yaml"
        path.write_text(yaml.safe_dump(policy(options)), encoding="utf-8")
        async with Programs() as programs:
            words = ["mock-vllm", "--port", str(mock_port), "--num-gpu-blocks", str(KV_BLOCKS), "--max-model-len", "2048"]
            mock = await programs.start("mock-vllm", words)
            await until_ready(mock, upstream, mock_url, path=b"/health")
            words = ["serve", "--replica", mock_url, "--policy", str(path), "--tokenizer", str(TOKENIZER_DIRECTORY)]
            kvgate = await programs.start("kvgate", [*words, "--port", str(port), "--admin-port", str(admin_port)])
            await until_ready(kvgate, upstream, url)
            await run_arm(upstream, url, replace(options, seconds=5.0), 0, loud=False)  # lengths and step times are learned
            found = []
            for pair in range(1, options.pairs + 1):
                arms = {}
                for loud in (False, True) if pair % 2 else (True, False):
                    await asyncio.sleep(BURST_S + 1.0)
                    arms[loud] = await run_arm(upstream, url, options, pair, loud=loud)
                found.append((arms[False], arms[True]))
                sys.stdout.write(f"pair {pair}: {_line(*found[-1])}\n")
                sys.stdout.flush()
    await upstream.aclose()
    return found


def _line(quiet: Arm, loud: Arm) -> str:
    return (
        f"others' TTFT p50 {quiet.ttft_p50_ms:.0f} -> {loud.ttft_p50_ms:.0f} ms, p99 {quiet.ttft_p99_ms:.0f} -> {loud.ttft_p99_ms:.0f} ms "
        f"({loud.ttft_p99_ms / max(quiet.ttft_p99_ms, 1e-9):.2f}x); not served {quiet.others_not_served} -> {loud.others_not_served} "
        f"of {loud.others}; loud: {loud.loud_outcomes}"
    )


def main() -> int:
    """Run the series; 1 when the ratio of the others' p99, of all pairs together, exceeds 1.2 or one of them was not served.

    A single run's p99 is the second or third latest of its requests: a machine that stalls once moves it more than any tenant does.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--tenants", type=int, default=5)
    parser.add_argument("--per-s", type=float, default=1.5)
    parser.add_argument("--over", type=float, default=OVER_RATE)
    parser.add_argument("--unlimited", action="store_true")
    parser.add_argument("--undisturbed-ratio", type=float, default=0.0, help="the policy's key of that name")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    options = Options(
        asked.pairs, asked.seconds, asked.tenants, asked.per_s, asked.unlimited, asked.over, asked.undisturbed_ratio
    )
    found = asyncio.run(run_pairs(options))
    quiet_ms, loud_ms = (percentile([one for pair in found for one in pair[side].ttfts_ms], 0.99) or 0.0 for side in (0, 1))
    ratio = loud_ms / max(quiet_ms, 1e-9)
    median = statistics.median(loud.ttft_p99_ms / quiet.ttft_p99_ms for quiet, loud in found)
    pairs = len(found)
    not_served = sum(arm.others_not_served for pair in found for arm in pair)
    sys.stdout.write(
        f"the others' p99 TTFT over {pairs} pairs: {quiet_ms:.0f} -> {loud_ms:.0f} ms ({ratio:.2f}x; median of the pairs {median:.2f}x); "
        f"not served {not_served}\n"
    )
    if asked.json is not None:
        result = {
            "options": asdict(options),
            "ratio": ratio,
            "median": median,
            "pairs": [[asdict(arm) for arm in pair] for pair in found],
        }
        asked.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return int(ratio > 1.2 or not_served > 0)


if __name__ == "__main__":
    sys.exit(main())
