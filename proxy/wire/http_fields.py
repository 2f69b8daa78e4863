"""HTTP header fields as a proxy must treat them: which are forwarded, and how a request head is written.

Fields of one hop are never forwarded, in either direction (RFC 9110 §7.6.1): ``Connection`` and every field it names,
``Keep-Alive``, ``Proxy-*``, ``TE``, ``Trailer``, ``Transfer-Encoding``, ``Upgrade``. A request also loses ``Host``,
``Content-Length`` and ``Expect``, because the proxy writes the first two itself from the origin and the real body, and has
answered the third itself. A request head with a stray CR, LF or NUL anywhere is refused, so no value can smuggle in a second field
or a second request.
"""

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

Fields = list[tuple[bytes, bytes]]

_ONE_HOP = frozenset({b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade"})
_WRITTEN_BY_US = frozenset({b"host", b"content-length", b"expect"})
_CONNECTION_OPTIONS = frozenset({b"keep-alive", b"close"})  # the usual values, which name no field
_NEVER_NAMED = (
    _ONE_HOP | _WRITTEN_BY_US
)  # what a list in Connection cannot take away from us: framing is read before it, and written anew
_NAME_BYTES_REMEMBERED_MAX = 64  # clients choose names, and what is remembered takes memory
_TOKEN_CHARS = b"!#$%&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
_TARGET = re.compile(rb"/[\x21-\xff]*")
_NO_BODY_EXPECTED = frozenset({b"GET", b"HEAD", b"DELETE", b"OPTIONS"})


class FieldError(ValueError):
    """A request that cannot be written as one HTTP/1.1 message."""


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a base URL points: scheme ``http`` or ``https``, host, port, the ``Host`` value, and the path prefix (no slash at its end)."""

    scheme: str
    host: str
    port: int
    host_field: bytes
    prefix: bytes


def parse_base_url(base_url: str) -> Origin:
    """Take a base URL such as ``http://10.0.0.7:8000/prefix`` apart. Raises FieldError with what is wrong and what is allowed."""
    url = urlsplit(base_url)
    if url.scheme not in ("http", "https"):
        raise FieldError(f"{base_url!r}: a replica's URL starts with http:// or https://")
    if not url.hostname:
        raise FieldError(f"{base_url!r}: no host in this URL; write it as http://HOST:PORT")
    if url.query or url.fragment or url.username is not None:
        raise FieldError(f"{base_url!r}: a replica's URL has no query, fragment or user; credentials belong into a header")
    try:
        port = url.port
    except ValueError:
        raise FieldError(f"{base_url!r}: the port must be a number from 1 to 65535") from None
    default_port = 443 if url.scheme == "https" else 80
    host_name = f"[{url.hostname}]" if ":" in url.hostname else url.hostname
    host_text = host_name if port in (None, default_port) else f"{host_name}:{port}"
    try:
        host_field = host_text.encode("ascii")
        prefix = url.path.rstrip("/").encode("ascii")
    except UnicodeEncodeError:
        raise FieldError(f"{base_url!r}: write the host in punycode and the path percent-encoded") from None
    if prefix and not _TARGET.fullmatch(prefix):
        raise FieldError(f"{base_url!r}: the path holds a space or control character; percent-encode it")
    return Origin(scheme=url.scheme, host=url.hostname, port=port or default_port, host_field=host_field, prefix=prefix)


def _response_name(name: bytes) -> bytes:
    """The name in lower case; b"" for a field of one hop."""
    lower = name.lower()
    return b"" if lower in _ONE_HOP or lower.startswith(b"proxy-") else lower


def _request_name(name: bytes) -> bytes:
    """The name in lower case; b"" for a field that is not sent on. Raises FieldError for what is no name."""
    lower = _response_name(name)
    if lower.translate(None, _TOKEN_CHARS) or not name:
        raise FieldError(f"header field name {name[:80]!r} is empty or holds a character that is not allowed")
    return b"" if lower in _WRITTEN_BY_US else lower


_response_remembered = functools.lru_cache(maxsize=1024)(_response_name)  # a client sends the same few names in every request
_request_remembered = functools.lru_cache(maxsize=1024)(_request_name)


def _kept(fields: Fields, remembered: Callable[[bytes], bytes], name_of: Callable[[bytes], bytes]) -> Fields:
    kept = []
    named: set[bytes] = set()
    for name, value in fields:
        lower = remembered(name) if len(name) <= _NAME_BYTES_REMEMBERED_MAX else name_of(name)
        if lower:
            kept.append((lower, value))
        elif value not in _CONNECTION_OPTIONS and name.lower() == b"connection":
            named.update(token.strip().lower() for token in value.split(b","))
    return [field for field in kept if field[0] not in named] if named else kept


def response_fields(fields: Fields) -> Fields:
    """The fields of a response that go to the client, in order, names in lower case, ``Content-Length`` among them."""
    return _kept(fields, _response_remembered, _response_name)


def request_fields(fields: Fields) -> Fields:
    """The fields of a request that go to the replica, in order, names in lower case, without those the proxy writes itself.

    Raises FieldError for a name that is no HTTP token.
    """
    return _kept(fields, _request_remembered, _request_name)


def end_to_end(fields: Fields) -> Fields:
    """A request's fields, names in lower case, without those that its ``Connection`` names, which were for this hop (RFC 9110 §7.6.1).

    For a request as it comes in, before anything is added to it: a client that names ``Authorization`` there would else take away the
    replica's own key, a rank, or the name of a request. Who reads ``Connection`` afterwards finds in it what it says of the connection.
    """
    options = {option.strip().lower() for name, value in fields if name == b"connection" for option in value.split(b",")}
    named = options - _NEVER_NAMED - _CONNECTION_OPTIONS
    if not named:
        return fields
    kept = [field for field in fields if field[0] not in named and field[0] != b"connection"]
    return [*kept, (b"connection", b", ".join(sorted(options - named)))]


def encode_request_head(origin: Origin, method: bytes, target: bytes, fields: Fields, body_bytes: int) -> bytes:
    """The bytes of a request head for ``origin``, up to and with the empty line.

    ``target`` is the raw path and query and starts with a slash; the origin's prefix is put before it. ``Content-Length`` is always
    ``body_bytes``; it is left out only for a method that expects no body and has none. Raises FieldError.
    """
    lines = [b"%b %b%b HTTP/1.1" % (method, origin.prefix, target), b"host: " + origin.host_field]
    lines += [b"%b: %b" % field for field in request_fields(fields)]
    if body_bytes or method not in _NO_BODY_EXPECTED:
        lines.append(b"content-length: %d" % body_bytes)
    head = b"\r\n".join(lines)
    # As many CR and LF as we joined with, and no NUL: then no value holds one. Three scans of the whole are cheaper than one a field.
    breaks = len(lines) - 1
    if head.count(b"\n") != breaks or head.count(b"\r") != breaks or b"\0" in head:
        raise FieldError("a header field or the path holds CR, LF or NUL")
    if not method or method.translate(None, _TOKEN_CHARS):
        raise FieldError(f"method {method!r} is not an HTTP token")
    if not _TARGET.fullmatch(target):
        raise FieldError(f"target {target[:80]!r} must start with / and hold no spaces or control characters")
    return head + b"\r\n\r\n"
