"""``ports.store.SharedStore`` in Redis: the scripts of ``adapters.redis_scripts`` for what decides, plain commands for what is exchanged.

Keys of an exchange, beside those of the scripts, all of one hash tag:

    kvgate:{POOL}:proxies         hash   proxy -> JSON of its card; whoever finds one older than a lease takes it out
    kvgate:{POOL}:tenants:PERIOD  hash   priority|tenant -> virtual token-time charged by all proxies in these ten minutes
    kvgate:{POOL}:completions     stream the last 5,000 or so requests that ended
    kvgate:{POOL}:responses       stream the last 20,000 or so responses that engines keep; gone when none was told for a day
    kvgate:{POOL}:overrides       hash   subject -> JSON of what was said by hand; whoever finds one that is over takes it out

Tenants are named by clients, so their number is bounded by forgetting: a period's hash expires with the next one's end. What others
charged in the last beat of a period is lost with it.
"""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from dataclasses import asdict
from dataclasses import fields as fields_of
from itertools import count
from math import isfinite
from typing import Any

from proxy.adapters.redis_link import KNOWN, RedisLink, store_error
from proxy.adapters.redis_scripts import RedisLedger
from proxy.config.redis_url import StoreAddress
from proxy.core.exchange import Completion, TenantKey
from proxy.core.grid import FloatArray
from proxy.core.override import Override
from proxy.core.shared import Head, Record, ReserveAsk, ReserveReply, RewriteAsk, RewriteReply
from proxy.core.shared_health import Notice
from proxy.ports.store import Beat, BeatReply, KeptResponse, ProxyCard, StoreError, StoreFault

PERIOD_S = 600
COMPLETIONS_KEPT = 5000  # about: enough to know the length classes of a day's traffic again
COMPLETIONS_FIRST = 2000  # what a proxy reads that has just started
COMPLETIONS_PER_BEAT = 1000
RESPONSES_KEPT = 20_000  # about: some 3 MB. Of older ones that a proxy does not know itself, every replica is asked
RESPONSES_FIRST = 5000  # what a proxy reads that has just started
RESPONSES_PER_BEAT = 1000
RESPONSES_S = 86_400
CARD_FIELDS = tuple(one.name for one in fields_of(ProxyCard))
OVERRIDE_FIELDS = tuple(one.name for one in fields_of(Override))


class RedisStore:
    """One pool of proxies in one Redis."""

    def __init__(self, address: StoreAddress, *, timeout_s: float, lease_s: float) -> None:
        self._link = RedisLink(address, timeout_s)
        self._lease_s = lease_s
        self._ledger = RedisLedger(self._link.client, address.pool, lease_s)

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
                yield message["data"].decode()
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
        pipeline = self._link.client.pipeline(transaction=False)
        period = int(beat.card.seen_s // PERIOD_S)
        tenants = self._key(f"tenants:{period}")
        stream, kept = self._key("completions"), self._key("responses")
        asked = count()

        def ask(*arguments: str | float) -> int:
            """Where the answer will stand."""
            pipeline.execute_command(*arguments)
            return next(asked)

        def read(key: str, seen: str, first: int, each: int) -> int:
            if seen:
                return ask("XRANGE", key, f"({seen}", "+", "COUNT", each)
            return ask("XREVRANGE", key, "+", "-", "COUNT", first)

        time = ask("TIME")
        ask("HSET", self._key("proxies"), beat.card.proxy, json.dumps(asdict(beat.card)))
        cards, overrides = ask("HGETALL", self._key("proxies")), ask("HGETALL", self._key("overrides"))
        for (priority, tenant), charge in beat.charges.items():
            ask("HINCRBYFLOAT", tenants, f"{priority}|{tenant}", charge)
        accounts = ask("HGETALL", tenants)
        if beat.charges:
            ask("EXPIRE", tenants, 2 * PERIOD_S)
        completions = read(stream, beat.completions_seen, COMPLETIONS_FIRST, COMPLETIONS_PER_BEAT)
        responses = read(kept, beat.responses_seen, RESPONSES_FIRST, RESPONSES_PER_BEAT)
        for one in beat.completions:
            fields = json.dumps([beat.card.proxy, *one])
            ask("XADD", stream, "MAXLEN", "~", COMPLETIONS_KEPT, "*", "c", fields)
        for response in beat.responses:
            ask("XADD", kept, "MAXLEN", "~", RESPONSES_KEPT, "*", "c", json.dumps([beat.card.proxy, *response]))
        if beat.responses:
            ask("EXPIRE", kept, RESPONSES_S)
        replies = await pipeline.execute()
        try:
            ended = _entries(replies[completions], reverse=not beat.completions_seen)
            living = _entries(replies[responses], reverse=not beat.responses_seen)
            return BeatReply(
                store_s=(store_s := _seconds(replies[time])),
                proxies=await self._living(replies[cards], store_s),
                period=period,
                accounts=_accounts(replies[accounts]),
                completions=tuple(_completion(one) for proxy, *one in ended.values() if proxy != beat.card.proxy),
                completions_seen=next(reversed(ended), beat.completions_seen or "0-0"),
                overrides=await self._lasting(replies[overrides], store_s),
                responses=tuple(_kept(one) for proxy, *one in living.values() if proxy != beat.card.proxy),
                responses_seen=next(reversed(living), beat.responses_seen or "0-0"),
            )
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise StoreError(StoreFault.ANSWER, f"what stands in {self._ledger.prefix}* cannot be read: {error}") from error

    async def _living(self, cards: dict[bytes, bytes], store_s: float) -> tuple[ProxyCard, ...]:
        known = [_card(card) for card in cards.values()]
        gone = [card.proxy for card in known if store_s - card.seen_s > self._lease_s]
        if gone:
            await self._link.client.execute_command("HDEL", self._key("proxies"), *gone)
        return tuple(sorted((card for card in known if card.proxy not in gone), key=lambda card: card.proxy))

    async def _lasting(self, overrides: dict[bytes, bytes], store_s: float) -> tuple[Override, ...]:
        said = [_override(fields) for fields in overrides.values()]
        over = [one.subject for one in said if one.until_s <= store_s]
        if over:
            await self._link.client.execute_command("HDEL", self._key("overrides"), *over)
        return tuple(one for one in said if one.until_s > store_s)


def _seconds(reply: Any) -> float:
    seconds, micros = reply
    return float(seconds) + float(micros) / 1e6


def _entries(reply: Any, *, reverse: bool) -> dict[str, list[Any]]:
    """By the stream's id, the oldest first: who told it, and what."""
    found = {}
    for entry_id, fields in reversed(reply) if reverse else reply:
        values = fields if isinstance(fields, dict) else dict(zip(fields[::2], fields[1::2], strict=True))
        found[entry_id.decode()] = json.loads(values[b"c"])
    return found


def _completion(told: Sequence[Any]) -> Completion:
    replica, leaf, *figures = told[: len(Completion._fields)]  # a newer proxy's may tell more than we know
    return Completion(replica, tuple(leaf), *figures)


def _kept(told: Sequence[Any]) -> KeptResponse:
    return KeptResponse(*told[: len(KeptResponse._fields)])


def _override(text: bytes) -> Override:
    told = json.loads(text)
    return Override(**{name: told[name] for name in OVERRIDE_FIELDS if name in told})


def _card(text: bytes) -> ProxyCard:
    """A newer proxy's card may tell more than we know."""
    told = json.loads(text)
    fields = {name: told[name] for name in CARD_FIELDS if name in told}
    clocks = tuple((priority, virtual) for priority, virtual in fields["clocks"])
    health = tuple(Notice(*one[: len(Notice._fields)]) for one in fields.get("health", ()))
    return ProxyCard(**fields | {"clocks": clocks, "health": health})


def _accounts(reply: Any) -> dict[TenantKey, float]:
    accounts = {}
    for key, charge in reply.items():
        priority, _, tenant = key.decode().partition("|")
        accounts[int(priority), tenant] = amount = float(charge)
        if not isfinite(amount):
            raise ValueError(f"an account of {amount}")  # it would spoil the order of every tenant's turn
    return accounts
