"""Sends a workload: open loop, when it is time, whatever became of the others; or closed loop, when a client is free.

Requests are dressed ahead, in a thread, so that making a prompt does not hold up a send. A session's next turn is sent by the client that
got the answer, a think time after it; what fails or is refused ends the session. Nothing is sent after ``duration_s``; what is open is
waited for until ``until_s`` and then cut off as unfinished.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from proxy.advise.result_file import RequestSample
from proxy.bench.load import LoadRequest, send
from proxy.bench.plan import Dresser
from proxy.ports import Clock, Upstream
from proxy.sim.sim_request import SimRequest
from proxy.sim.workloads import ClosedLoop, OpenLoop, Workload

AHEAD_MAX = 256  # dressed requests: a few MB


@dataclass(frozen=True, slots=True)
class Course:
    """When and how much. Open loop: ``rate_per_s`` (None: as recorded); closed loop: ``concurrency`` clients."""

    duration_s: float
    drain_s: float
    rate_per_s: float | None = None
    concurrency: int | None = None
    requests_max: int | None = None

    @property
    def until_s(self) -> float:
        """When what is still open is cut off."""
        return self.duration_s + self.drain_s


@dataclass(slots=True)
class Sent:
    """What a run has come to so far; ``origin_s`` is the clock's when it began, None before."""

    origin_s: float | None = None
    open: int = 0
    samples: list[RequestSample] = field(default_factory=list)
    miscounted: int = 0  # prompts that the engine counted differently


Dressed = tuple[SimRequest, LoadRequest]


class Sender:
    """One run against ``url``. ``sent`` can be read while it goes on."""

    def __init__(self, upstream: Upstream, url: str, workload: Workload, dresser: Dresser, course: Course, clock: Clock) -> None:
        self.sent = Sent()
        self._upstream = upstream
        self._url = url
        self._workload = workload
        self._dresser = dresser
        self._course = course
        self._clock = clock
        self._ready: asyncio.Queue[Dressed | None] = asyncio.Queue(AHEAD_MAX)
        self._full = asyncio.Event()

    async def run(self) -> None:
        """Send everything. Raises ValueError where the workload cannot be sent that way."""
        course = self._course
        source: OpenLoop | ClosedLoop
        if course.concurrency is None:
            source = OpenLoop(self._workload, course.rate_per_s, until_s=course.duration_s, requests_max=course.requests_max)
        else:
            source = ClosedLoop(self._workload, requests_max=course.requests_max)
        dressing = asyncio.create_task(self._dress(source.next_request), name="dressing")
        try:
            await asyncio.wait([dressing, filled := asyncio.create_task(self._full.wait())], return_when=asyncio.FIRST_COMPLETED)
            filled.cancel()
            if dressing.done():
                dressing.result()
            self.sent.origin_s = self._clock.now_s()
            async with asyncio.TaskGroup() as group:
                if course.concurrency is None:
                    await self._open(group)
                else:
                    for _ in range(course.concurrency):
                        group.create_task(self._client())
        finally:
            dressing.cancel()
            await asyncio.gather(dressing, return_exceptions=True)

    def now_s(self) -> float:
        """Seconds since the run began; 0 before."""
        return 0.0 if self.sent.origin_s is None else self._clock.now_s() - self.sent.origin_s

    async def _dress(self, next_request: Callable[[float], SimRequest | None]) -> None:
        while (request := next_request(self.now_s())) is not None:
            if self._dresser.fits(request):
                dressed = await asyncio.to_thread(self._dresser.dress, request)
                if self._ready.full():
                    self._full.set()
                await self._ready.put((request, dressed))
        await self._ready.put(None)

    async def _open(self, group: asyncio.TaskGroup) -> None:
        while (dressed := await self._ready.get()) is not None:
            await self._until(dressed[0].arrival_s)
            group.create_task(self._session(*dressed, planned_s=dressed[0].arrival_s))

    async def _client(self) -> None:
        while self.now_s() < self._course.duration_s:
            dressed = await self._ready.get()
            if dressed is None:
                await self._ready.put(None)  # for the next client
                return
            if self.now_s() < self._course.duration_s:
                await self._session(*dressed, planned_s=None)

    async def _session(self, request: SimRequest, dressed: LoadRequest, *, planned_s: float | None) -> None:
        while True:
            sample = await self._send(dressed, planned_s)
            following = self._workload.follow_up(request, sample.ended_s) if sample.outcome == "completed" else None
            if following is None or following.arrival_s >= self._course.duration_s or not self._dresser.fits(following):
                return
            request = following
            dressed = await asyncio.to_thread(self._dresser.dress, following)
            planned_s = max(following.arrival_s, self.now_s())
            await self._until(planned_s)

    async def _send(self, dressed: LoadRequest, planned_s: float | None) -> RequestSample:
        sent = self.sent
        sent.open += 1
        try:
            sample = await send(
                self._upstream, self._url, dressed, self._clock,
                origin_s=sent.origin_s or 0.0, planned_s=planned_s, until_s=self._course.until_s,
            )  # fmt: skip
        finally:
            sent.open -= 1
        sent.samples.append(sample)
        sent.miscounted += bool(sample.prompt_tokens) and sample.prompt_tokens != dressed.prompt_tokens
        return sample

    async def _until(self, at_s: float) -> None:
        wait_s = at_s - self.now_s()
        if wait_s > 0.0:
            await asyncio.sleep(wait_s)
