"""A replica's answer read whole: to look at it, or to keep it back while another replica may do better."""

import asyncio
from contextlib import suppress

from proxy.ports import UpstreamError, UpstreamResponse
from proxy.wire.answers import Answer

KEPT_BYTES_MAX = 64 * 1024  # errors are short
KEEP_S = 1.0  # it has answered already: what still takes long is not worth another client's wait


async def read_answer(response: UpstreamResponse, bytes_max: int) -> bytes:
    """The whole body; of one that is longer than ``bytes_max`` a little more than that. Raises UpstreamError."""
    parts, size = [], 0
    while size <= bytes_max and (data := await response.read()):
        parts.append(data)
        size += len(data)
    return b"".join(parts)


async def kept(response: UpstreamResponse) -> Answer | None:
    """A whole answer that may yet be shown to the client; None where it is long, or does not come."""
    with suppress(UpstreamError, TimeoutError):
        async with asyncio.timeout(KEEP_S):
            body = await read_answer(response, KEPT_BYTES_MAX)
            return Answer(response.status, tuple(response.headers), body) if len(body) <= KEPT_BYTES_MAX else None
    return None
