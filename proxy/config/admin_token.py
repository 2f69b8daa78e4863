"""The admin token: what a caller of ``/admin`` must know to change something, and what the command sends.

It comes from a file or from the environment, never from a flag: command lines can be read by every user of the machine.
"""

from collections.abc import Mapping
from pathlib import Path

VARIABLE = "KVGATE_ADMIN_TOKEN"
CHARS_MIN = 16  # as many as a guess over the network cannot reach


class AdminTokenError(ValueError):
    """There is a token and it cannot be used. The message names its place and never the token."""


def admin_token(path: Path | None, environ: Mapping[str, str]) -> str | None:
    """Return the token: the file's, else the variable's, else None. Raises AdminTokenError."""
    if path is not None:
        try:
            return _sound(path.read_text(encoding="utf-8"), f"the file {path}")
        except (OSError, UnicodeDecodeError) as error:
            raise AdminTokenError(f"the file {path} cannot be read") from error
    text = environ.get(VARIABLE, "")
    return _sound(text, f"the environment variable {VARIABLE}") if text else None


def _sound(text: str, place: str) -> str:
    """Return the token without the line end that editors and ``echo`` add."""
    token = text.strip()
    if len(token) < CHARS_MIN or not (token.isascii() and token.isprintable()) or " " in token:
        raise AdminTokenError(f"{place} should hold one word of at least {CHARS_MIN} printable ASCII characters")
    return token
