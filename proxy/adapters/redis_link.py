"""Connections to Redis or Valkey: alone, over a socket, behind sentinels or as a cluster; and what their errors mean.

A call is bounded as a whole (connecting, sending, waiting) and never sent again: what timed out may have been carried out. A connection
whose call was given up is closed, so no late answer is taken for another's. The time is counted so that a stall of our own process does
not look like one of the store (``adapters.stall_proof``).

This module needs the packages ``redis`` and ``hiredis``; only ``kvgate serve --redis`` imports it.
"""

import asyncio
import inspect
import re
from collections.abc import Awaitable
from functools import partial
from typing import Any, TypeVar

from redis import asyncio as redis_asyncio
from redis import exceptions
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from proxy.adapters.redis_wire import RedisWires
from proxy.adapters.stall_proof import stall_proof_timeout
from proxy.config.redis_url import StoreAddress, StoreKind
from proxy.ports.store import StoreError, StoreFault

T = TypeVar("T")

CONNECTIONS_MAX = 256  # one for each call under way; at 500 calls a second and half a millisecond each, one would nearly do
PATIENCE_S_MIN = 1.0  # with what no request waits for: a handshake with TLS over a distance, a store that was busy for a moment

# The most telling first: several errors of redis-py are special cases of its connection error.
_FAULTS: tuple[tuple[type[BaseException], StoreFault], ...] = (
    (exceptions.BusyLoadingError, StoreFault.LOADING),
    (exceptions.AuthenticationError, StoreFault.AUTH),
    (exceptions.AuthenticationWrongNumberOfArgsError, StoreFault.AUTH),
    (exceptions.NoPermissionError, StoreFault.NOPERM),
    (exceptions.ReadOnlyError, StoreFault.READONLY),
    (exceptions.OutOfMemoryError, StoreFault.FULL),
    (exceptions.NoScriptError, StoreFault.NOSCRIPT),
    (exceptions.MovedError, StoreFault.CLUSTER),
    (exceptions.AskError, StoreFault.CLUSTER),
    (exceptions.TryAgainError, StoreFault.CLUSTER),
    (exceptions.ClusterCrossSlotError, StoreFault.CLUSTER),
    (exceptions.ClusterError, StoreFault.CLUSTER),
    (exceptions.RedisClusterException, StoreFault.CLUSTER),
    (exceptions.TimeoutError, StoreFault.TIMEOUT),
    (TimeoutError, StoreFault.TIMEOUT),
    (exceptions.ConnectionError, StoreFault.CONNECTION),
    (OSError, StoreFault.CONNECTION),
)
# Errors that come out of a script are told in its own words.
_IN_SCRIPTS: tuple[tuple[str, StoreFault], ...] = (
    (r"OOM|maxmemory", StoreFault.FULL),
    (r"READONLY|read only", StoreFault.READONLY),
    (r"NOPERM|can't run this command|can't access|no permissions", StoreFault.NOPERM),
    (r"MISCONF|NOREPLICAS", StoreFault.READONLY),
    (r"CLUSTERDOWN|MOVED", StoreFault.CLUSTER),
)
_HELP: dict[StoreFault, str] = {
    StoreFault.AUTH: "check user and password in --redis",
    StoreFault.NOPERM: "allow it in the store's ACL (deploy/README.md lists what kvgate needs)",
    StoreFault.READONLY: "--redis must name the primary, and it must be able to write",
    StoreFault.FULL: "raise its maxmemory; kvgate's own keys take a few megabytes",
    StoreFault.CLUSTER: "a cluster is named by redis+cluster://",
}
KNOWN = (exceptions.RedisError, exceptions.RedisClusterException, OSError)


def store_error(error: BaseException) -> StoreError:
    """What an error of the client means."""
    fault = next((fault for kind, fault in _FAULTS if isinstance(error, kind)), None)
    text = str(error) or type(error).__name__
    if fault is None:
        fault = next((fault for pattern, fault in _IN_SCRIPTS if re.search(pattern, text)), StoreFault.ANSWER)
    advice = _HELP.get(fault)
    return StoreError(fault, f"{text}: {advice}" if advice else text)


class RedisLink:
    """A client, its one connection for scripts, and one of its own for what it is told unasked."""

    def __init__(self, address: StoreAddress, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self.shown = address.shown
        self._sentinels: list[Any] = []
        self._closed = False
        self._under_way = 0
        self._idle = asyncio.Event()
        self.client = self._client(address)
        connection = self._connection_to_slot if address.kind is StoreKind.CLUSTER else self._connection
        self.scripts = RedisWires(self.client, partial(connection, f"{{{address.pool}}}"), max(timeout_s, PATIENCE_S_MIN))
        # A cluster hands a message on to all its nodes, so that any one will do.
        self.listener = self._node(address) if address.kind is StoreKind.CLUSTER else self.client

    def __repr__(self) -> str:
        """Where it leads, without secrets."""
        return f"<RedisLink {self.shown}>"

    @staticmethod
    def _options(address: StoreAddress) -> dict[str, Any]:
        options: dict[str, Any] = {
            "username": address.username,
            "password": address.password,
            "retry": Retry(NoBackoff(), 0),
            "socket_timeout": None,  # calls are bounded here, and a listener waits for as long as nothing is said
            "protocol": 2,  # what every server of the last ten years speaks
            "client_name": "kvgate",
        }
        if address.tls:
            options |= {"ssl": True, "ssl_ca_certs": None if address.ca_path is None else str(address.ca_path)}
        return options

    def _client(self, address: StoreAddress) -> Any:
        options = self._options(address)
        match address.kind:
            case StoreKind.CLUSTER:
                nodes = [ClusterNode(host, port) for host, port in address.hosts]
                return redis_asyncio.RedisCluster(startup_nodes=nodes, max_connections=CONNECTIONS_MAX, **options)
            case StoreKind.SENTINEL:
                own = {"retry": Retry(NoBackoff(), 0), "socket_timeout": PATIENCE_S_MIN, "protocol": 2}
                sentinel = Sentinel(  # type: ignore[no-untyped-call]  # redis-py's own
                    list(address.hosts), sentinel_kwargs=own, db=address.database, **options
                )
                self._sentinels = sentinel.sentinels
                return sentinel.master_for(address.service, max_connections=CONNECTIONS_MAX)
            case StoreKind.SOCKET:
                return redis_asyncio.Redis(
                    unix_socket_path=address.socket_path, db=address.database, max_connections=CONNECTIONS_MAX, **options
                )
            case _:
                return self._node(address)

    def _node(self, address: StoreAddress) -> Any:
        host, port = address.hosts[0]
        return redis_asyncio.Redis(
            host=host, port=port, db=address.database, max_connections=CONNECTIONS_MAX, **self._options(address)
        )

    async def _connection(self, _: str) -> Any:
        """A connection as the pool would make one, but not the pool's."""
        return self.client.connection_pool.make_connection()

    async def _connection_to_slot(self, key: str) -> Any:
        """One to the node of a cluster that holds a key."""
        await self.client.initialize()
        node = self.client.get_node_from_key(key)
        return node.connection_class(**node.connection_kwargs)

    async def call(self, work: Awaitable[T], *, awaited: bool = False) -> T:
        """Await a call. Raises StoreError. ``awaited``: a request waits for it; others may take as long as a connection takes to make."""
        if self._closed:
            if inspect.iscoroutine(work):
                work.close()
            raise StoreError(StoreFault.CONNECTION, "this proxy has closed its connections")
        self._under_way += 1
        seconds = self.timeout_s if awaited else max(self.timeout_s, PATIENCE_S_MIN)
        try:
            async with stall_proof_timeout(seconds):
                return await work
        except TimeoutError as error:
            raise StoreError(StoreFault.TIMEOUT, f"no answer within {seconds:g} s") from error
        except KNOWN as error:
            raise store_error(error) from error
        finally:
            self._under_way -= 1
            if not self._under_way:
                self._idle.set()

    async def aclose(self) -> None:
        """Close every connection. Who is just connecting would leave one behind, so calls under way end first: each soon does."""
        self._closed = True
        if self._under_way:
            self._idle.clear()
            await self._idle.wait()
        await self.scripts.aclose()
        for client in {id(one): one for one in (self.client, self.listener, *self._sentinels)}.values():
            await client.aclose()
