"""Targeted scanner for Prometheus text: finds the series of a few wanted metrics and reads nothing else.

A full vLLM exposition is 50 KB to several hundred KB of histogram buckets, read several times a second, of which about a dozen lines
matter. One compiled alternation with a literal prefix skips the rest at the speed of a byte search.

Reads the text format 0.0.4 as client libraries write it: one sample a line, nothing before the name, nothing between name and brace.
Fails: a wanted line that cannot be read is left out and counted, never guessed; so is a last line without its newline, because a
number cut in the middle is still a number.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType

_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)', re.DOTALL)
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
LABELS_BYTES_REMEMBERED_MAX = 4096  # an engine's longest, its cache configuration, has some 600
_ESCAPES = {"n": "\n", '"': '"', "\\": "\\"}
_NO_LABELS: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Series:
    """One sample line. ``value`` may be NaN or infinite: both are legal in the format."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Scan:
    """What a scan found, in the order of the text; ``lines_skipped`` counts wanted lines that could not be read."""

    series: tuple[Series, ...]
    lines_skipped: int = 0


class Scanner:
    """Scans for a fixed set of metric names that share ``prefix`` (``"vllm:"``; ``""`` when they share none)."""

    def __init__(self, names: Iterable[str], prefix: str = "") -> None:
        stems = sorted({name.removeprefix(prefix) for name in names}, key=len, reverse=True)
        alternatives = "|".join(re.escape(stem) for stem in stems)
        self._line = re.compile(rf"\n{re.escape(prefix)}({alternatives})([{{ \t][^\n]*)".encode())
        self._prefix = prefix

    def scan(self, text: bytes) -> Scan:
        """Every series of the wanted names in ``text``."""
        end = text.rfind(b"\n") + 1
        # The pattern anchors at a newline, which the first line lacks.
        rows = self._line.findall(b"\n" + text[: text.find(b"\n") + 1]) if end else []
        rows += self._line.findall(text, 0, end)
        found: list[Series] = []
        skipped = 1 if self._line.match(b"\n" + text[end:]) else 0
        for stem, rest in rows:
            series = _read(self._prefix + stem.decode(), rest)
            if series is None:
                skipped += 1
            else:
                found.append(series)
        return Scan(tuple(found), skipped)


def _read(name: str, rest: bytes) -> Series | None:
    """Labels, value and perhaps a time stamp: ``rest`` is the line after the name."""
    labels: Mapping[str, str] | None = _NO_LABELS
    if rest[:1] == b"{":
        # Label values may hold any bracket, value and time stamp none: the last one closes.
        close = rest.rfind(b"}")
        if close < 0:
            return None
        labels = read_labels(rest[1:close])
        rest = rest[close + 1 :]
    fields = rest.split()
    if labels is None or len(fields) not in {1, 2}:
        return None
    try:
        return Series(name, labels, float(fields[0]))
    except ValueError:
        return None


def read_labels(raw: bytes) -> Mapping[str, str] | None:
    """The label pairs between the braces, or None when they cannot be read."""
    return _remembered(raw) if len(raw) <= LABELS_BYTES_REMEMBERED_MAX else _labels(raw)


def _labels(raw: bytes) -> Mapping[str, str] | None:
    text = raw.decode("utf-8", "replace")
    labels: dict[str, str] = {}
    at = 0
    while at < len(text):
        pair = _LABEL.match(text, at)
        if pair is None:
            return None if text[at:].strip() else labels
        value = pair.group(2)
        labels[pair.group(1)] = _ESCAPE.sub(_unescape, value) if "\\" in value else value
        at = pair.end()
    return MappingProxyType(labels)


_remembered = lru_cache(maxsize=4096)(_labels)  # a replica's label sets do not change


def _unescape(match: re.Match[str]) -> str:
    return _ESCAPES.get(match.group(1), match.group(0))
