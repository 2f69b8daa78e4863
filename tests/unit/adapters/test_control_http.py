"""Requests that hang do not keep later ones from being sent."""

import asyncio
from contextlib import suppress

from proxy.adapters.clock import SystemClock
from proxy.adapters.probe import ControlHttp

HANGING = 12


async def test_requests_that_hang_take_no_connection_from_those_that_follow() -> None:
    """As many as that were once enough for a replica to stay unreachable."""
    hung, accepted = asyncio.Event(), 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readuntil(b"\r\n\r\n")
            if b"/hangs" in head:
                accepted += 1
                if accepted == HANGING:
                    hung.set()
                await reader.read()
            else:
                writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    http = ControlHttp(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", SystemClock(), headers={}, timeout_s=30.0)
    hanging = [asyncio.create_task(http.get("/hangs", fresh=index % 2 == 0)) for index in range(HANGING)]
    try:
        async with asyncio.timeout(10):
            await hung.wait()
            assert (await http.get("/x")).body == b"ok"
            assert (await http.get("/x", fresh=True)).body == b"ok"
    finally:
        for task in hanging:
            task.cancel()
        await asyncio.gather(*hanging, return_exceptions=True)
        await http.aclose()
        server.close()
