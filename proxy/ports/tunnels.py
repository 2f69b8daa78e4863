"""Connections that become a WebSocket: who may have one, and where it goes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from proxy.ports import Headers
from proxy.wire.answers import Answer


@dataclass(frozen=True, slots=True)
class Tunnel:
    """One WebSocket on its way to a replica. ``closed`` is called once, when it has ended or could not be opened."""

    replica: str
    base_url: str
    target: bytes
    headers: Headers
    request_id: bytes
    connect_s_max: float
    closed: Callable[[], None]


class Tunnels(Protocol):
    """Decides on requests for an upgrade."""

    def open(self, method: bytes, path: str, target: bytes, headers: Headers) -> Tunnel | Answer:
        """Where the WebSocket goes, or what the client is answered instead. ``path`` is decoded, ``target`` as it came."""
        ...

    def failed(self, tunnel: Tunnel, message: str) -> Answer:
        """What to answer when the replica did not."""
        ...
