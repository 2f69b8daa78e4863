"""Watches a kvgate from outside, as ``bench.observer`` does an engine."""

import httpx

from proxy.adapters.control_http import ControlHttp
from proxy.adapters.probe import METRICS_WHOLE
from proxy.advise.watch import KvgateWatch, Spread
from proxy.config.replica_url import ReplicaUrlError, normal_url
from proxy.ports import Clock
from proxy.ports.replicas import ReplicaUnreachableError
from proxy.wire.kvgate_metrics import GateScrape, is_gate, read_gate

ADMIN_REPLICAS = "/admin/replicas"


class GateObserver:
    """One kvgate. ``is_gate`` is for the first look at an address of which nothing is known."""

    def __init__(
        self, url: str, clock: Clock, *, timeout_s: float = 5.0, transport: httpx.AsyncBaseTransport | None = None
    ) -> None:
        self.url = url
        self._clock = clock
        self._http = ControlHttp(url, clock, headers={}, timeout_s=timeout_s, transport=transport)
        self._scrapes: list[GateScrape] = []
        self._begun_s = self._ended_s = 0.0

    async def is_gate(self) -> bool:
        """Whether a kvgate answers there; False also where nobody does."""
        try:
            answer = await self._http.get(METRICS_WHOLE)
        except ReplicaUnreachableError:
            return False
        self._begun_s = self._ended_s = self._clock.now_s()
        return answer.status == 200 and is_gate(answer.body)

    async def replicas(self) -> list[str]:
        """Addresses of the servers behind it; empty on its client port, which does not tell."""
        try:
            found = (await self._http.get(ADMIN_REPLICAS)).json()
        except ReplicaUnreachableError:
            return []
        rows = found if isinstance(found, list) else []
        urls = []
        for row in rows:
            try:
                urls.append(normal_url(row["url"]))
            except (TypeError, KeyError, ReplicaUrlError):
                continue
        return list(dict.fromkeys(urls))

    async def look(self) -> None:
        """Scrape once; no answer leaves the look out."""
        try:
            answer = await self._http.get(METRICS_WHOLE)
        except ReplicaUnreachableError:
            return
        self._scrapes.append(read_gate(answer.body))
        self._ended_s = self._clock.now_s()

    def watch(self) -> KvgateWatch:
        """What was seen."""
        if not self._scrapes:
            return KvgateWatch(self.url, 0.0)
        first, last = self._scrapes[0], self._scrapes[-1]
        refusals = {name: count - first.refusals.get(name, 0.0) for name, count in last.refusals.items()}
        return KvgateWatch(
            url=self.url,
            watched_s=self._ended_s - self._begun_s,
            mode=last.mode,
            guard_tripped=last.guard_tripped,
            queued=Spread.of(scrape.queued for scrape in self._scrapes),
            refusals={name: count for name, count in refusals.items() if count > 0},
            internal_errors=last.internal_errors - first.internal_errors,
            phases=last.phases,
            binding=last.binding,
            sample_age_s=last.sample_age_s,
            observed_only=last.observed_only,
        )

    async def aclose(self) -> None:
        """Close every connection."""
        await self._http.aclose()
