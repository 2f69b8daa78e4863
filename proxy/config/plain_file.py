"""Files that somebody else may write, read within bounds: a pipe, a device or a socket in their place is none, and is not waited for."""

import errno
import os
import stat
from pathlib import Path
from typing import NamedTuple


class PlainFile(NamedTuple):
    """What a file held. ``elsewhere``: it is a link that leads out of its folder, so another's file may have been read."""

    content: bytes
    modified_s: float  # wall time
    elsewhere: bool


def read_plain(path: Path, bytes_max: int) -> PlainFile:
    """The first ``bytes_max`` of a file. Links are followed. Raises OSError, for what is no plain file as well."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY), "rb") as file:  # a pipe would wait for its writer
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise OSError(errno.EINVAL, "it is no plain file")
        return PlainFile(file.read(bytes_max), found.st_mtime, _elsewhere(path, found))


def _elsewhere(path: Path, opened: os.stat_result) -> bool:
    folder, real = os.path.realpath(path.parent), os.path.realpath(path)
    if os.path.commonpath([folder, real]) != folder:
        return True
    now = os.lstat(real)  # a link that was turned meanwhile led who knows where
    return (now.st_dev, now.st_ino) != (opened.st_dev, opened.st_ino)
