"""A replica's answer that is kept back while another replica may do better."""

import asyncio
from contextlib import suppress

from proxy.ports import UpstreamError, UpstreamResponse
from proxy.wire.answers import Answer

KEPT_BYTES_MAX = 64 * 1024  # errors are short
KEEP_S = 1.0  # it has answered already: what still takes long is not worth another client's wait


async def kept(response: UpstreamResponse) -> Answer | None:
    """A whole answer that may yet be shown to the client; None where it is long, or does not come."""
    parts, size = [], 0
    with suppress(UpstreamError, TimeoutError):
        async with asyncio.timeout(KEEP_S):
            while data := await response.read():
                parts.append(data)
                size += len(data)
                if size > KEPT_BYTES_MAX:
                    return None
            return Answer(response.status, tuple(response.headers), b"".join(parts))
    return None
