"""vLLM's KV events over ZMQ: one subscription per replica (reference vllm.md §6).

The publisher numbers its messages. A gap means that events were lost (it drops what a slow subscriber does not take), a number that
falls that the engine is another: either way everything known is forgotten and learned anew from then on. There is no snapshot for who
comes late, so an index begins empty and fills with what is stored from now on, beside what kvgate itself sends.

Needs pyzmq, which comes with ``pip install 'kvgate[kv-events]'``; asked for without it, ``subscription`` raises KvEventsUnavailableError.
Fails: a publisher that goes away silently tells nothing; its index then goes stale until the next epoch, and the credit of its hits falls.
"""

import asyncio
import importlib
import logging
from collections.abc import Callable
from typing import Any, Protocol

from proxy.adapters.kv_block_map import KvBlockMap
from proxy.core.events import CacheTold
from proxy.wire.kv_events import read_batch

MESSAGES_WAITING_MAX = 100_000  # vLLM's own high-water mark: a burst after a pause must not look like a gap
SEQUENCE_BYTES = 8

log = logging.getLogger("kvgate.kv_events")


class KvEventsUnavailableError(Exception):
    """KV events were asked for, and pyzmq is not installed."""


class Subscription(Protocol):
    """One subscription to a publisher."""

    async def receive(self) -> list[bytes]:
        """The next message's parts."""
        ...

    def close(self) -> None:
        """End it."""
        ...


class ZmqSubscription:
    """A SUB socket. Connects in the background, and again whenever the publisher comes back."""

    def __init__(self, zmq: Any, endpoint: str) -> None:
        self._socket = zmq.Context.instance().socket(importlib.import_module("zmq").SUB)
        self._socket.set_hwm(MESSAGES_WAITING_MAX)
        self._socket.setsockopt(importlib.import_module("zmq").SUBSCRIBE, b"")
        self._socket.connect(endpoint)

    async def receive(self) -> list[bytes]:
        """The next message's parts."""
        parts: list[bytes] = await self._socket.recv_multipart()
        return parts

    def close(self) -> None:
        """Close the socket and drop what waits."""
        self._socket.close(linger=0)


def zmq_for(endpoint: str) -> Any:
    """What subscribes to ``endpoint``. Raises KvEventsUnavailableError."""
    try:
        return importlib.import_module("zmq.asyncio")
    except ImportError as error:
        raise KvEventsUnavailableError(
            f"replicas[].kv_events is set ({endpoint}) and needs pyzmq: pip install 'kvgate[kv-events]', or leave the key out"
        ) from error


def subscription(endpoint: str) -> Subscription:
    """Subscribe to ``endpoint`` (``tcp://HOST:PORT``). Raises KvEventsUnavailableError."""
    return ZmqSubscription(zmq_for(endpoint), endpoint)


def endpoint_of(endpoint: str, rank: int) -> str:
    """Where the engine of that rank publishes, given where the first does: vLLM adds the rank to the port (reference vllm.md §6)."""
    host, _, port = endpoint.rpartition(":")
    return f"{host}:{int(port) + rank}"


class KvEventFeed:
    """Reads one replica's events and tells them on. ``blocks`` is made anew by whoever learns that the replica serves other models."""

    def __init__(self, source: Subscription, blocks: KvBlockMap, tell: Callable[[CacheTold], None]) -> None:
        self._source = source
        self._blocks = blocks
        self._tell = tell
        self._sequence: int | None = None
        self.batches_total = 0
        self.skipped_total = 0
        self.gaps_total = 0

    async def run(self) -> None:
        """Until cancelled."""
        try:
            while True:
                await self.take(await self._source.receive())
        finally:
            self._source.close()

    async def take(self, parts: list[bytes]) -> None:
        """Take in one message: topic, number, batch."""
        if len(parts) != 3 or len(parts[1]) != SEQUENCE_BYTES:
            self.skipped_total += 1
            return
        sequence = int.from_bytes(parts[1], "big")
        if self._sequence is not None and sequence != self._sequence + 1:
            self.gaps_total += 1
            log.warning("kv_events.gap replica=%s expected=%d got=%d", self._blocks.replica, self._sequence + 1, sequence)
            self._tell(self._blocks.forget())
        self._sequence = sequence
        self.batches_total += 1
        # A prompt of 128k tokens is 8,000 blocks, 10 ms of hashing.
        for told in await asyncio.to_thread(self._read, parts[2]):
            self._tell(told)

    def _read(self, payload: bytes) -> list[CacheTold]:
        batch = read_batch(payload)
        self.skipped_total += batch.skipped
        return self._blocks.apply(batch)
