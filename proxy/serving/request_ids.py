"""The name of a request, ``X-Request-Id``: kept where the client gave one, else made; sent to the replica, returned, and logged.

vLLM names its answers after it (``chatcmpl-ID``), so one word finds a request in the client's log, ours and the engine's. A given one
that is no single word of at most 128 printable ASCII characters is replaced: it ends up in logs. A body's own ``request_id``, which vLLM
takes where the header is absent, counts as given. Ids are not unique when clients repeat them; nothing here relies on it.
"""

import itertools
import re

import msgspec

from proxy.ports import Headers

NAME = b"x-request-id"
_SANE = re.compile(rb"[\x21-\x7e]{1,128}")
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
_MADE = re.compile(r"kvgate-([A-Za-z0-9._-]{1,80})-[0-9a-f]+")
_IN_BODY = b'"request_id"'
READ_BODY_BYTES_MAX = 64 * 1024  # a longer body is not searched for it: nothing that grows with the prompt runs on the event loop


class _Body(msgspec.Struct):
    request_id: str | None = None


class RequestIds:
    """Makes ids that name the proxy: ``kvgate-PROXY-NUMBER``."""

    def __init__(self, proxy: str) -> None:
        self.proxy = proxy
        self.shown = self.name_in(proxy)
        self._prefix = f"kvgate-{self.shown}-".encode()
        self._numbers = itertools.count(1)

    @staticmethod
    def name_in(proxy: str) -> str:
        """A proxy's name as it stands in ids."""
        return _NOT_IN_NAMES.sub("-", proxy)[:80]

    @staticmethod
    def maker_of(request_id: str) -> str | None:
        """The proxy that made an id, as ``name_in`` has it; None where it was no kvgate."""
        found = _MADE.fullmatch(request_id)
        return None if found is None else found[1]

    def of(self, headers: Headers) -> tuple[bytes, bool]:
        """The id of a request with these headers (names in lower case), and whether the client gave it."""
        given = [value for name, value in headers if name == NAME]
        if len(given) == 1 and _SANE.fullmatch(given[0]):
            return given[0], True
        return self.made(), False

    def made(self) -> bytes:
        """One that nobody had."""
        return b"%b%x" % (self._prefix, next(self._numbers))


def in_body(body: bytes) -> bytes | None:
    """The id that a JSON body gives; None where it gives none, or none that can be used."""
    if len(body) > READ_BODY_BYTES_MAX or _IN_BODY not in body:
        return None
    try:
        found = (msgspec.json.decode(body, type=_Body).request_id or "").encode()
    except (msgspec.DecodeError, RecursionError):
        return None
    return found if _SANE.fullmatch(found) else None


def named(headers: Headers, request_id: bytes) -> Headers:
    """The headers with this id in place of any other."""
    others = [field for field in headers if field[0] != NAME]
    others.append((NAME, request_id))
    return others
