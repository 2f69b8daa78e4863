"""kvgate's own word, from its admin port: the replica's ledger, and whether it decides at all.

After a fault inside, kvgate relays without deciding and fails nobody; figures from such a run would say nothing of it.
"""

import re
from typing import Any

import httpx

from tests.bench.engine import CLOSING

_INTERNAL_ERRORS = re.compile(r"^kvgate_internal_errors_total\{[^\n]*\} ([0-9.e+]+)$", re.MULTILINE)


async def only_replica(client: httpx.AsyncClient, admin_url: str, query: str = "") -> dict[str, Any]:
    """kvgate's state of its only replica."""
    answer = await client.get(f"{admin_url}/admin/replicas{query}", timeout=30, headers=CLOSING)
    answer.raise_for_status()
    (replica,) = answer.json()
    return dict(replica)


async def why_not_deciding(admin_url: str) -> str:
    """Return why the run was not kvgate's: another mode than ``enforce``, or faults inside; "" when it decided on every request."""
    async with httpx.AsyncClient(headers=CLOSING) as client:
        metrics = (await client.get(f"{admin_url}/metrics", timeout=30)).raise_for_status().text
        state = (await client.get(f"{admin_url}/admin/state", timeout=30)).raise_for_status().json()
    errors = sum(float(value) for value in _INTERNAL_ERRORS.findall(metrics))
    if errors or state["guard_tripped"]:
        return f"kvgate met {errors:.0f} internal errors and relayed without deciding: see its log"
    return "" if state["mode"] == "enforce" else f"kvgate is in mode {state['mode']}"
