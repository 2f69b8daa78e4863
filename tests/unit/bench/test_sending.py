"""Open and closed loops, with an upstream and a clock of the test's own."""

import asyncio
import json

import pytest

from proxy.adapters.tokenizer_files import LoadedTokenizer, open_tokenizer
from proxy.bench.plan import Dresser, FixedLengths, Shape, workload_of
from proxy.bench.prompts import PromptMaker
from proxy.bench.sending import Course, Sender
from proxy.ports import Headers
from proxy.sim.mock_text import TOKENIZER_DIRECTORY
from proxy.sim.workloads import Workload
from tests.unit.bench.test_load import CHUNK, DONE, USAGE, Response


class LoopClock:
    """The event loop's own."""

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    def wall_s(self) -> float:
        return 0.0


class Server:
    """Answers at once, or holds everything until it is let go."""

    def __init__(self, hold: bool = False) -> None:
        self.bodies: list[bytes] = []
        self.open_now = self.open_most = 0
        self.go = asyncio.Event()
        if not hold:
            self.go.set()

    async def open(self, _url: str, _method: bytes, _target: bytes, _headers: Headers, body: bytes) -> Response:
        self.bodies.append(body)
        self.open_now += 1
        self.open_most = max(self.open_most, self.open_now)
        try:
            await self.go.wait()
        finally:
            self.open_now -= 1
        return Response([CHUNK, CHUNK, USAGE + DONE])

    async def aclose(self) -> None:
        pass


@pytest.fixture(scope="module")
def tokenizer() -> LoadedTokenizer:
    return open_tokenizer(str(TOKENIZER_DIRECTORY), wall_s=lambda: 0.0)


@pytest.fixture
def prompts(tokenizer: LoadedTokenizer) -> PromptMaker:
    return PromptMaker(tokenizer, chat=False, block_size=16, seed=1)


def sender(server: Server, prompts: PromptMaker, course: Course, workload: Workload | None = None) -> Sender:
    dresser = Dresser("m", prompts, Shape(api="completions"), None, 0)
    return Sender(server, "http://r", workload or FixedLengths("fixed:30:5", 1), dresser, course, LoopClock())


async def test_an_open_loop_sends_on_time_whatever_became_of_the_others(prompts: PromptMaker) -> None:
    server = Server(hold=True)
    run = sender(server, prompts, Course(duration_s=0.3, drain_s=30.0, rate_per_s=100.0))
    sending = asyncio.create_task(run.run())
    while len(server.bodies) < 15:  # noqa: ASYNC110 - nobody is answered before that
        await asyncio.sleep(0.005)
    assert not run.sent.samples
    stalled_s = run.now_s()
    server.go.set()
    await sending
    samples = run.sent.samples
    assert {one.outcome for one in samples} == {"completed"}
    # Those that were planned before the stall ended say so, to the moment of the plan.
    first = min(samples, key=lambda one: one.planned_s)
    assert first.ttft_s is not None
    assert first.ttft_s >= stalled_s - first.planned_s
    assert len(samples) == len(server.bodies)
    assert max(one.planned_s for one in samples) < 0.3


async def test_what_is_open_when_the_drain_is_over_is_unfinished(prompts: PromptMaker) -> None:
    run = sender(Server(hold=True), prompts, Course(duration_s=0.05, drain_s=0.05, rate_per_s=200.0))
    await run.run()
    assert {one.outcome for one in run.sent.samples} == {"unfinished"}
    assert run.sent.open == 0


async def test_a_closed_loop_has_as_many_open_as_clients_and_ends_by_count(prompts: PromptMaker) -> None:
    server = Server()
    run = sender(server, prompts, Course(duration_s=60.0, drain_s=1.0, concurrency=3, requests_max=20))
    await run.run()
    assert len(run.sent.samples) == 20
    assert server.open_most <= 3
    assert len(set(server.bodies)) == 20
    assert all(one.planned_s == one.sent_s for one in run.sent.samples)


async def test_prompts_that_the_engine_counts_differently_are_counted(prompts: PromptMaker) -> None:
    run = sender(Server(), prompts, Course(duration_s=60.0, drain_s=1.0, concurrency=1, requests_max=4))
    await run.run()
    assert run.sent.miscounted == 4  # this server says 3 to everything


async def test_a_session_goes_on_after_its_answer(prompts: PromptMaker) -> None:
    server = Server()
    workload = workload_of("agent", 1, 16)
    run = sender(server, prompts, Course(duration_s=60.0, drain_s=1.0, concurrency=1, requests_max=1), workload)
    sending = asyncio.create_task(run.run())
    while len(server.bodies) < 2:  # noqa: ASYNC110 - the second turn comes a think time after the first answer
        await asyncio.sleep(0.01)
    sending.cancel()
    await asyncio.gather(sending, return_exceptions=True)
    lengths = [len(json.loads(body)["prompt"].split()) for body in server.bodies]
    assert len(lengths) > 1
    assert lengths[0] < lengths[1]


async def test_a_course_of_arrivals_is_no_closed_loop(prompts: PromptMaker) -> None:
    run = sender(Server(), prompts, Course(duration_s=1.0, drain_s=1.0, concurrency=1), workload_of("surge", 1, 16))
    with pytest.raises(ValueError, match="surge"):
        await run.run()
