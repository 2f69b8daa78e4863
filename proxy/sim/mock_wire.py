"""The little ASGI that the mock's routes share."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from proxy.sim.mock_errors import ApiError, dump

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Scope, Receive, Send], Awaitable[None]]

JSON_TYPE = b"application/json"


async def read_body(receive: Receive) -> bytes | None:
    """The request's body; None when the client left before it was complete."""
    parts = []
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


async def start(send: Send, status: int, content_type: bytes | None, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    """Send the response head."""
    shown = list(headers or [])
    if content_type is not None:
        shown.append((b"content-type", content_type))
    shown.append((b"vary", b"Origin"))
    await send({"type": "http.response.start", "status": status, "headers": shown})


async def answer(
    send: Send, status: int, body: bytes, content_type: bytes | None = JSON_TYPE, headers: list[tuple[bytes, bytes]] | None = None
) -> None:
    """Send a whole response."""
    length = (b"content-length", str(len(body)).encode())
    await start(send, status, content_type, [*(headers or []), length])
    await send({"type": "http.response.body", "body": body})


async def answer_error(send: Send, error: ApiError, headers: list[tuple[bytes, bytes]] | None = None) -> None:
    """Send an error answer."""
    await answer(send, error.status, dump(error.body), headers=headers)


def header(scope: Scope, name: bytes) -> str | None:
    """A request header's value, the first of several."""
    for key, value in scope["headers"]:
        if key == name:
            text: str = value.decode("latin-1")
            return text
    return None
