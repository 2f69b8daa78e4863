"""Looking at streams: however the bytes are cut, the same is seen, and only the usage event is taken out."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.wire.answer_usage import BODY_BYTES_KEPT_MAX, BodyTail, Usage, read_usage
from proxy.wire.sse import EVENT_BYTES_MAX, StreamObserver, UsageStripper

DONE = b"data: [DONE]\n\n"


def event(payload: dict[str, Any], *, spaced: bool = False) -> bytes:
    text = json.dumps(payload, separators=None if spaced else (",", ":"))
    return b"data: " + text.encode() + b"\n\n"


def chunk(
    content: str | None, *, index: int = 0, finish: str | None = None, usage: dict[str, int] | None = None, **delta: Any
) -> bytes:
    if content is not None:
        delta["content"] = content
    payload: dict[str, Any] = {
        "id": "c",
        "choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": finish}],
    }
    return event(payload if usage is None else payload | {"usage": usage})


def usage_event(prompt: int, completion: int, **more: Any) -> bytes:
    usage = {"prompt_tokens": prompt, "total_tokens": prompt + completion, "completion_tokens": completion} | more
    return event({"id": "c", "choices": [], "usage": usage})


OPENER = chunk("", role="assistant")
ERROR = event({"error": {"message": "dead", "type": "InternalServerError", "param": None, "code": 500}})
STREAM = OPENER + chunk("Hel") + chunk("lo") + chunk("", finish="stop") + usage_event(7, 3) + DONE


def cut(data: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted(place % (len(data) + 1) for place in places), len(data)]
    return [data[start:end] for start, end in itertools.pairwise(edges)]


def seen(pieces: list[bytes]) -> tuple[Any, ...]:
    observer = StreamObserver()
    for piece in pieces:
        observer.feed(piece)
    return (observer.tokens_seen, observer.usage, observer.finish_reasons, observer.done, observer.failed, observer.first_content)


def stripped(pieces: list[bytes]) -> bytes:
    stripper = UsageStripper()
    return b"".join(stripper.feed(piece) for piece in pieces) + stripper.flush()


events = st.sampled_from(
    [
        OPENER,
        chunk("a"),
        chunk('"choices":[{ \n\n data: "usage":{'),
        chunk("b", index=1),
        chunk("", finish="length", index=1),
        chunk("c", usage={"prompt_tokens": 3, "completion_tokens": 9}),
        chunk(None, tool_calls=[{"index": 0, "function": {"arguments": "{}"}}]),
        event({"choices": [{"index": 0, "text": "spaced"}]}, spaced=True),
        event({"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}, spaced=True),
        chunk("crlf").replace(b"\n", b"\r\n"),
        b": keep-alive\n\n",
        b"\n",
        b"event: x\ndata: {\ndata: }\n\n",
        b"data: garbage {\n\n",
        ERROR,
        usage_event(5, 6),
        DONE,
    ]
)


@settings(max_examples=300)
@given(st.lists(events, max_size=8), st.lists(st.integers(0, 5000), max_size=12))
def test_the_observer_sees_the_same_however_the_bytes_are_cut(parts: list[bytes], places: list[int]) -> None:
    data = b"".join(parts)
    whole = seen([data])
    assert seen(cut(data, places)) == whole
    assert seen([data[i : i + 1] for i in range(len(data))]) == whole
    assert seen(parts) == whole  # as an engine writes them: one read an event, the fast way


@settings(max_examples=300)
@given(st.lists(events, max_size=8), st.lists(st.integers(0, 5000), max_size=12))
def test_the_stripper_gives_the_same_however_the_bytes_are_cut(parts: list[bytes], places: list[int]) -> None:
    data = b"".join(parts)
    whole = stripped([data])
    assert stripped(cut(data, places)) == whole
    assert stripped([data[i : i + 1] for i in range(len(data))]) == whole
    assert stripped(parts) == whole


def test_a_stream_is_read() -> None:
    assert seen([STREAM]) == (3, Usage(7, 3, None, ("stop",)), ("stop",), True, False, True)


def test_the_role_alone_is_no_token_but_is_first_content() -> None:
    assert seen([OPENER]) == (0, None, (), False, False, True)
    assert seen([OPENER, chunk("a"), chunk("b")])[0] == 2


def test_a_role_with_content_is_a_token() -> None:
    assert seen([chunk("whole", role="assistant")])[0] == 1


def test_text_that_looks_like_fields_counts_once() -> None:
    assert seen([OPENER, chunk("x"), chunk('"choices":[{"usage":{"finish_reason":"stop"')]) == (2, None, (), False, False, True)


def test_continuous_usage_is_summed_over_choices() -> None:
    counted = [chunk("a", index=i, usage={"prompt_tokens": 4, "completion_tokens": 5 + i}) for i in (0, 1)]
    assert seen(counted)[0] == 11
    assert seen([*counted, usage_event(4, 12)])[0] == 12


def test_finish_reasons_are_in_the_order_of_the_choices() -> None:
    assert seen([chunk("", index=1, finish="length"), chunk("", index=0, finish="stop")])[2] == ("stop", "length")


def test_an_error_event_is_noticed() -> None:
    assert seen([chunk("a"), ERROR, DONE])[3:5] == (True, True)


def test_cached_tokens_are_read() -> None:
    observer = StreamObserver()
    observer.feed(usage_event(7, 3, prompt_tokens_details={"cached_tokens": 4}))
    assert observer.usage == Usage(7, 3, 4)


def test_an_event_too_long_to_be_kept_is_counted_and_the_next_is_read() -> None:
    long = chunk("x" * (EVENT_BYTES_MAX * 2))
    observer = StreamObserver()
    for start in range(0, len(long), 65536):
        observer.feed(long[start : start + 65536])
    observer.feed(usage_event(1, 2))
    assert observer.usage == Usage(1, 2)
    assert observer.first_content


@pytest.mark.parametrize(
    "junk", [b"\xff\xfe\n\n", b"data: {\n\n", b"data: []\n\n", b'data: {"choices":3}\n\n', b"data: " + b"[" * 5000 + b"\n\n"]
)
def test_what_is_no_stream_counts_nothing(junk: bytes) -> None:
    assert seen([junk]) == (0, None, (), False, False, False)


def test_only_the_usage_event_is_taken_out() -> None:
    expected = STREAM.replace(usage_event(7, 3), b"")
    assert stripped([STREAM]) == expected
    assert stripped([STREAM[i : i + 1] for i in range(len(STREAM))]) == expected


def test_one_usage_event_is_taken_out_not_two() -> None:
    assert stripped([chunk("a") + usage_event(1, 2) * 2]) == chunk("a") + usage_event(1, 2)


def test_an_engine_that_forces_usage_on_everybody_keeps_its_final_event() -> None:
    forced = chunk("", role="assistant", usage={"prompt_tokens": 7, "completion_tokens": 0})
    data = forced + chunk("a", usage={"prompt_tokens": 7, "completion_tokens": 1}) + usage_event(7, 1) + DONE
    assert stripped([data]) == data
    assert stripped([data[i : i + 1] for i in range(len(data))]) == data


def test_ordinary_events_pass_at_once_and_unfinished_ones_too_once_they_cannot_be_usage() -> None:
    stripper = UsageStripper()
    assert stripper.feed(OPENER) == OPENER
    assert stripper.feed(chunk("a")) == chunk("a")
    part = chunk("b")
    undecided, decided = part[:16], part[16:60]
    assert stripper.feed(undecided) == b""
    assert stripper.feed(decided) == undecided + decided
    assert stripper.feed(part[60:]) == part[60:]
    assert stripper.feed(b": keep-al") == b": keep-al"
    assert stripper.feed(b"ive\n\n" + usage_event(1, 2)[:40]) == b"ive\n\n"
    assert stripper.feed(usage_event(1, 2)[40:] + DONE) == DONE
    assert stripper.flush() == b""


def test_what_is_held_when_the_stream_breaks_is_given_out() -> None:
    stripper = UsageStripper()
    assert stripper.feed(chunk("a") + b'data: {"id"') == chunk("a")
    assert stripper.flush() == b'data: {"id"'


def body(**usage: Any) -> bytes:
    choices = [
        {"index": i, "message": {"content": 'say "usage": {"prompt_tokens": 1}'}, "finish_reason": r}
        for i, r in ((1, "length"), (0, "stop"))
    ]
    return json.dumps({"id": "c", "choices": choices, "usage": usage, "prompt_logprobs": None}).encode()


def test_usage_of_a_whole_body() -> None:
    data = body(prompt_tokens=9, completion_tokens=4, prompt_tokens_details={"cached_tokens": 8})
    assert read_usage(data) == Usage(9, 4, 8, ("stop", "length"))


def test_usage_of_the_other_apis() -> None:
    assert read_usage(b'{"type":"message","usage":{"input_tokens":5,"output_tokens":6}}') == Usage(5, 6)
    assert read_usage(b'{"usage":{"input_tokens":5,"input_tokens_details":{"cached_tokens":2},"output_tokens":6}}') == Usage(
        5, 6, 2
    )


def test_usage_of_the_end_of_a_body() -> None:
    data = body(prompt_tokens=9, prompt_tokens_details={"cached_tokens": 8}, completion_tokens=4)
    assert read_usage(data[40:]) == Usage(9, 4, 8)


@pytest.mark.parametrize(
    "data", [b"", b"[]", b"{}", b'{"usage":null}', b'{"usage":{}}', b'{"usage":{"prompt_tokens":1', b'x"usage":{"a":{}', b"\xff"]
)
def test_no_usage_is_none(data: bytes) -> None:
    assert read_usage(data) is None


def test_a_body_longer_than_is_kept_still_tells_its_usage() -> None:
    tail = BodyTail()
    long = json.dumps(
        {"choices": [{"text": "y" * (3 * BODY_BYTES_KEPT_MAX)}], "usage": {"prompt_tokens": 1, "completion_tokens": 2}}
    ).encode()
    for start in range(0, len(long), 100_000):
        tail.feed(long[start : start + 100_000])
    assert tail.usage() == Usage(1, 2)
