"""The client's side of a request whose body was read."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import TracebackType
from typing import Any

from proxy.ports import CLIENT_LINK, ClientLink, Headers, Message, Receive, Send
from proxy.serving.request_ids import named


async def client_leaves(receive: Receive) -> None:
    """Return when the client has disconnected; its body was already read."""
    while (await receive())["type"] != "http.disconnect":
        pass


class NamedSend:
    """A ``send`` that puts the id into the response's head, in place of an engine's own. ``plain`` sends what comes after the head.

    ``for_page`` finds what an answer of our own must tell a browser; None: no browser has asked. ``link`` is the server's shorter way.
    """

    __slots__ = ("for_page", "link", "plain", "request_id")

    def __init__(
        self, plain: Send, request_id: bytes, for_page: Callable[[], Awaitable[Headers]] | None = None, link: ClientLink | None = None
    ) -> None:  # fmt: skip
        self.plain = plain
        self.link = link
        self.request_id = request_id
        self.for_page = for_page

    @property
    def rest(self) -> Send:
        """What sends what comes after the head."""
        return self.plain

    @property
    def rest_now(self) -> Callable[[bytes], bool] | None:
        """What writes a piece of the body at once, where the server offers it and there is room; False: there is not."""
        return None if self.link is None else self.link.write_now

    def begin_now(self, status: int, headers: Headers, piece: bytes, *, whole: bool) -> bool:
        """Write a head and the first piece of its body at once, where the server offers it; False: nothing was written."""
        return self.link is not None and self.link.begin_now(status, named(headers, self.request_id), piece, whole=whole)

    async def __call__(self, message: Message) -> None:
        """Send one message."""
        if message["type"] == "http.response.start":
            message["headers"] = named(message["headers"], self.request_id)
        await self.plain(message)


def after_head(send: Send) -> Send:
    """What sends the rest of a response whose head is out, without a step in between for each piece of it."""
    rest: Send = getattr(send, "rest", send)
    return rest


def after_head_now(send: Send) -> Callable[[bytes], bool] | None:
    """What writes a piece of the body at once; None where only ``after_head`` does it."""
    write_now: Callable[[bytes], bool] | None = getattr(send, "rest_now", None)
    return write_now


def begin_now(send: Send, status: int, headers: Headers, piece: bytes, *, whole: bool) -> bool:
    """Write a head and the first piece of its body at once; False: nothing was written, and ``send`` is the way."""
    begin: Callable[..., bool] | None = getattr(send, "begin_now", None)
    return begin is not None and begin(status, headers, piece, whole=whole)


async def send_first(send: Send, status: int, headers: Headers, piece: bytes, *, whole: bool) -> None:
    """Send a head and the first piece of its body, in one write where that can be."""
    if begin_now(send, status, headers, piece, whole=whole):
        return
    await send({"type": "http.response.start", "status": status, "headers": headers})
    if piece or whole:
        await after_head(send)({"type": "http.response.body", "body": piece, "more_body": not whole})


def link_in(scope: Mapping[str, Any]) -> ClientLink | None:
    """The server's shorter way to the client; None where it offers none."""
    found: ClientLink | None = scope.get("extensions", {}).get(CLIENT_LINK)
    return found


def link_of(send: Send) -> ClientLink | None:
    """The server's shorter way to the client behind ``send``."""
    link: ClientLink | None = getattr(send, "link", None)
    return link


class ClientWatch:
    """Cancels the task inside ``with`` when the client leaves, and swallows that one cancellation: ``gone`` tells.

    ``link`` tells of it by a call; without one a task waits for ASGI's message. Built like asyncio.timeout: a cancellation from outside
    is told apart by the task's count and passes through. It may be entered again when it was left.
    """

    __slots__ = ("_cancelling", "_receive", "_task", "_watcher", "gone", "link")

    def __init__(self, receive: Receive, link: ClientLink | None = None) -> None:
        self.gone = False
        self.link = link
        self._receive = receive

    def __enter__(self) -> "ClientWatch":
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._watcher: asyncio.Task[None] | None = None
        if self.link is not None:
            self.link.on_leave(self._left)
        else:
            self._watcher = task.get_loop().create_task(self._watch())
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> bool:
        self.disarm()
        return self.gone and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError

    def disarm(self) -> None:
        """The last message is about to be handed over: that the client leaves after it is no news."""
        if self._watcher is not None:
            self._watcher.cancel()
        elif self.link is not None:
            self.link.forget(self._left)

    async def _watch(self) -> None:
        await client_leaves(self._receive)
        self._left()

    def _left(self) -> None:
        self.gone = True
        self._task.cancel()
