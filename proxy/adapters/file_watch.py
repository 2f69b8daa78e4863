"""One file, looked at again and again: editors that write a new one in its place, and Kubernetes, which turns a symlink, are seen alike.

Reading is cheaper than being sure not to have to: the whole content is compared, so that neither a clock's steps nor a file of the same
size hides a change. What is new counts once two looks have found the same: half of a file that is being written is none. A pipe or a
device in its place is a fault, and holds nothing up.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path

from proxy.config.plain_file import read_plain

BYTES_MAX = 1024 * 1024 + 1  # one more than any reader takes


@dataclass(frozen=True, slots=True)
class Content:
    """What a file held. ``modified_s`` is wall time; ``fault`` says why it could not be read, and then there are no bytes.

    ``elsewhere``: it is a link out of its folder.
    """

    text: bytes
    modified_s: float = 0.0
    fault: str = ""
    elsewhere: bool = False


class FileWatch:
    """Tells what is new in the file at ``path`` since the last time it told, or since it was made."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._told = self._seen = self._read()

    def __repr__(self) -> str:
        """State for people and tests."""
        return f"<FileWatch {self.path} bytes={len(self._told.text)}>"

    @property
    def told(self) -> Content:
        """What it held when it last told."""
        return self._told

    async def look(self, *, sure: bool = False) -> Content | None:
        """Look once; None while there is nothing new, or it may still be being written. ``sure``: whatever it holds is told now."""
        found = await asyncio.to_thread(self._read)
        same, self._seen = _alike(found, self._seen), found
        if not sure and (not same or _alike(found, self._told)):
            return None
        self._told = found
        return found

    def _read(self) -> Content:
        try:
            found = read_plain(self.path, BYTES_MAX)
            return Content(found.content, found.modified_s, elsewhere=found.elsewhere)
        except OSError as error:
            return Content(b"", fault=(error.strerror or "it cannot be read").lower())


def _alike(one: Content, other: Content) -> bool:
    return (one.text, one.fault) == (other.text, other.fault)
