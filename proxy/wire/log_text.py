"""Log lines as text: what clients and replicas say stays one word on one line, and what our own format strings name become fields.

A line of ours is a word with a dot and its fields, ``replica.failed replica=%s reason=%s``, and sometimes words for people after them.
``fields_of`` reads the names out of the format, so that a JSON log has them as members without each place saying them twice.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, NamedTuple

OWN = frozenset(
    {"time", "level", "logger", "event", "message", "exception", "process"}
)  # of every line; a field of that name gets a _

_EVENT = re.compile(r"[a-z_]+(?:\.[a-z_%]+)+|internal_error")
_FIELD = re.compile(r"\b([a-z_]+)=%[-+#0-9.]*[a-z]")
_PLACE = re.compile(r"%[-+#0-9.]*[a-z]")


class Named(NamedTuple):
    """A line of ours, taken apart. ``says_more``: there are words for people in it besides."""

    event: str
    fields: dict[str, Any]
    says_more: bool


@lru_cache(512)
def _shape(text: str) -> tuple[str, tuple[str, ...], bool] | None:
    """Event, names of the fields, and whether there is more; None where it is no line of a word and its fields."""
    event = _EVENT.match(text)
    if event is None or "%" in event[0]:
        return None
    names = tuple(name + "_" if name in OWN else name for name in _FIELD.findall(text))
    if len(names) != len(_PLACE.findall(text.replace("%%", ""))):
        return None
    return event[0], names, bool(_FIELD.sub("", text[event.end() :]).strip())


def fields_of(text: object, args: object) -> Named | None:
    """A line that is logged with this format and these arguments, taken apart; None where it is a sentence."""
    shape = _shape(text) if isinstance(text, str) else None
    if shape is None or not isinstance(args, tuple) or len(args) != len(shape[1]):
        return None
    return Named(shape[0], dict(zip(shape[1], args, strict=True)), shape[2])


def plain(text: str) -> str:
    """The text with everything that could end a line, move a cursor or turn its direction written out."""
    if text.isprintable():
        return text
    return "".join(sign if sign.isprintable() else sign.encode("unicode_escape").decode() for sign in text)


def json_plain(data: bytes) -> bytes:
    """JSON with the same signs as escapes: it says the same, and whoever reads it on a terminal is safe."""
    text = data.decode()
    if text.isprintable():
        return data
    return "".join(sign if sign.isprintable() or sign == "\n" else _json_escape(sign) for sign in text).encode()


def _json_escape(sign: str) -> str:
    units = sign.encode("utf-16-be")
    return "".join(f"\\u{units[at] << 8 | units[at + 1]:04x}" for at in range(0, len(units), 2))


def word(value: object) -> str:
    """A value as one word: quoted where it has spaces, signs that cannot be seen, or nothing."""
    if isinstance(value, float):
        return f"{value:.4f}"
    text = str(value)
    return text if text.isprintable() and " " not in text and text else repr(text)


def console_fields(fields: Iterable[tuple[str, object]]) -> str:
    """``key=value`` pairs."""
    return " ".join(f"{plain(key)}={word(value)}" for key, value in fields)
