"""What the shared store costs: CPU of Redis per call, round trips per grant and memory, by how many proxies and replicas there are.

    python -m tests.bench.shared_scripts [--proxies 1 4 16 64] [--replicas 1 16 1000] [--calls 1000]

It starts a redis-server of its own. CPU is what the server's process used (INFO cpu), reading and writing of sockets included, so that it
holds on a busy machine too; calls are sent in pipelines. Every proxy has a row on every replica, older than the total's anchor, so that it
has to be read on. ``rebuild`` is what it takes to make a replica's total anew, which happens every 16 steps on each replica that is in
use; ``idle`` is a rewrite by a proxy that has nothing on the replica, while nobody waits for it. The last columns put it together: one
core's share for 500 grants a second, every proxy rewriting every replica four times a second (who scrapes it: once), two rebuilds a second
of each replica; once as if every proxy had requests on every replica, and once as if hardly any had.
"""

import argparse
import asyncio
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import redis.asyncio

from proxy.adapters.redis_scripts import PUBLISH, RESERVE, REWRITE, RedisLedger, Script, facts_of, packed, packed_row
from proxy.core.grid import FloatArray, Grid
from proxy.core.shared import Head, Rank, RewriteAsk
from tests.support.redis_server import RedisServer, redis_server
from tests.support.shared_rows import RANK, RECORD, blocks_row, record

HORIZON_STEPS = 8192
GRANTS_PER_S, REBUILDS_PER_S = 500.0, 2.0
REWRITES_PER_S, REWRITES_PER_S_HOLDER = 4.0, 1.0  # under the defaults, where nothing changes: ``core.member``
PIPELINE_CALLS = 250
ENDS = Grid(HORIZON_STEPS).ends
WORSE = Rank(0.0, 9.0, 0.0)
Call = tuple[list[str], list[bytes | str | int | float]]


@dataclass
class Cost:
    """Microseconds of the server's CPU per call, by kind of call; bytes of memory."""

    proxies: int
    replicas: int
    cpu_us: dict[str, float] = field(default_factory=dict)
    bytes_per_row: float = 0.0
    round_trips_per_grant: float = 0.0

    def core_ratio(self, *, idle: bool) -> float:
        """Share of a core, as the module's header says."""
        a_second = (self.proxies - 1) * REWRITES_PER_S + REWRITES_PER_S_HOLDER
        rewrites = self.replicas * a_second * self.cpu_us["idle" if idle else "rewrite"]
        rebuilds = self.replicas * REBUILDS_PER_S * self.cpu_us["idle rebuild" if idle else "rebuild"]
        return (GRANTS_PER_S * self.cpu_us["granted"] + rewrites + rebuilds) * 1e-6


class Bench:
    """A pool filled with rows, and calls on it. Time is told, so that a total is made anew only where that is measured."""

    def __init__(self, server: RedisServer, proxies: int, replicas: int) -> None:
        self.cost = Cost(proxies, replicas)
        self.client = redis.asyncio.Redis.from_url(server.unix_url)
        self.now_s = 1000.0
        self.ledger = RedisLedger(self.client, "pool", 1e6, now_s=lambda: self.now_s)
        self.proxies = [f"proxy-{index:02d}" for index in range(proxies)]
        self.replicas = [f"http://10.0.0.1:{8000 + index}" for index in range(replicas)]
        self.epochs: dict[str, int] = {}
        self.number = 0
        self.random = random.Random(1)
        self.row: FloatArray = blocks_row(20.5, until_steps=1e9, alive=0.7, ends=ENDS)

    async def cpu_s(self) -> float:
        info = await self.client.info("cpu")
        return float(info["used_cpu_user"]) + float(info["used_cpu_sys"])

    async def memory(self) -> int:
        return int((await self.client.info("memory"))["used_memory"])

    def where(self) -> tuple[str, str]:
        return self.random.choice(self.proxies), self.random.choice(self.replicas)

    def reserving(self, row: FloatArray, rank: Rank = RANK) -> Call:
        proxy, replica = self.where()
        self.number += 1
        arguments = self.ledger._head(
            self.ledger.channel(""), replica, proxy, self.epochs[proxy], self.number, packed_row(row, 0.0), packed(*rank), "0"
        )
        return self.ledger.keys(replica), arguments

    def rewriting(self, proxy: str, replica: str, *, idle: bool = False) -> Call:
        row = None if idle else self.row
        ask = RewriteAsk(replica, proxy, self.epochs[proxy], self.number, row, -5.0, proxies_known=len(self.proxies))
        return self.ledger.keys(replica), self.ledger._rewrite_arguments(ask)

    def publishing(self, replica: str) -> Call:
        one = replace(RECORD, replica=replica, usable_blocks=10**6, steps_per_s=0.0)
        return self.ledger.keys(replica), self.ledger._head("p0", "1e9", str(one), facts_of(one), packed(*ENDS))

    async def run(self, script: Script, calls: list[Call]) -> list[list[bytes]]:
        replies: list[list[bytes]] = []
        for at in range(0, len(calls), PIPELINE_CALLS):
            replies += await script.run_all(self.client, calls[at : at + PIPELINE_CALLS])
        return replies

    async def measure(self, kind: str, script: Script, calls: list[Call], answer: bytes | None) -> None:
        before_s = await self.cpu_s()
        replies = await self.run(script, calls)
        self.cost.cpu_us[kind] = (await self.cpu_s() - before_s) / len(calls) * 1e6
        assert answer is None or all(reply[0] == answer for reply in replies), {reply[0] for reply in replies}

    async def fill(self) -> None:
        """Everybody's row everywhere, and what a row takes of memory."""
        await self.client.flushall()
        for proxy in self.proxies:
            self.epochs[proxy] = await self.ledger.register(proxy)
        for replica in self.replicas:
            assert await self.ledger.publish(record(replica, usable_blocks=10**6, steps_per_s=0.0), ENDS, 0.0)
        before = await self.memory()
        for proxy in self.proxies:
            await self.run(REWRITE, [self.rewriting(proxy, replica) for replica in self.replicas])
        self.cost.bytes_per_row = (await self.memory() - before) / len(self.proxies) / len(self.replicas)

    async def grants(self, calls: int) -> None:
        """Grants, refusals for want of room, and grants beside a better head of another that has no promise."""
        await self.run(RESERVE, [self.reserving(self.row)])
        await self.client.config_resetstat()
        await self.measure("granted", RESERVE, [self.reserving(self.row) for _ in range(calls)], b"granted")
        stats = await self.client.info("commandstats")
        trips = sum(int(stats[name]["calls"]) for name in ("cmdstat_evalsha", "cmdstat_eval") if name in stats)
        self.cost.round_trips_per_grant = trips / calls
        for proxy in self.proxies:  # so that no grants are left over
            await self.run(REWRITE, [self.rewriting(proxy, replica) for replica in self.replicas[:calls]])
        await self.measure("refused", RESERVE, [self.reserving(self.row * 1e6) for _ in range(calls)], b"room")
        for replica in self.replicas[:calls]:
            await self.ledger.set_heads(self.proxies[-1], replica, [Head("h", Rank(-1.0, 0.0, 0.0), self.row * 1e6, 0.0, 1e9)])
        await self.measure("beside a head", RESERVE, [self.reserving(self.row, WORSE) for _ in range(calls)], b"granted")
        for replica in self.replicas[:calls]:
            await self.ledger.set_heads(self.proxies[-1], replica, [])

    async def rewrites(self, calls: int) -> None:
        """Rewrites with nothing to settle, and the same with a total to be made anew; by who has something there and who has not."""
        for idle, kind in ((False, ""), (True, "idle ")):
            for proxy in self.proxies if idle else ():
                await self.run(REWRITE, [self.rewriting(proxy, replica, idle=True) for replica in self.replicas])
            plain = kind.strip() or "rewrite"
            again = [self.rewriting(*self.where(), idle=idle) for _ in range(calls)]
            await self.measure(plain, REWRITE, again, b"granted")
            due: list[Call] = []
            for index in range(max(20, calls // len(self.proxies))):
                self.now_s += 3.0
                proxy, replica = self.proxies[index % len(self.proxies)], self.replicas[index % len(self.replicas)]
                due.append(self.rewriting(proxy, replica, idle=idle))
            await self.measure(f"{kind}rebuild", REWRITE, due, b"granted")
            self.cost.cpu_us[f"{kind}rebuild"] -= self.cost.cpu_us[plain]


async def measured(server: RedisServer, proxies: int, replicas: int, calls: int) -> Cost:
    """Every figure of one size."""
    bench = Bench(server, proxies, replicas)
    await bench.fill()
    await bench.grants(calls)
    await bench.fill()
    await bench.rewrites(calls)
    publishing: Callable[[], Call] = lambda: bench.publishing(bench.random.choice(bench.replicas))  # noqa: E731
    published = await bench.run(PUBLISH, [bench.publishing(replica) for replica in bench.replicas])
    assert np.all(np.asarray(published) == 1)
    await bench.measure("publish", PUBLISH, [publishing() for _ in range(calls)], None)
    await bench.client.aclose()
    return bench.cost


def line_of(cost: Cost) -> str:
    """One line of the table."""
    kinds = ("granted", "beside a head", "refused", "rewrite", "rebuild", "idle", "idle rebuild", "publish")
    figures = " | ".join(f"{cost.cpu_us[kind]:.0f}" for kind in kinds)
    return (
        f"| {cost.proxies} | {cost.replicas} | {figures} | {cost.round_trips_per_grant:.2f} | {cost.bytes_per_row / 1024:.1f} "
        f"| {cost.core_ratio(idle=False):.2f} | {cost.core_ratio(idle=True):.2f} |"
    )


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--proxies", type=int, nargs="+", default=[1, 4, 16, 64])
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 16, 1000])
    parser.add_argument("--calls", type=int, default=1000)
    arguments = parser.parse_args()
    row_bytes = len(packed_row(blocks_row(1.0, ends=ENDS), 0.0))
    say(f"{len(ENDS)} points to {HORIZON_STEPS} steps: {row_bytes} bytes a row; CPU in us\n")
    say(
        "| proxies | replicas | grant | beside a head | refusal | rewrite | rebuild | idle | idle rebuild | publish "
        "| round trips/grant | KiB/row | core | core, idle |"
    )
    say("| ---: " * 14 + "|")
    for replicas in arguments.replicas:
        for proxies in arguments.proxies:
            with redis_server() as server:
                say(line_of(asyncio.run(measured(server, proxies, replicas, arguments.calls))))


if __name__ == "__main__":
    main()
