"""Where a request's course is told as spans of a distributed trace; there is nothing of it where tracing is off."""

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from proxy.ports import Headers
    from proxy.ports.record import RequestRecord


class Trace(Protocol):
    """One request's."""

    def sent(self, replica: str, headers: "Headers") -> "Headers":
        """The request goes to a replica now, with these headers; returns them with the trace's own in place of the client's."""
        ...

    def ended(self, record: "RequestRecord") -> None:
        """It is over."""
        ...


class Tracing(Protocol):
    """Begins traces."""

    def begin(self, fields: dict[str, str], arrived_s: float) -> Trace:
        """A request came at ``arrived_s``, with headers of these lower-case names, whose trace it goes on where they name one."""
        ...

    def close(self) -> None:
        """Send what is left. Waits for the network."""
        ...
