"""What must be true during faults and after them, and whether it was.

During: what engines hold and have waiting stays within their pools and the last shares of proxies that are cut off; no request fails but
those open at a proxy that was killed; refusals are documented ones. Sharing is back soon after a thing is mended. After the last fault,
with nothing but a few long requests running, the engines are told to stand still (vLLM's own ``/pause?mode=keep``). Once every proxy has
written its rows twice since, Redis has as many leases on each replica as the engine runs, and the engine's usage lies within what the
rows say, to the block. In the end both are empty, to the block. (Compared while they ran, what a row grew by its replica's step clock
between the engine's answer and that of Redis came to two blocks a request on a machine whose mocks got no processor.)
"""

import asyncio
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx
import redis.asyncio

from tests.bench.engine import EngineState, scrape
from tests.bench.load import Fate, LoadRequest, percentile
from tests.bench.loads import as_request, chat, distinct_words
from tests.bench.shared_back import BACK_S_MAX, Back, told_by_kind
from tests.bench.shared_engines import EngineWatch
from tests.bench.shared_judge import HIGH, LEASES, LOW, JudgedReplica
from tests.bench.shared_load import Clients, Sent, SharedLoad, failures
from tests.bench.shared_monitor import numbers, written_now
from tests.bench.shared_processes import Fleet

ROUNDING = 1e-6
GIVE_UP_S = 30.0
LONG_REQUESTS, LONG_TOKENS = 24, 600
LOOKS = 5  # at most: a token on its way to a proxy when the engines stopped is in the next rewrite
REWRITES = 2  # of each row before a look: the first may have been under way
PERIOD_S = 0.05


@dataclass(frozen=True, slots=True)
class Compared:
    """One replica at one moment: what Redis says is reserved there, and what the engine says it runs."""

    leases: float
    low_blocks: float
    high_blocks: float
    engine: EngineState

    @property
    def held(self) -> bool:
        """The same leases, and the usage within what they hold, to the block."""
        used = self.engine.used_blocks
        return self.leases == self.engine.running and self.low_blocks - ROUNDING <= used <= self.high_blocks + ROUNDING


@dataclass(slots=True)
class EndState:
    """After the last fault: looks while long requests ran, and whether all was empty when they had ended."""

    looks: list[list[Compared]] = field(default_factory=list)
    long_requests_failed: int = 0
    reserved_leases: float = 0.0
    engines_idle: bool = False

    @property
    def agreed(self) -> bool:
        """Whether every replica held at the last look."""
        return bool(self.looks) and all(one.held for one in self.looks[-1])


def reserved(known: JudgedReplica) -> tuple[float, float, float]:
    """Leases on a replica, and blocks that they held when their rows were written: certainly, and at most."""
    rows = [one.row for one in (*known.rows.values(), *known.grants.values())]
    leases, low, high = (float(sum(row[figure] for row in rows)) for figure in (LEASES, LOW, HIGH))
    return leases, low, high


async def compare(fleet: Fleet, store: redis.asyncio.Redis, http: httpx.AsyncClient) -> list[Compared]:
    """Redis and the engines, which stand still."""
    engines = await asyncio.gather(*(scrape(http, url) for url in fleet.replica_urls))
    written = await written_now(store)
    return [Compared(*reserved(written[f"r{i}"]), engine) for i, engine in enumerate(engines) if f"r{i}" in written]


async def written_anew(store: redis.asyncio.Redis) -> None:
    """Wait until every row has been written ``REWRITES`` times."""
    give_up_s = asyncio.get_running_loop().time() + GIVE_UP_S
    for _ in range(REWRITES):
        before = await stamps(store)
        while not all(at_s > before.get(key, -1.0) for key, at_s in (await stamps(store)).items()):
            if asyncio.get_running_loop().time() > give_up_s:
                return
            await asyncio.sleep(PERIOD_S)


async def stamps(store: redis.asyncio.Redis) -> dict[tuple[bytes, bytes], float]:
    """By key and proxy, when it last wrote what it has there: seconds of Redis (``m|PROXY``, see ``account.lua``)."""
    found = {}
    async for key in store.scan_iter("kvgate:*:rows", count=1000):
        for name, value in (await store.hgetall(key)).items():
            if name.startswith(b"m|"):
                found[key, name] = float(numbers(value)[1])
    return found


def long_request(rng: random.Random) -> LoadRequest:
    """A stream of exactly ``LONG_TOKENS``."""
    return as_request(*chat("mock", distinct_words(rng, 60), max_tokens=LONG_TOKENS, ignore_eos=True))


async def judge_end(fleet: Fleet, load: SharedLoad) -> EndState:
    """Finish the load, run long requests alone and compare, then wait until all is empty."""
    await load.finish()
    end, rng, alone = EndState(), random.Random(7), SharedLoad(fleet.proxies)
    kind = Clients("long", 1, tuple(range(len(fleet.proxies))))
    tasks = [
        asyncio.create_task(alone.request(fleet.proxies[i % len(fleet.proxies)], long_request(rng), kind))
        for i in range(LONG_REQUESTS)
    ]
    try:
        async with redis.asyncio.from_url(fleet.redis.url) as store, httpx.AsyncClient() as http:
            await _until_running(fleet, http)
            await asyncio.gather(*(http.post(f"{url}/pause", params={"mode": "keep"}) for url in fleet.replica_urls))
            while len(end.looks) < LOOKS and not end.agreed:
                await written_anew(store)
                end.looks.append(await compare(fleet, store, http))
            await asyncio.gather(*(http.post(f"{url}/resume") for url in fleet.replica_urls))
            records = await asyncio.gather(*tasks)
            end.long_requests_failed = sum(one.fate is not Fate.COMPLETED for one in records)
            await _until_empty(fleet, store, http, end)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await alone.drop()
    return end


async def _until_running(fleet: Fleet, http: httpx.AsyncClient) -> None:
    """Until the engines run all the long requests, and proxies have had two seconds to see and to tell it."""
    give_up_s = asyncio.get_running_loop().time() + GIVE_UP_S
    while asyncio.get_running_loop().time() < give_up_s:
        engines = await asyncio.gather(*(scrape(http, url) for url in fleet.replica_urls))
        if sum(one.running for one in engines) == LONG_REQUESTS:
            break
        await asyncio.sleep(PERIOD_S)
    await asyncio.sleep(2.0)


async def _until_empty(fleet: Fleet, store: redis.asyncio.Redis, http: httpx.AsyncClient, end: EndState) -> None:
    give_up_s = asyncio.get_running_loop().time() + GIVE_UP_S
    while True:
        engines = await asyncio.gather(*(scrape(http, url) for url in fleet.replica_urls))
        end.engines_idle = all(one.idle for one in engines)
        end.reserved_leases = sum(reserved(known)[0] for known in (await written_now(store)).values())
        if (end.engines_idle and end.reserved_leases == 0) or asyncio.get_running_loop().time() > give_up_s:
            return
        await asyncio.sleep(PERIOD_S)


@dataclass(slots=True)
class Verdict:
    """Everything seen."""

    elapsed_s: float
    network: str
    counts: dict[str, int]
    back: list[Back]
    sent: Sequence[Sent]
    watch: EngineWatch
    end: EndState
    complaints: dict[str, str]
    back_s_max: float = BACK_S_MAX
    apart_ratio_max: float = 0.0  # of the pool: the most that isolated proxies' last shares can have come to

    @property
    def took_s(self) -> list[float]:
        """Seconds until all shared again, of each fault."""
        return [one.took_s for one in self.back]

    @property
    def faults(self) -> list[str]:
        """What did not hold, in words."""
        found = [f"failed {count} × {text}" for text, count in failures(self.sent).items()]
        if not any(one.record.fate is Fate.COMPLETED for one in self.sent):
            found.append("no request completed")
        found += [f"sharing came back late: {one}" for one in self.back if one.took_s > self.back_s_max]
        if self.watch.wanted_ratio_max > 1.0 + self.apart_ratio_max:
            found.append(
                f"{self.watch.wanted_ratio_max:.2f} of a pool wanted, {1.0 + self.apart_ratio_max:.2f} with all last shares"
            )
        if not self.end.agreed:
            found.append(
                f"Redis and the engines, standing still, did not agree in {len(self.end.looks)} looks: {self.end.looks[-1:]}"
            )
        if self.end.long_requests_failed:
            found.append(f"{self.end.long_requests_failed} of the requests after the last fault failed")
        if not self.end.engines_idle or self.end.reserved_leases:
            found.append(f"not empty in the end: {self.end.reserved_leases:g} leases in Redis, idle {self.end.engines_idle}")
        found += [f"{name} complained: {text}" for name, text in self.complaints.items()]
        return found

    def as_json(self) -> dict[str, Any]:
        """The figures."""
        fates = {str(fate): sum(one.record.fate is fate for one in self.sent) for fate in Fate}
        return {
            "elapsed_s": self.elapsed_s,
            "network": self.network,
            "faults_done": self.counts,
            "requests": len(self.sent),
            "fates": fates,
            "open_at_a_killed_proxy": sum(one.excused for one in self.sent),
            "sharing_back_s": {"p50": percentile(self.took_s, 0.5), "p99": percentile(self.took_s, 0.99)},
            "sharing_back_by_kind_s": told_by_kind(self.back),
            "held_ratio_max": self.watch.held_ratio_max,
            "wanted_ratio_max": self.watch.wanted_ratio_max,
            "engine_waiting_max": self.watch.waiting_max,
            "preemptions": sum(state.preemptions for state in self.watch.last),
            "looks": len(self.end.looks),
            "agreed": self.end.agreed,
            "reserved_in_the_end": self.end.reserved_leases,
            "faults": self.faults,
        }

    def lines(self) -> list[str]:
        """A table for people."""
        figures = self.as_json()
        wrong = figures.pop("faults")
        return [*(f"{name:24} {value}" for name, value in figures.items()), *(f"FAULT {text}" for text in wrong)]
