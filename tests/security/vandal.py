"""Somebody with a client of a shared Redis, and what all strokes need: kvgate's keys there, and ways to overwrite what they hold."""

import struct
from collections.abc import Callable
from dataclasses import dataclass

import redis

from proxy.adapters.redis_store import PERIOD_S

POOL = "kvgate:{default}:"
NAN, INF, FAR = float("nan"), float("inf"), 1e300
JUNK = b"\xff\xfe\xed\xa0\x80 junk"
HUGE = b"x" * 2_000_000


@dataclass(slots=True)
class Vandal:
    """What is broken at each stroke; ``turn`` counts them."""

    client: redis.Redis
    replicas: tuple[str, ...]
    proxies: tuple[str, ...]
    turn: int = 0

    def keys(self, *parts: str) -> list[str]:
        """Of both replicas: state, rows, heads, headrows."""
        return [f"{POOL}r:{replica}:{part}" for replica in self.replicas for part in parts]

    def fields(self, key: str) -> dict[bytes, bytes]:
        found: dict[bytes, bytes] = self.client.hgetall(key) if self.client.type(key) == b"hash" else {}
        return found

    def put(self, key: str, field: str | bytes, value: str | bytes | float) -> None:
        if self.client.type(key) not in (b"hash", b"none"):
            self.client.delete(key)
        self.client.hset(key, field, value)

    def every_field(self, key: str, value: Callable[[bytes, bytes], bytes]) -> None:
        for field, before in self.fields(key).items():
            self.client.hset(key, field, value(field, before))

    def numbers(self, key: str, value: float, *, kinds: tuple[bytes, ...], first: int = 0) -> None:
        """Overwrite packed numbers of fields that begin so, from the ``first`` on."""
        for field, before in self.fields(key).items():
            if field.startswith(kinds) and len(before) % 8 == 0:
                self.client.hset(key, field, before[: 8 * first] + struct.pack("<d", value) * (len(before) // 8 - first))

    @property
    def period(self) -> str:
        return f"{POOL}tenants:{int(self.client.time()[0] // PERIOD_S)}"


Stroke = Callable[[Vandal], None]
