"""What stands among the words that proxies exchange in a real Redis, and is none."""

from contextlib import closing
from dataclasses import replace
from hashlib import sha1

import pytest
import redis.asyncio

from proxy.adapters.redis_scripts import TAKE_OUT
from proxy.ports.store import Beat, KeptResponse, StoreError, StoreFault
from tests.integration.sharing.test_redis_store import CARD, DONE, store_at
from tests.support.redis_server import redis_server

pytestmark = pytest.mark.redis


async def test_what_was_said_while_others_were_taking_out_what_stood_there_stays() -> None:
    """A good word that came between the reading of a broken one and its end went with it."""
    with redis_server() as server, closing(server.client()) as client:
        async with redis.asyncio.from_url(server.url) as other:
            client.hset("kvgate:{default}:overrides", mapping={"mode": b"broken", "drain:r0": b"broken"})
            seen = {b"mode": b"broken", b"drain:r0": b"broken"}
            client.hset("kvgate:{default}:overrides", "mode", b"whole")
            held = [part for field, data in seen.items() for part in (field, sha1(data, usedforsecurity=False).hexdigest())]
            assert await TAKE_OUT.run(other, ["kvgate:{default}:overrides"], held) == 1
            assert client.hgetall("kvgate:{default}:overrides") == {b"mode": b"whole"}


async def test_a_broken_word_costs_that_word_alone() -> None:
    with redis_server() as server, closing(server.client()) as client:
        async with store_at(server.url) as a, store_at(server.url) as b:
            card = replace(CARD, seen_s=await a.time_s())
            await b.exchange(Beat(replace(card, proxy="b"), {(0, "t"): 1.5}, [DONE], responses=[KeptResponse("resp_1", "r0")]))
            for name in ("proxies", "overrides", f"tenants:{int(card.seen_s // 600)}"):
                client.hset("kvgate:{default}:" + name, "x", b"\xff")
            for name in ("completions", "responses"):
                client.xadd("kvgate:{default}:" + name, {"c": b"\xff"})
            heard = await a.exchange(Beat(card))
            assert [one.proxy for one in heard.proxies] == ["a", "b"]
            assert (heard.accounts, heard.completions, heard.responses) == (
                {(0, "t"): 1.5},
                (DONE,),
                (KeptResponse("resp_1", "r0"),),
            )
            assert heard.unread == 5
            again = await a.exchange(Beat(card, completions_seen=heard.completions_seen, responses_seen=heard.responses_seen))
            assert again.unread == 0, "what was taken out, or read past, is met once"


@pytest.mark.parametrize("lacking", ["hgetall", "xrange", "hincrbyfloat"])
async def test_who_may_not_read_a_key_takes_nothing_out(lacking: str) -> None:
    """A command that is not allowed says nothing of what stands there."""
    with redis_server({"user": f"u on >p ~* &* +@all -{lacking}"}) as server, closing(server.client()) as client:
        url = server.url.replace("//", "//u:p@")
        async with store_at(server.url) as allowed, store_at(url) as kept_out:
            card = replace(CARD, seen_s=await allowed.time_s())
            beat = Beat(card, {(0, "t"): 1.5}, [DONE])
            seen = await allowed.exchange(beat)
            await allowed.register("a")
            before = client.keys("*")
            with pytest.raises(StoreError) as refused:
                await kept_out.exchange(replace(beat, card=replace(card, proxy="b"), completions_seen=seen.completions_seen))
            assert refused.value.fault is StoreFault.NOPERM
            if lacking == "hgetall":
                with pytest.raises(StoreError):
                    await kept_out._link.call(kept_out._ledger.mend(["r0"]))
            assert set(before) <= set(client.keys("*"))
