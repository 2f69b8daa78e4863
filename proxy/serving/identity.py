"""Who a request is from: the caller's address, and whether the key that came with it opens the door (``auth`` of the policy)."""

from collections.abc import Mapping


def caller_of(scope: Mapping[str, object]) -> str | None:
    """The IP address that the connection came from; None where it has none (a Unix socket)."""
    client = scope.get("client")
    return str(client[0]) if isinstance(client, tuple | list) and client else None
