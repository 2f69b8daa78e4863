"""Answers of httpx that go when they were read.

httpx ties an answer to the stream it was read from and the stream to the answer: some forty objects and the bytes they hold, which only the
garbage collector finds. It looks when ten thousand have come together, a megabyte that comes and goes, and stays wherever something that
lives longer came to lie in it.
"""

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import httpx

NOTHING = httpx.ByteStream(b"")


@asynccontextmanager
async def let_go(opened: AbstractAsyncContextManager[httpx.Response]) -> AsyncIterator[httpx.Response]:
    """The answer of ``client.stream(…)``, untied from its stream at the end. Not to be read afterwards."""
    response: httpx.Response | None = None
    try:
        async with opened as response:
            yield response
    finally:
        if response is not None:
            response.stream = NOTHING
