"""What ends a stream early is an error to the SDK, on each API, and comments before it are none."""

from collections.abc import Awaitable, Callable
from typing import Any

import openai
import pytest

from proxy.ports import Receive, Send
from proxy.serving.services import Scope
from proxy.wire.answer_forms import OPENAI, RESPONSES, AnswerForm
from tests.support.upstream_servers import asgi_server

COMMENT = b": kvgate queued position=1 estimate_s=3.0\n\n"


def cut_off(form: AnswerForm) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """Return a server that comments and then cuts off."""

    async def serve(_scope: Scope, _receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await send({"type": "http.response.body", "body": COMMENT + form.cut_off(b""), "more_body": False})

    return serve


async def chat(client: openai.AsyncOpenAI) -> Any:
    return await client.chat.completions.create(model="m", messages=[], stream=True)


async def response(client: openai.AsyncOpenAI) -> Any:
    return await client.responses.create(model="m", input="hi", stream=True)


@pytest.mark.parametrize(("form", "call"), [(OPENAI, chat), (RESPONSES, response)])
async def test_a_stream_that_is_cut_off_raises(form: AnswerForm, call: Callable[[openai.AsyncOpenAI], Awaitable[Any]]) -> None:
    async with (
        asgi_server(cut_off(form)) as port,
        openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0) as client,
    ):
        stream = await call(client)
        with pytest.raises(openai.APIError) as raised:
            await anext(aiter(stream))  # the comment before it is no event
        assert raised.value.code == "cut_off"
