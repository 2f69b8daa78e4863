"""Read JSON and scalars as loosely as the engine does.

vLLM parses a body with Python's ``json`` and validates it with pydantic in lax mode: ``"5"``, ``5.0`` and ``true`` are integers,
``"yes"`` is true, NaN and lone surrogates pass. A body the engine accepts and we cannot read would pass the gate uncounted, so what
is read here is never stricter than that; where the value itself is bad the engine answers its own error.
"""

import json
import math
from typing import Any

import msgspec

_TRUE = frozenset({"1", "on", "t", "true", "y", "yes"})


class UnreadableCallError(Exception):
    """The body is no call we can read; ``reason`` says why. Forward it as it is: the engine will refuse it in its own words."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def parse_object(body: bytes) -> dict[str, Any]:
    """The JSON object in ``body`` as plain Python; for the last of duplicate keys, as ``json`` does. Raises UnreadableCallError."""
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        value = _parse_with_stdlib(body)
    if not isinstance(value, dict):
        raise UnreadableCallError("the body is not a JSON object")
    return value


def _parse_with_stdlib(body: bytes) -> Any:
    # NaN, 1e400, lone surrogates, UTF-16 and a byte order mark pass json.loads, so they pass the engine too
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UnreadableCallError(f"the body is not JSON: {error}") from error


def lax_int(value: Any) -> int | None:
    """An integer as pydantic would read it; None where it would refuse."""
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return int(value) if math.isfinite(value) and value == int(value) else None
    if not isinstance(value, str):
        return None
    try:
        return int(value)
    except ValueError:
        pass
    try:
        return lax_int(float(value))
    except ValueError:
        return None


def lax_bool(value: Any, default: bool) -> bool:
    """A boolean as pydantic would read it; ``default`` for null, absent and what the engine refuses anyway."""
    if isinstance(value, bool):
        return value
    if isinstance(value, (int, float)):
        return value == 1
    if isinstance(value, str):
        return value.lower() in _TRUE
    return default


def utf8_bytes(text: str) -> int:
    """Length in UTF-8; constant time for ASCII. Lone surrogates count three bytes."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
