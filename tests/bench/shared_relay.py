"""A TCP relay before Redis that can swallow what one proxy says and hears: ``shared_relay.py STORE_PORT PORT…``.

Reads ``cut N`` and ``heal N`` on stdin, N counting the ports from 0, and answers ``done`` to each; also once when all ports are open.
While a port is cut, bytes of either side wait, as packets do that are sent again and again; when it heals they arrive, late.
"""

import asyncio
import sys

CHUNK_BYTES = 65536


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, whole: asyncio.Event) -> None:
    try:
        while data := await reader.read(CHUNK_BYTES):
            await whole.wait()
            writer.write(data)
            await writer.drain()
        await whole.wait()
    except OSError:
        pass  # either side is gone; so is the other, below
    finally:
        writer.close()


async def _serve(port: int, store_port: int, whole: asyncio.Event) -> asyncio.Server:
    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await whole.wait()
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", store_port)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_pass(reader, far_writer, whole), _pass(far_reader, writer, whole))

    return await asyncio.start_server(connected, "127.0.0.1", port)


async def main(store_port: int, ports: list[int]) -> None:
    """Relay until stdin ends."""
    links = [asyncio.Event() for _ in ports]
    for link in links:
        link.set()
    servers = [await _serve(port, store_port, link) for port, link in zip(ports, links, strict=True)]
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    sys.stdout.write("done\n")
    sys.stdout.flush()
    while line := await lines.readline():
        word, number = line.split()
        link = links[int(number)]
        link.clear() if word == b"cut" else link.set()
        sys.stdout.write("done\n")
        sys.stdout.flush()
    for server in servers:
        server.close()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1]), [int(word) for word in sys.argv[2:]]))
