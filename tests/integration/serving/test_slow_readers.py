"""Clients that do not read what they asked for: over real sockets, through the whole proxy."""

import asyncio
import json
import socket

import pytest

from tests.integration.serving.harness import MESSAGES, RunningProxy, answer_like_vllm, proxying, until
from tests.support.upstream_servers import Peer, ScriptedUpstream

ANSWER_BYTES = 12 << 20  # more than all sockets on the way take
BUFFER_BYTES_MAX = 1 << 20
SLOW = 4
READ_BYTES_MAX = 256 * 1024  # what one read may bring over the bound


async def generous(peer: Peer) -> None:
    """A long answer to who asks for many tokens, a short one to anybody else."""
    head, body = await peer.request()
    if b"POST /v1/" not in head:
        await answer_like_vllm(peer, head)
        return
    length = ANSWER_BYTES if json.loads(body)["max_tokens"] == 32 else 64 * 1024
    await peer.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/octet-stream\r\ncontent-length: %d\r\n\r\n" % length)
    for _ in range(length // (64 * 1024)):
        await peer.send(b"x" * (64 * 1024))


async def asking(proxy: RunningProxy) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A client that has asked, and of whose answer the head is read."""
    raw = socket.socket()
    raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 32 * 1024)
    raw.setblocking(False)
    await asyncio.get_running_loop().sock_connect(raw, ("127.0.0.1", proxy.wire.port))
    reader, writer = await asyncio.open_connection(sock=raw, limit=32 * 1024)
    body = json.dumps({"model": "mock", "messages": MESSAGES, "max_tokens": 32}).encode()
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
    assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200 ")
    return reader, writer


@pytest.mark.slow
async def test_they_hold_nobody_up_and_leave_no_more_here_than_one_bound() -> None:
    def held() -> float:
        return proxy.metric("kvgate_relay_buffered_bytes")

    policy = {"limits": {"buffer_max": f"{BUFFER_BYTES_MAX >> 20}MiB"}}
    async with ScriptedUpstream.running(generous) as upstream, proxying(upstream.url, kv_blocks=1000, policy=policy) as proxy:
        clients = [await asking(proxy) for _ in range(SLOW)]
        await until(lambda: held() > BUFFER_BYTES_MAX, "the bound to be reached")
        for _ in range(10):
            assert len((await proxy.wire.chat(max_tokens=2)).body) == 64 * 1024
            assert held() <= BUFFER_BYTES_MAX + (SLOW + 1) * READ_BYTES_MAX
        assert proxy.services.dispatcher.gate.open_requests == SLOW
        _, leaving = clients.pop()
        leaving.close()  # without having read
        for reader, writer in clients:
            assert len(await reader.readexactly(ANSWER_BYTES)) == ANSWER_BYTES
            writer.close()
        await proxy.until_idle()
        assert held() == 0
        assert len(proxy.records) == SLOW + 10
