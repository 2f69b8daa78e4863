"""Addresses of replicas as people write them: one rule for the policy file, the flag and the environment."""

import re
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from urllib.parse import urlsplit

ALLOWED = "http://HOST:PORT or https://HOST:PORT, with an optional path"
_FORBIDDEN = re.compile(r'[\s\x00-\x1f\x7f"<>\\^`{|}]')


class ReplicaUrlError(ValueError):
    """The address cannot be one of a replica; the message is the reason."""


def normal_url(text: str) -> str:
    """Return the base address without a trailing ``/`` or ``/v1``: clients paste their ``base_url``, and we add the path.

    Raises ReplicaUrlError.
    """
    if _FORBIDDEN.search(text):
        raise ReplicaUrlError('an address has no spaces or control characters, and none of "<>\\^`{|}')
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise ReplicaUrlError(f"it is no address: {error}") from error
    if parts.scheme not in {"http", "https"}:
        raise ReplicaUrlError("a replica is spoken to over http or https, and the scheme must be written")
    if not parts.hostname or port == 0:
        raise ReplicaUrlError("the host or its port is missing")
    if parts.username is not None or parts.password is not None:
        raise ReplicaUrlError("a secret in an address ends up in logs: use api_key_env or api_key_file")
    if parts.query or parts.fragment or text.endswith(("?", "#")):
        raise ReplicaUrlError("request paths are appended to it, so it has no query and no fragment")
    if _machine_only(parts.hostname):
        raise ReplicaUrlError("no replica is at a link-local address, where clouds keep a machine's own credentials")
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return f"{parts.scheme}://{parts.netloc.lower()}{path}"


def _machine_only(host: str) -> bool:
    """Whether ``host`` is, in any spelling that a resolver takes for one, an address like 169.254.169.254."""
    address: IPv4Address | IPv6Address
    try:
        address = ip_address(host)
    except ValueError:
        try:
            address = IPv4Address(socket.inet_aton(host))  # 0xa9fea9fe, 2852039166, 169.254.43518
        except OSError:
            return False
    inner = getattr(address, "ipv4_mapped", None) or address
    return bool(inner.is_link_local)
