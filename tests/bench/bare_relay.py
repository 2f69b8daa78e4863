"""kvgate's sockets and relay without anything that decides or keeps account: what ``relay_peers`` has as a floor.

python -m tests.bench.bare_relay PORT REPLICA_URL
"""

import asyncio
import sys

import uvicorn
import uvloop

from proxy.adapters.clock import SystemClock
from proxy.adapters.http_protocol import ConnectionRules
from proxy.adapters.upstream import HttpUpstream
from proxy.adapters.web_server import listen, server_config
from proxy.ports import Headers, Receive, Send
from proxy.serving.client import NamedSend, link_in
from proxy.serving.relay import Relay
from proxy.serving.relay_result import RelayRequest
from proxy.serving.services import Scope, announced_bytes, read_body, target_of

BODY_BYTES_MAX = 1 << 20


class BareRelay:
    """Every request goes to the one replica, as it came."""

    def __init__(self, replica_url: str) -> None:
        self._replica_url = replica_url
        self._upstream = HttpUpstream()
        self._clock = SystemClock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request."""
        headers: Headers = scope["headers"]  # type: ignore[assignment]
        body = await read_body(receive, BODY_BYTES_MAX, announced_bytes(scope))
        relay = Relay(receive, NamedSend(send, b"", None, link_in(scope)), self._clock)
        method = str(scope["method"]).encode()
        request = RelayRequest(self._replica_url, method, target_of(scope), headers, body, repeatable=True)
        if await relay.begin(self._upstream, request) is None:
            await relay.rest()


def main(port: int, replica_url: str) -> None:
    """Serve until killed."""
    rules = ConnectionRules(head_bytes_max=65536, head_s_max=10.0, body_s_max=60.0, on_fault=lambda _: None, ending=lambda: False)
    server = uvicorn.Server(server_config(BareRelay(replica_url), lambda: rules))
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(server.serve([listen("127.0.0.1", port)]))


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
