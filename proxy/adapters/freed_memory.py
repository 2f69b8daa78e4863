"""Memory that was freed and is held all the same.

glibc keeps it for the next allocation, and reading a tokenizer leaves 70 MB of it. Python keeps tuples for the next ones, 2,000 of each of
twenty sizes, and empties these lists only when it collects everything, which a process with few cycles does once in many hours: until
then they fill, a megabyte or three in forty minutes of 25 requests a second, wherever there is room on the heap.
"""

import asyncio
import ctypes
import gc
from collections.abc import Awaitable, Callable

TRIM = "malloc_trim"  # glibc's own: musl and other systems have none, and keep less
COLLECT_S = 300.0  # three to five milliseconds each time, of what is looked through; a thousand open streams make it some more


def give_back() -> None:
    """Takes some milliseconds, in which threads that allocate wait: for moments after much was freed."""
    trim = getattr(ctypes.CDLL(None), TRIM, None)
    if trim is not None:
        trim(0)


async def collect_regularly(sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
    """Collect everything every ``COLLECT_S``, without end."""
    while True:
        await sleep(COLLECT_S)
        gc.collect()
