"""Faults of everything between several proxies, drawn at random under load, and what must be true during and after them.

    python -m tests.bench.shared_faults --faults 1000 --seed 1

Each fault breaks one thing, waits, and mends it; the next follows after a pause in which sharing has come back. Faults:

| fault | what is done |
| --- | --- |
| kill | ``kill -9`` of a proxy, started again while other things happen |
| stop | SIGSTOP of a proxy, for less or more than its lease, then SIGCONT |
| stop_redis | SIGSTOP of Redis, then SIGCONT |
| cut | a proxy is cut off from Redis (``tests.bench.shared_network`` says how), then healed |
| flush | FLUSHALL |
| restart | ``kill -9`` of Redis, started again empty |
| full | CONFIG SET maxmemory 1: writes are refused with OOM, then lifted |
| read_only | Redis becomes the replica of nobody and refuses writes, then is promoted |
| scripts | SCRIPT FLUSH and all connections closed |

What must be true (``Verdict`` in ``tests.bench.shared_outcomes``): no request fails but those open at a proxy that was killed; what is held
and waited for inside the engines stays within usable and the isolated proxies' last shares; sharing is back within two seconds of Redis;
afterwards what Redis says is reserved equals what runs, to the block, and all is empty in the end.
"""

import argparse
import asyncio
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

import redis.asyncio
import uvloop

from tests.bench import shared_network
from tests.bench.shared_back import BACK_S_MAX, Back, sharing_again
from tests.bench.shared_engines import EngineWatch
from tests.bench.shared_load import Clients, SharedLoad
from tests.bench.shared_outcomes import Verdict, judge_end
from tests.bench.shared_processes import Fleet, FleetSettings, Proxy

PAUSE_S_MIN, PAUSE_S_MAX = 0.1, 0.6
SHORT_S, LONG_S = (0.05, 0.8), (3.2, 4.5)  # below and beyond a lease of 3 s
LONG_SHARE = 0.15
PROXIES_UP_MIN = 2
CUT_MAX = 2  # at a time


@dataclass(slots=True)
class Faults:
    """Breaks and mends a fleet."""

    fleet: Fleet
    rng: random.Random
    counts: Counter[str] = field(default_factory=Counter)
    back: list[Back] = field(default_factory=list)  # from mending until all shared again
    _starting: list[asyncio.Task[None]] = field(default_factory=list)

    def kinds(self) -> dict[str, tuple[int, Callable[[], Awaitable[None]]]]:
        """Weight, and what is done."""
        return {
            "kill": (3, self.kill),
            "stop": (3, self.stop),
            "stop_redis": (3, self.stop_redis),
            "cut": (4, self.cut),
            "flush": (2, self.flush),
            "restart": (2, self.restart),
            "full": (1, self.full),
            "read_only": (1, self.read_only),
            "scripts": (1, self.scripts),
        }

    async def one(self) -> None:
        """Do one, and wait for sharing to be back."""
        kinds = self.kinds()
        name = self.rng.choices(list(kinds), [weight for weight, _ in kinds.values()])[0]
        self.counts[name] += 1
        await kinds[name][1]()
        self.back.append(Back(name, *await sharing_again(self.fleet)))
        await asyncio.sleep(self.rng.uniform(PAUSE_S_MIN, PAUSE_S_MAX))

    def _some_time_s(self) -> float:
        return self.rng.uniform(*(LONG_S if self.rng.random() < LONG_SHARE else SHORT_S))

    def _some_proxy(self) -> Proxy:
        return self.rng.choice([proxy for proxy in self.fleet.proxies if proxy.up])

    def _client(self) -> redis.asyncio.Redis:
        return redis.asyncio.from_url(self.fleet.redis.url)

    async def kill(self) -> None:
        """A proxy dies; it comes back while other things happen. Two are always there."""
        up = [proxy for proxy in self.fleet.proxies if proxy.up]
        if len(up) > PROXIES_UP_MIN:
            proxy = self.rng.choice(up)
            self.fleet.kill_proxy(proxy)
            self._starting.append(asyncio.create_task(self.fleet.start_proxy(proxy)))

    async def all_up(self) -> None:
        """Wait for every proxy that was killed. Raises RuntimeError when one does not come back."""
        await asyncio.gather(*self._starting)
        self._starting.clear()

    async def drop(self) -> None:
        """Start nothing more."""
        for task in self._starting:
            task.cancel()
        await asyncio.gather(*self._starting, return_exceptions=True)

    async def stop(self) -> None:
        """A proxy does nothing for a while; a balancer would not notice."""
        child = self._some_proxy().child
        child.stop()
        await asyncio.sleep(self._some_time_s())
        child.go_on()

    async def stop_redis(self) -> None:
        """Redis does nothing for a while."""
        self.fleet.redis.pause()
        await asyncio.sleep(self._some_time_s())
        self.fleet.redis.resume()

    async def cut(self) -> None:
        """One or two proxies cannot reach Redis."""
        cut = self.rng.sample(range(len(self.fleet.proxies)), self.rng.choice((1, 1, CUT_MAX)))
        for index in cut:
            self.fleet.network.cut(index)
        await asyncio.sleep(self._some_time_s())
        for index in cut:
            self.fleet.network.heal(index)

    async def flush(self) -> None:
        """Redis loses everything."""
        async with self._client() as client:
            await client.flushall()

    async def restart(self) -> None:
        """Redis dies and comes back empty."""
        self.fleet.redis.stop()
        await asyncio.sleep(self.rng.uniform(*SHORT_S))
        self.fleet.redis.start()

    async def full(self) -> None:
        """Redis takes no writes for want of memory."""
        async with self._client() as client:
            await client.config_set("maxmemory", "1")
            await asyncio.sleep(self._some_time_s())
            await client.config_set("maxmemory", "0")

    async def read_only(self) -> None:
        """Redis takes no writes because it has been demoted."""
        async with self._client() as client:
            await client.config_set("replica-serve-stale-data", "yes")
            await client.replicaof("127.0.0.1", "1")
            await asyncio.sleep(self._some_time_s())
            await client.replicaof("NO", "ONE")

    async def scripts(self) -> None:
        """Scripts are forgotten and connections closed."""
        async with self._client() as client:
            await client.script_flush()
            await client.client_kill_filter(_type="normal", skipme=True)


async def run_faults(settings: FleetSettings, faults: int, seed: int, back_s_max: float) -> Verdict:
    """So many faults under load, then silence; everything seen, judged."""
    loop = asyncio.get_running_loop()
    async with Fleet(settings) as fleet:
        load, started_s = SharedLoad(fleet.proxies, seed), loop.time()
        everywhere = tuple(range(settings.proxies))
        clients = [Clients(f"t{i}", 24, everywhere) for i in range(settings.proxies)]
        load.start([*clients, Clients("vip", 4, everywhere, high=True)])
        watch = EngineWatch(fleet.replica_urls)
        watching = asyncio.create_task(watch.run())
        breaking = Faults(fleet, random.Random(seed))
        try:
            await asyncio.sleep(5.0)
            for _ in range(faults):
                if watching.done():
                    watching.result()
                await breaking.one()
            await breaking.all_up()
            await sharing_again(fleet)
            end = await judge_end(fleet, load)
        finally:
            await breaking.drop()
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            await load.drop()
        complaints = await fleet.complaints()
    return Verdict(
        loop.time() - started_s,
        fleet.network.kind,
        dict(breaking.counts),
        breaking.back,
        load.sent,
        watch,
        end,
        complaints,
        back_s_max,
        CUT_MAX / settings.proxies,
    )


def main(argv: list[str] | None = None) -> int:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description="Random faults between proxies that share Redis.")
    parser.add_argument("--faults", type=int, default=60, help="how many (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="of the faults and the requests (default: %(default)s)")
    parser.add_argument("--proxies", type=int, default=4, help="default: %(default)s")
    parser.add_argument("--replicas", type=int, default=4, help="default: %(default)s")
    parser.add_argument(
        "--back-max", type=float, default=BACK_S_MAX, metavar="S", help="until all share again (default: %(default)s)"
    )
    parser.add_argument("--folder", type=Path, help="for logs (default: a temporary one)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything there")
    words = sys.argv[1:] if argv is None else argv
    arguments = parser.parse_args(words)
    shared_network.enter("tests.bench.shared_faults", words)
    with tempfile.TemporaryDirectory(prefix="kvgate-faults-") as folder:
        settings = FleetSettings(
            arguments.folder or Path(folder), proxies=arguments.proxies, replicas=arguments.replicas, cuttable=True
        )
        verdict = uvloop.run(run_faults(settings, arguments.faults, arguments.seed, arguments.back_max))
    sys.stdout.write("\n".join(verdict.lines()) + "\n")
    if arguments.json:
        arguments.json.write_text(json.dumps(verdict.as_json(), indent=1), encoding="utf-8")
    return 1 if verdict.faults else 0


if __name__ == "__main__":
    sys.exit(main())
