"""JSON for operators, who read it on terminals: what clients and replicas chose steers none (``wire.log_text``)."""

from typing import Any

from starlette.responses import JSONResponse

from proxy.wire.log_text import json_plain


class PlainJson(JSONResponse):
    """An answer of the inside port."""

    def render(self, content: Any) -> bytes:
        """The body."""
        return json_plain(super().render(content))
