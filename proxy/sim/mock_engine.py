"""Engines in real time: each steps, waits as long as the step would take, then hands out its tokens.

The clock is the event loop's. Steps are paced against a running deadline, so short oversleeps do not add up; a loop that fell behind by
more than ``LAG_S_MAX`` starts a new pace instead of racing to catch up. Tests that must come out the same on any machine put another
``Pace`` in its place.
"""

import asyncio
from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from proxy.sim.engine import Engine
from proxy.sim.engine_requests import EngineCounters, EngineGauges, EngineRequest, EngineSettings, FinishReason
from proxy.sim.step_time import StepTimeModel

LAG_S_MAX = 0.25
SLEEP_S_MIN = 0.0005  # below the event loop's own resolution


class Histogram:
    """Cumulative bucket counts as Prometheus shows them."""

    __slots__ = ("_counts", "bounds", "count", "total")

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self.bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.count = 0

    def observe(self, value: float, times: int = 1) -> None:
        """Count ``value``."""
        self._counts[bisect_left(self.bounds, value)] += times
        self.total += value * times
        self.count += times

    def cumulative(self) -> list[int]:
        """Observations at or below each bound, then all."""
        sums, running = [], 0
        for count in self._counts:
            running += count
            sums.append(running)
        return sums


SECONDS = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
    80.0,
    160.0,
    640.0,
)
COUNTS = tuple(float(factor * 10**power) for power in range(6) for factor in (1, 2, 5))


@dataclass(slots=True)
class Latencies:
    """Per-engine histograms, in seconds or tokens."""

    time_to_first_token: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    inter_token: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    end_to_end: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    queue: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    prefill: Histogram = field(default_factory=lambda: Histogram(SECONDS))
    prompt_tokens: Histogram = field(default_factory=lambda: Histogram(COUNTS))
    generation_tokens: Histogram = field(default_factory=lambda: Histogram(COUNTS))
    step_tokens: Histogram = field(default_factory=lambda: Histogram(tuple(float(1 << power) for power in range(15))))


class TokenSink:
    """Tokens on their way to one HTTP request. Events are (choice, finish reason or None), one per token, in order."""

    __slots__ = ("__weakref__", "_events", "_waiter", "gone")

    def __init__(self) -> None:
        self._events: list[tuple[int, FinishReason | None]] = []
        self._waiter: asyncio.Future[None] | None = None
        self.gone = False

    def put(self, choice: int, reason: FinishReason | None) -> None:
        """One more token of a choice."""
        self._events.append((choice, reason))
        self._wake()

    def hang_up(self) -> None:
        """The client left."""
        self.gone = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    async def take(self) -> list[tuple[int, FinishReason | None]]:
        """Events since the last call, waiting for one; empty once the client has left."""
        while not self._events and not self.gone:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        events, self._events = self._events, []
        return [] if self.gone else events


@dataclass(slots=True)
class _Seat:
    """One engine request and whom it talks to."""

    sink: TokenSink
    choice: int
    prompt_tokens: int
    arrived_s: float
    placed_s: float | None = None
    first_s: float = 0.0
    last_s: float = 0.0
    tokens: int = 0


@dataclass(frozen=True, slots=True)
class Published:
    """What the API server knows of an engine: the state after its last finished step."""

    gauges: EngineGauges
    counters: EngineCounters


class Pace:
    """How time passes between the steps of an engine: as on the wall."""

    def __init__(self) -> None:
        self._deadline_s = 0.0

    def now_s(self) -> float:
        """The engine's time."""
        return asyncio.get_running_loop().time()

    def wake(self) -> None:
        """Work has come to an engine that had none."""
        self._deadline_s = self.now_s()

    async def begin(self) -> None:
        """Return when the next step may begin."""

    async def spend(self, seconds: float) -> None:
        """Return when a step of ``seconds`` has ended."""
        self._deadline_s = max(self._deadline_s, self.now_s() - LAG_S_MAX) + seconds
        wait_s = self._deadline_s - self.now_s()
        await asyncio.sleep(wait_s if wait_s > SLEEP_S_MIN else 0)


class EngineLoop:
    """One engine, driven."""

    def __init__(self, settings: EngineSettings, step_time: StepTimeModel) -> None:
        self.engine = Engine(settings)
        self.latencies = Latencies()
        self.published = Published(EngineGauges(), EngineCounters())
        self.pace = Pace()
        self._step_time = step_time
        self._seats: dict[str, _Seat] = {}
        self._work = asyncio.Event()
        self.going = asyncio.Event()  # cleared: it takes no further step
        self.going.set()

    @property
    def unfinished(self) -> int:
        """Requests running or waiting."""
        return self.engine.unfinished

    def prompt_tokens_unfinished(self) -> int:
        """Prompt tokens of requests without output yet."""
        return sum(seat.prompt_tokens for seat in self._seats.values() if not seat.tokens)

    def add(self, request: EngineRequest, sink: TokenSink, choice: int) -> None:
        """Queue a request whose tokens go to ``sink``."""
        self.engine.add(request)
        self._seats[request.request_id] = _Seat(sink, choice, request.prompt_tokens, self.pace.now_s())
        self._work.set()

    def abort(self, request_ids: Iterable[str]) -> None:
        """Drop what is still unfinished; its blocks are free before the next step."""
        for request_id in request_ids:
            self._seats.pop(request_id, None)
            if self.engine.abort(request_id):
                self._work.set()

    async def run(self) -> None:
        """Step for ever."""
        while True:
            if not self.engine.has_work:
                self._work.clear()
                await self._work.wait()
                self.pace.wake()
            if not self.going.is_set():
                await self.going.wait()
                self.pace.wake()
                continue  # what there was to do may have been aborted meanwhile
            await self.pace.begin()
            report = self.engine.step()
            self._place(report.admitted, self.pace.now_s())
            await self.pace.spend(self._step_time.seconds(report))
            counters = self.engine.counters
            self.published = Published(self.engine.gauges, replace(counters, finished=dict(counters.finished)))
            self._deliver(report.sampled, dict(report.finished), self.pace.now_s())
            self.latencies.step_tokens.observe(report.prefill_tokens + len(report.sampled))

    def _place(self, admitted: list[str], now_s: float) -> None:
        for request_id in admitted:
            seat = self._seats.get(request_id)
            if seat is not None and seat.placed_s is None:  # else it comes back from a preemption
                seat.placed_s = now_s

    def _deliver(self, sampled: list[str], finished: dict[str, FinishReason], now_s: float) -> None:
        latencies = self.latencies
        for request_id in sampled:
            seat = self._seats.get(request_id)
            if seat is None:  # its client left while the step ran
                continue
            seat.tokens += 1
            if seat.tokens == 1:
                latencies.time_to_first_token.observe(now_s - seat.arrived_s)
                seat.first_s = now_s
            else:
                latencies.inter_token.observe(now_s - seat.last_s)
            seat.last_s = now_s
            reason = finished.get(request_id) if finished else None
            if reason is not None:
                del self._seats[request_id]
                latencies.end_to_end.observe(now_s - seat.arrived_s)
                placed_s = seat.arrived_s if seat.placed_s is None else seat.placed_s
                latencies.queue.observe(placed_s - seat.arrived_s)
                latencies.prefill.observe(seat.first_s - placed_s)
                latencies.prompt_tokens.observe(seat.prompt_tokens)
                latencies.generation_tokens.observe(seat.tokens)
            seat.sink.put(seat.choice, reason)
