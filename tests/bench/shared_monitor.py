"""What proxies write to Redis, read off the wire by MONITOR and handed to the judge in its order; and what is written there now.

Redis tells MONITOR of every command, those of scripts too, in the order in which they took effect. Only the commands that change rows,
grants, heads and records are read; the scripts' own sums are not, nor is any code of theirs. Keys and packing are those that the header of
``proxy/adapters/lua/account.lua`` tells: packed doubles, little-endian, a row behind its anchor.

Fails: a line that is not understood is counted (``Verdict.unread``); a monitor that Redis closed ends ``run`` with ConnectionError.
"""

import asyncio
import codecs
import struct
import time
from math import isinf

import numpy as np
import redis.asyncio

from tests.bench.shared_judge import Anchored, Array, Judge, JudgedReplica, Terms, WaitingHead

LINE_BYTES_MAX = 1 << 22
PARTS = ("state", "rows", "heads", "headrows")
RESERVE_ARGUMENTS, RANK_ARGUMENT = 10, 8  # of reserve.lua; the rank is its ninth


def numbers(data: bytes) -> Array:
    """Packed doubles."""
    return np.frombuffer(data, "<f8").astype(np.float64)


def anchored(data: bytes) -> Anchored:
    """A row behind its anchor."""
    found = numbers(data)
    return Anchored(found[1:], float(found[0]))


def terms(facts: bytes) -> Terms:
    """A record's figures."""
    z, sigma, bias, usable, seats, steps, rate, published = numbers(facts)
    return Terms(usable, None if isinf(seats) else seats, z, sigma, bias, steps, rate, published)


def head_key(field: bytes) -> tuple[str, str]:
    """Proxy and request of a head's field ``LEN|PROXY ID``."""
    length, _, rest = field.partition(b"|")
    return rest[: int(length)].decode(), rest[int(length) :].decode()


def replica_of(key: str) -> tuple[str, str]:
    """Replica and part of a key ``kvgate:{POOL}:r:REPLICA:PART``, empty where it is another."""
    name, _, part = key.partition("}:r:")[2].rpartition(":")
    return (name, part) if part in PARTS else ("", "")


def words_of(line: bytes) -> list[bytes]:
    """The arguments of one line of MONITOR: each in double quotes, with backslashes before what is not plain."""
    found, at = [], line.index(b'"')
    while at < len(line) and line[at : at + 1] == b'"':
        end = line.index(b'"', at + 1)
        while _escaped(line, end):
            end = line.index(b'"', end + 1)
        found.append(codecs.escape_decode(line[at + 1 : end])[0])
        at = end + 2
    return found


def _escaped(line: bytes, quote: int) -> bool:
    """Whether an odd number of backslashes stands before a quote."""
    at = quote
    while line[at - 1 : at] == b"\\":
        at -= 1
    return (quote - at) % 2 == 1


class Monitor:
    """Follows one Redis and tells the judge."""

    def __init__(self, port: int, judge: Judge) -> None:
        self._port, self._judge = port, judge
        self.ready = asyncio.Event()
        self._rank: tuple[float, ...] = ()
        self._recovering_until_s = 0.0

    async def run(self) -> None:
        """Follow until cancelled. Raises ConnectionError when Redis closes it."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._port, limit=LINE_BYTES_MAX)
        try:
            writer.write(b"*1\r\n$7\r\nMONITOR\r\n")
            while line := await reader.readline():
                if line == b"+OK\r\n":
                    await self._begin()
                else:
                    self.told(line)
            raise ConnectionError("Redis closed the monitor")
        finally:
            writer.close()

    async def _begin(self) -> None:
        """Take what is there already: nobody has granted anything yet."""
        async with redis.asyncio.Redis(port=self._port) as client:
            self._judge.replicas |= await written_now(client)
        self.ready.set()

    def told(self, line: bytes) -> None:
        """One line of MONITOR, behind its + sign."""
        stamp, _, rest = line[1:].partition(b" ")
        by_script = rest.startswith(b"[0 lua]")
        quote = rest.find(b'"')
        command = rest[quote + 1 : rest.index(b'"', quote + 1)].upper()
        if command == b"EVALSHA" or (command == b"EVAL" and not by_script):
            self._asked(rest)
        elif command in {b"HSET", b"HDEL", b"DEL", b"PUBLISH", b"FLUSHALL"} and b'total" "' not in rest[:200]:
            now_s = float(stamp)
            self._judge.excused = now_s < self._recovering_until_s
            self._wrote(words_of(rest), now_s)

    def _asked(self, line: bytes) -> None:
        """Keep the rank of a reservation: the script does not write it."""
        words = words_of(line)
        arguments = words[3 + int(words[2]) :]
        self._rank = ()
        if len(arguments) == RESERVE_ARGUMENTS and len(arguments[RANK_ARGUMENT]) == 32:
            self._rank = tuple(struct.unpack("<dddd", arguments[RANK_ARGUMENT]))

    def _wrote(self, words: list[bytes], now_s: float) -> None:
        command, judge = words[0].upper(), self._judge
        if command == b"FLUSHALL":
            judge.replicas.clear()
        elif command == b"PUBLISH":
            proxy, replica = words[1].decode().partition(":offers:")[2], words[2].decode()
            if proxy and replica in judge.replicas:
                judge.offered(replica, proxy, now_s)
        elif command == b"DEL":
            for key in words[1:]:
                self._cleared(*replica_of(key.decode()))
        else:
            self._changed(command, words[1].decode(), words[2:], now_s)

    def _changed(self, command: bytes, key: str, fields: list[bytes], now_s: float) -> None:
        replica, part = replica_of(key)
        if command == b"HDEL" and part:
            for field in fields:
                self._deleted(replica, part, field)
        elif command == b"HSET":
            pairs = list(zip(fields[::2], fields[1::2], strict=True))
            if key.endswith("}:pool"):
                self._pool(dict(pairs))
            for field, value in pairs if part else ():
                self._set(replica, part, field, value, now_s)

    def _pool(self, fields: dict[bytes, bytes]) -> None:
        if b"recovering_until" in fields:
            self._recovering_until_s = float(fields[b"recovering_until"])

    def _set(self, replica: str, part: str, field: bytes, value: bytes, now_s: float) -> None:
        known = self._judge.replicas.get(replica)
        if part == "state":
            self._state(replica, field, value)
        elif known is None:
            self._judge.verdict.unread += 1
        elif part == "rows" and field.startswith(b"r|"):
            self._judge.rewritten(replica, field[2:].decode(), anchored(value))
        elif part == "rows" and field.startswith(b"g"):
            number, _, proxy = field[1:].partition(b"|")
            self._judge.granted(replica, proxy.decode(), int(number), anchored(value), self._rank, now_s)
        elif part == "heads":
            proxy, head_id = head_key(field)
            rank, (ready, _, tenant) = struct.unpack("<ddd", value[:24]), struct.unpack("<ddd", value[48:72])
            marked, passed = struct.unpack("<dd", value[32:48])
            head = WaitingHead(proxy, head_id, (*rank, tenant), None, ready, now_s, marked_s=marked, passed=not isinf(passed))
            self._judge.published(replica, head)
        elif part == "headrows":
            known.heads[head_key(field)].demand = anchored(value)

    def _state(self, replica: str, field: bytes, value: bytes) -> None:
        known = self._judge.replicas.get(replica)
        if field == b"facts" and known is not None:
            known.terms = terms(value)
        elif field == b"facts":
            self._judge.replicas[replica] = JudgedReplica(np.empty(0), terms(value))
        elif field == b"ends" and known is not None:
            known.ends = numbers(value)

    def _deleted(self, replica: str, part: str, field: bytes) -> None:
        known = self._judge.replicas.get(replica)
        if known is None:
            return
        if part == "heads":
            known.heads.pop(head_key(field), None)
        elif part == "rows" and field.startswith(b"r|"):
            known.rows.pop(field[2:].decode(), None)
        elif part == "rows" and field.startswith(b"g"):
            number, _, proxy = field[1:].partition(b"|")
            known.grants.pop((proxy.decode(), int(number)), None)

    def _cleared(self, replica: str, part: str) -> None:
        known = self._judge.replicas.get(replica)
        if known is not None and part == "rows":
            known.rows.clear()
            known.grants.clear()
        elif known is not None and part == "heads":
            known.heads.clear()


async def written_now(client: redis.asyncio.Redis) -> dict[str, JudgedReplica]:
    """What stands in Redis at this moment, of every replica that has a record: read in one transaction."""
    keys = sorted([key async for key in client.scan_iter("kvgate:*:state", count=1000)])
    names = [replica_of(key.decode())[0] for key in keys]
    async with client.pipeline(transaction=True) as pipe:
        for key in keys:
            pipe.hmget(key, "facts", "ends")
            pipe.hgetall(key[: -len("state")] + b"rows")
        replies = await pipe.execute()
    found = {}
    for name, (facts, ends), rows in zip(names, replies[::2], replies[1::2], strict=True):
        known = found[name] = JudgedReplica(numbers(ends), terms(facts))
        for field, value in rows.items():
            kind, _, proxy = field.partition(b"|")
            if kind == b"r":
                known.rows[proxy.decode()] = anchored(value)
            elif kind[:1] == b"g":
                known.grants[proxy.decode(), int(kind[1:])] = anchored(value)
    return found


def store_s() -> float:
    """The store's clock, which is this machine's."""
    return time.time()
