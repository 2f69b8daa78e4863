"""Two proxies in this process over two mock replicas and a real redis-server, and what the server may do to them."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest

from proxy.core.shared import Answer
from proxy.ports.store import StoreFault, StorePhase
from tests.integration.mock_harness import RunningMock, running, settings
from tests.integration.serving.harness import Reply, RunningProxy, admin_of, proxying, until, url_of
from tests.support.redis_server import RedisServer, redis_server

pytestmark = pytest.mark.redis

BACK_S = 2.0
LEASE_S = 1.0
STORE = {"timeout": "100ms", "lease": "1s", "beat": "50ms", "rewrite": "50ms"}


@dataclass(frozen=True, slots=True)
class Pool:
    """Two proxies before two mocks."""

    server: RedisServer
    mocks: tuple[RunningMock, RunningMock]
    proxies: tuple[RunningProxy, RunningProxy]

    async def until_all(self, phase: StorePhase, seconds: float = 15.0) -> None:
        await until(lambda: all(one.sharing.phase is phase for one in self.proxies), f"{phase} everywhere", seconds)

    async def chats(self, count: int, tokens: int = 60) -> list[Reply]:
        """So many requests at once, the proxies in turn."""
        asks = (self.proxies[index % 2].wire.chat(model="mock", max_tokens=tokens) for index in range(count))
        return await asyncio.gather(*asks)

    async def under_load(self, act: Callable[[], None], seconds_after: float) -> list[Reply]:
        """Answers to requests that come all the time, before and after ``act``."""
        replies: list[Reply] = []
        over = asyncio.Event()

        async def client(index: int) -> None:
            while not over.is_set():
                replies.append(await self.proxies[index % 2].wire.chat(model="mock", max_tokens=10))

        clients = [asyncio.create_task(client(index)) for index in range(8)]
        await until(lambda: len(replies) >= 16, "load")
        act()
        await asyncio.sleep(seconds_after)
        over.set()
        await asyncio.gather(*clients)
        return replies


@asynccontextmanager
async def pool(config: dict[str, str] | None = None, *, blocks: int = 64) -> AsyncIterator[Pool]:
    async with AsyncExitStack() as stack:
        server = stack.enter_context(redis_server(config))
        small = {"num_gpu_blocks": blocks + 1, "max_model_len": 1024}
        mocks = [await stack.enter_async_context(running(settings(engine=small))) for _ in range(2)]
        urls = [url_of(mock) for mock in mocks]
        proxies = [
            await stack.enter_async_context(proxying(*urls, policy={"store": STORE}, redis_url=server.url)) for _ in range(2)
        ]
        for proxy in proxies:
            await proxy.until_serving(2)
        made = Pool(server, (mocks[0], mocks[1]), (proxies[0], proxies[1]))
        await made.until_all(StorePhase.SHARING)
        await until(
            lambda: all(len(one.services.exchange.proxies) == 2 for one in proxies if one.services.exchange), "both cards"
        )
        yield made


def good(replies: list[Reply]) -> bool:
    return {reply.status for reply in replies} == {200}


async def test_they_share_the_replicas_and_show_it() -> None:
    async with pool() as two:
        assert good(await two.chats(24, tokens=200))  # over twice what both replicas hold
        first = two.proxies[0]
        granted = sum(one.sharing.answers[Answer.GRANTED] for one in two.proxies)
        assert granted >= 24
        assert sum(engine.engine.counters.preemptions for mock in two.mocks for engine in mock.server.pool.engines) == 0
        assert first.metric("kvgate_store_proxies") == 2.0
        async with admin_of(first) as admin:
            told = (await admin.request("GET", "/admin/proxies")).json()
        assert len(told["proxies"]) == 2
        assert [card["this"] for card in told["proxies"]].count(True) == 1
        assert told["store"]["phase"] == "sharing"
        ready = json.loads(first.endpoints.ready().body)
        assert ready["store"] == {"phase": "sharing", "error": None, "proxies": 2, "policies_differ": []}


async def test_before_roomy_replicas_most_wait_for_no_answer_of_the_store_and_nothing_is_left_of_what_was_taken_ahead() -> None:
    async with pool(blocks=4000) as two:
        members = [one.sharing.member for one in two.proxies]
        clock = two.proxies[0].services.clock
        await until(lambda: clock.now_s() >= max(member._recovered_s for member in members), "a store that has its rows")
        client = two.server.client()

        def rows() -> list[object]:
            fields = [field for key in client.scan_iter("*:rows") for field in client.hkeys(key)]
            return [field for field in fields if field.startswith((b"r|", b"g"))]

        replies, seen = list[Reply](), list[object]()
        for _ in range(20):
            replies += await two.chats(8, tokens=20)
            seen += rows()
        assert good(replies)
        assert seen
        ahead = sum(member.advances.granted_total for member in members)
        granted = sum(one.sharing.answers[Answer.GRANTED] for one in two.proxies)
        assert ahead + granted == 160
        assert ahead > granted
        assert two.proxies[0].metric("kvgate_store_granted_ahead_total") == members[0].advances.granted_total
        await until(lambda: not any(member.advances.blocks for member in members), "nothing ahead any more")
        await until(lambda: not rows(), "no row nor grant any more")


async def test_one_of_them_scrapes_each_replica_and_the_other_knows_as_much() -> None:
    async with pool() as two:
        names = list(two.proxies[0].services.watchers)

        def holders() -> list[int]:
            return [sum(name in one.sharing.member.holds for one in two.proxies) for name in names]

        await until(lambda: holders() == [1, 1], "one holder each")
        for one in two.proxies:
            ages = [book.sample_age_s(one.services.clock.now_s()) for book in one.services.dispatcher.gate.fleet]
            assert all(age is not None and age < 1.0 for age in ages), ages


async def test_a_replica_that_failed_one_of_them_starts_slowly_at_the_other_until_it_answers() -> None:
    async with pool() as two:
        one, other = (proxy.services for proxy in two.proxies)
        name = next(iter(one.watchers))
        gate = other.dispatcher.gate.fleet
        for _ in range(one.policy.health.failures_max):
            one.watchers[name].failed_request("a test says so", one.clock.now_s())
        assert one.outliers.ejected(name)
        await until(lambda: gate.books[name].slow_start is not None, "suspicion at the other")
        other.watchers[name].answered_request()
        await until(lambda: gate.books[name].slow_start is None, "trust at the other")
        await until(lambda: not one.outliers.ejected(name), "an end of the ejection")


@pytest.mark.parametrize("act", ["restart", "flush", "script_flush"])
async def test_under_load_no_request_fails_and_all_is_shared_again_soon(act: str) -> None:
    async with pool() as two:
        deeds = {
            "restart": two.server.restart,
            "flush": two.server.flush,
            "script_flush": lambda: two.server.client().script_flush(),
        }
        replies = await two.under_load(deeds[act], BACK_S)
        assert good(replies)
        await two.until_all(StorePhase.SHARING, 1.0)


async def test_a_stopped_store_is_gone_without_while_requests_are_served() -> None:
    async with pool() as two:
        assert good(await two.under_load(two.server.stop, 1.0))
        await two.until_all(StorePhase.DEGRADED)
        assert good(await two.chats(12))
        two.server.start()
        await two.until_all(StorePhase.SHARING, BACK_S + 1.0)  # the machine of a test may be busy
        assert all(one.sharing.errors[StoreFault.CONNECTION] for one in two.proxies)


async def test_a_paused_store_holds_nobody_up() -> None:
    async with pool() as two:
        two.server.pause()
        assert good(await two.chats(8))
        await two.until_all(StorePhase.DEGRADED)
        two.server.resume()
        await two.until_all(StorePhase.SHARING, BACK_S + 1.0)


async def test_one_that_becomes_full_or_read_only_is_gone_without() -> None:
    async with pool() as two:
        client = two.server.client()
        client.config_set("maxmemory-policy", "noeviction")
        client.config_set("maxmemory", "1mb")
        await two.until_all(StorePhase.DEGRADED)
        assert good(await two.chats(8))
        assert all(one.sharing.errors[StoreFault.FULL] for one in two.proxies)
        client.config_set("maxmemory", "0")
        await two.until_all(StorePhase.SHARING)
        with redis_server() as primary:
            client.replicaof("127.0.0.1", str(primary.port))
            await two.until_all(StorePhase.DEGRADED)
            assert good(await two.chats(8))
            assert all(one.sharing.errors[StoreFault.READONLY] for one in two.proxies)
            client.replicaof("NO", "ONE")
            await two.until_all(StorePhase.SHARING)


async def test_a_replica_that_one_proxy_gives_up_costs_it_nothing_at_the_store() -> None:
    """Left there, its row would expire, and the proxy with it be given up and have to begin anew."""
    async with pool() as made:
        gone, kept = (url_of(mock).removeprefix("http://") for mock in made.mocks)
        a, b = made.proxies
        assert {reply.status for reply in await made.chats(20)} == {200}
        epoch, before = a.sharing.member._epoch, a.services.replicas.wanted
        a.services.replicas.apply([one for one in before if one.name == kept])
        await until(lambda: list(a.services.watchers) == [kept], "the end of it at one proxy")
        rewrites = a.sharing.rewrites
        replies = await made.under_load(lambda: None, 2.5 * LEASE_S)
        assert {reply.status for reply in replies} == {200}
        assert a.sharing.rewrites > rewrites
        assert (a.sharing.member._epoch, a.sharing.phase) == (epoch, StorePhase.SHARING)
        assert not a.sharing.answers[Answer.FENCED]
        assert gone in b.services.watchers
        assert {record.replica for record in a.records[-8:]} == {kept}
        a.services.replicas.apply(before)
        await a.until_serving(2)
        await made.until_all(StorePhase.SHARING)
        assert {reply.status for reply in await made.chats(20)} == {200}
        assert a.sharing.member._epoch == epoch
        for proxy in made.proxies:
            await proxy.until_idle(*made.mocks)
