"""What replicas need of the outside: feed, credentials, what their engines tell of their caches, and where they are heard of."""

import asyncio
import os
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any

from proxy.adapters.clock import SystemClock
from proxy.adapters.discovery_dns import DnsSource
from proxy.adapters.discovery_file import FileSource
from proxy.adapters.discovery_kubernetes import KubernetesSource
from proxy.adapters.kv_block_map import KvBlockMap
from proxy.adapters.kv_events import KvEventFeed, KvEventsUnavailableError, endpoint_of, subscription, zmq_for
from proxy.adapters.scraper import VllmFeed
from proxy.config.credentials import request_headers
from proxy.config.settings import SettingsError
from proxy.core.events import CacheTold
from proxy.core.policy import Discovery, ReplicaPolicy, Scrape
from proxy.ports.replicas import ReplicaSource
from proxy.serving.replica_set import ReplicaParts, ReplicaUnusableError
from proxy.serving.watcher import ReplicaWatcher


def check_replica(replica: ReplicaPolicy) -> tuple[tuple[str, str], ...]:
    """The headers that go with every request to it. Raises SettingsError for a key that is not there, KvEventsUnavailableError."""
    if replica.kv_events is not None:
        zmq_for(replica.kv_events)
    return request_headers(replica, os.environ)


def replica_parts(replica: ReplicaPolicy, scrape: Scrape, clock: SystemClock, tell: Callable[[CacheTold], None]) -> ReplicaParts:
    """Make them; nothing is connected yet. Raises ReplicaUnusableError."""
    try:
        named = check_replica(replica)
    except (SettingsError, KvEventsUnavailableError) as error:
        raise ReplicaUnusableError(str(error)) from error
    feed = VllmFeed(
        replica.name, replica.url, clock, headers=dict(named), timeout_s=scrape.timeout_s, kv_blocks=replica.kv_blocks
    )  # fmt: skip
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in named]
    return ReplicaParts(feed, headers, partial(_beside, replica.kv_events, tell))


def source_of(discovery: Discovery) -> ReplicaSource | None:
    """Where a policy says that replicas are heard of; nothing is asked yet."""
    if discovery.file is not None:
        return FileSource(Path(discovery.file), discovery.replica)
    if discovery.dns is not None:
        return DnsSource(discovery, discovery.dns)
    return None if discovery.kubernetes is None else KubernetesSource(discovery, discovery.kubernetes)


def _beside(kv_events: str | None, tell: Callable[[CacheTold], None], watcher: ReplicaWatcher) -> list[Coroutine[Any, Any, None]]:
    return [] if kv_events is None else [_follow(kv_events, tell, watcher)]


async def _follow(endpoint: str, tell: Callable[[CacheTold], None], watcher: ReplicaWatcher) -> None:
    """Tell the gate what a replica's engines say of their prefix caches, from when it is known what it serves."""
    first = subscription(endpoint)  # at once: what it says while it is probed waits
    try:
        await watcher.found.wait()
    except asyncio.CancelledError:
        first.close()
        raise
    facts = watcher.facts
    names = () if facts is None else tuple(name for name in facts.models if name not in facts.adapters)
    sources = [first, *(subscription(endpoint_of(endpoint, rank)) for rank in range(1, len(watcher.names)))]
    engines = zip(sources, watcher.names, strict=True)
    await asyncio.gather(*(KvEventFeed(one, KvBlockMap(name, names), tell).run() for one, name in engines))
