"""The client's side of a request whose body was read."""

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType

from proxy.ports import Headers, Message, Receive, Send
from proxy.serving.request_ids import named


async def client_leaves(receive: Receive) -> None:
    """Return when the client has disconnected; its body was already read."""
    while (await receive())["type"] != "http.disconnect":
        pass


class NamedSend:
    """A ``send`` that puts the id into the response's head, in place of an engine's own. ``plain`` sends what comes after the head.

    ``for_page`` finds what an answer of our own must tell a browser; None: no browser has asked.
    """

    __slots__ = ("for_page", "plain", "request_id")

    def __init__(self, plain: Send, request_id: bytes, for_page: Callable[[], Awaitable[Headers]] | None = None) -> None:
        self.plain = plain
        self.request_id = request_id
        self.for_page = for_page

    @property
    def rest(self) -> Send:
        """What sends what comes after the head."""
        return self.plain

    async def __call__(self, message: Message) -> None:
        """Send one message."""
        if message["type"] == "http.response.start":
            message["headers"] = named(message["headers"], self.request_id)
        await self.plain(message)


def after_head(send: Send) -> Send:
    """What sends the rest of a response whose head is out, without a step in between for each piece of it."""
    rest: Send = getattr(send, "rest", send)
    return rest


class ClientWatch:
    """Cancels the task inside ``with`` when the client leaves, and swallows that one cancellation: ``gone`` tells.

    Built like asyncio.timeout: a cancellation from outside is told apart by the task's count and passes through.
    """

    def __init__(self, receive: Receive) -> None:
        self.gone = False
        self._receive = receive

    def __enter__(self) -> "ClientWatch":
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._watcher = task.get_loop().create_task(self._watch())
        return self

    def __exit__(self, kind: type[BaseException] | None, exc: BaseException | None, trace: TracebackType | None) -> bool:
        self._watcher.cancel()
        return self.gone and self._task.uncancel() <= self._cancelling and kind is asyncio.CancelledError

    def disarm(self) -> None:
        """The last message is about to be handed over: that the client leaves after it is no news."""
        self._watcher.cancel()

    async def _watch(self) -> None:
        await client_leaves(self._receive)
        self.gone = True
        self._task.cancel()
