"""Single values: whole numbers, numbers, durations, sizes, words. Each reader knows what it allows and can say it.

A duration and a size must carry their unit: a bare 30 would be seconds to one reader and milliseconds to the next.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any

from yaml.nodes import Node, ScalarNode

from proxy.config.faults import did_you_mean
from proxy.config.nodes import Faults, is_null, kind_of
from proxy.config.replica_url import ALLOWED, ReplicaUrlError, normal_url

_INTEGER = re.compile(r"[+-]?(0|[1-9][0-9]*(_[0-9]+)*)")
_NUMBER = re.compile(r"[+-]?(0|[1-9][0-9]*)(\.[0-9]+)?")
_WITH_UNIT = re.compile(r"([+-]?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?) ?([A-Za-zµ]*)")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_BYTES = {"B": 1, "KiB": 1024, "MiB": 1024**2, "GiB": 1024**3}
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.:/-]{0,63}")
_ENV = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HEADER = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")


class RefusedError(ValueError):
    """A reader does not take the text. ``hint`` is put behind what was got; ``secret`` keeps what was got out of the message."""

    def __init__(self, hint: str = "", because: str = "", *, secret: bool = False) -> None:
        super().__init__(hint)
        self.hint = hint
        self.because = because
        self.secret = secret


@dataclass(frozen=True, slots=True)
class Scalar:
    """A reader of one value. ``read`` raises RefusedError; ``allowed`` is the phrase for it.

    ``schema`` says it to editors, in JSON Schema's words: whatever ``read`` takes is valid there (``config.json_schema``). Text that
    YAML takes for a number or a flag is text to us, so the types are wide and the patterns narrow.
    """

    allowed: str
    read: Callable[[str], Any]
    schema: Mapping[str, Any] = field(default_factory=dict)

    def value(self, node: Node, path: str, because: str, faults: Faults) -> Any | None:
        """Return the value, or None with a fault noted."""
        if not isinstance(node, ScalarNode) or is_null(node):
            faults.add(node, path, got=kind_of(node), allowed=self.allowed, because=because)
            return None
        try:
            return self.read(node.value)
        except RefusedError as refused:
            why = refused.because or because
            got = "a value not shown here" if refused.secret else kind_of(node) + refused.hint
            faults.add(node, path, got=got, allowed=self.allowed, because=why)
            return None


def integer(least: int, most: int) -> Scalar:
    """A whole number, decimal, within bounds. Leading zeros are refused: YAML 1.1 reads them as octal."""

    def read(text: str) -> int:
        if not _INTEGER.fullmatch(text) or len(text) > 30 or not least <= int(text) <= most:
            raise RefusedError
        return int(text)

    allowed = f"a whole number from {least} to {most}"
    return Scalar(allowed, read, _typed("integer", _INTEGER) | {"minimum": least, "maximum": most})


def number(least: float, most: float) -> Scalar:
    """A decimal number within bounds; neither infinity nor NaN."""

    def read(text: str) -> float:
        if not _NUMBER.fullmatch(text) or not least <= float(text) <= most:
            raise RefusedError
        return float(text)

    allowed = f"a number from {least:g} to {most:g}"
    return Scalar(allowed, read, _typed("number", _NUMBER) | {"minimum": least, "maximum": most})


def duration(least: str, most: str) -> Scalar:
    """A time with its unit (``500us``, ``50ms``, ``2s``, ``5m``, ``1h``), in seconds."""
    least_s, most_s = _measured(least, _SECONDS), _measured(most, _SECONDS)

    def read(text: str) -> float:
        seconds = _measured(text, _SECONDS)
        if not least_s <= seconds <= most_s:
            raise RefusedError
        return seconds

    return Scalar(f"a time from {least} to {most}, with its unit (us, ms, s, m, h)", read, _with_unit(_SECONDS))


def size(least: str, most: str) -> Scalar:
    """A size with its unit (``64MiB``), in bytes."""
    least_bytes, most_bytes = _measured(least, _BYTES), _measured(most, _BYTES)

    def read(text: str) -> int:
        found = _measured(text, _BYTES)
        if not least_bytes <= found <= most_bytes:
            raise RefusedError
        return int(found)

    return Scalar(f"a size from {least} to {most}, with its unit ({', '.join(_BYTES)})", read, _with_unit(_BYTES))


def _typed(kind: str, pattern: re.Pattern[str]) -> dict[str, Any]:
    """Return the schema of a value that YAML may give as a string, which the pattern bounds, or as what it looks like."""
    if kind == "text":
        digits = any(pattern.fullmatch("5" * length) for length in (1, 64))  # a digest may be all digits
        types = ["string", *(["number"] if digits else []), *(["boolean"] if pattern.fullmatch("true") else [])]
    else:
        types = [kind, "string"]
    return {"type": types, "pattern": f"^(?:{pattern.pattern})$"}


def _with_unit(units: Mapping[str, float] | Mapping[str, int]) -> dict[str, Any]:
    """Return the schema of a quantity. Its bounds are beyond a pattern: only ``check`` knows them."""
    return {"type": "string", "pattern": rf"^[+]?(?:0|[1-9][0-9]*)(?:\.[0-9]+)? ?(?:{'|'.join(units)})$"}


def _measured(text: str, units: dict[str, float] | dict[str, int]) -> float:
    """Return a quantity in the base unit. Raises RefusedError with a hint where the unit is what is wrong."""
    match = _WITH_UNIT.fullmatch(text)
    if not match:
        raise RefusedError
    amount, unit = match.groups()
    if unit in units:
        return float(amount) * units[unit]
    if not unit:
        raise RefusedError(because="without a unit it would be read in different ways")
    near = [name for name in units if name.lower()[0] == unit.lower()[0]]
    raise RefusedError(f' (did you mean "{amount}{near[0]}"?)' if near else "")


def choice(values: type[StrEnum]) -> Scalar:
    """One word of a closed list. The raw text counts, so ``off`` is a word here though YAML 1.1 calls it false."""
    words = {str(value.value): value for value in values}

    def read(text: str) -> StrEnum:
        if text not in words:
            raise RefusedError(did_you_mean(text, words))
        return words[text]

    return Scalar("one of " + ", ".join(words), read, {"enum": list(words)})


def _read_flag(text: str) -> bool:
    if text not in {"true", "false"}:  # YAML 1.1 has more words for them, which people take for text
        raise RefusedError(did_you_mean(text, ("true", "false")))
    return text == "true"


FLAG = Scalar("true or false", _read_flag, {"enum": [True, False, "true", "false"]})


def _read_network(text: str) -> IPv4Network | IPv6Network:
    try:
        return ip_network(text)
    except ValueError as error:
        raise RefusedError(because=str(error)) from error


NETWORK = Scalar(
    "an IP address or a network such as 10.0.0.0/8",
    _read_network,
    {"type": "string", "pattern": r"^[0-9A-Fa-f:.]+(?:/[0-9.]+)?$"},
)


def _pattern(pattern: re.Pattern[str], allowed: str, change: Callable[[str], str] = str) -> Scalar:
    def read(text: str) -> str:
        if not pattern.fullmatch(text):
            raise RefusedError
        return change(text)

    return Scalar(allowed, read, _typed("text", pattern))


NAME = _pattern(_NAME, "a name of letters, digits and . _ - : /, at most 64")
ENV_NAME = _pattern(_ENV, "the name of an environment variable")
HEADER_NAME = _pattern(_HEADER, "the name of an HTTP header", str.lower)
SHA256 = _pattern(re.compile(r"[0-9A-Fa-f]{64}"), "a SHA-256 digest in hexadecimal (printf %s KEY | sha256sum)", str.lower)
TEXT = _pattern(re.compile(r"[^\x00-\x1f\x7f]{1,4096}"), "text on one line")
PATH_GLOB = _pattern(re.compile(r"[/*][\x21-\x7e]{0,255}"), "a path or a glob, which begins with / or *")
HEADER_VALUE = _pattern(re.compile(r"[\x20-\x7e]{0,4096}"), "printable ASCII on one line")


def _read_url(text: str) -> str:
    try:
        return normal_url(text)
    except ReplicaUrlError as error:
        raise RefusedError(because=str(error), secret="@" in text) from error


URL = Scalar(ALLOWED, _read_url, {"type": "string", "pattern": r"^[Hh][Tt][Tt][Pp][Ss]?://[^\s@?#]+$"})
ZMQ_ENDPOINT = _pattern(re.compile(r"tcp://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9_.-]+):[1-9][0-9]{0,4}"), "tcp://HOST:PORT")
