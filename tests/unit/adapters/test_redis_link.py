"""Connections to the shared store, without one: what they put on the wire."""

import pytest
from redis.asyncio.connection import Connection

from proxy.adapters.redis_link import RedisLink
from proxy.config.redis_url import store_address

COMMANDS = (
    ("EVALSHA", "a" * 40, 5, "kvgate:{pool}:r:r0:rows", "", "3.0", "vm:1:é", 1796048323866, bytes(range(256)) * 8, b"", 0.1),
    ("HINCRBYFLOAT", "k", "10|a b", 1.5e-7),
    ("PING",),
)


@pytest.mark.parametrize("url", ["redis://h:1", "rediss://h:1", "redis+sentinel://h:1/main", "unix:///tmp/s"])
async def test_commands_go_out_as_redis_py_writes_them(url: str) -> None:
    link = RedisLink(store_address(url), 0.1)
    pool = link.client.connection_pool
    ours = pool.connection_class(**pool.connection_kwargs)
    for command in COMMANDS:
        (packed,) = ours.pack_command(*command)
        assert packed == b"".join(Connection().pack_command(*command))
    await link.aclose()
