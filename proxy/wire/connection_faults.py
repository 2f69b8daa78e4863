"""What is wrong with bytes that never became a request, and the response to it.

Status: 400 for what is no HTTP/1.1 request or cannot be told from one that hides a second; 408 for one that came too slowly; 431 for a
head too large; 501 for a transfer coding other than chunked. SDKs retry a 408 of their own accord, so each says not to. The connection
is closed after it: where the next request would begin is unknown.
"""

from enum import StrEnum
from http import HTTPStatus

import msgspec


class ConnectionFault(StrEnum):
    """Why a connection is given up."""

    MALFORMED = "malformed"
    HEAD_TOO_LARGE = "head_too_large"
    HEAD_TIMEOUT = "head_timeout"
    BODY_TIMEOUT = "body_timeout"
    TRANSFER_CODING = "transfer_coding"


_ANSWERS = {
    ConnectionFault.MALFORMED: (400, "This is not a well-formed HTTP/1.1 request."),
    ConnectionFault.HEAD_TOO_LARGE: (431, "The request line and header fields take more room than this proxy allows."),
    ConnectionFault.HEAD_TIMEOUT: (408, "The request line and header fields did not arrive in time."),
    ConnectionFault.BODY_TIMEOUT: (408, "The request's body did not arrive in time."),
    ConnectionFault.TRANSFER_CODING: (501, "No transfer coding but chunked is understood here."),
}


def fault_response(fault: ConnectionFault) -> bytes:
    """The whole response, head and body."""
    status, message = _ANSWERS[fault]
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": fault.value}
    body = msgspec.json.encode({"error": error})
    return (
        b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\nx-should-retry: false\r\n\r\n"
        % (status, HTTPStatus(status).phrase.encode(), len(body))
    ) + body
