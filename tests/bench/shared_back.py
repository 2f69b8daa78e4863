"""How long it takes after a fault until every proxy shares again, by kind of fault, and what they were doing meanwhile.

A proxy that does not say ``sharing`` at a look is asked again every ``PERIOD_S``; the *trail* has each proxy's phases with the second
in which it was first seen in them, and what the store last answered with. Who does not answer is ``silent``: it is starting or busy.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx

from tests.bench.load import percentile
from tests.bench.shared_processes import Fleet, Proxy

BACK_S_MAX = 2.0  # what is promised: from mending until every proxy shares
GIVE_UP_S = 30.0
PERIOD_S = 0.05
SHARING, SILENT = "sharing", "silent"
Trail = list[tuple[float, str, str]]  # seconds since it was mended, name of the proxy, what it says


@dataclass(frozen=True, slots=True)
class Back:
    """After one fault. ``trail`` is empty where all shared at the first look."""

    kind: str
    took_s: float
    trail: Trail = field(default_factory=list)

    def __str__(self) -> str:
        """For people."""
        return f"{self.kind} {self.took_s:.2f} s: " + ", ".join(f"{at_s:.2f} {who} {what}" for at_s, who, what in self.trail)


async def phase_of(client: httpx.AsyncClient, proxy: Proxy) -> str:
    """What a proxy says of its store, with the last fault where it does not share."""
    try:
        answer = await client.get(f"{proxy.admin_url}/admin/proxies", timeout=2)
        store = answer.json()["store"]
    except (httpx.TransportError, ValueError, KeyError):
        return SILENT
    return SHARING if store["phase"] == SHARING else f"{store['phase']} ({store['last_error']})"


async def sharing_again(fleet: Fleet) -> tuple[float, Trail]:
    """Wait until every proxy that is up shares; seconds it took, or ``GIVE_UP_S`` when it did not come to that, and what was seen."""
    loop = asyncio.get_running_loop()
    start_s, trail, said = loop.time(), Trail(), dict[str, str]()
    async with httpx.AsyncClient() as client:
        while (took_s := loop.time() - start_s) < GIVE_UP_S:
            up = [proxy for proxy in fleet.proxies if proxy.up]
            phases = await asyncio.gather(*(phase_of(client, proxy) for proxy in up))
            for proxy, phase in zip(up, phases, strict=True):
                if said.get(proxy.child.name, SHARING) != phase:
                    trail.append((round(loop.time() - start_s, 3), proxy.child.name, phase))
                said[proxy.child.name] = phase
            if all(phase == SHARING for phase in phases):
                return took_s, trail
            await asyncio.sleep(PERIOD_S)
    return GIVE_UP_S, trail


def told_by_kind(back: Sequence[Back]) -> dict[str, dict[str, float | None]]:
    """By kind of fault: how many there were, seconds until all shared again."""
    kinds: dict[str, list[float]] = {}
    for one in back:
        kinds.setdefault(one.kind, []).append(one.took_s)
    return {
        kind: {"faults": len(took), "p50": percentile(took, 0.5), "p99": percentile(took, 0.99), "max": max(took)}
        for kind, took in sorted(kinds.items())
    }
