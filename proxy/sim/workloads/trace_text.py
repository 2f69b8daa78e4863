"""Opens recordings, packed or not, and tells what is wrong with them as ``file:line: what``."""

import gzip
import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TypeVar
from zlib import error as zlib_error

import msgspec

PACKED = frozenset({".gz", ".xz"})

Row = TypeVar("Row")


class TraceError(ValueError):
    """A recording that cannot be read. Its text names the file, and the line where there is one."""


def kind_of(path: Path) -> str:
    """Suffix of what is in the file: ``.csv`` for both ``a.csv`` and ``a.csv.gz``."""
    return (path.with_suffix("") if path.suffix in PACKED else path).suffix


def name_of(path: Path) -> str:
    """Return the file's name without its suffixes."""
    return (path.with_suffix("") if path.suffix in PACKED else path).stem


def unpacked(path: Path) -> IO[str]:
    """Open a file's text."""
    match path.suffix:
        case ".gz":
            return gzip.open(path, "rt", encoding="utf-8")
        case ".xz":
            return lzma.open(path, "rt", encoding="utf-8")
        case _:
            return path.open(encoding="utf-8")


def lines_of(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line number, line without its end), empty lines left out. Raises TraceError for a file that cannot be opened or unpacked."""
    number = 0
    try:
        with unpacked(path) as stream:
            for number, line in enumerate(stream, 1):
                if text := line.strip():
                    yield number, text
    except (OSError, EOFError, lzma.LZMAError, zlib_error, UnicodeDecodeError) as error:
        raise TraceError(f"{path}:{number + 1}: cannot be read: {error}") from error


def rows_of(path: Path, row: type[Row]) -> Iterator[tuple[int, Row]]:
    """Yield (line number, row) of a file with one JSON object per line."""
    decode = msgspec.json.Decoder(row).decode
    for number, line in lines_of(path):
        try:
            yield number, decode(line)
        except msgspec.DecodeError as error:
            raise TraceError(f"{path}:{number}: {error}") from error


def whole_file(path: Path, document: type[Row]) -> Row:
    """Read a file that is one JSON value on one line or many."""
    text = "\n".join(line for _, line in lines_of(path))
    try:
        return msgspec.json.decode(text, type=document)
    except msgspec.DecodeError as error:
        raise TraceError(f"{path}: {error}") from error
