"""The store's port on a real redis-server: what it exchanges, what it may do without, and what each way of failing is called."""

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import redis.asyncio

from proxy.adapters.clock import SystemClock
from proxy.adapters.redis_link import PATIENCE_S_MIN
from proxy.adapters.redis_store import RESPONSES_KEPT, RESPONSES_S, RedisStore
from proxy.config.redis_url import store_address
from proxy.core.exchange import Completion
from proxy.core.override import Override
from proxy.core.shared import Answer, Head, Rank, RewriteAsk
from proxy.core.shared_health import Notice
from proxy.core.tenant_accounts import Level, Levels
from proxy.ports.store import Beat, KeptResponse, ProxyCard, StoreError, StoreFault
from tests.integration.serving.harness import until
from tests.support.local_store import LocalStore
from tests.support.redis_server import RedisServer, free_port, redis_server
from tests.support.shared_rows import ENDS, ask, blocks_row, record

pytestmark = pytest.mark.redis

DEPLOY = Path(__file__).parents[3] / "deploy" / "README.md"
EJECTED = Notice("r0", 5.25, 7.25, 1)
TIMEOUT_S = 1.0  # the machine of a test may be busy
LEVELS = Levels(5, (Level(0, "t", 2.25, 40.0, 7.5, 0.5), Level(1, "", -0.5, 0.0)))
CARD = ProxyCard(
    "a", "digest", "0.1", "enforce", "http://a", ((0, 2.5),), 1000.0, (EJECTED, Notice("r1", answered_s=7.5)), LEVELS
)
DONE = Completion("r0", ("m", "default", False, 3, -1), 15.0, True, 100, 15.0, True, False)


@asynccontextmanager
async def store_at(url: str, timeout_s: float = TIMEOUT_S) -> AsyncIterator[RedisStore]:
    store = RedisStore(store_address(url), timeout_s=timeout_s, lease_s=3.0)
    try:
        yield store
    finally:
        await store.aclose()


async def use(store: RedisStore) -> None:
    """Everything that the port can do, once."""
    epoch = await store.register("a")
    now_s = await store.time_s()
    assert await store.publish(record(published_s=now_s), ENDS, 1.0)
    (written,) = await store.rewrite_all([RewriteAsk("r0", "a", epoch, 0, None, 0.0)])
    assert written.answer is Answer.GRANTED
    reply = await store.reserve(ask(proxy="a", epoch=epoch))
    assert reply.answer is Answer.GRANTED
    await store.set_heads("a", "r0", [Head("q", Rank(0.0, 0.0, 0.0), blocks_row(5.0), 0.0, 0.0)])
    seen = await store.exchange(Beat(replace(CARD, seen_s=now_s), {(0, "t"): 1.5}, [DONE]))
    assert [card.proxy for card in seen.proxies] == ["a"]
    await store.forget("a", ["r0"])


async def fault_of(url: str, timeout_s: float = TIMEOUT_S) -> StoreError:
    async with store_at(url, timeout_s) as store:
        with pytest.raises(StoreError) as error:
            await use(store)
    return error.value


async def test_every_call_works_over_tcp_and_over_a_socket() -> None:
    with redis_server() as server:
        for url in (server.url, server.unix_url):
            async with store_at(url) as store:
                await use(store)


async def test_a_closed_store_leaves_no_connection_behind_whoever_was_just_connecting() -> None:
    with redis_server() as server:
        store = RedisStore(store_address(server.url), timeout_s=TIMEOUT_S, lease_s=3.0)
        server.pause()  # connects, and says nothing
        asking = asyncio.create_task(store.time_s())
        await asyncio.sleep(0)
        await store.aclose()
        with pytest.raises(StoreError) as timed_out:
            await asking
        assert timed_out.value.fault is StoreFault.TIMEOUT
        with pytest.raises(StoreError, match="has closed"):
            await store.time_s()
        server.resume()
        with closing(server.client()) as client:
            assert [one["name"] for one in client.client_list()] == [""], "the client that asks, and nobody else"


async def test_an_exchange_tells_the_others() -> None:
    with redis_server() as server:
        async with store_at(server.url) as a, store_at(server.url) as b, store_at(server.url + "?pool=other") as other:
            now_s = await a.time_s()
            card = replace(CARD, seen_s=now_s)
            await a.exchange(Beat(card, {(0, "t"): 1.5, (-5, "x|y"): -0.25}, [DONE]))
            heard = await b.exchange(Beat(replace(card, proxy="b"), {(0, "t"): 2.0}))
            assert heard.proxies == (card, replace(card, proxy="b"))
            assert heard.accounts == {(0, "t"): 3.5, (-5, "x|y"): -0.25}
            assert heard.completions == (DONE,)
            again = await b.exchange(Beat(replace(card, proxy="b"), completions_seen=heard.completions_seen))
            assert again.completions == ()
            assert (await a.exchange(Beat(card))).completions == (), "its own it knows"
            assert (await other.exchange(Beat(card))).accounts == {}
            said = Override("mode", "observe", "because", "me", now_s + 60.0, "1")
            await b.override(said)
            await b.override(Override("drain:r0", "drain", "because", "me", now_s - 1.0, "2"))
            assert (await a.exchange(Beat(card))).overrides == (said,), "what is over is over"
            assert server.client().hkeys("kvgate:{default}:overrides") == [b"mode"]
            assert (await other.exchange(Beat(card))).overrides == ()


async def test_an_exchange_tells_where_responses_live_within_bounds() -> None:
    with redis_server() as server:
        async with store_at(server.url) as a, store_at(server.url) as b:
            card = replace(CARD, seen_s=await a.time_s())
            kept = [KeptResponse("resp_1", "r0", 17), KeptResponse("resp_2", "r1")]
            assert (await a.exchange(Beat(card, responses=kept))).responses == ()
            heard = await b.exchange(Beat(replace(card, proxy="b")))
            assert heard.responses == tuple(kept)
            await a.exchange(Beat(card, responses=kept[:1]))
            again = await b.exchange(Beat(replace(card, proxy="b"), responses_seen=heard.responses_seen))
            assert again.responses == tuple(kept[:1])
            assert (await a.exchange(Beat(card))).responses == (), "its own it knows"
            for start in range(0, RESPONSES_KEPT + 500, 500):
                many = [KeptResponse(f"resp_{index}", "r0") for index in range(start, start + 500)]
                await a.exchange(Beat(card, responses=many))
            with closing(server.client()) as client:
                assert RESPONSES_KEPT <= client.xlen("kvgate:{default}:responses") <= RESPONSES_KEPT + 200
                assert 0 < client.ttl("kvgate:{default}:responses") <= RESPONSES_S
            first = await b.exchange(Beat(replace(card, proxy="b")))
            assert first.responses[-1] == many[-1], "the latest of them"


async def test_who_has_not_beaten_for_long_is_forgotten() -> None:
    with redis_server() as server:
        async with store_at(server.url) as store:
            now_s = await store.time_s()
            await store.exchange(Beat(replace(CARD, proxy="gone", seen_s=now_s - 60.0)))
            heard = await store.exchange(Beat(replace(CARD, seen_s=now_s)))
            assert [card.proxy for card in heard.proxies] == ["a"]
            assert server.client().hkeys("kvgate:{default}:proxies") == [b"a"]


async def offered(store: RedisStore, server: RedisServer) -> str:
    """Offer room on r0 to proxy a; return what its listener hears."""
    listening = asyncio.create_task(anext(store.offers("a")))
    client = server.client()
    await until(lambda: client.publish("kvgate:{default}:offers:a", "r0"), "a listener")
    return await asyncio.wait_for(listening, 10)


async def test_an_offer_is_heard() -> None:
    with redis_server() as server:
        async with store_at(server.url) as store:
            assert await offered(store, server) == "r0"


async def test_a_flush_of_scripts_is_not_noticed() -> None:
    with redis_server() as server:
        async with store_at(server.url) as store:
            await use(store)
            server.client().script_flush()
            await use(store)


def documented_user() -> str:
    """The ACL that deploy/README.md gives, with a password."""
    found = re.search(r"`user (kvgate on >PASSWORD [^`]+)`", DEPLOY.read_text("utf-8"))
    assert found
    return found[1].replace("PASSWORD", "s3cret")


async def test_the_documented_acl_is_enough_and_has_no_script() -> None:
    user = documented_user()
    assert "script" not in user
    with redis_server({"user": user}) as server:
        url = server.url.replace("//", "//kvgate:s3cret@")
        async with store_at(url) as store:
            await use(store)
            server.client().script_flush()
            await use(store)
            assert await offered(store, server) == "r0"


@pytest.mark.parametrize("command", ["evalsha", "hincrbyfloat", "xadd", "hset", "time"])
async def test_the_command_that_an_acl_lacks_is_named(command: str) -> None:
    with redis_server({"user": documented_user() + f" -{command}"}) as server:
        error = await fault_of(server.url.replace("//", "//kvgate:s3cret@"))
    assert error.fault is StoreFault.NOPERM
    assert command in str(error) or "script" in str(error)
    assert "s3cret" not in str(error)


async def test_a_wrong_password_is_told() -> None:
    with redis_server({"requirepass": "right"}) as server:
        error = await fault_of(server.url.replace("//", "//:wr0ng@"))
    assert error.fault is StoreFault.AUTH
    assert "wr0ng" not in str(error)


async def test_nobody_there_is_a_connection_fault() -> None:
    assert (await fault_of(f"redis://127.0.0.1:{free_port()}")).fault is StoreFault.CONNECTION


async def test_one_that_is_full_is_told() -> None:
    with redis_server({"maxmemory": "500kb", "maxmemory-policy": "noeviction"}) as server:
        error = await fault_of(server.url)
    assert error.fault is StoreFault.FULL
    assert "maxmemory" in str(error)


async def test_a_read_only_replica_is_told() -> None:
    with redis_server() as primary, redis_server({"replicaof": f"127.0.0.1 {primary.port}"}) as replica:
        error = await fault_of(replica.url)
    assert error.fault is StoreFault.READONLY
    assert "primary" in str(error)


async def test_a_paused_one_is_late_and_every_connection_is_good_afterwards() -> None:
    with redis_server() as server:
        async with store_at(server.url, timeout_s=0.1) as store:
            await store.register("a")
            server.pause()
            begun_s = asyncio.get_running_loop().time()
            results = await asyncio.gather(*(store.reserve(ask(number)) for number in range(20)), return_exceptions=True)
            assert {result.fault for result in results if isinstance(result, StoreError)} == {StoreFault.TIMEOUT}
            assert len(results) == 20
            assert asyncio.get_running_loop().time() - begun_s < PATIENCE_S_MIN, "no request waits as long as other calls do"
            server.resume()
            epoch = await store.register("a")
            assert epoch > 0
            times_s = await asyncio.gather(*(store.time_s() for _ in range(20)))
            assert max(times_s) - min(times_s) < 5.0, "answers of given-up calls are nobody else's"


async def test_one_that_was_restarted_is_used_again() -> None:
    server = RedisServer()
    with closing(server):
        server.start()
        async with store_at(server.url) as store:
            await use(store)
            server.stop()
            with pytest.raises(StoreError) as error:
                await store.time_s()
            assert error.value.fault is StoreFault.CONNECTION
            server.start()
            await use(store)


async def test_cards_come_back_as_from_the_store_in_memory_even_those_of_a_newer_version() -> None:
    with redis_server() as server:
        async with store_at(server.url) as store, redis.asyncio.from_url(server.url) as client:
            clock = SystemClock()
            for one in (store, LocalStore(clock, lease_s=3.0)):
                card = replace(CARD, seen_s=await one.time_s())
                assert (await one.exchange(Beat(card))).proxies == (card,)
            (key,) = [key async for key in client.scan_iter("kvgate:*:proxies")]
            newer = json.loads(await client.hget(key, "a")) | {"proxy": "b", "said_since": 7}
            del newer["health"]
            await client.hset(key, "b", json.dumps(newer))
            mine = replace(CARD, seen_s=await store.time_s())
            assert [one.health for one in (await store.exchange(Beat(mine))).proxies] == [CARD.health, ()]


async def test_what_a_newer_proxy_tells_besides_is_passed_over() -> None:
    with redis_server() as server:
        async with store_at(server.url) as store, redis.asyncio.from_url(server.url) as client:
            now_s = await store.time_s()
            mine = Beat(replace(CARD, seen_s=now_s))
            assert (await store.exchange(mine)).completions == ()
            (key,) = [key.decode() async for key in client.scan_iter("kvgate:*:proxies")]
            prefix = key.removesuffix("proxies")
            await client.xadd(prefix + "completions", {"c": json.dumps(["b", *DONE, "said since"])})
            word = Override("mode", "observe", "a test", "somebody", now_s + 60.0, "1")
            await client.hset(prefix + "overrides", "mode", json.dumps(asdict(word) | {"said_since": 7}))
            theirs = asdict(mine.card) | {"proxy": "b", "health": [[*EJECTED, "said since"]]}
            await client.hset(key, "b", json.dumps(theirs))
            reply = await store.exchange(mine)
            assert (reply.completions, reply.overrides) == ((DONE,), (word,))
            assert [card.health for card in reply.proxies if card.proxy == "b"] == [(EJECTED,)]
