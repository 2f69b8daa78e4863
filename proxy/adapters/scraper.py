"""The replica feed by scraping: ``ports.ReplicaFeed`` over HTTP.

Every scrape reads the few series it needs (a filtered exposition where the server can, see ``adapters.probe``); every
``FRESH_EVERY``-th goes over a connection of its own, because a kept connection always reaches the same engine and would never show
that several stand behind the URL. ``core.epoch`` judges; a new epoch is probed again before it is reported, so that a sample with
``new_epoch`` carries new facts.

A replica without engine statistics is sampled by its health alone: the sample has no engines, which means unknown, not idle.
Fails: no usable answer in time and size is ReplicaUnreachableError; a new epoch whose probe failed is reported by a later sample.
"""

from collections.abc import Mapping

import httpx

from proxy.adapters.control_http import Answer, ControlHttp
from proxy.adapters.probe import METRICS_FILTERED, METRICS_WHOLE, Probed, bounded, probe_replica
from proxy.adapters.stall_proof import stall_proof_timeout
from proxy.core.epoch import EpochJudge, Verdict
from proxy.core.replica import ReplicaFacts, ReplicaSample
from proxy.ports import Clock
from proxy.ports.replicas import ReplicaUnreachableError
from proxy.wire.vllm_metrics import PidUsage, Scrape, looks_like_exposition, read_scrape

FRESH_EVERY = 8
PROBE_TIMEOUTS = 3  # a probe makes about a dozen requests and may take as long as three may


class VllmFeed:
    """One replica's state. Call ``probe`` first; ``probe`` and ``sample`` are not for concurrent use on one feed.

    ``kv_blocks`` is the configured pool size, counted like num_gpu_blocks (all engines, null blocks included); ``headers`` go with
    every request (credentials). ``timeout_s`` bounds one request as a whole.
    """

    def __init__(
        self,
        name: str,
        base_url: str,
        clock: Clock,
        *,
        headers: Mapping[str, str],
        timeout_s: float,
        kv_blocks: int | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self.name = name
        self._clock = clock
        self._http = ControlHttp(base_url, clock, headers=headers, timeout_s=timeout_s, transport=transport)
        self._kv_blocks = kv_blocks
        self._judge = EpochJudge()
        self._pid_usage = PidUsage()
        self._facts: ReplicaFacts | None = None
        self._path: str | None = METRICS_WHOLE
        self._epoch_pending = False
        self._scrapes = 0
        self.lines_skipped_total = 0  # wanted metric lines that could not be read, for telemetry

    async def probe(self) -> ReplicaFacts:
        """Find out what the replica is. Raises ReplicaUnreachableError with a sentence that says what to check."""
        probed = await self._probe()
        # Found here rather than by a scrape, a restart must still reach whoever reads the samples.
        self._epoch_pending |= probed.new_epoch
        return probed.facts

    async def sample(self) -> ReplicaSample:
        """Scrape once. Raises ReplicaUnreachableError."""
        self._scrapes += 1
        asked_s = self._clock.now_s()
        fresh = self._scrapes % FRESH_EVERY == 0
        try:
            answer, scrape = await self._scrape(fresh)
        except ReplicaUnreachableError:
            self._judge.interrupted()
            raise
        self.lines_skipped_total += scrape.lines_skipped
        verdict = self._judge.observe(fresh_connection=fresh, started_s=scrape.started_s, counters=scrape.counters())
        facts: ReplicaFacts | None = None
        if verdict is Verdict.NEW_EPOCH:
            self._epoch_pending = True
            facts = (await self._probe()).facts
            verdict = Verdict.SEVERAL if facts.several_engines_behind else verdict
        new_epoch = self._epoch_pending and verdict is not Verdict.SEVERAL
        self._epoch_pending = False
        return ReplicaSample(
            replica=self.name,
            sampled_s=answer.first_byte_s,
            asked_s=asked_s,
            engines=self._pid_usage.settle(scrape).engines,
            started_s=scrape.started_s,
            new_epoch=new_epoch,
            several_engines=verdict is Verdict.SEVERAL,
            facts=facts or (self._facts if new_epoch else None),
        )

    @property
    def filtered(self) -> bool:
        """Whether scrapes are filtered: about 1 ms of the replica's API server CPU each, against 7 to 10 ms for a whole exposition."""
        return self._path == METRICS_FILTERED

    def bound(self, timeout_s: float) -> None:
        """Wait no longer than this for an answer from now on."""
        self._http.bound(timeout_s)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._http.aclose()

    async def _probe(self) -> Probed:
        limit_s = PROBE_TIMEOUTS * self._http.timeout_s
        try:
            async with stall_proof_timeout(limit_s):
                probed = await probe_replica(self._http, self._judge, kv_blocks=self._kv_blocks)
        except TimeoutError as error:
            raise ReplicaUnreachableError(
                f"{self._http.base_url}: probing took more than {limit_s:g} s. The server answers too slowly: check its load.",
                late=True,
            ) from error
        self._facts, self._path = probed.facts, probed.scrape_path
        return probed

    async def _scrape(self, fresh: bool) -> tuple[Answer, Scrape]:
        if self._path is None:
            answer = await self._http.get("/health", fresh=fresh)
            if answer.status >= 500:
                raise ReplicaUnreachableError(f"{answer.told()}. The engine is dead or still starting: see vLLM's log.")
            return answer, Scrape(engines=())
        expected = self._facts is None or self._facts.log_stats
        if self._path == METRICS_FILTERED:
            answer = await self._http.get(METRICS_FILTERED, fresh=fresh)
            scrape = self._parse(answer) if answer.status == 200 else Scrape(engines=())
            if scrape.has_stats or not (expected or scrape.started_s is None):
                return answer, scrape
            # What the filter does not show the whole exposition may: the server can have restarted with other settings.
        answer = await self._http.get(METRICS_WHOLE, fresh=fresh)
        if answer.status != 200 or not looks_like_exposition(answer.body):
            raise ReplicaUnreachableError(f"{answer.told()}, which are no metrics. Check what answers at this URL.")
        scrape = self._parse(answer)
        if scrape.has_stats:
            self._path = METRICS_WHOLE
        if expected and not scrape.has_stats and scrape.started_s is None:
            raise ReplicaUnreachableError(
                f"{answer.url}: the engine's metrics are gone (no vllm:num_requests_running). Did the server restart with"
                " --disable-log-stats? kvgate probes it again."
            )
        return answer, scrape

    def _parse(self, answer: Answer) -> Scrape:
        return bounded(read_scrape(answer.body, block_size=self._facts.block_size if self._facts else None), answer.url)
