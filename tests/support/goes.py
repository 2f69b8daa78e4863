"""Values that are worked out in several goes, read in one."""

from collections.abc import Generator
from typing import TypeVar

T = TypeVar("T")


def whole(reading: Generator[None, None, T]) -> T:
    """Return what a generator comes to."""
    while True:
        try:
            next(reading)
        except StopIteration as end:
            return end.value  # type: ignore[no-any-return]
