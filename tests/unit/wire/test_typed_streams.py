"""Streams with named events: however the bytes are cut, the same is seen; and whole answers of the same APIs."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.answer_forms import MESSAGES, OPENAI, RESPONSES, AnswerForm, form_of
from proxy.wire.answer_usage import Usage
from proxy.wire.typed_streams import read_response, sequence_number_after


def event(name: str, **fields: Any) -> bytes:
    return b"event: %b\ndata: %b\n\n" % (name.encode(), json.dumps({"type": name} | fields, separators=(",", ":")).encode())


def told(reason: str | None, **usage: int) -> bytes:
    return event("message_delta", delta={"stop_reason": reason, "stop_sequence": None}, usage=usage)


def text(word: str) -> bytes:
    return event("content_block_delta", index=0, delta={"type": "text_delta", "text": word})


def response(status: str, **fields: Any) -> dict[str, Any]:
    return {"id": "resp_1", "status": status, "incomplete_details": None, "usage": None, "output": [{"id": "x"}]} | fields


def delta(number: int) -> bytes:
    return event("response.output_text.delta", delta="a word", sequence_number=number)


USAGE = {"input_tokens": 12, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 4}, "total_tokens": 17}
START = event("message_start", message={"id": "m", "usage": {"input_tokens": 12, "output_tokens": 0}})
MESSAGE = START + event("content_block_start", index=0) + text("a") + text("b") + event("content_block_stop", index=0)
MESSAGE_STREAM = MESSAGE + told("end_turn", input_tokens=12, output_tokens=5) + event("message_stop")
OPENING = event("response.created", response=response("in_progress")) + event(
    "response.in_progress", response=response("in_progress")
)
RESPONSE = OPENING + event("response.output_item.added", item={}) + delta(3) + delta(4)
CUT_SHORT = response("incomplete", incomplete_details={"reason": "max_output_tokens"}, usage=USAGE)
RESPONSE_STREAM = RESPONSE + event("response.completed", response=CUT_SHORT, sequence_number=5)
STREAMS = {"messages": (MESSAGES, MESSAGE_STREAM), "responses": (RESPONSES, RESPONSE_STREAM)}


def seen(form: AnswerForm, pieces: list[bytes]) -> tuple[Any, ...]:
    observer = form.observer()
    for piece in pieces:
        observer.feed(piece)
    return observer.tokens_seen, observer.usage, observer.done, observer.failed, observer.first_content, observer.answer_id


@given(name=st.sampled_from(sorted(STREAMS)), places=st.lists(st.integers(0, 5000), max_size=6))
def test_however_a_stream_is_cut(name: str, places: list[int]) -> None:
    form, stream = STREAMS[name]
    edges = [0, *sorted(place % (len(stream) + 1) for place in places), len(stream)]
    assert seen(form, [stream[start:end] for start, end in itertools.pairwise(edges)]) == seen(form, [stream])


def test_a_message() -> None:
    assert seen(MESSAGES, [MESSAGE]) == (2, None, False, False, True, None)
    assert seen(MESSAGES, [MESSAGE_STREAM]) == (5, Usage(12, 5, None, ("stop",)), True, False, True, None)
    assert seen(MESSAGES, [START]) == (0, None, False, False, True, None)
    assert seen(MESSAGES, [MESSAGE, text("c") + text("d")])[0] == 4
    assert seen(MESSAGES, [event("ping")])[4] is False


@pytest.mark.parametrize(
    ("reason", "natural"),
    [
        ("end_turn", "stop"),
        ("tool_use", "tool_calls"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("refusal", "refusal"),
    ],
)
def test_stop_reasons_are_told_in_the_words_of_chats(reason: str, natural: str) -> None:
    observer = MESSAGES.observer()
    observer.feed(told(reason, input_tokens=1, output_tokens=2))
    assert observer.finish_reasons == (natural,)
    body = json.dumps({"type": "message", "content": [], "stop_reason": reason, "usage": {"input_tokens": 1, "output_tokens": 2}})
    assert MESSAGES.read_usage(body.encode()) == Usage(1, 2, None, (natural,))


def test_a_cached_prompt_is_part_of_the_prompt() -> None:
    usage = {"input_tokens": 2, "cache_read_input_tokens": 30, "cache_creation_input_tokens": 4, "output_tokens": 1}
    observer = MESSAGES.observer()
    observer.feed(told(None, **usage))
    assert observer.usage == Usage(36, 1, 30)
    assert MESSAGES.read_usage(json.dumps({"usage": usage}).encode()) == Usage(36, 1, 30)


def test_a_response() -> None:
    assert seen(RESPONSES, [OPENING]) == (0, None, False, False, False, "resp_1")
    assert seen(RESPONSES, [RESPONSE]) == (2, None, False, False, True, "resp_1")
    assert seen(RESPONSES, [RESPONSE_STREAM]) == (5, Usage(12, 5, 4, ("length",)), True, False, True, "resp_1")
    assert seen(RESPONSES, [RESPONSE, delta(5) + delta(6)])[0] == 4
    assert RESPONSES.read_usage(json.dumps(response("completed", usage=USAGE)).encode()) == Usage(12, 5, 4, ("stop",))


@pytest.mark.parametrize(
    ("form", "stream"),
    [
        (MESSAGES, event("error", error={"type": "api_error", "message": "x"})),
        (RESPONSES, event("error", code="x", message="x")),
        (RESPONSES, event("response.failed", response=response("failed"))),
    ],
)  # fmt: skip
def test_failures(form: AnswerForm, stream: bytes) -> None:
    observer = form.observer()
    observer.feed(stream)
    assert observer.failed
    assert observer.finish_reasons == ()


def test_what_the_engine_keeps() -> None:
    assert read_response(json.dumps(response("queued")).encode()).unfinished  # type: ignore[union-attr]
    assert not read_response(json.dumps(response("completed")).encode()).unfinished  # type: ignore[union-attr]
    assert read_response(b'{"error": {}}') is None
    assert OPENAI.read_kept(b'{"id": "chatcmpl-1"}') is None


@pytest.mark.parametrize("body", [b"", b"[]", b'{"usage": 3}', b"\xff", b'{"usage": {"input_tokens": "x"}}'])
def test_what_is_no_such_answer_says_nothing(body: bytes) -> None:
    assert MESSAGES.read_usage(body) is None
    assert RESPONSES.read_usage(body) is None
    for form in (MESSAGES, RESPONSES):
        assert seen(form, [b"data: " + body + b"\n\n"]) == (0, None, False, False, False, None)


def test_streams_end_in_the_form_of_their_api() -> None:
    assert form_of("/v1/chat/completions").cut_off(b"").endswith(b"data: [DONE]\n\n")
    name, data = form_of("/v1/messages").cut_off(b"").decode().split("\n", 1)
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["error"]["type"] == "api_error"
    name, data = form_of("/v1/responses").cut_off(RESPONSE).decode().split("\n", 1)
    ended = json.loads(data.removeprefix("data: "))
    assert (name, ended["type"], ended["sequence_number"], ended["code"]) == ("event: error", "error", 5, "cut_off")
    assert ended["error"]["code"] == "cut_off"  # SDKs raise for it alone


def test_sequence_numbers() -> None:
    assert [sequence_number_after(sent) for sent in (b"", b"x", delta(41), delta(7) + b'data: {"x":1')] == [0, 0, 42, 8]
