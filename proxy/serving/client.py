"""The client's side of a request whose body was read."""

from proxy.ports import Receive


async def client_leaves(receive: Receive) -> None:
    """Return when the client has disconnected; its body was already read."""
    while (await receive())["type"] != "http.disconnect":
        pass
