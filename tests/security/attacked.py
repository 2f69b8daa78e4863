"""kvgate as it is served, both ports, under a policy that enforces, before a replica that answers anything and keeps every byte of it."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from proxy import app
from proxy.adapters.web_server import server_config
from proxy.serving.access import AdminAccess
from proxy.serving.admin import admin_app
from proxy.serving.admin_host import LocalNames
from proxy.serving.websockets import WebSockets
from tests.integration.hostile.exchanging import Hostile, Recorder
from tests.integration.serving.harness import Reply, RunningProxy, Wire, answer_like_vllm, proxying
from tests.support.upstream_servers import Peer, ScriptedUpstream, served

ADMIN_TOKEN = "admin-token-0123456789abcdef"
REPLICA_KEY = "replica-key-0123456789abcdef"
PAGES = ("/metrics", "/ready", "/admin/requests?last=100", "/admin/live", "/admin/state", "/admin/snapshot?tenant_names=1")
KEYED = {"api_key_env": "THEIR_KEY"}  # a replica that has a key of its own; the test sets the variable


@dataclass(slots=True)
class Attacked(Hostile):
    """Both ports, and what is behind the first."""

    admin: Wire

    async def post(self, path: str, body: bytes | Mapping[str, Any], headers: Mapping[str, str] | None = None) -> Reply:
        """Send a body; what is no bytes as JSON, halves of surrogate pairs escaped."""
        sent = body if isinstance(body, bytes) else json.dumps(body).encode()
        return await Wire(self.port).request("POST", path, sent, headers)

    async def unharmed(self) -> None:
        """Everything that operators look at can be shown, and nothing broke inside."""
        for page in PAGES:
            reply = await self.admin.request("GET", page, headers={"host": "127.0.0.1"})
            assert (page, reply.status) == (page, 200)
            reply.body.decode()
        faults = [line for line in self.proxy.metrics.splitlines() if line.startswith("kvgate_internal_errors_total{")]
        assert [line for line in faults if not line.endswith(" 0.0")] == []
        assert not self.proxy.services.guard.tripped
        await self.proxy.until_idle()


METRICS = b"""# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1001"} 1.0
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="mock"} 0.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="mock"} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="mock"} 0.0
# TYPE vllm:num_preemptions counter
vllm:num_preemptions_total{engine="0",model_name="mock"} 0.0
# TYPE process_start_time_seconds gauge
process_start_time_seconds 1.7e9
"""


async def answer_like_an_engine(peer: Peer, head: bytes) -> None:
    """Answer a probe as a server does that tells its pool, which is empty at all times."""
    if not head.startswith(b"GET /metrics"):
        await answer_like_vllm(peer, head)
        return
    told = b"content-type: text/plain\r\nconnection: close\r\ncontent-length: %d\r\n\r\n%b" % (len(METRICS), METRICS)
    await peer.send(b"HTTP/1.1 200 OK\r\n" + told)


def by_kvgate(reply: Reply) -> bool:
    """Whether kvgate wrote the answer or passed it on; what breaks in it, the server answers for it, without the request's name."""
    return "x-request-id" in reply.headers


@asynccontextmanager
async def attacked(replica: Mapping[str, Any] | None = None, **policy: Any) -> AsyncIterator[Attacked]:
    """Serve both ports; ``replica`` is what the policy says of it beside its address."""
    recorder = Recorder(probed=answer_like_an_engine)
    recorder.let_go.set()
    async with ScriptedUpstream.running(recorder) as upstream:
        chosen = {"mode": "enforce", "replicas": [{"url": upstream.url} | dict(replica or {})]} | policy
        async with proxying(policy=chosen) as proxy, _admin(proxy) as admin:
            services = proxy.services
            rules = partial(app.connection_rules, services)
            async with served(server_config(proxy.endpoints, rules, WebSockets(services))) as port:
                yield Attacked(proxy, port, recorder, Wire(admin))
            await proxy.until_idle()


@asynccontextmanager
async def _admin(proxy: RunningProxy) -> AsyncIterator[int]:
    proxy.services.access = AdminAccess(ADMIN_TOKEN)
    application = LocalNames(admin_app(proxy.services, proxy.endpoints))
    async with served(server_config(application, partial(app.connection_rules, proxy.services))) as port:
        yield port
