"""A server that keeps responses as vLLM does, in its own memory, and says itself when one in the background is done."""

import json
from typing import Any

from proxy.ports import Message, Receive, Send
from proxy.serving.services import Scope

USAGE = {"input_tokens": 12, "output_tokens": 5, "total_tokens": 17}


class KeepingEngine:
    """An ASGI application. ``kept`` holds its responses by id, ``asked`` the paths of requests about them, ``bodies`` the calls."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.kept: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []
        self.bodies: list[dict[str, Any]] = []

    def finish(self, response_id: str, status: str = "completed") -> None:
        """A response in the background is done."""
        self.kept[response_id] |= {"status": status, "usage": USAGE}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = str(scope["path"]), str(scope["method"])
        if path == "/health":
            await _answer(send, 200, {})
        elif path == "/v1/models":
            await _answer(send, 200, {"object": "list", "data": [{"id": "m", "max_model_len": 4096}]})
        elif path in {"/v1/responses", "/v1/messages"} and method == "POST":
            await self._create(json.loads(await _body(receive)), send)
        elif path == "/v1/embeddings":
            self.bodies.append(json.loads(await _body(receive)))
            await _answer(send, 200, {"object": "list", "data": [], "usage": {"prompt_tokens": 7, "total_tokens": 7}})
        elif path.startswith("/v1/responses/"):
            self.asked.append(f"{method} {path}")
            kept = self.kept.get(path.split("/")[3])
            if kept is not None and path.endswith("/cancel"):
                kept["status"] = "cancelled"
            await _answer(send, *((404, {"error": {"message": "not found", "code": 404}}) if kept is None else (200, kept)))
        else:
            await _answer(send, 404, {"detail": "Not Found"})

    async def _create(self, body: dict[str, Any], send: Send) -> None:
        self.bodies.append(body)
        response_id = f"resp_{self.name}{len(self.bodies)}"
        kept: dict[str, Any] = {
            "id": response_id,
            "object": "response",
            "incomplete_details": None,
            "output": [],
            "status": "queued",
            "usage": None,
        }
        self.kept[response_id] = kept
        if not body.get("background"):
            self.finish(response_id)
        if body.get("stream"):
            await self._stream(kept, send)
            return
        await _answer(send, 200, kept)

    @staticmethod
    async def _stream(kept: dict[str, Any], send: Send) -> None:
        """Open a stream and break it off after its first word."""
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        events: list[dict[str, Any]] = [{"type": "response.created", "response": kept}, {"type": "response.output_text.delta"}]
        for number, event in enumerate(events):
            data = json.dumps(event | {"sequence_number": number}, separators=(",", ":"))
            await _send_body(send, f"event: {event['type']}\ndata: {data}\n\n".encode(), more=True)
        raise ConnectionResetError("broken off")


async def _body(receive: Receive) -> bytes:
    body, more = b"", True
    while more:
        message: Message = await receive()
        body += message.get("body", b"")
        more = message.get("more_body", False)
    return body


async def _send_body(send: Send, data: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


async def _answer(send: Send, status: int, value: Any) -> None:
    data = json.dumps(value).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(data))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await _send_body(send, data, more=False)
