"""By which names the admin port may be asked for, where only this machine reaches it.

It shows its state to whoever can connect. On a loopback address that is who works on this machine, and a browser there connects for any
page that asks it to: a page may look its own name up anew and find this machine behind it (DNS rebinding), and the browser lets it read
the answers, since they seem to come from where the page came from. Its requests still carry its own name as ``Host``. So there, only this
machine's names and plain addresses are answered. What listens to a network is for that network to guard (a NetworkPolicy, a firewall).

Fails: a front on this machine that hands its own ``Host`` on is refused, and told what to send.
"""

import socket
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

from proxy.ports import Headers
from proxy.serving.access import error_answer
from proxy.serving.services import send_answer

NOT_LOCAL = (
    "The admin port of this kvgate listens to its own machine only, so it is asked for by an address or as localhost, not by the name in"
    " this Host field. A front on this machine that hands Host on should send localhost."
)


class LocalNames:
    """The admin application, for whom it is meant."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._names = frozenset({"localhost", socket.gethostname().lower()})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one HTTP request, or refuse it."""
        if self._meant(scope):
            await self._app(scope, receive, send)
        else:
            await send_answer(send, error_answer(403, "host_not_local", NOT_LOCAL))

    def _meant(self, scope: Scope) -> bool:
        server = scope.get("server")
        here = str(server[0]) if isinstance(server, tuple | list) else ""
        if not (is_address(here) and ip_address(here).is_loopback):
            return True
        headers: Headers = scope["headers"]
        asked = host_name(next((value for name, value in headers if name == b"host"), b""))
        return asked in self._names or asked.endswith(".localhost") or is_address(asked)


def host_name(field: bytes) -> str:
    """The name or address in a Host field, without port and brackets, in lower case; "" where there is none."""
    try:
        return urlsplit("//" + field.decode("latin-1")).hostname or ""
    except ValueError:
        return ""


def is_address(text: str) -> bool:
    """Whether it is an IP address."""
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
