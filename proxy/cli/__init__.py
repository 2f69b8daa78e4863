"""The ``kvgate`` command."""

from collections.abc import Sequence


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line and return its exit code."""
    raise NotImplementedError(argv)
