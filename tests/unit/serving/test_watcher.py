"""What a watcher makes of looks that fail: late ones, refused ones, and both in turn."""

import asyncio
from dataclasses import dataclass

import pytest

from proxy.adapters.memory_store import MemoryStore
from proxy.core.events import Event, ReplicaChanged, ReplicaFound
from proxy.core.gate import Gate
from proxy.core.policy import ReplicaPolicy, Scrape
from proxy.core.replica import ReplicaFacts, ReplicaPhase, ReplicaSample
from proxy.ports.replicas import ReplicaUnreachableError
from proxy.serving import watcher as watching
from proxy.serving.dispatcher import Dispatcher
from proxy.serving.guard import Guard
from proxy.serving.watcher import FAILURES_MAX, LATE_S_MAX, ReplicaWatcher
from tests.support.builders import FakeClock, demand, engine_sample, lease_of, policy, scrape

NAME = "gpu:8000"
FACTS = ReplicaFacts(url=f"http://{NAME}", models=("m",), context_tokens_max=4096, block_size=16, kv_blocks_total=101)
SERVING, STALLED, UNREACHABLE = ReplicaPhase.SERVING, ReplicaPhase.STALLED, ReplicaPhase.UNREACHABLE


@dataclass(frozen=True)
class Look:
    """How a probe or scrape ends, ``after_s``. ``tokens`` have come on a stream of ours meanwhile."""

    ends: str = "answer"
    after_s: float = 0.0
    tokens: int = 0


ANSWER, REFUSED = Look(), Look("refused")


def late(after_s: float = LATE_S_MAX / 4, tokens: int = 0) -> Look:
    return Look("late", after_s, tokens)


class Course:
    """A watcher that looks as often as there are ``looks`` after its first probe; ``phases`` has its phase before each and at the end."""

    def __init__(self, *looks: Look) -> None:
        self.clock = FakeClock()
        self.gate = Gate(policy(), 0.0)
        guard = Guard(self.clock, lambda part: pytest.fail(f"a fault in {part}"))
        self.dispatcher = Dispatcher(self.gate, self.clock, MemoryStore(), guard)
        self.told: list[Event] = []
        self.phases: list[ReplicaPhase] = []
        self.probes = 0
        self._looks = [Look(), *looks]
        self._over = asyncio.Event()
        self.watcher = ReplicaWatcher(
            ReplicaPolicy(f"http://{NAME}", NAME), Scrape(interval_s=0.0), self, self.dispatcher, guard, lambda *_: None
        )

    async def run(self) -> "Course":
        feed = self.dispatcher.feed

        def keep(event: Event) -> None:
            self.told.append(event)
            feed(event)

        self.dispatcher.feed = keep  # type: ignore[method-assign]
        running = asyncio.create_task(self.watcher.run())
        async with asyncio.timeout(5):
            await self._over.wait()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        self.dispatcher.close()
        return self

    async def _look(self) -> None:
        self.phases.append(self.watcher.phase)
        if not self._looks:
            self._over.set()
            await asyncio.Event().wait()
        look = self._looks.pop(0)
        self.clock.advance(look.after_s)
        if look.tokens:
            book = self.gate.fleet.books[NAME]
            (
                lease_of(demand(), book) if not book.ledger.leases else next(iter(book.ledger.leases.values()))
            ).output_tokens += look.tokens
        if look.ends != "answer":
            raise ReplicaUnreachableError(look.ends, late=look.ends == "late")

    async def probe(self) -> ReplicaFacts:
        self.probes += 1
        await self._look()
        return FACTS

    async def sample(self) -> ReplicaSample:
        await self._look()
        return scrape(NAME, self.clock.now_s(), engine_sample())

    @property
    def changes(self) -> list[ReplicaPhase]:
        """What the gate was told of phases after the first probe."""
        return [event.phase for event in self.told if isinstance(event, ReplicaChanged)]


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "PROBE_S", 0.0)


async def test_one_that_is_late_stalls_after_a_while_and_is_used_again_when_it_answers() -> None:
    course = await Course(ANSWER, late(), late(), late(), late(), late(), ANSWER, late()).run()
    assert course.phases[1:] == [SERVING] * 5 + [STALLED] * 2 + [SERVING] * 2
    assert course.changes == [STALLED, SERVING]
    assert course.gate.fleet.books[NAME].phase is SERVING
    assert course.probes == 1  # a stalled one is scraped on: one request instead of a dozen


async def test_long_silence_in_few_looks_is_no_stall() -> None:
    course = await Course(*[late(LATE_S_MAX)] * (FAILURES_MAX - 1)).run()
    assert course.phases[-1] is SERVING
    assert (await Course(*[late(LATE_S_MAX)] * FAILURES_MAX).run()).phases[-1] is STALLED


async def test_one_whose_streams_go_on_is_not_stalled() -> None:
    course = await Course(*[late(LATE_S_MAX / 2, tokens=1)] * 10).run()
    assert set(course.phases[1:]) == {SERVING}
    course = await Course(*[late(LATE_S_MAX / 2, tokens=1)] * 10, late(LATE_S_MAX / 2), late(LATE_S_MAX / 2)).run()
    assert course.phases[-1] is STALLED


async def test_one_that_refuses_is_gone() -> None:
    course = await Course(*[REFUSED] * (FAILURES_MAX - 1), ANSWER, *[REFUSED] * FAILURES_MAX).run()
    assert course.phases[1:] == [SERVING] * (2 * FAILURES_MAX) + [UNREACHABLE]
    assert course.gate.fleet.books[NAME].phase is UNREACHABLE


async def test_a_stalled_one_that_refuses_is_gone_and_not_for_one_refusal() -> None:
    stalled = [late(LATE_S_MAX)] * FAILURES_MAX
    course = await Course(*stalled, REFUSED, late(), *[REFUSED] * FAILURES_MAX).run()
    assert course.phases[-2:] == [STALLED, UNREACHABLE]
    assert course.changes == [STALLED, UNREACHABLE]


async def test_one_that_is_gone_and_comes_to_be_late_is_probed_on() -> None:
    """Late is not yet there: it may be starting."""
    course = await Course(*[REFUSED] * FAILURES_MAX, *[late(LATE_S_MAX)] * 4, ANSWER).run()
    assert course.phases[-6:] == [UNREACHABLE] * 5 + [SERVING]
    assert course.changes == [UNREACHABLE]
    assert course.probes == 1 + 5
    assert isinstance(course.told[-1], ReplicaFound)


async def test_one_that_was_never_there_stays_so() -> None:
    course = Course(*[late(LATE_S_MAX)] * 4)
    course._looks.pop(0)
    assert set((await course.run()).phases) == {ReplicaPhase.PROBING}
