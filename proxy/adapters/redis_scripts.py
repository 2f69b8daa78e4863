"""``core.shared_ledger.SharedLedger`` in Redis or Valkey: each method is one call of one script, so nothing comes between check and commit.

Every method does what the ledger's of the same name does; the time is the store's own (TIME). The scripts are the files in ``lua``; each is
sent by its digest and, where the server does not know it, whole: no SCRIPT command is needed, and a flush of scripts costs one round trip.
All keys of a pool share a hash tag, so that a cluster keeps them together and a client routes by them.

What no proxy has written there is no answer: the scripts fail by it, or what they tell cannot be read. Then ``mend`` takes it out, once for
the replicas whose calls failed, and the call fails all the same: the next one finds nothing of it.

Raises what the client raises: redis.exceptions.RedisError for a server that is full, read-only, not allowed or not there; and StoreError
for an answer that cannot be read. A call that timed out may have been carried out; it is never sent again from here. Give a client that
does not try again either, and that does not decode.
"""

import json
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import asdict
from hashlib import sha1
from math import inf
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from redis.exceptions import NoScriptError, RedisError, ResponseError

from proxy.adapters.redis_link import store_error
from proxy.adapters.redis_reading import BLOCKS_MAX, MALFORMED, record_fields
from proxy.core.grid import FloatArray
from proxy.core.shared import Answer, Head, Others, Record, ReserveAsk, ReserveReply, RewriteAsk, RewriteReply
from proxy.core.shared_ledger import LEASE_S
from proxy.ports.store import StoreError, StoreFault

Argument = bytes | str | int | float
_LUA = Path(__file__).parent / "lua"
BELOW = -1.0  # rounding of a sum stays above it, as in the scripts
T = TypeVar("T")

log = logging.getLogger("kvgate.store")


class Pipeline(Protocol):
    """What is used of a pipeline of ``redis.asyncio``."""

    def execute_command(self, *arguments: Argument) -> Any:
        """Queue a command."""
        ...

    async def execute(self, raise_on_error: bool = True) -> list[Any]:
        """Send them and return every reply, errors in their place."""
        ...


class Client(Protocol):
    """What is used of a client of ``redis.asyncio``, alone, behind a sentinel or of a cluster."""

    async def execute_command(self, *arguments: Argument) -> Any:
        """Send one command."""
        ...

    def pipeline(self, transaction: Any = None) -> Any:
        """A pipeline; with False for ``transaction`` its commands are not one step."""
        ...


class Script:
    """One script: the common files it needs and its own."""

    def __init__(self, name: str, *before: str) -> None:
        self.name = name
        self.text = "\n".join((_LUA / f"{part}.lua").read_text("utf-8") for part in (*before, name))
        self.digest = sha1(self.text.encode(), usedforsecurity=False).hexdigest()

    async def run(self, client: Client, keys: Sequence[str], arguments: Sequence[Argument]) -> Any:
        """One call: one round trip once the server knows the script."""
        try:
            return await client.execute_command("EVALSHA", self.digest, len(keys), *keys, *arguments)
        except NoScriptError:
            return await client.execute_command("EVAL", self.text, len(keys), *keys, *arguments)

    async def run_all(self, client: Client, calls: Sequence[tuple[Sequence[str], Sequence[Argument]]]) -> list[Any]:
        """Many calls in one round trip, each a step by itself. Raises the first error after all have been answered."""
        replies = await self.try_all(client, calls)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    async def try_all(self, client: Client, calls: Sequence[tuple[Sequence[str], Sequence[Argument]]]) -> list[Any]:
        """The same, errors in the place of answers."""
        replies = await self._send(client, "EVALSHA", self.digest, calls)
        unknown = [index for index, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:
            again = await self._send(client, "EVAL", self.text, [calls[index] for index in unknown])
            for index, reply in zip(unknown, again, strict=True):
                replies[index] = reply
        return replies

    @staticmethod
    async def _send(
        client: Client, command: str, script: str, calls: Iterable[tuple[Sequence[str], Sequence[Argument]]]
    ) -> list[Any]:
        pipeline: Pipeline = client.pipeline(transaction=False)
        for keys, arguments in calls:
            pipeline.execute_command(command, script, len(keys), *keys, *arguments)
        return await pipeline.execute(raise_on_error=False)


REGISTER = Script("register", "account")
RESERVE = Script("reserve", "account", "heads")
REWRITE = Script("rewrite", "account", "heads")
PUBLISH = Script("publish", "account")
SET_HEADS = Script("set_heads", "account", "heads")
FORGET = Script("forget", "account", "heads")
MEND = Script("mend", "account", "heads")
TAKE_OUT = Script("take_out")
SCRIPTS = (REGISTER, RESERVE, REWRITE, PUBLISH, SET_HEADS, FORGET, MEND, TAKE_OUT)


def packed(*numbers: float) -> bytes:
    """Numbers as the scripts read them: doubles, little-endian."""
    return np.asarray(numbers, dtype="<f8").tobytes()


def packed_row(row: FloatArray, anchor_steps: float) -> bytes:
    """A row behind its anchor. What is not finite would spoil the total of everybody."""
    if not np.isfinite(row).all():
        raise ValueError("a row holds a number that is not finite")
    return packed(anchor_steps) + row.astype("<f8", copy=False).tobytes()


def numbers_in(data: bytes) -> FloatArray:
    """What ``packed`` packed."""
    return np.frombuffer(data, dtype="<f8").astype(np.float64)


def facts_of(record: Record) -> bytes:
    """What the scripts need of a record."""
    seats = inf if record.sequences_max is None else record.sequences_max
    risk = record.z, record.sigma_blocks, record.bias_blocks
    return packed(*risk, record.usable_blocks, seats, record.steps, record.steps_per_s, record.published_s)


def record_of(data: bytes, number: int) -> Record:
    """A record from its JSON and the number that the store gave it. A newer proxy's may tell more. Raises StoreError for what is none."""
    try:
        return Record(**record_fields(data) | {"number": number})
    except MALFORMED as error:
        raise StoreError(StoreFault.ANSWER, f"a replica's record cannot be read: {type(error).__name__}") from error


def others_in(replica: str, data: bytes, anchor_steps: float) -> Others | None:
    """What others have, from the sum that the store told. Raises StoreError for what is none."""
    if not data:
        return None
    row = numbers_in(data)
    if not (row.min() > BELOW and row.max() < BLOCKS_MAX * BLOCKS_MAX):  # false for what is no number
        raise StoreError(StoreFault.ANSWER, "what others have cannot be: a row was not written by a proxy")
    return Others(replica, row, anchor_steps)


def _unreadable(error: BaseException) -> bool:
    """Whether it speaks of what stands in the store."""
    fault = error if isinstance(error, StoreError) else store_error(error)
    return fault.fault is StoreFault.ANSWER


class RedisLedger:
    """One pool in one store. ``now_s`` is for tests, which tell the time; without it the store does."""

    def __init__(self, client: Client, pool: str, lease_s: float = LEASE_S, now_s: Callable[[], float] | None = None) -> None:
        if "}" in pool:
            raise ValueError(f"pool {pool!r}: a closing brace would end the keys' hash tag")
        self.client = client
        # Versions that read each other's rows share keys. One that does not takes another prefix: each sees the other as foreign traffic.
        self.prefix = f"kvgate:{{{pool}}}:"
        self.lease_s = lease_s
        self._now_s = now_s

    def __repr__(self) -> str:
        """Where its keys are."""
        return f"<RedisLedger {self.prefix}>"

    def channel(self, proxy: str) -> str:
        """The channel on which a proxy hears the names of replicas whose room was offered to its heads."""
        return f"{self.prefix}offers:{proxy}"

    def keys(self, replica: str) -> list[str]:
        """Keys of one replica, in the order of the scripts: pool, state, rows, heads, headrows."""
        return [f"{self.prefix}pool"] + [f"{self.prefix}r:{replica}:{part}" for part in ("state", "rows", "heads", "headrows")]

    def _head(self, *arguments: Argument) -> list[Argument]:
        return ["" if self._now_s is None else repr(self._now_s()), repr(self.lease_s), *arguments]

    async def mend(self, replicas: Sequence[str]) -> None:
        """Take out what no proxy has written, of the pool and of these replicas."""
        gone = await MEND.run_all(self.client, [(self.keys(replica), self._head()) for replica in replicas])
        if any(gone):
            log.warning("store.mended store=%s replicas=%d fields=%d", self.prefix, len(replicas), sum(map(int, gone)))

    async def _mending(self, replicas: Sequence[str], work: Awaitable[T]) -> T:
        """Await a call that concerns these replicas."""
        try:
            return await work
        except (ResponseError, StoreError) as error:
            if _unreadable(error):
                await self.mend(replicas)
            raise

    async def register(self, proxy: str) -> int:
        """A new epoch for a proxy."""
        return int(await self._mending([""], REGISTER.run(self.client, self.keys("")[:1], self._head(proxy))))

    async def forget(self, proxy: str, replicas: Sequence[str]) -> None:
        """A proxy leaves the pool, which has these replicas; one at least."""
        calls = [
            (self.keys(replica), self._head(self.channel(""), replica, proxy, "1" if index == len(replicas) - 1 else "0"))
            for index, replica in enumerate(replicas)
        ]
        await FORGET.run_all(self.client, calls)

    async def drop(self, proxy: str, replicas: Sequence[str]) -> None:
        """These replicas are none of a proxy's any more."""
        calls = [(self.keys(replica), self._head(self.channel(""), replica, proxy, "0")) for replica in replicas]
        await FORGET.run_all(self.client, calls)

    async def publish(self, record: Record, ends: FloatArray, scrape_lease_s: float) -> bool:
        """Publish a replica's record; False: another proxy may."""
        arguments = record.holder, repr(scrape_lease_s), json.dumps(asdict(record)), facts_of(record), packed(*ends)
        call = PUBLISH.run(self.client, self.keys(record.replica), self._head(*arguments))
        return bool(await self._mending([record.replica], call))

    async def reserve(self, ask: ReserveAsk) -> ReserveReply:
        """Check one request and commit it."""
        arguments = self._head(
            self.channel(""), ask.replica, ask.proxy, ask.epoch, ask.number, packed_row(ask.row, ask.anchor_steps),
            packed(*ask.rank), repr(float(ask.own_share_blocks)),
        )  # fmt: skip
        answer, figures, others = await RESERVE.run(self.client, self.keys(ask.replica), arguments)
        now_s, free_blocks, retry_s, anchor_steps = numbers_in(figures).tolist()
        told = others_in(ask.replica, others, anchor_steps)
        return ReserveReply(Answer(answer.decode()), now_s, told, free_blocks, retry_s)

    async def rewrite(self, ask: RewriteAsk) -> RewriteReply:
        """Take a proxy's account of a replica, and tell it the others'."""
        return (await self.rewrite_all([ask]))[0]

    async def rewrite_all(self, asks: Sequence[RewriteAsk]) -> list[RewriteReply]:
        """Many rewrites in one round trip, each a step by itself."""
        calls = [(self.keys(ask.replica), self._rewrite_arguments(ask)) for ask in asks]
        if len(calls) == 1:
            return [await self._mending([asks[0].replica], self._rewritten(asks[0].replica, REWRITE.run(self.client, *calls[0])))]
        told: list[RewriteReply] = []
        failed: dict[str, Exception] = {}
        for ask, reply in zip(asks, await REWRITE.try_all(self.client, calls), strict=True):
            try:
                if isinstance(reply, Exception):
                    raise reply
                told.append(self._rewrite_reply(ask.replica, *reply))
            except (RedisError, StoreError) as error:
                failed[ask.replica] = error
        if failed:
            broken = [replica for replica, error in failed.items() if _unreadable(error)]
            if broken:
                await self.mend(broken)
            raise next(iter(failed.values()))
        return told

    async def _rewritten(self, replica: str, call: Awaitable[Any]) -> RewriteReply:
        return self._rewrite_reply(replica, *await call)

    def _rewrite_arguments(self, ask: RewriteAsk) -> list[Argument]:
        row = b"" if ask.row is None else packed_row(ask.row, ask.anchor_steps)
        return self._head(
            self.channel(""), ask.replica, ask.proxy, ask.epoch, ask.upto, row, ask.record_number, ask.proxies_known
        )  # fmt: skip

    @staticmethod
    def _rewrite_reply(
        replica: str, answer: bytes, figures: bytes, others: bytes, record: bytes, number: bytes, offered: bytes
    ) -> RewriteReply:
        now_s, anchor_steps = numbers_in(figures).tolist()
        told = others_in(replica, others, anchor_steps)
        known = record_of(record, int(number)) if record else None
        if known is not None and known.replica != replica:
            raise StoreError(StoreFault.ANSWER, "a replica's record cannot be read: it is another's")
        return RewriteReply(Answer(answer.decode()), now_s, told, known, (offered.decode(),) if offered else ())

    async def set_heads(self, proxy: str, replica: str, heads: Sequence[Head]) -> None:
        """Put a proxy's heads on a replica in the place of those before."""
        arguments: list[Argument] = [self.channel(""), replica, proxy]
        for head in heads:
            arguments.append(f"{len(proxy.encode())}|{proxy}{head.head_id}")
            arguments += [packed(*head.rank, head.ready_steps), packed_row(head.row, head.anchor_steps)]
        await self._mending([replica], SET_HEADS.run(self.client, self.keys(replica), self._head(*arguments)))
