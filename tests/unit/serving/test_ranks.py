"""Data-parallel engines: names, shares, samples and the header; and what a watcher makes of servers with one and with several."""

import asyncio
from dataclasses import replace

import pytest

from proxy.adapters.memory_store import MemoryStore
from proxy.core.events import Event, Observed, ReplicaChanged, ReplicaFound
from proxy.core.gate import Gate
from proxy.core.policy import ReplicaPolicy, Scrape
from proxy.core.replica import EngineSample, ReplicaFacts, ReplicaPhase, ReplicaSample
from proxy.ports.replicas import ReplicaUnreachableError
from proxy.serving.dispatcher import Dispatcher
from proxy.serving.guard import Guard
from proxy.serving.ranks import engines_apart, pinned, rank_of, server_of, split_sample, split_spec
from proxy.serving.replica_spec import spec_of
from proxy.serving.watcher import FAILURES_MAX, ReplicaWatcher
from tests.support.builders import FakeClock, policy

RULES = ReplicaPolicy(url="http://gpu:8000", name="gpu:8000")
ONE = ReplicaFacts(RULES.url, ("m",), 4096, 16, 201)
TWO = replace(ONE, kv_blocks_total=402, engines=2)
NAMES = ("gpu:8000#0", "gpu:8000#1")
CHAT = "/v1/chat/completions"


def engines(*usages: float) -> tuple[EngineSample, ...]:
    return tuple(EngineSample(str(rank), usage, 0, 0) for rank, usage in enumerate(usages))


def test_names_there_and_back() -> None:
    assert [(server_of(name), rank_of(name)) for name in (*NAMES, "gpu:8000")] == [
        ("gpu:8000", 0),
        ("gpu:8000", 1),
        ("gpu:8000", None),
    ]


def test_one_engine_is_its_server() -> None:
    spec = spec_of(ONE, RULES, RULES.name)
    sample = ReplicaSample("other", 1.0, engines(0.5))
    assert split_spec(spec, engines_apart(ONE)) == (spec,)
    assert split_sample(sample, (spec.name,)) == (replace(sample, replica=spec.name),)


def test_each_engine_has_its_share() -> None:
    specs = split_spec(spec_of(TWO, RULES, RULES.name), engines_apart(TWO))
    assert [(one.name, one.server, one.usable_blocks, one.engines) for one in specs] == [
        (name, "gpu:8000", 200, 1) for name in NAMES
    ]


@pytest.mark.parametrize("change", [{"log_stats": False}, {"several_engines_behind": True}])
def test_engines_that_cannot_be_told_apart_are_one_pool(change: dict[str, bool]) -> None:
    facts = replace(TWO, **change)  # type: ignore[arg-type]
    (spec,) = split_spec(spec_of(facts, RULES, RULES.name), engines_apart(facts))
    assert (spec.name, spec.server, spec.usable_blocks, spec.engines) == ("gpu:8000", "", 400, 2)


def test_a_sample_is_split_by_engine() -> None:
    sample = ReplicaSample("gpu:8000", 1.0, engines(0.25, 0.75), new_epoch=True)
    found = split_sample(sample, NAMES)
    assert [(one.replica, one.new_epoch, [engine.kv_usage_ratio for engine in one.engines]) for one in found] == [
        (NAMES[0], True, [0.25]),
        (NAMES[1], True, [0.75]),
    ]


@pytest.mark.parametrize("usages", [(), (0.5,), (0.1, 0.2, 0.3)])
def test_another_number_of_engines_tells_nothing_of_any(usages: tuple[float, ...]) -> None:
    assert [one.engines for one in split_sample(ReplicaSample("gpu:8000", 1.0, engines(*usages)), NAMES)] == [(), ()]


def test_the_header_names_the_engine_where_it_is_read() -> None:
    headers = [(b"accept", b"*/*")]
    own = [*headers, (b"x-data-parallel-rank", b"0")]
    assert pinned(headers, NAMES[1], CHAT) == [*headers, (b"x-data-parallel-rank", b"1")]
    assert pinned(headers, NAMES[1], "/v1/responses") == headers
    assert pinned(headers, "gpu:8000", CHAT) == headers
    assert pinned(own, NAMES[1], CHAT) == own, "the client's choice stands"


class ScriptedFeed:
    """Probes and samples as they are told; at the end it is not reachable."""

    def __init__(self, *answers: ReplicaFacts | ReplicaSample) -> None:
        self._answers = list(answers)
        self.over = asyncio.Event()

    def _next(self) -> ReplicaFacts | ReplicaSample:
        if not self._answers:
            self.over.set()
            raise ReplicaUnreachableError("gone")
        return self._answers.pop(0)

    async def probe(self) -> ReplicaFacts:
        found = self._next()
        assert isinstance(found, ReplicaFacts)
        return found

    async def sample(self) -> ReplicaSample:
        found = self._next()
        assert isinstance(found, ReplicaSample)
        return found


async def watched(*answers: ReplicaFacts | ReplicaSample) -> tuple[ReplicaWatcher, list[Event], Gate]:
    """A watcher after all of the answers and the failures that eject, and what it told the gate."""
    clock = FakeClock()
    gate = Gate(policy(), 0.0)
    guard = Guard(clock, lambda part: pytest.fail(f"a fault in {part}"))
    dispatcher = Dispatcher(gate, clock, MemoryStore(), guard)
    told: list[Event] = []
    feed_gate = dispatcher.feed

    def feed(event: Event) -> None:
        told.append(event)
        feed_gate(event)

    dispatcher.feed = feed  # type: ignore[method-assign]
    watcher = ReplicaWatcher(RULES, Scrape(interval_s=0.0), ScriptedFeed(*answers), dispatcher, guard, lambda *_: None)
    running = asyncio.create_task(watcher.run())
    async with asyncio.timeout(5):
        while watcher.failures < FAILURES_MAX:  # noqa: ASYNC110 - it has no event for it
            await asyncio.sleep(0)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    dispatcher.close()
    return watcher, told, gate


async def test_a_server_with_one_engine_is_told_of_as_ever() -> None:
    sample = ReplicaSample("gpu:8000", 0.0, engines(0.5))
    watcher, told, gate = await watched(ONE, sample)
    assert told == [
        ReplicaFound(spec_of(ONE, RULES, "gpu:8000")),
        Observed(sample),
        ReplicaChanged("gpu:8000", ReplicaPhase.UNREACHABLE),
    ]
    assert (watcher.names, list(gate.fleet.books)) == (("gpu:8000",), ["gpu:8000"])
    assert len(watcher.history["gpu:8000"]) == 1


async def test_what_happens_to_the_server_happens_to_its_engines() -> None:
    watcher, told, gate = await watched(TWO, ReplicaSample("gpu:8000", 0.0, engines(0.25, 0.75)))
    assert [one.replica for one in told if isinstance(one, ReplicaChanged)] == list(NAMES)
    assert [gate.fleet.books[name].measured_blocks for name in NAMES] == [50.0, 150.0]
    assert {name: len(kept) for name, kept in watcher.history.items()} == dict.fromkeys(NAMES, 1)


async def test_engines_that_are_no_more_serve_nothing_and_are_not_shown() -> None:
    again = replace(ONE, kv_blocks_total=None)  # only observed, which must end with it
    samples = [ReplicaSample("gpu:8000", 0.0, engines(0.5, 0.5))]
    samples.append(ReplicaSample("gpu:8000", 0.0, engines(0.5), new_epoch=True, facts=again))
    samples.append(ReplicaSample("gpu:8000", 0.0, engines(0.5, 0.5), new_epoch=True, facts=TWO))
    watcher, _, gate = await watched(TWO, *samples[:2])
    assert watcher.names == ("gpu:8000",)
    assert [book.spec.name for book in gate.fleet.of_model("m")] == ["gpu:8000"]
    assert not gate.fleet.enforced("m")
    watcher, _, gate = await watched(TWO, *samples)
    assert watcher.names == NAMES
    assert [book.spec.name for book in gate.fleet.of_model("m")] == list(NAMES)
    assert gate.fleet.enforced("m")
    assert {book.phase for book in gate.fleet} == {ReplicaPhase.UNREACHABLE}
