"""Replicas from Kubernetes: the EndpointSlices of a Service, listed once and then watched.

A Pod counts while it is ready and not terminating, as the Service itself has it; one that begins to end is left at once, before its server
stops to listen. The watch goes on from where the list ended, is renewed every ``WATCH_S``, and begins anew with a list where the API
says that it has forgotten (410 Gone). Requests go by the Pod's service account, whose token is read for each: it is replaced now and then.
The account needs ``list`` and ``watch`` on ``endpointslices`` in the namespace.

Fails: whatever the API does not answer is an outage, and the replicas last heard of stand.
"""

import json
import os
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from proxy.adapters.discovered import replica_at
from proxy.core.policy import Discovery, KubernetesService, ReplicaPolicy
from proxy.ports.replicas import DiscoveryError

WATCH_S = 60  # bookmarks come about once a minute; a watch that is renewed as often shows a dead API soon
GONE = 410
ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True)
class Cluster:
    """The API and the account to ask it by. ``ca_path`` None: plain HTTP, or the machine's own authorities."""

    url: str
    token_path: Path | None = None
    ca_path: Path | None = None
    namespace: str = "default"

    @classmethod
    def of_pod(cls, environ: Mapping[str, str] = os.environ, account: Path = ACCOUNT) -> "Cluster":
        """The one that this process runs in. Raises DiscoveryError outside of any."""
        host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
        if not host or not (account / "token").exists():
            raise DiscoveryError(
                "discovery.kubernetes needs a Pod with a service account: there is no KUBERNETES_SERVICE_HOST or token"
            )
        shown = f"[{host}]" if ":" in host else host
        namespace = (account / "namespace").read_text("utf-8").strip() if (account / "namespace").exists() else "default"
        return cls(f"https://{shown}:{port}", account / "token", account / "ca.crt", namespace)


@dataclass(slots=True)
class _Slices:
    """What is known, by the slices' names, and where a watch goes on."""

    version: str = ""
    known: dict[str, dict[str, Any]] = field(default_factory=dict)


class KubernetesSource:
    """``ports.ReplicaSource`` over a Service. ``cluster`` None: the one that this process runs in."""

    def __init__(self, discovery: Discovery, service: KubernetesService, cluster: Cluster | None = None) -> None:
        self.shown = f"kubernetes {service.service}"
        self._discovery = discovery
        self._service = service
        self._cluster = cluster

    async def tell(self) -> AsyncIterator[tuple[ReplicaPolicy, ...] | None]:
        """The Service's ready Pods, as they change. Raises DiscoveryError."""
        cluster = self._cluster or Cluster.of_pod()
        verify = True if cluster.ca_path is None else ssl.create_default_context(cafile=cluster.ca_path)
        # A silent watch is no fault while it lasts; nothing else takes long.
        patience = httpx.Timeout(10.0, read=WATCH_S + 30.0)
        async with httpx.AsyncClient(base_url=cluster.url, verify=verify, timeout=patience, trust_env=False) as client:
            while True:
                slices = await self._list(client, cluster)
                yield self._replicas(slices)
                async for changed in self._watch_on(client, cluster, slices):
                    yield self._replicas(slices) if changed else None

    async def _list(self, client: httpx.AsyncClient, cluster: Cluster) -> _Slices:
        try:
            answer = await client.get(self._path(cluster), params=self._asked(), headers=_headers(cluster))
            body = answer.json() if answer.status_code == 200 else None
        except (httpx.HTTPError, ValueError) as error:
            raise DiscoveryError(f"{cluster.url}: {type(error).__name__}: {error or 'no detail'}") from error
        if not isinstance(body, dict):
            hint = "; the service account needs list and watch on endpointslices" if answer.status_code in {401, 403} else ""
            raise DiscoveryError(f"{cluster.url}: the API answered {answer.status_code}{hint}")
        found = _Slices(str(body.get("metadata", {}).get("resourceVersion", "")))
        found.known = {_name(one): one for one in body.get("items") or ()}
        return found

    async def _watch_on(self, client: httpx.AsyncClient, cluster: Cluster, slices: _Slices) -> AsyncIterator[bool]:
        """True for each change of ``slices``; False for each sign that there was none. Ends where the API has forgotten."""
        while True:
            asked = self._asked() | {
                "watch": "1", "allowWatchBookmarks": "true", "resourceVersion": slices.version, "timeoutSeconds": str(WATCH_S)
            }  # fmt: skip
            try:
                async with client.stream("GET", self._path(cluster), params=asked, headers=_headers(cluster)) as answer:
                    if answer.status_code == GONE:
                        return
                    if answer.status_code != 200:
                        raise DiscoveryError(f"{cluster.url}: the API answered {answer.status_code} to a watch")
                    yield False
                    async for line in answer.aiter_lines():
                        event = json.loads(line) if line.strip() else {}
                        if event.get("type") == "ERROR":
                            if event.get("object", {}).get("code") == GONE:
                                return
                            raise DiscoveryError(f"{cluster.url}: the watch says {event.get('object', {}).get('message')}")
                        yield _take(slices, event)
            except (httpx.HTTPError, ValueError) as error:
                raise DiscoveryError(f"{cluster.url}: {type(error).__name__}: {error or 'no detail'}") from error

    def _path(self, cluster: Cluster) -> str:
        return f"/apis/discovery.k8s.io/v1/namespaces/{self._service.namespace or cluster.namespace}/endpointslices"

    def _asked(self) -> dict[str, str]:
        return {"labelSelector": f"kubernetes.io/service-name={self._service.service}"}

    def _replicas(self, slices: _Slices) -> tuple[ReplicaPolicy, ...]:
        found: dict[str, ReplicaPolicy] = {}
        for one in slices.known.values():
            port = self._port(one)
            for endpoint in one.get("endpoints") or () if port is not None else ():
                conditions = endpoint.get("conditions") or {}
                if conditions.get("ready") is False or conditions.get("terminating") is True:
                    continue
                for address in endpoint.get("addresses", ())[:1]:  # the API says that one is enough
                    host = f"[{address}]" if one.get("addressType") == "IPv6" else address
                    replica = replica_at(self._discovery, host, port)
                    found[replica.url] = replica
        return tuple(found[url] for url in sorted(found))

    def _port(self, one: Mapping[str, Any]) -> int | None:
        wanted, ports = self._service.port, one.get("ports") or ()
        if wanted is not None and wanted.isdigit():
            return int(wanted)
        named = [port.get("port") for port in ports if wanted is None or port.get("name") == wanted]
        if len(named) > 1:
            raise DiscoveryError(f"{self.shown}: the Service has several ports; name one by discovery.kubernetes.port")
        return named[0] if named else None


def _headers(cluster: Cluster) -> dict[str, str]:
    if cluster.token_path is None:
        return {}
    try:
        return {"authorization": f"Bearer {cluster.token_path.read_text('utf-8').strip()}"}
    except OSError as error:
        raise DiscoveryError(f"{cluster.token_path}: {error.strerror}") from error


def _name(one: Mapping[str, Any]) -> str:
    return str(one.get("metadata", {}).get("name", ""))


def _take(slices: _Slices, event: Mapping[str, Any]) -> bool:
    """Take in one event of a watch; whether it changed anything."""
    one = event.get("object") or {}
    slices.version = str(one.get("metadata", {}).get("resourceVersion", slices.version))
    match event.get("type"):
        case "ADDED" | "MODIFIED":
            slices.known[_name(one)] = one
            return True
        case "DELETED":
            slices.known.pop(_name(one), None)
            return True
        case _:
            return False
