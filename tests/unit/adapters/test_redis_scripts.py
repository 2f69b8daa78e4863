"""What the scripts' files say of themselves, how they are sent, and what a real server makes of them when things go wrong."""

import asyncio
import json
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import redis.asyncio
from redis.exceptions import NoPermissionError, NoScriptError, RedisError

from proxy.adapters.redis_link import store_error
from proxy.adapters.redis_scripts import RESERVE, SCRIPTS, RedisLedger, packed_row, record_of
from proxy.core.shared import Answer, Others, Rank, load_of
from proxy.ports.store import StoreError, StoreFault
from tests.support.redis_server import RedisServer, redis_server
from tests.support.shared_rows import ENDS, ask, blocks_row, head, record, rewriting

LUA = Path(__file__).parents[3] / "proxy" / "adapters" / "lua"
# May do anything but manage scripts, and only what is kvgate's.
ACL_USER = "user gate on >secret ~kvgate:* resetchannels &kvgate:* +@all -script -@admin -@dangerous"


class FakeClient:
    """Knows no script until it was sent whole."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    async def execute_command(self, *arguments: Any) -> Any:
        self.sent.append(arguments[0])
        if arguments[0] == "EVALSHA" and "EVAL" not in self.sent:
            raise NoScriptError("NOSCRIPT")
        return 7


async def test_a_script_that_the_server_does_not_know_is_sent_whole() -> None:
    client = FakeClient()
    assert await RESERVE.run(client, ["k"], ["a"]) == 7
    assert await RESERVE.run(client, ["k"], ["a"]) == 7
    assert client.sent == ["EVALSHA", "EVAL", "EVALSHA"]


@pytest.mark.parametrize("path", sorted(LUA.glob("*.lua")), ids=lambda path: path.name)
def test_every_script_says_what_it_takes_and_returns(path: Path) -> None:
    header = re.match(r"(?:--.*\n)+", path.read_text("utf-8"))
    assert header
    if path.stem != "heads":
        assert "KEYS" in header[0]
    assert "ARGV" in header[0]
    if path.stem not in {"account", "heads"}:
        assert "Returns" in header[0]


def test_every_script_is_used_and_asks_for_nothing_but_data_and_time() -> None:
    files = {path.stem for path in LUA.glob("*.lua")}
    assert files == {script.name for script in SCRIPTS} | {"account", "heads"}
    commands = {command for script in SCRIPTS for command in re.findall(r"redis\.p?call\('([A-Z]+)'", script.text)}
    assert commands <= {"TIME", "HMGET", "HGET", "HSET", "HDEL", "HGETALL", "DEL", "PEXPIRE", "PUBLISH"}


def test_a_row_that_is_not_finite_is_not_sent() -> None:
    with pytest.raises(ValueError, match="not finite"):
        packed_row(np.array([1.0, np.nan]), 0.0)


def test_a_pool_that_would_end_the_hash_tag_is_refused() -> None:
    with pytest.raises(ValueError, match="brace"):
        RedisLedger(FakeClient(), "a}b")  # type: ignore[arg-type]
    keys = RedisLedger(FakeClient(), "a/b").keys("http://r:1")  # type: ignore[arg-type]
    assert all(key.startswith("kvgate:{a/b}:") for key in keys)


# ---- with a real server


@pytest.fixture
def server() -> Iterator[RedisServer]:
    with redis_server() as one:
        yield one


@pytest.fixture
async def ledger(server: RedisServer) -> AsyncIterator[RedisLedger]:
    client = redis.asyncio.Redis.from_url(server.url)
    yield RedisLedger(client, "pool")
    await client.aclose()


async def joined(ledger: RedisLedger, proxy: str = "p0") -> int:
    """Register a proxy and write its first row, so that nothing is recovering."""
    epoch = await ledger.register(proxy)
    await ledger.publish(record(published_s=0.0, steps_per_s=0.0), ENDS, 1.0)
    assert (await ledger.rewrite(rewriting(proxy=proxy, epoch=epoch))).answer is Answer.GRANTED
    return epoch


@pytest.mark.redis
async def test_time_is_the_stores_own_and_a_record_comes_back_as_it_was(ledger: RedisLedger, server: RedisServer) -> None:
    epoch = await joined(ledger)
    with server.client() as client:
        seconds, _ = client.time()
    reply = await ledger.rewrite(rewriting(epoch=epoch))
    assert abs(reply.store_s - seconds) < 60.0
    assert reply.record is not None
    assert reply.record == record(published_s=0.0, steps_per_s=0.0, number=reply.record.number)
    assert (await ledger.rewrite(rewriting(epoch=epoch, record_number=reply.record.number))).record is None


def test_a_record_with_nothing_known_and_infinities_survives_json() -> None:
    text = b'{"replica": "r0", "holder": "p0", "number": 0, "engine_epoch": 1, "phase": "serving",'
    text += b'"published_s": 0.0, "steps": 0.0, "steps_per_s": 30.0, "usable_blocks": 100, "sequences_max": null, "z": 2.0,'
    text += b'"sigma_blocks": 0.0, "bias_blocks": 0.0, "burst_until_s": -Infinity, "measured_blocks": null, "running": null,'
    text += b'"waiting": null, "preemptions_total": 0}'
    assert record_of(text, 5) == record(number=5)


def test_a_record_of_a_newer_proxy_may_tell_more() -> None:
    told = asdict(record(number=0)) | {"said_since": 7}
    assert record_of(json.dumps(told).encode(), 5) == record(number=5)


@pytest.mark.redis
async def test_scripts_survive_a_flush_of_scripts_and_many_go_in_one_round_trip(ledger: RedisLedger, server: RedisServer) -> None:
    epoch = await joined(ledger)
    asks = [rewriting(blocks_row(10.0 * upto), upto, epoch=epoch) for upto in range(1, 6)]
    for _ in range(2):
        with server.client() as client:
            client.script_flush()
        asks = [rewriting(one.row, one.upto + 5, epoch=epoch) for one in asks]
        assert [reply.answer for reply in await ledger.rewrite_all(asks)] == [Answer.GRANTED] * 5
    assert (await ledger.reserve(ask(100, 51.0, epoch=epoch))).answer is Answer.ROOM
    assert (await ledger.reserve(ask(101, 50.0, epoch=epoch))).answer is Answer.GRANTED


@pytest.mark.redis
async def test_an_offer_is_pushed_to_the_heads_proxy(ledger: RedisLedger, server: RedisServer) -> None:
    epoch = await joined(ledger)
    await ledger.register("p1")
    await ledger.set_heads("p1", "r0", [head("h", 10.0, rank=Rank(-1.0, 0.0, 0.0))])
    listener = redis.asyncio.Redis.from_url(server.url).pubsub()
    await listener.subscribe(ledger.channel("p1"))
    assert (await anext(listener.listen()))["type"] == "subscribe"
    assert (await ledger.reserve(ask(1, epoch=epoch))).answer is Answer.HEAD
    message = await asyncio.wait_for(anext(listener.listen()), 10.0)
    assert message["data"] == b"r0"
    await listener.aclose()
    await listener.connection_pool.disconnect()


@pytest.mark.redis
async def test_an_acl_that_forbids_script_is_enough_and_one_that_forbids_publish_refuses_nothing() -> None:
    users = f"{ACL_USER}\n{ACL_USER.replace('gate', 'mute', 1)} -publish".split("\n")
    with redis_server({"user": "\n".join(line.removeprefix("user ") for line in users)}) as server:
        for name in ("gate", "mute"):
            server.flush()
            client = redis.asyncio.Redis(port=server.port, username=name, password="secret")
            ledger = RedisLedger(client, "pool")
            with pytest.raises(NoPermissionError):
                await client.execute_command("SCRIPT", "LOAD", "return 1")
            epoch = await joined(ledger)
            await ledger.register("p1")
            await ledger.set_heads("p1", "r0", [head("h", 10.0, rank=Rank(-1.0, 0.0, 0.0))])
            assert (await ledger.reserve(ask(1, epoch=epoch))).answer is Answer.HEAD
            assert (await ledger.reserve(ask(2, epoch=epoch))).answer is Answer.HEAD
            await client.aclose()


@pytest.mark.redis
async def test_a_server_that_is_full_or_read_only_says_so_and_keeps_what_it_had(ledger: RedisLedger, server: RedisServer) -> None:
    epoch = await joined(ledger)
    await ledger.rewrite(rewriting(blocks_row(60.0), 1, epoch=epoch))
    with server.client() as client:
        for set_up, undo, fault in (
            (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0"), StoreFault.FULL),
            (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE"), StoreFault.READONLY),
        ):
            client.execute_command(*set_up)
            with pytest.raises(RedisError) as error:
                await ledger.rewrite(rewriting(blocks_row(99.0), 2, epoch=epoch))
            assert store_error(error.value).fault is fault  # which Redis 6 tells in the words of the script alone
            with pytest.raises(RedisError) as error:
                await ledger.rewrite_all([rewriting(blocks_row(99.0), 2, epoch=epoch)] * 2)
            assert store_error(error.value).fault is fault
            with pytest.raises(RedisError):
                await ledger.reserve(ask(3, 10.0, epoch=epoch))
            client.execute_command(*undo)
    reply = await ledger.reserve(ask(4, 41.0, epoch=epoch))
    assert (reply.answer, reply.free_blocks) == (Answer.ROOM, pytest.approx(40.0))


@pytest.mark.redis
async def test_who_has_nothing_hears_of_the_others_whatever_happened_meanwhile(ledger: RedisLedger, server: RedisServer) -> None:
    """The total is told as it stands while nothing there is its own and nobody waits."""

    async def others_leases(upto: int) -> float:
        told = (await ledger.rewrite(rewriting(None, upto, proxy="p1", epoch=other, known=2))).others
        assert isinstance(told, Others)
        return load_of(told.row).leases

    epoch = await joined(ledger)
    other = await joined(ledger, "p1")
    assert await others_leases(0) == 0.0
    await ledger.rewrite(rewriting(blocks_row(30.0), 1, epoch=epoch))
    with server.client() as client:
        (key,) = client.keys("*:rows")
        before = client.hget(key, "m|p1")
        assert await others_leases(0) == 1.0
        assert client.hget(key, "m|p1")[8:16] != before[8:16], "its stamp is renewed"
    assert (await ledger.reserve(ask(1, 20.0, proxy="p1", epoch=other))).answer is Answer.GRANTED
    assert await others_leases(0) == 1.0, "a grant of its own is not among the others'"
    assert await others_leases(1) == 1.0
    assert (await ledger.rewrite(rewriting(None, 0, proxy="p1", epoch=other))).answer is Answer.STALE


@pytest.mark.redis
async def test_a_server_that_restarts_empty_fences_everybody_and_recovers(ledger: RedisLedger, server: RedisServer) -> None:
    epoch = await joined(ledger)
    server.restart()
    with pytest.raises(RedisError):
        await ledger.publish(record(), ENDS, 1.0)  # the connection is the old one's
    await ledger.publish(record(), ENDS, 1.0)
    assert (await ledger.reserve(ask(1, epoch=epoch))).answer is Answer.FENCED
    again = await ledger.register("p0")
    assert again > epoch
    # Nobody has written again: that the replica looks empty proves nothing.
    assert (await ledger.reserve(ask(2, 10.0, epoch=again, own_share_blocks=10.0))).answer is Answer.RECOVERING
    await ledger.rewrite(rewriting(proxy="p0", epoch=again, upto=2, known=2))
    assert (await ledger.reserve(ask(3, 10.0, epoch=again, own_share_blocks=10.0))).answer is Answer.GRANTED
    assert (await ledger.reserve(ask(4, 10.0, epoch=again, own_share_blocks=10.0))).answer is Answer.RECOVERING


@pytest.mark.redis
async def test_a_cluster_keeps_a_pool_together() -> None:
    with redis_server({"cluster-enabled": "yes"}) as server:
        server.form_cluster()
        client = redis.asyncio.RedisCluster.from_url(server.url)
        ledger = RedisLedger(client, "pool")
        epoch = await joined(ledger)
        replies = await ledger.rewrite_all([rewriting(blocks_row(60.0), upto, epoch=epoch) for upto in (1, 2)])
        assert [reply.answer for reply in replies] == [Answer.GRANTED] * 2
        assert (await ledger.reserve(ask(3, 41.0, epoch=epoch))).answer is Answer.ROOM
        await client.aclose()


@pytest.mark.parametrize(
    "text", [b"", b"x", b"[]", b"5", b"{}", b'{"phase": "no such"}', b'{"phase": ["x"]}', b"[" * 100_000, b"\xff"]
)
def test_what_somebody_else_wrote_is_a_fault_of_the_store(text: bytes) -> None:
    """Not one of kvgate itself: of those, ten in ten seconds switch admission off."""
    with pytest.raises(StoreError, match="record cannot be read"):
        record_of(text, 5)
