"""What the tenants of ``noisy_tenant`` send, and where: to processes, in one loop of virtual time, in the simulator."""

import asyncio
import json
import random
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from proxy.adapters.upstream import HttpUpstream
from proxy.bench.processes import Programs, free_ports, until_ready
from proxy.config.policy_file import parse
from proxy.sim.admission import GateAdmission
from proxy.sim.engine_requests import EngineSettings
from proxy.sim.mock_settings import MockSettings
from proxy.sim.mock_text import TOKENIZER_DIRECTORY, MockTokenizer
from proxy.sim.sim_request import SimRequest
from proxy.sim.world import Listed, World, WorldSettings
from tests.bench.load import Fate, LoadRequest, Record, new_upstream, percentile, send
from tests.bench.loads import as_request, chat, distinct_words
from tests.integration.mock_harness import running
from tests.integration.serving.harness import proxying, url_of

LOUD = "t0"
OVER_RATE = 10.0
PROMPT_WORDS = 60
CONTEXT_TOKENS = 2048
TOKENS_PER_REQUEST = 260.0  # above what one takes, prompt and output: nobody who keeps to his rate is refused
BURST_S = 5
WARM_S = 5.0  # lengths and step times are learned
LEAD_S = 10.0  # of each run: everybody keeps to his rate, and nobody's first token is counted
PAUSE_S = 1.0  # between two runs, beside what fills the buckets


@dataclass(frozen=True, slots=True)
class Options:
    """One series. ``said`` is what a policy file says, None: rates of our own."""

    pairs: int
    seconds: float
    tenants: int
    per_s: float  # requests of each tenant
    unlimited: bool = False
    over: float = OVER_RATE
    undisturbed_ratio: float = 0.0
    loud_per_s: float | None = None  # of the first tenant, as its rate is; None: as the others
    output_tokens: int = 120
    kv_blocks: int = 257  # what the others hold at once is about half of it; with ten times one rate it is not enough
    said: Mapping[str, Any] | None = None

    @property
    def pause_s(self) -> float:
        """Between two runs: buckets are full again after it."""
        return PAUSE_S + (BURST_S if self.said is None else parse(yaml.safe_dump(self.said), "policy").tenants.others.burst_s)


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


def policy(options: Options) -> dict[str, Any]:
    """What kvgate is told."""
    if options.said is not None:
        return dict(options.said) | {"relay": {"drain_accept": "0s"}}
    rate = {"tokens_per_min": round(options.per_s * 60.0 * TOKENS_PER_REQUEST, 1), "burst": f"{BURST_S}s"}
    tenants: dict[str, object] = {"from": "header", "undisturbed_ratio": options.undisturbed_ratio}
    return {"tenants": tenants if options.unlimited else tenants | {"others": rate}, "relay": {"drain_accept": "0s"}}


def arrivals(options: Options, seed: int, *, loud: bool) -> list[tuple[float, str, LoadRequest]]:
    """When, whose and what, in the order of time. The others' are the same with and without the excess."""
    found = []
    for index in range(options.tenants):
        tenant, rng = f"t{index}", random.Random(f"{seed} {index}")
        rate = options.per_s if tenant != LOUD or options.loud_per_s is None else options.loud_per_s
        for begins_s, lasts_s, times in (
            (0.0, LEAD_S, 1.0),
            (LEAD_S, options.seconds, options.over if loud and not index else 1.0),
        ):
            per_s = rate * times
            for number in range(int(lasts_s * per_s)):
                due_s = begins_s + (number + rng.random()) / per_s  # one in each interval: the rate is kept at every moment
                words = distinct_words(rng, PROMPT_WORDS)
                target, fields = chat("mock", words, max_tokens=options.output_tokens, ignore_eos=True)
                found.append((due_s, tenant, as_request(target, fields)))
    return sorted(found, key=lambda one: one[0])


def prompt_tokens(request: LoadRequest, tokenizer: MockTokenizer) -> int:
    """As many as the mock takes the prompt for."""
    return len(tokenizer.encode(tokenizer.render(json.loads(request.body)["messages"], add_generation_prompt=True)))


def counted(arrival: tuple[float, str, LoadRequest]) -> bool:
    """Whether a request came after the lead."""
    return arrival[0] >= LEAD_S


def arm(loud: bool, others_ttfts_s: list[float], others: int, loud_outcomes: Mapping[str, int]) -> Arm:
    """Sum up one run."""
    ttfts_ms = [1e3 * one for one in others_ttfts_s]
    return Arm(
        loud, others, others - len(ttfts_ms), percentile(ttfts_ms, 0.5) or 0.0, percentile(ttfts_ms, 0.99) or 0.0,
        dict(loud_outcomes), tuple(round(ttft_ms, 2) for ttft_ms in ttfts_ms),
    )  # fmt: skip


async def run_arm(upstream: HttpUpstream, url: str, options: Options, seed: int, *, loud: bool) -> Arm:
    """Send everything when it is due, and wait for the last."""
    loop = asyncio.get_running_loop()
    begin_s = loop.time()

    async def one(due_s: float, tenant: str, request: LoadRequest) -> tuple[str, Record]:
        await asyncio.sleep(begin_s + due_s - loop.time())
        who = ((b"x-kvgate-tenant", tenant.encode()), (b"authorization", f"Bearer key-of-{tenant}".encode()))
        return tenant, await send(upstream, url, replace(request, headers=who))

    every = arrivals(options, seed, loud=loud)
    met = [
        met for met, arrival in zip(await asyncio.gather(*(one(*each) for each in every)), every, strict=True) if counted(arrival)
    ]
    others = [record for tenant, record in met if tenant != LOUD]
    served = [record for record in others if record.fate is Fate.COMPLETED]
    ttfts_s = [record.first_s - record.sent_s for record in served if record.first_s is not None]
    return arm(loud, ttfts_s, len(others), Counter(record.outcome or record.fate for tenant, record in met if tenant == LOUD))


@asynccontextmanager
async def as_processes(options: Options) -> AsyncIterator[str]:
    """A mock replica and kvgate, each a process; yields kvgate's address."""
    mock_port, port, admin_port = free_ports(3)
    mock_url, url = f"http://127.0.0.1:{mock_port}", f"http://127.0.0.1:{port}"
    upstream = new_upstream()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "policy.yaml"
        path.write_text(yaml.safe_dump(policy(options)), encoding="utf-8")
        async with Programs() as programs:
            size = ["--num-gpu-blocks", str(options.kv_blocks), "--max-model-len", str(CONTEXT_TOKENS)]
            mock = await programs.start("mock-vllm", ["mock-vllm", "--port", str(mock_port), *size])
            await until_ready(mock, upstream, mock_url, path=b"/health")
            words = ["serve", "--replica", mock_url, "--policy", str(path), "--tokenizer", str(TOKENIZER_DIRECTORY)]
            kvgate = await programs.start("kvgate", [*words, "--port", str(port), "--admin-port", str(admin_port)])
            await until_ready(kvgate, upstream, url)
            yield url
    await upstream.aclose()


@asynccontextmanager
async def in_this_loop(options: Options) -> AsyncIterator[str]:
    """Both on real sockets of this event loop, which may be one of virtual time (``tests.support.virtual_loop``)."""
    engine = EngineSettings(num_gpu_blocks=options.kv_blocks, max_model_len=CONTEXT_TOKENS)
    scrapes = {"scrape": {"interval": "500ms"}}
    async with running(MockSettings(engine=engine)) as mock, proxying(url_of(mock), policy=policy(options) | scrapes) as kvgate:
        yield kvgate.base_url.removesuffix("/v1")


def simulate(options: Options, order: list[tuple[int, bool]]) -> list[Arm]:
    """The same requests in the simulator, the runs of ``order`` (seed, loud) one after another in one world."""
    tokenizer, begins_s, numbers = MockTokenizer(), 2.0, []
    requests: list[SimRequest] = []
    for number, (seed, loud) in enumerate([(0, False), *order]):
        which = replace(options, seconds=WARM_S) if not number else options
        for due_s, tenant, body in arrivals(which, seed, loud=loud):
            numbers.append((number, tenant, counted((due_s, tenant, body))))
            requests.append(
                SimRequest(f"{number}-{len(requests)}", prompt_tokens(body, tokenizer), options.output_tokens, options.output_tokens,
                           begins_s + due_s, tenant, wait_s_max=30.0)
            )  # fmt: skip
        begins_s += LEAD_S + which.seconds + options.pause_s + 60.0 * options.output_tokens / 1e3  # until the last has ended
    engine = EngineSettings(num_gpu_blocks=options.kv_blocks, block_size=16, max_model_len=CONTEXT_TOKENS)
    chosen = parse(yaml.safe_dump(policy(options)), "policy")
    results = World(WorldSettings(engine=engine), GateAdmission(chosen), Listed(requests)).run().results
    of: dict[int, list[tuple[str, Any]]] = {}
    for (number, tenant, counts), request in zip(numbers, requests, strict=True):
        if counts:
            of.setdefault(number, []).append((tenant, results[request.request_id]))
    return [
        arm(
            loud,
            [one.first_s - one.arrived_s for tenant, one in of[number] if tenant != LOUD and one.first_s is not None],
            sum(tenant != LOUD for tenant, _ in of[number]),
            Counter(str(one.outcome) for tenant, one in of[number] if tenant == LOUD),
        )
        for number, (_, loud) in enumerate(order, 1)
    ]
