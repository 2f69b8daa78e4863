"""Replicas from DNS: the addresses of a name (A and AAAA, as a headless Service has them), or the targets of its SRV records.

A name that has no records is taken for an outage, not for an empty fleet: name servers lose names for moments, and a Service whose Pods
are all unready for one has none. Whether a replica that was heard of answers, kvgate's own probes tell.

Needs dnspython: ``pip install 'kvgate[dns]'``.
"""

import asyncio
import importlib
from collections.abc import AsyncIterator
from ipaddress import ip_address
from typing import Any

from proxy.adapters.discovered import replica_at
from proxy.core.policy import Discovery, DnsNames, ReplicaPolicy
from proxy.ports.replicas import DiscoveryError

ANSWER_S_MAX = 2.0  # over all tries of one question: a name server in the cluster takes a millisecond


def resolver() -> Any:
    """The machine's own way to ask. Raises DiscoveryError without dnspython, or where the machine has none."""
    try:
        asking = importlib.import_module("dns.asyncresolver")
    except ImportError as error:
        raise DiscoveryError("discovery.dns needs dnspython: pip install 'kvgate[dns]'") from error
    try:
        return asking.Resolver()
    except importlib.import_module("dns.exception").DNSException as error:
        raise DiscoveryError(f"this machine names no name server: {error}") from error


class DnsSource:
    """``ports.ReplicaSource`` over a name. ``asking`` is a dnspython resolver; None: the machine's own."""

    def __init__(self, discovery: Discovery, dns: DnsNames, asking: Any = None) -> None:
        self.shown = f"dns {dns.srv or dns.name}"
        self._discovery = discovery
        self._dns = dns
        self._asking = asking

    async def tell(self) -> AsyncIterator[tuple[ReplicaPolicy, ...] | None]:
        """What the name stands for, asked again and again. Raises DiscoveryError."""
        asking = self._asking or resolver()
        while True:
            name, port = self._dns.name, self._dns.port
            if name is not None and port is not None:
                hosts = await self._addresses(asking, name, port)
            else:
                hosts = await self._targets(asking, self._dns.srv or "")
            yield tuple(self._replica(*one) for one in sorted(hosts))
            await asyncio.sleep(self._dns.every_s)

    async def _addresses(self, asking: Any, name: str, port: int) -> set[tuple[str, int]]:
        found = [record.to_text() for kind in ("A", "AAAA") for record in await self._ask(asking, name, kind)]
        if not found:
            raise DiscoveryError(f"{name} has no addresses")
        return {(f"[{address}]" if ip_address(address).version == 6 else address, port) for address in found}

    async def _targets(self, asking: Any, name: str) -> set[tuple[str, int]]:
        records = await self._ask(asking, name, "SRV")
        if not records:
            raise DiscoveryError(f"{name} has no SRV records")
        return {(record.target.to_text(omit_final_dot=True), int(record.port)) for record in records}

    async def _ask(self, asking: Any, name: str, kind: str) -> list[Any]:
        """Records of one kind; none where the name has none."""
        faults, resolving = importlib.import_module("dns.exception"), importlib.import_module("dns.resolver")
        try:
            return list(await asking.resolve(name, kind, lifetime=ANSWER_S_MAX))
        except resolving.NoAnswer:
            return []
        except (faults.DNSException, OSError) as error:
            raise DiscoveryError(f"{name} {kind}: {error}") from error

    def _replica(self, host: str, port: int) -> ReplicaPolicy:
        return replica_at(self._discovery, host, port)
