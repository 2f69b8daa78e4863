"""Replicas from a Kubernetes API that lists and watches as the real one does: bookmarks, 410 Gone, cut connections, refused accounts."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from proxy.adapters.discovery_kubernetes import Cluster, KubernetesSource
from proxy.core.policy import Discovery, KubernetesService, ReplicaPolicy
from proxy.ports.replicas import DiscoveryError
from tests.support.upstream_servers import asgi_server

PATH = "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices"


def pod(address: str, **conditions: bool) -> dict[str, Any]:
    return {"addresses": [address], "conditions": conditions}


def slice_of(name: str, *endpoints: dict[str, Any], port: int = 8000, kind: str = "IPv4", version: int = 1) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "resourceVersion": str(version)}, "addressType": kind, "endpoints": list(endpoints),
        "ports": [{"name": "http", "port": port}],
    }  # fmt: skip


class FakeApi:
    """One Service's slices. ``events`` of a watch are sent as they are put; None ends the connection."""

    def __init__(self) -> None:
        self.slices: list[dict[str, Any]] = []
        self.version = 10
        self.asked: list[dict[str, str]] = []
        self.tokens: list[str] = []
        self.events: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()
        self.status = 200
        self.watch_status = 200

    async def serve(self, request: Request) -> Response:
        asked = dict(request.query_params)
        self.asked.append(asked | {"namespace": request.path_params["namespace"]})
        self.tokens.append(request.headers.get("authorization", ""))
        if self.status != 200:
            return JSONResponse({"kind": "Status", "code": self.status}, self.status)
        if "watch" not in asked:
            return JSONResponse({"metadata": {"resourceVersion": str(self.version)}, "items": self.slices})
        if self.watch_status != 200:
            return JSONResponse({"kind": "Status", "code": self.watch_status}, self.watch_status)
        return StreamingResponse(self._watch(), media_type="application/json")

    async def _watch(self) -> AsyncIterator[bytes]:
        while (event := await self.events.get()) is not None:
            yield json.dumps(event).encode() + b"\n"

    def tell(self, kind: str, one: dict[str, Any]) -> None:
        self.events.put_nowait({"type": kind, "object": one})


@pytest.fixture
async def api() -> AsyncIterator[tuple[FakeApi, Cluster]]:
    fake = FakeApi()
    async with asgi_server(Starlette(routes=[Route(PATH, fake.serve)])) as port:
        yield fake, Cluster(f"http://127.0.0.1:{port}", namespace="inference")
        fake.events.put_nowait(None)


def source(cluster: Cluster, **fields: Any) -> KubernetesSource:
    service = KubernetesService("vllm", **fields)
    return KubernetesSource(Discovery(kubernetes=service, replica=ReplicaPolicy("", "", api_key_env="KEY")), service, cluster)


async def urls(telling: AsyncIterator[tuple[ReplicaPolicy, ...] | None]) -> list[str]:
    """Of the next whole set that is told."""
    async with asyncio.timeout(10):
        while (found := await anext(telling)) is None:
            pass
    return [one.url for one in found]


async def test_ready_pods_are_replicas_and_changes_are_watched(api: tuple[FakeApi, Cluster]) -> None:
    fake, cluster = api
    fake.slices = [
        slice_of("a", pod("10.0.0.5", ready=True), pod("10.0.0.6", ready=False), pod("10.0.0.7")),
        slice_of("b", pod("fd00::8", ready=True), kind="IPv6"),
    ]
    telling = source(cluster).tell()
    first = await anext(telling)
    assert first is not None
    assert [one.url for one in first] == ["http://10.0.0.5:8000", "http://10.0.0.7:8000", "http://[fd00::8]:8000"]
    assert (first[0].name, first[0].api_key_env) == ("10.0.0.5:8000", "KEY")
    fake.tell("MODIFIED", slice_of("a", pod("10.0.0.5", ready=True, terminating=True), pod("10.0.0.6", ready=True), version=11))
    assert await urls(telling) == ["http://10.0.0.6:8000", "http://[fd00::8]:8000"]
    fake.tell("DELETED", slice_of("b", version=12))
    assert await urls(telling) == ["http://10.0.0.6:8000"]
    fake.tell("ADDED", slice_of("c", pod("10.0.0.9", ready=True), version=13))
    assert await urls(telling) == ["http://10.0.0.6:8000", "http://10.0.0.9:8000"]
    assert fake.asked[0] == {"labelSelector": "kubernetes.io/service-name=vllm", "namespace": "inference"}
    assert (fake.asked[1]["resourceVersion"], fake.asked[1]["allowWatchBookmarks"]) == ("10", "true")


async def test_a_watch_that_ends_goes_on_from_the_last_bookmark(api: tuple[FakeApi, Cluster]) -> None:
    fake, cluster = api
    fake.slices = [slice_of("a", pod("10.0.0.5"))]
    telling = source(cluster).tell()
    assert await urls(telling) == ["http://10.0.0.5:8000"]
    fake.tell("BOOKMARK", {"metadata": {"resourceVersion": "42"}})
    fake.events.put_nowait(None)
    fake.tell("MODIFIED", slice_of("a", pod("10.0.0.6"), version=43))
    assert await urls(telling) == ["http://10.0.0.6:8000"]
    assert [asked.get("resourceVersion") for asked in fake.asked] == [None, "10", "42"]


@pytest.mark.parametrize("how", ["event", "status"])
async def test_what_the_api_has_forgotten_is_listed_anew(api: tuple[FakeApi, Cluster], how: str) -> None:
    fake, cluster = api
    fake.slices = [slice_of("a", pod("10.0.0.5"))]
    telling = source(cluster).tell()
    assert await urls(telling) == ["http://10.0.0.5:8000"]
    assert await anext(telling) is None  # the watch is open
    fake.slices, fake.version = [slice_of("b", pod("10.0.0.6"))], 99
    if how == "event":
        fake.tell("ERROR", {"kind": "Status", "code": 410, "reason": "Expired"})
    else:
        fake.watch_status = 410
        fake.events.put_nowait(None)
    assert await urls(telling) == ["http://10.0.0.6:8000"]


async def test_an_api_that_does_not_answer_is_an_outage(api: tuple[FakeApi, Cluster]) -> None:
    fake, cluster = api
    fake.status = 403
    with pytest.raises(DiscoveryError, match="403; the service account needs list and watch on endpointslices"):
        await anext(source(cluster).tell())
    fake.status = 200
    telling = source(cluster).tell()
    assert await urls(telling) == []
    fake.tell("ERROR", {"kind": "Status", "code": 500, "message": "etcd is not well"})
    with pytest.raises(DiscoveryError, match="etcd is not well"):
        await urls(telling)
    with pytest.raises(DiscoveryError, match="ConnectError"):
        await anext(source(Cluster("http://127.0.0.1:1")).tell())


async def test_the_port_is_a_number_a_name_or_the_only_one(api: tuple[FakeApi, Cluster]) -> None:
    fake, cluster = api
    two = slice_of("a", pod("10.0.0.5")) | {"ports": [{"name": "http", "port": 8000}, {"name": "metrics", "port": 9000}]}
    fake.slices = [two]
    assert await urls(source(cluster, port="9000").tell()) == ["http://10.0.0.5:9000"]
    assert await urls(source(cluster, port="metrics").tell()) == ["http://10.0.0.5:9000"]
    assert await urls(source(cluster, port="nothing").tell()) == []
    with pytest.raises(DiscoveryError, match=r"name one by discovery\.kubernetes\.port"):
        await anext(source(cluster).tell())
    await urls(source(cluster, namespace="other", port="1").tell())
    assert fake.asked[-1]["namespace"] == "other"


def account_in(folder: Path) -> Path:
    for name, text in (("token", "one\n"), ("namespace", "inference\n"), ("ca.crt", "")):
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def test_a_pod_knows_its_cluster(tmp_path: Path) -> None:
    with pytest.raises(DiscoveryError, match="needs a Pod"):
        Cluster.of_pod({}, tmp_path)
    environ = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}
    with pytest.raises(DiscoveryError, match="needs a Pod"):
        Cluster.of_pod(environ, tmp_path)
    found = Cluster.of_pod(environ, account_in(tmp_path))
    assert found == Cluster("https://[fd00::1]:6443", tmp_path / "token", tmp_path / "ca.crt", "inference")


async def test_the_token_is_read_for_every_request(api: tuple[FakeApi, Cluster], tmp_path: Path) -> None:
    fake, cluster = api
    token = account_in(tmp_path) / "token"
    telling = source(Cluster(cluster.url, token, None, "inference")).tell()
    await urls(telling)
    await asyncio.to_thread(token.write_text, "two")
    assert await anext(telling) is None
    assert fake.tokens == ["Bearer one", "Bearer two"]
