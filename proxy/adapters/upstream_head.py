"""What a replica's response head may be, beyond what llhttp refuses in its strict mode."""

from collections.abc import Mapping

from proxy.ports import Headers

HEAD_BYTES_MAX = 64 * 1024


def head_fault(status: int, fields: Headers, by_name: Mapping[bytes, bytes], fed_bytes: int) -> str | None:
    """Why a head cannot be passed on; None: it can. ``fed_bytes`` were read until it was whole, its own and perhaps some of the body."""
    if fed_bytes > HEAD_BYTES_MAX and sum(len(name) + len(value) + 4 for name, value in fields) > HEAD_BYTES_MAX:
        return f"response head above {HEAD_BYTES_MAX} bytes"
    if not 200 <= status < 600:
        return f"status {status} cannot be passed on"
    if b"transfer-encoding" in by_name:
        codings = [value.strip().lower() for name, value in fields if name == b"transfer-encoding"]
        if codings != [b"chunked"]:
            return f"transfer coding {b', '.join(codings)!r} is not supported"
    return None
