"""Who may change something: callers that know the admin token (``config.admin_token``).

``Authorization: Bearer TOKEN`` or ``x-kvgate-admin-token: TOKEN``; either will do, so that a caller behind something that uses
``Authorization`` itself has a way. Without a configured token nobody may: an open switch is none.
"""

import hmac
from collections.abc import Mapping

import msgspec

from proxy.wire.answers import Answer

HEADER = "x-kvgate-admin-token"
NO_TOKEN = (
    "This kvgate takes no changes: it has no admin token. Start it with --admin-token-file FILE or KVGATE_ADMIN_TOKEN set, then send the"
    f" token as `Authorization: Bearer TOKEN` or `{HEADER}: TOKEN`."
)
WRONG_TOKEN = f"This needs the admin token, as `Authorization: Bearer TOKEN` or `{HEADER}: TOKEN`."


def error_answer(status: int, code: str, message: str) -> Answer:
    """An error of the admin port, in the shape that all of kvgate's have."""
    body = msgspec.json.encode({"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}})
    return Answer(status, ((b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))), body)


class AdminAccess:
    """Holds the token; None: nobody may."""

    def __init__(self, token: str | None = None) -> None:
        self._token = token

    def __repr__(self) -> str:
        """Without the token."""
        return f"<AdminAccess {'open to the token' if self.open else 'closed'}>"

    @property
    def open(self) -> bool:
        """Whether there is a token, so that somebody may."""
        return self._token is not None

    def refusal(self, fields: Mapping[str, str]) -> Answer | None:
        """What to answer a caller that may not; None for one that may. ``fields`` are headers by lower-case name."""
        if self._token is None:
            return error_answer(403, "admin_token_not_set", NO_TOKEN)
        scheme, _, bearer = fields.get("authorization", "").partition(" ")
        given = (bearer.strip() if scheme.lower() == "bearer" else "", fields.get(HEADER, "").strip())
        # Each is compared, whatever the other gave: the time taken tells nothing.
        good = [hmac.compare_digest(one.encode(), self._token.encode()) for one in given]
        return None if any(good) else error_answer(401, "admin_token_wrong", WRONG_TOKEN)
