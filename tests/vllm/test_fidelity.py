"""The engine model against the real engine: the same trace, the same number of blocks, compared step by step.

The trace is 500 requests sent straight to the engine, prompts as token ids, outputs exactly as long as asked, half of the prompts on one of
six shared prefixes. It is sent in two ways, all at once and by 200 clients that send their next request when the last one ends; either
way more is queued than fits, and the engine preempts by the hundred.

What the issue of fidelity asks for is preemptions within 10 % and a mean error of the usage series of at most 0.02. That is the floor.
What is asserted beyond is that *every* scrape shows, in all its series at once, a step that the model made: no tolerance at all. What
would make the two differ, and how it is kept out (``corked_runs`` has the mechanics):

- *When requests arrive.* HTTP cannot choose the step. A run starts corked, so that all first requests are queued before its first step;
  later ones come while others wait, where only their order counts, and the order is read from the engine's own log. What is left of
  the API server's delay shows in the number of those waiting, which is therefore compared in the first way of sending only.
- *Seconds.* The model has none here. Everything is aligned by ``vllm:generation_tokens_total`` of the same scrape.
- *Asynchronous scheduling* would allocate a step ahead of the tokens counted. vLLM turns it off on a CPU.
- *The late counter.* ``vllm:num_preemptions_total`` counts a preemption with the victim's next output. So does the model's
  ``preemptions_exposed``.
- *Steps that sample nothing* leave the token count as it was; a scrape may show any of them.
- *What an earlier run left in the prefix cache.* Nothing that is asked for: prompts of two runs share nothing; cached blocks
  that nobody asks for are free blocks like any other.
"""

import random
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.vllm.conftest import BLOCK_SIZE, VllmFactory, VllmServer, let_the_server_go_first
from tests.vllm.corked_runs import FLAGS, KV_BLOCKS, CorkedRun, RealRun, TraceRequest, random_prompt
from tests.vllm.modelled_runs import SETTINGS, ModelRun, compare, run_model

pytestmark = pytest.mark.vllm

REQUESTS = 500
PREFIXES = 6
SCRAPES_MIN = 200  # 1,500 and more even on two busy cores
PREEMPTIONS_MIN = 100
PREEMPTIONS_ERROR_MAX = 0.1
USAGE_ERROR_MAX = 0.02
RUNS_MAX = 5  # of clients that send one request after the other


@pytest.fixture(scope="module")
def server(vllm_server: VllmFactory) -> VllmServer:
    engine = vllm_server(KV_BLOCKS, *FLAGS)
    let_the_server_go_first(engine)
    return engine


def trace(run: str, temperature: float, top_p: float) -> list[TraceRequest]:
    """Return the trace: lengths and who shares what are the same for every run, token ids are the run's own."""
    lengths, tokens = random.Random(20), random.Random(run)
    prefixes = [random_prompt(tokens, lengths.randrange(40, 400)) for _ in range(PREFIXES)]
    requests = []
    for index in range(REQUESTS):
        prompt_tokens = min(1500, max(8, round(lengths.lognormvariate(4.6, 0.8))))  # median 100
        output_tokens = min(900, max(1, round(lengths.lognormvariate(4.4, 0.9))))  # median 81
        prefix = lengths.choice(prefixes) if lengths.random() < 0.5 else ()
        prompt = prefix + random_prompt(tokens, prompt_tokens)
        requests.append(TraceRequest(f"{run}-{index:03}", prompt, output_tokens, 1, temperature, top_p))
    return requests


async def clients_run(clients: int, server: VllmServer) -> tuple[str, RealRun]:
    """Return a run in which somebody always waited while clients still had requests to send, and its name.

    Else the step at which a request came would matter, and nobody knows it: such a run says nothing and is made again. A starved API
    server makes one, so the steps are made slow by their sampling.
    """
    for attempt in range(RUNS_MAX):
        run = f"trace-{clients}-{attempt}"
        real = await CorkedRun(server, run, trace(run, temperature=1.0, top_p=0.9), clients).go()
        if always_waiting(real, run_model(run, real.arrived, clients), clients):
            return run, real
        print(f"{run}: the queue ran empty while clients still had requests to send; once more")  # noqa: T201
    pytest.fail(
        f"in each of {RUNS_MAX} runs the queue ran empty while clients still had requests to send: is the server starved?"
    )


# 200: with the API server starved, the engine was seen to get through the backlog of 64 before their next requests reached it.
@pytest.mark.parametrize("clients", [REQUESTS, 200])
async def test_the_trace_takes_the_model_through_the_engines_steps(clients: int, server: VllmServer) -> None:
    at_once = clients == REQUESTS
    if at_once:
        run = f"trace-{clients}"
        real = await CorkedRun(server, run, trace(run, temperature=0.0, top_p=1.0), clients).go()
    else:
        run, real = await clients_run(clients, server)
    model = run_model(run, real.arrived, clients)
    comparison = compare(real, model, waiting=at_once)
    print(comparison)  # noqa: T201  shown with -s, and when the test fails
    assert comparison.scrapes >= SCRAPES_MIN, comparison
    assert comparison.preemptions >= PREEMPTIONS_MIN, comparison
    assert comparison.preemptions_error <= PREEMPTIONS_ERROR_MAX, comparison
    assert comparison.usage_error <= USAGE_ERROR_MAX, comparison
    assert comparison.different == (), comparison
    # The comparison sees a pool that is one block smaller, a hundredth of it kept free, and a prefix cache that is not there.
    for change in ({"num_gpu_blocks": KV_BLOCKS - 1}, {"watermark": 0.01}, {"prefix_caching": False}):
        other = run_model(run, real.arrived, clients, replace(SETTINGS, **change))
        assert compare(real, other, waiting=at_once).different, change


def always_waiting(real: RealRun, model: ModelRun, clients: int) -> bool:
    """Whether somebody waited at every scrape until the last request had come: from then on fewer than ``clients`` are open."""
    last = max(state.generated for state in model.states if state.running + state.waiting >= clients)
    return all(state.waiting > 0 for state in real.states if state.generated <= last)


ALONE_TOKENS = 70  # two or three blocks of growth
EDGES = (1, 2, 31, 32, 33, 63, 64, 65, 95, 96, 97, 255, 256, 257, 1000, 3000)
ALONE_PROMPTS = sorted({*EDGES, *range(10, 400, 30)})
ATTEMPTS = 10  # a starved API server shows few steps


def costly(name: str, prompt: tuple[int, ...], output_tokens: int, copies: int = 1) -> TraceRequest:
    """Return a request whose steps are slowed by their sampling: this tiny model's are so short that a scrape seldom sees one."""
    return TraceRequest(name, prompt, output_tokens, copies, temperature=1.0, top_p=0.9)


async def test_each_request_alone_holds_the_blocks_of_the_model(server: VllmServer) -> None:
    """One at a time, and all again until half of them were seen running. The last token's step ends with all blocks given back."""
    seen_of: set[int] = set()
    edges = 0
    for attempt in range(ATTEMPTS):
        run = f"alone-{attempt}"
        rng = random.Random(run)
        requests = [costly(f"{run}-{tokens}", random_prompt(rng, tokens), ALONE_TOKENS) for tokens in ALONE_PROMPTS]
        real = await CorkedRun(server, run, requests, 1).go()
        model = run_model(run, requests, 1)
        comparison = compare(real, model, waiting=False)
        assert comparison.different == (), comparison
        assert [state for state, blocks in zip(model.states, model.held, strict=True) if state.used_blocks != sum(blocks)] == []
        # The first token of the run is the cork's.
        seen_of |= {(state.generated - 2) // ALONE_TOKENS for state in real.states if state.running == 1}
        edges += edges_seen(real, 1)
        print(comparison, f"seen running: {len(seen_of)} of {len(requests)} requests, {edges} block edges")  # noqa: T201
        if len(seen_of) > len(requests) / 2 and edges:
            return
    pytest.fail(f"in {ATTEMPTS} runs scrapes saw {len(seen_of)} requests running and {edges} block edges: is the server starved?")


@pytest.mark.parametrize(("prompt_tokens", "copies"), [(1, 2), (64, 2), (65, 2), (96, 4)])
async def test_copies_share_the_blocks_that_the_model_has_them_share(prompt_tokens: int, copies: int, server: VllmServer) -> None:
    """n > 1, alone. All copies are decoding once all have a token; until a block edge was seen, the request is made again."""
    for attempt in range(ATTEMPTS):
        run = f"copies-{prompt_tokens}-{copies}-{attempt}"
        request = costly(f"{run}-0", random_prompt(random.Random(run), prompt_tokens), 2 * ALONE_TOKENS, copies)
        real = await CorkedRun(server, run, [request], 1).go()
        model = run_model(run, [request], 1)
        comparison = compare(real, model, waiting=True)
        assert comparison.different == (), comparison
        shared_blocks = (copies - 1) * ((prompt_tokens - 1) // BLOCK_SIZE)
        for state, blocks in zip(model.states, model.held, strict=True):
            if state.running == copies:
                assert state.used_blocks == sum(blocks) - shared_blocks, state
        if edges_seen(real, copies):
            return
    pytest.fail(f"in {ATTEMPTS} runs no two scrapes showed the steps before and after a new block")


def edges_seen(real: RealRun, sequences: int) -> int:
    """Return how often scrapes saw two steps in a row, the second with a new block for every sequence."""
    return sum(
        after.generated - before.generated == sequences and after.used_blocks - before.used_blocks == sequences
        for before, after in pairwise(real.states)
    )
