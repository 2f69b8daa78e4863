"""vLLM's development routes that stop an engine between two steps and let it go on: ``POST /pause?mode=keep``, ``POST /resume``,
``GET /is_paused``.

Decides nothing. As in the real server they are there under ``VLLM_SERVER_DEV_MODE=1`` only. What runs stays where it is, with its blocks;
what comes meanwhile waits. A judge stops engines so: what they hold stands still while it reads the proxies' account of it.

Fails: of the real server's modes only ``keep`` is known; another one is refused with 400.
"""

import os
from collections.abc import Awaitable, Callable
from urllib.parse import parse_qs

from proxy.sim.mock_errors import bad_request, dump
from proxy.sim.mock_generation import EnginePool
from proxy.sim.mock_wire import Receive, Scope, Send, answer

Handler = Callable[[Scope, Receive, Send], Awaitable[int]]


def pause_routes(pool: EnginePool) -> dict[str, dict[str, Handler]]:
    """The routes by path and method; none outside of development mode."""
    if os.environ.get("VLLM_SERVER_DEV_MODE") != "1":
        return {}

    async def pause(scope: Scope, _receive: Receive, send: Send) -> int:
        mode = parse_qs(scope["query_string"].decode()).get("mode", ["abort"])[0]
        if mode != "keep":
            raise bad_request(f"mode {mode!r} is not known here; 'keep' is.")
        pool.go_on(going=False)
        await answer(send, 200, dump({"status": "paused"}))
        return 200

    async def resume(_scope: Scope, _receive: Receive, send: Send) -> int:
        pool.go_on(going=True)
        await answer(send, 200, dump({"status": "resumed"}))
        return 200

    async def is_paused(_scope: Scope, _receive: Receive, send: Send) -> int:
        await answer(send, 200, dump({"is_paused": pool.paused}))
        return 200

    return {"/pause": {"POST": pause}, "/resume": {"POST": resume}, "/is_paused": {"GET": is_paused}}
