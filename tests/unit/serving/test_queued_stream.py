"""A line that is kept alive: what was opened is never opened again, and what cannot be a status any more is an event."""

import json

import pytest

from proxy.core.outcome import Outcome, Refusal
from proxy.ports import Message
from proxy.serving.client import after_head
from proxy.serving.queued_stream import QueuedStream
from proxy.wire.answer_forms import MESSAGES, OPENAI, RESPONSES, AnswerForm

HEAD = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]}
COMMENT = b": kvgate queued\n\n"


class Sent:
    """What went out."""

    def __init__(self) -> None:
        self.messages: list[Message] = []

    async def __call__(self, message: Message) -> None:
        self.messages.append(dict(message))

    @property
    def heads(self) -> int:
        return sum(message["type"] == "http.response.start" for message in self.messages)

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.messages)


async def answer(line: QueuedStream, status: int, body: bytes, content_type: bytes = b"application/json") -> None:
    await line({"type": "http.response.start", "status": status, "headers": [(b"content-type", content_type)]})
    rest = after_head(line)
    await rest({"type": "http.response.body", "body": body[:3], "more_body": True})
    await rest({"type": "http.response.body", "body": body[3:], "more_body": False})


async def test_a_line_that_was_not_opened_passes_everything() -> None:
    sent = Sent()
    line = QueuedStream(sent, OPENAI)
    await answer(line, 429, b"too much")
    assert sent.messages[0]["status"] == 429
    assert sent.body == b"too much"
    assert line.relaying


async def test_a_stream_goes_on_where_the_comments_ended() -> None:
    sent = Sent()
    line = QueuedStream(sent, OPENAI)
    await line.comment("queued")
    await line.comment("queued")
    await answer(line, 200, b"data: x\n\n", b"text/event-stream; charset=utf-8")
    assert sent.heads == 1
    assert sent.body == COMMENT * 2 + b"data: x\n\n"
    assert sent.messages[-1]["more_body"] is False
    assert after_head(line) is sent  # nothing stands in the way of the rest


@pytest.mark.parametrize("form", [OPENAI, MESSAGES, RESPONSES])
@pytest.mark.parametrize("body", [b'{"error": {"message": "no", "type": "t", "code": 400}}', b"<html>no</html>"])
async def test_an_engines_error_becomes_an_event(form: AnswerForm, body: bytes) -> None:
    sent = Sent()
    line = QueuedStream(sent, form)
    await line.comment("queued")
    await answer(line, 400, body)
    event = sent.body.removeprefix(COMMENT).decode()
    named, _, data = event.partition("data: ")
    assert named == ("" if form is OPENAI else "event: error\n")
    error = json.loads(data.split("\n")[0])["error"]
    assert "no" in error["message"]
    assert error["code"] == 400
    assert sent.heads == 1


async def test_a_refusal_ends_it() -> None:
    sent = Sent()
    line = QueuedStream(sent, MESSAGES)
    await line.comment("queued")
    await line.refuse(Refusal(Outcome.QUEUE_TIMEOUT, gate="queue.wait_max", message="too late", retry_after_s=3.0), brief=False)
    error = json.loads(sent.body.decode().split("data: ")[1])["error"]
    assert (error["type"], error["code"], error["retry_after_s"]) == ("rate_limit_error", "queue_timeout", 3)
    assert sent.messages[-1]["more_body"] is False
