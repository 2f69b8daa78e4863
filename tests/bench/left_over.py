"""What kvgate and its replicas hold, by name: all of it is 0 when nobody has anything open."""

from collections.abc import Sequence

import httpx

from tests.bench.engine import read_state

HELD = ("kvgate_open_requests", "kvgate_queue_requests", "kvgate_body_bytes_held", "kvgate_relay_buffered_bytes")


async def left_over(
    client: httpx.AsyncClient, admin_url: str, engine_urls: Sequence[str]
) -> tuple[dict[str, str], dict[str, float]]:
    """The replicas' phases by name, and what is held, faults inside kvgate among it."""
    replicas = (await client.get(f"{admin_url}/admin/replicas")).json()
    metrics = (await client.get(f"{admin_url}/metrics")).text
    left: dict[str, float] = {f"leases of {one['name']}": one.get("leases", 0) for one in replicas}
    for name in (*HELD, "kvgate_internal_errors_total"):
        left[name] = metric(metrics, name)
    for index, url in enumerate(engine_urls):
        engine = read_state((await client.get(f"{url}/metrics")).text)
        left[f"running on mock{index}"], left[f"blocks of mock{index}"] = engine.running, engine.used_blocks
    return {
        one["name"]: one["phase"] if one["phase"] == "serving" else f"{one['phase']} ({one['fault']})" for one in replicas
    }, left


def metric(text: str, name: str, label: str = "") -> float:
    """The sum of a family's series, of those with ``label`` (``name="value"``) in it; 0 where there is none."""
    lines = [line for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{")) and label in line]
    return sum(float(line.rpartition(" ")[2]) for line in lines)
