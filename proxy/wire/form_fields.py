"""Read ``multipart/form-data``: the fields of a form, and where its files lie in the body.

The boundary is taken from the body itself, which begins with it where no preamble does; clients send none, and a body with one is not
read. Text is read as UTF-8. Of fields that repeat the last is taken, as the engine's parser does. A part without an end is left out.
"""

import re
from dataclasses import dataclass, field

_BOUNDARY = re.compile(rb"--([0-9A-Za-z'()+_,./:=? -]{1,70})\r\n")
_NAME = re.compile(rb'[;\s]name="([^"]*)"')
_HEAD_BYTES_MAX = 4096
PARTS_MAX = 100  # a transcription has some twenty fields


@dataclass(frozen=True, slots=True)
class Form:
    """``texts`` by name; ``files`` are spans of the body, by name."""

    texts: dict[str, str] = field(default_factory=dict)
    files: dict[str, tuple[int, int]] = field(default_factory=dict)


def read_form(body: bytes) -> Form | None:
    """The form; None where the body is none."""
    first = _BOUNDARY.match(body)
    if first is None:
        return None
    mark, form, start = b"\r\n--" + first[1], Form(), first.end()
    for _ in range(PARTS_MAX):
        end = body.find(mark, start)
        head_end = body.find(b"\r\n\r\n", start, start + _HEAD_BYTES_MAX)
        if end < 0 or not start < head_end < end:
            break
        _note(form, body, body[start:head_end], (head_end + 4, end))
        start = end + len(mark)
        if body[start : start + 2] != b"\r\n":
            break
        start += 2
    return form


def _note(form: Form, body: bytes, head: bytes, span: tuple[int, int]) -> None:
    found = _NAME.search(head)
    if found is None:
        return
    name = found[1].decode("utf-8", "replace")
    if b"filename" in head:
        form.files[name] = span
    else:
        form.texts[name] = body[slice(*span)].decode("utf-8", "replace")
