"""The engine's own priority that clients send: the body's ``priority``, or the header ``X-Vllm-Priority``, which rules over it.

vLLM runs lower numbers first, so a client that may choose freely may go before everybody. Clamping sets the header (vLLM from 0.28 on
reads it) and, for older ones, the body's last ``priority``, in place. Where nothing changes, nothing is touched.
"""

from proxy.wire.inject import last_value_span

Headers = list[tuple[bytes, bytes]]

HEADER = b"x-vllm-priority"


def asked_priority(headers: Headers, in_body: int | None) -> int:
    """What the engine would take: the header, else the body's, else 0. A header that is no number counts as absent."""
    for name, value in headers:
        if name == HEADER:
            try:
                return int(value)
            except ValueError:
                break
    return in_body or 0


def with_priority(headers: Headers, body: bytes, in_body: int | None, priority: int) -> tuple[Headers, bytes]:
    """Headers and body that ask for ``priority``; all other bytes stay as they came."""
    headers = [*(field for field in headers if field[0] != HEADER), (HEADER, b"%d" % priority)]
    span = None if in_body is None else last_value_span(body, "priority")
    if span is not None:
        body = body[: span[0]] + b"%d" % priority + body[span[1] :]
    return headers, body
