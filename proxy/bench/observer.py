"""Watches one server from outside: what it is, its gauges and counters look by look, its latencies from the first look to the last.

``begin``, then ``look`` as often as wanted, then ``finish``; ``watch`` is what the doctor judges. Every step takes a server that does
not answer: it is counted, and the next look tries again.
"""

import contextlib
from collections.abc import Mapping, Sequence

import httpx

from proxy.adapters.control_http import ControlHttp
from proxy.adapters.probe import METRICS_WHOLE
from proxy.adapters.scraper import VllmFeed
from proxy.advise.watch import EngineWatch, ReplicaWatch, Spread
from proxy.core.replica import EngineSample, ReplicaFacts, ReplicaSample
from proxy.core.wedge import Wedge
from proxy.ports import Clock
from proxy.ports.replicas import ReplicaUnreachableError
from proxy.wire.serve_command import ServeFlags, read_server_info
from proxy.wire.vllm_latencies import EngineLatencies, read_latencies

TIMEOUT_S = 5.0
REQUESTS_MIN = 10  # first tokens in the watch below which the latencies since the engine's start say more
Looks = list[tuple[float, EngineSample]]


class EngineSeries:
    """One engine, look by look."""

    def __init__(self) -> None:
        self.looks: Looks = []
        self._wedge = Wedge()
        self._since = 0  # looks before the last restart: gauges count, counters begin anew

    def take(self, at_s: float, sample: EngineSample, *, restarted: bool) -> None:
        """Add a look."""
        if restarted:
            self._since = len(self.looks)
            self._wedge = Wedge()
        self.looks.append((at_s, sample))
        # Whose the requests are does not matter here: whoever has some counts as waiting for them.
        self._wedge.observe(sample, at_s, leases=(sample.running or 0) + (sample.waiting or 0), streamed_tokens=0)

    def watched(self, engine: str) -> EngineWatch:
        """Everything in one."""
        samples = [sample for _, sample in self.looks]
        counted = samples[self._since :]
        first, last = counted[0], counted[-1]
        now_s = self.looks[-1][0]
        moved_s = self._wedge.moved_s
        works = bool(last.running or last.waiting)
        return EngineWatch(
            engine=engine,
            usage_ratio=Spread.of(sample.kv_usage_ratio for sample in samples),
            running=Spread.of(sample.running for sample in samples),
            waiting=Spread.of(sample.waiting_for_room for sample in samples),
            preemptions=_added(first.preemptions_total, last.preemptions_total),
            preemptions_total=last.preemptions_total,
            prompt_tokens=_added(first.prompt_tokens_total, last.prompt_tokens_total),
            output_tokens=_added(first.generation_tokens_total, last.generation_tokens_total),
            prefix_queries=_added(first.prefix_queries_tokens_total, last.prefix_queries_tokens_total),
            prefix_hits=_added(first.prefix_hits_tokens_total, last.prefix_hits_tokens_total),
            prefix_queries_total=last.prefix_queries_tokens_total,
            prefix_hits_total=last.prefix_hits_tokens_total,
            still_s=now_s - moved_s if works and moved_s is not None else 0.0,
            wedged=self._wedge.wedged,
        )


def _added(first: float | None, last: float | None) -> float | None:
    return None if first is None or last is None else last - first


class ReplicaObserver:
    """One server. Times are the clock's."""

    def __init__(
        self,
        url: str,
        clock: Clock,
        *,
        headers: Mapping[str, str],
        timeout_s: float = TIMEOUT_S,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.url = url
        self.facts: ReplicaFacts | None = None
        self.flags = ServeFlags()
        self.fault: str | None = None
        self.scrapes = self.failures = self.restarts = 0
        self.engines: dict[str, EngineSeries] = {}
        self._clock = clock
        self._started_s: float | None = None
        self._begun_s = self._ended_s = 0.0
        self._first = self._last = EngineLatencies()
        self._feed = VllmFeed(url, url, clock, headers=headers, timeout_s=timeout_s, transport=transport)
        self._http = ControlHttp(url, clock, headers=headers, timeout_s=timeout_s, transport=transport)

    async def begin(self) -> None:
        """Find out what the server is, and take the first look."""
        self._begun_s = self._ended_s = self._clock.now_s()
        if await self._probed():
            with contextlib.suppress(ReplicaUnreachableError):
                self.flags = read_server_info((await self._http.get("/server_info?config_format=json")).json())
            self._first = self._last = await self._latencies() or EngineLatencies()
            await self.look()

    async def look(self) -> None:
        """Scrape once; a server that was not reached yet is probed again."""
        if self.facts is None and not await self._probed():
            self.failures += 1
            return
        try:
            sample = await self._feed.sample()
        except ReplicaUnreachableError as error:
            self.failures += 1
            self.fault = str(error)
            return
        self.scrapes += 1
        self.fault = None
        self.facts = sample.facts or self.facts
        self._take(sample)

    async def finish(self) -> None:
        """Take the last look."""
        await self.look()
        self._ended_s = self._clock.now_s()
        if self.facts is not None:
            self._last = await self._latencies() or self._last

    def watch(self, flags: ServeFlags | None = None, gpu_util: Sequence[float] = ()) -> ReplicaWatch:
        """What was seen; ``flags`` are what the operator tells of the engine's command line."""
        window = self._last.since(self._first)
        few = window.ttft_s is None or window.ttft_s.count < REQUESTS_MIN
        return ReplicaWatch(
            url=self.url,
            watched_s=self._ended_s - self._begun_s,
            scrapes=self.scrapes,
            failures=self.failures,
            fault=self.fault,
            facts=self.facts,
            engines=tuple(series.watched(name) for name, series in self.engines.items()),
            restarts=self.restarts,
            up_s=None if self._started_s is None else self._clock.wall_s() - self._started_s,
            latencies=self._last if few else window,
            latencies_of_life=few,
            flags=self.flags if flags is None else flags.over(self.flags),
            gpu_util_ratio=Spread.of(gpu_util),
        )

    async def aclose(self) -> None:
        """Close every connection."""
        await self._feed.aclose()
        await self._http.aclose()

    async def _probed(self) -> bool:
        try:
            self.facts = await self._feed.probe()
        except ReplicaUnreachableError as error:
            self.fault = str(error)
            return False
        self.fault = None
        return True

    async def _latencies(self) -> EngineLatencies | None:
        try:
            answer = await self._http.get(METRICS_WHOLE)
        except ReplicaUnreachableError:
            return None
        return read_latencies(answer.body) if answer.status == 200 else None

    def _take(self, sample: ReplicaSample) -> None:
        self.restarts += sample.new_epoch
        self._started_s = sample.started_s
        for engine in sample.engines:
            series = self.engines.setdefault(engine.engine, EngineSeries())
            series.take(sample.sampled_s, engine, restarted=sample.new_epoch)
