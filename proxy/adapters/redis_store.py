"""``ports.store.SharedStore`` in Redis: the scripts of ``adapters.redis_scripts`` for what decides, plain commands for what is exchanged.

Keys of an exchange, beside those of the scripts, all of one hash tag:

    kvgate:{POOL}:proxies         hash   proxy -> JSON of its card; whoever finds one older than a lease takes it out
    kvgate:{POOL}:tenants:PERIOD  hash   priority|tenant -> virtual token-time charged by all proxies in these ten minutes
    kvgate:{POOL}:completions     stream the last 5,000 or so requests that ended
    kvgate:{POOL}:responses       stream the last 20,000 or so responses that engines keep; gone when none was told for a day
    kvgate:{POOL}:overrides       hash   subject -> JSON of what was said by hand; whoever finds one that is over takes it out

Tenants are named by clients, so their number is bounded by forgetting: a period's hash expires with the next one's end. What others
charged in the last beat of a period is lost with it. What no proxy can have written is passed over and taken out (``redis_exchange``).
"""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from typing import Any

from proxy.adapters.redis_exchange import Asked, Heard
from proxy.adapters.redis_link import KNOWN, RedisLink, store_error
from proxy.adapters.redis_reading import account_of, card_of, completion_of, kept_of, override_of
from proxy.adapters.redis_scripts import RedisLedger
from proxy.config.redis_url import StoreAddress
from proxy.core.grid import FloatArray
from proxy.core.override import Override
from proxy.core.shared import Head, Record, ReserveAsk, ReserveReply, RewriteAsk, RewriteReply
from proxy.ports.store import Beat, BeatReply

PERIOD_S = 600
COMPLETIONS_KEPT = 5000  # about: enough to know the length classes of a day's traffic again
COMPLETIONS_FIRST = 2000  # what a proxy reads that has just started
COMPLETIONS_PER_BEAT = 1000
RESPONSES_KEPT = 20_000  # about: some 3 MB. Of older ones that a proxy does not know itself, every replica is asked
RESPONSES_FIRST = 5000  # what a proxy reads that has just started
RESPONSES_PER_BEAT = 1000
RESPONSES_S = 86_400


class RedisStore:
    """One pool of proxies in one Redis."""

    def __init__(self, address: StoreAddress, *, timeout_s: float, lease_s: float) -> None:
        self._link = RedisLink(address, timeout_s)
        self._lease_s = lease_s
        self._ledger = RedisLedger(self._link.scripts, address.pool, lease_s)

    def __repr__(self) -> str:
        """Where it is, without secrets."""
        return f"<RedisStore {self.shown}>"

    @property
    def shown(self) -> str:
        """Where it is, without secrets."""
        return self._link.shown

    async def register(self, proxy: str) -> int:
        """A new epoch."""
        return await self._link.call(self._ledger.register(proxy))

    async def time_s(self) -> float:
        """The store's clock."""
        return _seconds(await self._link.call(self._link.client.execute_command("TIME")))

    async def reserve(self, ask: ReserveAsk) -> ReserveReply:
        """Check one request and commit it."""
        return await self._link.call(self._ledger.reserve(ask), awaited=True)

    async def rewrite_all(self, asks: Sequence[RewriteAsk]) -> list[RewriteReply]:
        """Write rows anew in one round trip."""
        return await self._link.call(self._ledger.rewrite_all(asks))

    async def publish(self, record: Record, ends: FloatArray, scrape_lease_s: float) -> bool:
        """Publish a replica's record; False: another proxy may."""
        return await self._link.call(self._ledger.publish(record, ends, scrape_lease_s))

    async def set_heads(self, proxy: str, replica: str, heads: Sequence[Head]) -> None:
        """Put a proxy's heads on a replica in the place of those before."""
        await self._link.call(self._ledger.set_heads(proxy, replica, heads))

    async def forget(self, proxy: str, replicas: Sequence[str]) -> None:
        """A proxy leaves: its rows, its registration and its card."""
        await self._link.call(self._ledger.forget(proxy, replicas))
        await self._link.call(self._link.client.execute_command("HDEL", self._key("proxies"), proxy))

    async def drop(self, proxy: str, replicas: Sequence[str]) -> None:
        """These replicas are none of a proxy's any more: its rows there go."""
        await self._link.call(self._ledger.drop(proxy, replicas))

    async def exchange(self, beat: Beat) -> BeatReply:
        """Tell and hear in one round trip. Raises StoreError."""
        return await self._link.call(self._exchange(beat))

    async def override(self, said: Override) -> None:
        """In the place of what was said of the same subject."""
        fields = json.dumps(asdict(said))
        await self._link.call(self._link.client.execute_command("HSET", self._key("overrides"), said.subject, fields))

    async def offers(self, proxy: str) -> AsyncIterator[str]:
        """Names of replicas whose room was offered to this proxy's heads. Raises StoreError."""
        channel = self._ledger.channel(proxy)
        listener = self._link.listener.pubsub(ignore_subscribe_messages=True)
        try:
            await self._link.call(listener.subscribe(channel))
            async for message in listener.listen():
                yield message["data"].decode(errors="replace")  # anybody may say anything there; names of nothing are passed over
        except KNOWN as error:
            raise store_error(error) from error
        finally:
            with suppress(*KNOWN):
                await listener.aclose()

    async def aclose(self) -> None:
        """Close every connection."""
        await self._link.aclose()

    # ---- exchange

    def _key(self, name: str) -> str:
        return self._ledger.prefix + name

    async def _exchange(self, beat: Beat) -> BeatReply:
        period = int(beat.card.seen_s // PERIOD_S)
        asked = Asked(self._link.scripts.pipeline())
        tenants, stream, kept = self._key(f"tenants:{period}"), self._key("completions"), self._key("responses")
        time = asked.ask("TIME")
        asked.ask("HSET", self._key("proxies"), beat.card.proxy, json.dumps(asdict(beat.card)))
        cards, overrides = asked.ask("HGETALL", self._key("proxies")), asked.ask("HGETALL", self._key("overrides"))
        for (priority, tenant), charge in beat.charges.items():
            asked.ask("HINCRBYFLOAT", tenants, f"{priority}|{tenant}", charge)
        accounts = asked.ask("HGETALL", tenants)
        if beat.charges:
            asked.ask("EXPIRE", tenants, 2 * PERIOD_S)
        completions = asked.read(stream, beat.completions_seen, COMPLETIONS_FIRST, COMPLETIONS_PER_BEAT)
        responses = asked.read(kept, beat.responses_seen, RESPONSES_FIRST, RESPONSES_PER_BEAT)
        for one in beat.completions:
            fields = json.dumps([beat.card.proxy, *one])
            asked.ask("XADD", stream, "MAXLEN", "~", COMPLETIONS_KEPT, "*", "c", fields)
        for response in beat.responses:
            asked.ask("XADD", kept, "MAXLEN", "~", RESPONSES_KEPT, "*", "c", json.dumps([beat.card.proxy, *response]))
        if beat.responses:
            asked.ask("EXPIRE", kept, RESPONSES_S)
        await asked.send()
        store_s = _seconds(asked.replies[time])
        heard = Heard(asked, store_s)
        ended = heard.entries(completions, stream, beat.card.proxy, beat.completions_seen, completion_of)
        living = heard.entries(responses, kept, beat.card.proxy, beat.responses_seen, kept_of)
        proxies = heard.fields(cards, self._key("proxies"), card_of, lambda card: abs(store_s - card.seen_s) <= self._lease_s)
        said = heard.fields(
            overrides, self._key("overrides"), partial(override_of, store_s=store_s), lambda one: one.until_s > store_s
        )
        charged = heard.fields(accounts, tenants, account_of)
        await heard.take_out(self._link.client)
        return BeatReply(
            store_s=store_s,
            proxies=tuple(sorted(proxies, key=lambda card: card.proxy)),
            period=period,
            accounts=dict(charged),
            completions=ended.told,
            completions_seen=ended.seen,
            overrides=tuple(said),
            responses=living.told,
            responses_seen=living.seen,
            unread=heard.unread,
        )


def _seconds(reply: Any) -> float:
    seconds, micros = reply
    return float(seconds) + float(micros) / 1e6
