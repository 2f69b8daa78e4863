"""What a member asks of the store (``core.store_calls``), as calls of ``ports.store``."""

from collections.abc import Sequence

from proxy.core.store_calls import (
    CallAdvance,
    CallHeads,
    CallPublish,
    CallRegister,
    CallReserve,
    CallRewrite,
    StoreCall,
    StoreReply,
)
from proxy.ports.store import SharedStore


async def asked(store: SharedStore, calls: Sequence[StoreCall]) -> list[tuple[StoreReply, float | None]]:
    """Make one call, or several rewrites at once. Each call's reply and the store's time at it, where it tells. Raises StoreError."""
    match calls[0]:
        case CallRegister(proxy):
            return [(await store.register(proxy), None)]
        case CallReserve(ask) | CallAdvance(ask):
            reserved = await store.reserve(ask)
            return [(reserved, reserved.store_s)]
        case CallPublish(record, ends, scrape_lease_s):
            return [(await store.publish(record, ends, scrape_lease_s), None)]
        case CallHeads(proxy, replica, heads):
            await store.set_heads(proxy, replica, heads)
            return [(None, None)]
        case _:
            asks = [call.ask for call in calls if isinstance(call, CallRewrite)]
            rewritten = await store.rewrite_all(asks)
            return [(reply, reply.store_s) for reply in rewritten]
