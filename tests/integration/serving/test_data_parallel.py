"""One server with two data-parallel engines: each has its own account, and requests run where they were booked."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from proxy.core.book import Book
from proxy.core.replica import ReplicaPhase
from proxy.ports import Headers, UpstreamResponse
from proxy.sim.step_time import StepTimeModel
from tests.integration.mock_harness import RunningMock, running, settings
from tests.integration.serving.harness import Exchange, RunningProxy, admin_of, phases, proxying, until, url_of

RANK = b"x-data-parallel-rank"


def books(proxy: RunningProxy) -> list[Book]:
    return list(proxy.services.dispatcher.gate.fleet.books.values())


def running_on(mock: RunningMock) -> list[int]:
    return [engine.published.gauges.running for engine in mock.server.pool.engines]


def ranks_sent(proxy: RunningProxy) -> list[bytes | None]:
    """What the requests that are sent upstream from now on say of the engine."""
    seen: list[bytes | None] = []
    upstream = proxy.services.upstream
    opened = upstream.open

    async def open_noting(
        base_url: str, method: bytes, target: bytes, headers: Headers, body: bytes, *, once: bool = False
    ) -> UpstreamResponse:
        seen.append(dict(headers).get(RANK))
        return await opened(base_url, method, target, headers, body, once=once)

    upstream.open = open_noting  # type: ignore[method-assign]
    return seen


@asynccontextmanager
async def streams(proxy: RunningProxy, *users: str, headers: dict[str, str] | None = None) -> AsyncIterator[None]:
    """Long answers, each past its first token."""
    exchanges: list[Exchange] = []
    for user in users:
        exchange = await proxy.wire.start_chat(headers, max_tokens=2000, ignore_eos=True, stream=True, user=user)
        await exchange.reader.readuntil(b"data: ")
        exchanges.append(exchange)
    try:
        yield
    finally:
        for exchange in exchanges:
            await exchange.leave()


async def test_requests_run_on_the_engine_they_are_booked_on() -> None:
    chosen = settings(data_parallel_size=2, step_time=StepTimeModel())
    async with running(chosen) as mock, proxying(url_of(mock)) as proxy:
        assert [(book.spec.name.partition("#")[2], book.spec.usable_blocks) for book in books(proxy)] == [("0", 511), ("1", 511)]
        seen = ranks_sent(proxy)
        async with streams(proxy, *"abcde"):
            leases = [len(book.ledger.leases) for book in books(proxy)]
            assert sorted(leases) == [2, 3]
            assert [seen.count(b"%d" % rank) for rank in range(2)] == leases
            await until(lambda: running_on(mock) == leases, "every request where it was booked")
            await until(lambda: [book.running for book in books(proxy)] == leases, "each engine's own count")
            for book in books(proxy):
                await until(lambda book=book: 0.0 < (book.measured_blocks or 0.0) <= 511, "each engine's own usage")  # type: ignore[misc]
                name = book.spec.name
                assert proxy.metric(f'kvgate_replica_leases{{replica="{name}"}}') == len(book.ledger.leases)
            async with admin_of(proxy) as admin:
                listed = (await admin.request("GET", "/admin/replicas?history=1")).json()
            assert [(one["name"], one["leases"]) for one in listed] == [
                (book.spec.name, len(book.ledger.leases)) for book in books(proxy)
            ]
            assert {one["url"] for one in listed} == {url_of(mock)}
            assert all(one["history"] for one in listed)
        await proxy.until_idle(mock)


async def test_a_conversation_stays_on_its_engine() -> None:
    """The server's own balancer takes its engines in turn."""
    async with running(settings(data_parallel_size=2)) as mock, proxying(url_of(mock)) as proxy:
        seen = ranks_sent(proxy)
        for _ in range(4):
            assert (await proxy.wire.chat({"x-kvgate-session": "s"}, max_tokens=40)).status == 200
        await proxy.until_idle(mock)
        assert len({record.replica for record in proxy.records}) == 1
        assert len(set(seen)) == 1
        assert seen[0] is not None


async def test_the_clients_own_choice_stands() -> None:
    chosen = settings(data_parallel_size=2, step_time=StepTimeModel())
    async with running(chosen) as mock, proxying(url_of(mock)) as proxy:
        seen = ranks_sent(proxy)
        async with streams(proxy, *"abc", headers={"X-data-parallel-rank": "1"}):
            await until(lambda: running_on(mock) == [0, 3], "all on the engine that was asked for")
        assert seen == [b"1"] * 3
        await proxy.until_idle(mock)


async def test_one_engine_is_not_pinned_and_keeps_its_name() -> None:
    async with running(settings()) as mock, proxying(url_of(mock)) as proxy:
        seen = ranks_sent(proxy)
        assert (await proxy.wire.chat(max_tokens=2)).status == 200
        assert seen == [None]
        assert [book.spec.name for book in books(proxy)] == [url_of(mock).removeprefix("http://")]


async def test_a_server_that_is_gone_is_gone_with_its_engines() -> None:
    """And what it failed goes elsewhere at once, not to its other engine first."""
    async with running(settings()) as other, AsyncExitStack() as stack:
        mock = await stack.enter_async_context(running(settings(data_parallel_size=2)))
        async with proxying(url_of(mock), url_of(other)) as proxy:
            await stack.aclose()
            replies = [await proxy.wire.chat(max_tokens=2) for _ in range(4)]
            assert [reply.status for reply in replies] == [200] * 4
            assert {record.replica for record in proxy.records} == {url_of(other).removeprefix("http://")}
            assert all(record.reroutes <= 1 for record in proxy.records)
            unreachable, serving = ReplicaPhase.UNREACHABLE, ReplicaPhase.SERVING
            await until(lambda: phases(proxy) == [unreachable, serving], "that it is seen")
            assert [book.phase for book in books(proxy) if book.spec.server] == [unreachable, unreachable]
            await proxy.until_idle(other)
