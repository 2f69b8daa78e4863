"""One exchange with Redis: the commands of a beat in one round trip, and what their answers hold, each word read by itself.

A word that no proxy can have told (``redis_reading``) costs that word and nothing else: it is counted, and taken out of its hash. A key of
another type, or a stream whose ids no clock can have given, goes whole: both would fail every beat there is. An answer that says anything
else is wrong with the store fails the beat.
"""

import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from hashlib import sha1
from typing import Any, Generic, TypeVar

from redis.exceptions import RedisError

from proxy.adapters.redis_reading import MALFORMED, UnknownWordError
from proxy.adapters.redis_scripts import TAKE_OUT

T = TypeVar("T")

AHEAD_S_MAX = 60.0  # of a stream's ids before the store's clock, which gives them; a failover may set it back
NOTHING_SEEN = "0-0"
# What Redis says of a key of another type, of a stream that can take no more or be read no further, and of an account that is no number.
BROKEN = re.compile(r"WRONGTYPE|exhausted the last possible ID|invalid start ID|Invalid stream ID|is not a float|NaN or Infinity")


class Asked:
    """Commands to send together, and their answers in the same places."""

    def __init__(self, pipeline: Any) -> None:
        self.replies: list[Any] = []
        self.broken: dict[str, None] = {}  # keys that are not what they should be
        self._pipeline = pipeline
        self._sent: list[tuple[str | float, ...]] = []

    def ask(self, *arguments: str | float) -> int:
        """Where the answer will stand."""
        self._pipeline.execute_command(*arguments)
        self._sent.append(arguments)
        return len(self._sent) - 1

    def read(self, key: str, seen: str, first: int, each: int) -> int:
        """A stream from what was ``seen`` on; the latest of one that was not."""
        if seen:
            return self.ask("XRANGE", key, f"({seen}", "+", "COUNT", each)
        return self.ask("XREVRANGE", key, "+", "-", "COUNT", first)

    async def send(self) -> None:
        """Raises RedisError where it is not what stands in the store that is wrong."""
        self.replies = await self._pipeline.execute(raise_on_error=False)
        for sent, reply in zip(self._sent, self.replies, strict=True):
            if not isinstance(reply, Exception):
                continue
            if not isinstance(reply, RedisError) or not BROKEN.search(str(reply)):
                raise reply
            self.broken[str(sent[1])] = None


@dataclass(frozen=True, slots=True)
class Entries(Generic[T]):
    """What others told in a stream, and up to where it was read."""

    told: tuple[T, ...]
    seen: str


class Heard:
    """What the answers hold. ``unread`` counts words that are no proxy's."""

    def __init__(self, asked: Asked, store_s: float) -> None:
        self._asked = asked
        self._ahead_ms_max = (store_s + AHEAD_S_MAX) * 1000.0
        self._gone: dict[str, dict[bytes, bytes]] = {}  # by key: fields, and what they held
        self.unread = len(asked.broken)

    def fields(
        self, at: int, key: str, read: Callable[[bytes, bytes], T], lasts: Callable[[T], bool] = lambda _: True
    ) -> list[T]:
        """A hash, without what does not last; fields that do not, or that cannot be read, go."""
        reply, told = self._asked.replies[at], []
        if isinstance(reply, Exception):
            return []
        for field, data in zip(reply[::2], reply[1::2], strict=True):
            try:
                one = read(field, data)
            except UnknownWordError:
                self.unread += 1
                continue
            except MALFORMED:
                self.unread += 1
            else:
                if lasts(one):
                    told.append(one)
                    continue
            self._gone.setdefault(key, {})[field] = data
        return told

    def entries(self, at: int, key: str, ours: str, seen: str, read: Callable[[Sequence[Any]], T]) -> Entries[T]:
        """What others than ``ours`` told in a stream, the oldest first."""
        reply = self._asked.replies[at]
        if isinstance(reply, Exception) or key in self._asked.broken:
            return Entries((), NOTHING_SEEN)
        found = reply if seen else reply[::-1]
        last = found[-1][0].decode() if found else seen or NOTHING_SEEN
        if int(last.partition("-")[0]) > self._ahead_ms_max:
            self.unread += 1
            self._asked.broken[key] = None
            return Entries((), NOTHING_SEEN)
        told = []
        for _, fields in found:
            try:
                values = dict(zip(fields[::2], fields[1::2], strict=True))
                proxy, *word = json.loads(values[b"c"])
                if proxy != ours:
                    told.append(read(word))
            except MALFORMED:
                self.unread += 1
        return Entries(tuple(told), last)

    async def take_out(self, client: Any) -> None:
        """What cannot be read, and what is over."""
        for key in self._asked.broken:
            await client.execute_command("DEL", key)
        for key, fields in self._gone.items():
            if key not in self._asked.broken:
                held = [part for field, data in fields.items() for part in (field, sha1(data, usedforsecurity=False).hexdigest())]
                await TAKE_OUT.run(client, [key], held)
