"""Metrics of several workers as one text: every sample gets the label ``worker``, and every family stands once.

``kvgate_worker_up`` tells who is in it: of a worker that did not answer nothing else is told, and sums are short of its part.
"""

import re
from collections.abc import Iterator, Mapping

_BARE = re.compile(rb"^([a-z]\w*) ", re.MULTILINE)
_LABELLED = re.compile(rb"^([a-z]\w*)\{", re.MULTILINE)
_FAMILY = b"# HELP "
_UP = b"# HELP kvgate_worker_up 1 for a worker whose metrics are in this text\n# TYPE kvgate_worker_up gauge\n"


def merged(texts: Mapping[int, bytes | None]) -> Iterator[bytes]:
    """The text in parts, a family or less each, of the workers' texts by number; None: it did not answer."""
    families: dict[bytes, list[tuple[int, bytes]]] = {}
    for number, text in texts.items():
        for block in (b"\n" + (text or b"")).split(b"\n" + _FAMILY)[1:]:
            families.setdefault(block.partition(b" ")[0], []).append((number, block))
        yield b""
    for blocks in families.values():
        help_line, type_line, _ = blocks[0][1].split(b"\n", 2)
        yield b"%b%b\n%b\n" % (_FAMILY, help_line, type_line)
        for number, block in blocks:
            samples = block.split(b"\n", 2)[2].rstrip(b"\n") + b"\n"
            label = b'worker="%d"' % number
            yield _BARE.sub(rb"\1{%b} " % label, _LABELLED.sub(rb"\1{%b," % label, samples))
    yield _UP + b"".join(b'kvgate_worker_up{worker="%d"} %d\n' % (number, text is not None) for number, text in texts.items())
