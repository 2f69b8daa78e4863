"""Who is slow on either port is let go, and nobody else waits for him: heads and bodies byte by byte, and connections that say nothing."""

import asyncio

import pytest

from tests.integration.hostile.exchanging import dribble, statuses
from tests.security.attacked import ADMIN_TOKEN, Attacked, attacked

LIMITS = {"head_timeout": "300ms", "body_timeout": "400ms"}
ADMIN_POST = b"POST /admin/mode HTTP/1.1\r\nhost: localhost\r\nx-kvgate-admin-token: %b\r\n" % ADMIN_TOKEN.encode()
BODY = b'{"mode":"off","for_s":60,"reason":"a test"}'
SLOW = {
    "a head": (b"GET /admin/state HTTP/1.1\r\nhost: localhost\r\n", b"f"),
    "fields": (b"GET /admin/state HTTP/1.1\r\nhost: localhost\r\n", b"f: a\r\n"),
    "a body": (ADMIN_POST + b"content-length: 9999\r\n\r\n", b" "),
    "a body in pieces": (ADMIN_POST + b"transfer-encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
}


async def let_go(port: int, first: bytes, again: bytes) -> bytes:
    """What the server says to a slow caller before it closes, nothing where it closes at once."""
    try:
        return await dribble(port, first, again)
    except OSError:
        return b""


async def served(kvgate: Attacked) -> None:
    """Both ports answer somebody else."""
    assert (await kvgate.post("/v1/chat/completions", {"model": "mock", "messages": [], "max_tokens": 2})).status == 200
    assert (await kvgate.admin.request("GET", "/admin/state", headers={"host": "localhost"})).status == 200


@pytest.mark.parametrize("how", SLOW)
async def test_slow_callers_of_the_inside_port_are_let_go(how: str) -> None:
    async with attacked(limits=LIMITS) as kvgate:
        slow = [asyncio.ensure_future(let_go(kvgate.admin.port, *SLOW[how])) for _ in range(20)]
        await served(kvgate)
        said = await asyncio.gather(*slow)
        assert {tuple(statuses(one)) for one in said} <= {(408,), ()}, said[0]
        assert (408,) in {tuple(statuses(one)) for one in said}
        await served(kvgate)
        assert kvgate.proxy.services.dispatcher.gate.mode == "enforce", "no half of a switch was taken for a whole one"
        whole = ADMIN_POST + b"content-length: %d\r\nconnection: close\r\n\r\n" % len(BODY)
        reader, writer = await asyncio.open_connection("127.0.0.1", kvgate.admin.port)
        writer.write(whole + BODY)
        assert statuses(await reader.read()) == [200]
        writer.close()


async def test_connections_that_say_nothing_keep_nobody_out() -> None:
    async with attacked(limits=LIMITS | {"connections_max": 4}, queue={"requests_max": 4}) as kvgate:
        idle = [await asyncio.open_connection("127.0.0.1", port) for port in (kvgate.port, kvgate.admin.port) for _ in range(100)]
        for _ in range(5):
            await served(kvgate)
        for _, writer in idle:
            writer.transport.abort()
        await served(kvgate)
