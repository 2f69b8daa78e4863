"""What the engine makes of Anthropic's and Responses calls depends on the model's template; so does the count."""

import json
from array import array
from pathlib import Path
from typing import Any

import pytest

from proxy.adapters.local_counter import LocalCounter
from proxy.adapters.remote_counter import RemoteCountError
from proxy.adapters.tokenizer_files import open_tokenizer
from proxy.wire.call import Call, CallKind
from proxy.wire.read_call import read_call
from tests.support.tiny_tokenizer import write_model
from tests.unit.adapters.counting import answering

USER = {"role": "user", "content": "hi"}
LINES = "{% for m in messages %}{{ m.role[0] }}:{{ m.content }};{% endfor %}"
GUARD = "{% if m.role == 'system' and not loop.first %}{{ raise_exception('no') }}{% endif %}"
SYSTEM_FIRST = LINES.replace("{{ m.role", GUARD + "{{ m.role")


def messages(**fields: Any) -> Call:
    return read_call(CallKind.MESSAGES, json.dumps({"model": "m", "max_tokens": 1, "messages": [USER]} | fields).encode())


def rendered(folder: Path, template: str, call: Call) -> str:
    counter = LocalCounter(open_tokenizer(str(write_model(folder, chat_template=template)), wall_s=lambda: 0.0))
    assert counter.can_count(call)
    assert call.chat is not None
    return counter._render(call.chat)


@pytest.mark.parametrize(("template", "text"), [(LINES, "s:A;u:hi;s:B;u:hi;"), (SYSTEM_FIRST, "s:AB;u:hi;u:hi;")])
def test_late_system_messages_move_where_the_template_wants_them_first(tmp_path: Path, template: str, text: str) -> None:
    call = messages(system="A", messages=[USER, {"role": "system", "content": "B"}, USER])
    assert rendered(tmp_path, template, call) == text


@pytest.mark.parametrize(
    ("template", "text"),
    [
        ("{{ messages[0].content }}{{ reasoning_effort }}", "hinone"),
        ("{{ messages[0].content }}{{ enable_thinking }}", "hiFalse"),
        ("{{ messages[0].content }}{{ 'x' if reasoning_effort == 'low' }}", "hix"),  # medium makes the same prompt as none
        ("{{ messages[0].content }}{{ raise_exception('no') if reasoning_effort == 'none' }}|{{ reasoning_effort }}", "hi|low"),
    ],
)  # fmt: skip
def test_thinking_off_is_the_least_effort_that_the_template_knows(tmp_path: Path, template: str, text: str) -> None:
    assert rendered(tmp_path, template, messages(thinking={"type": "disabled"})) == text


def test_tool_calls_keep_the_order_in_which_the_engine_made_them(tmp_path: Path) -> None:
    template = "{% for m in messages %}{% for c in m.tool_calls %}{{ c.function | tojson }}{% endfor %}{% endfor %}"
    item = {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"}
    responses = read_call(CallKind.RESPONSES, json.dumps({"input": [item]}).encode())
    assert rendered(tmp_path / "a", template, responses) == '{"name": "f", "arguments": {}}'
    use = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": {}}]}
    assert rendered(tmp_path / "b", template, messages(messages=[use])) == '{"arguments": {}, "name": "f"}'


async def test_a_replica_is_not_asked_for_what_it_cannot_know() -> None:
    remote, seen = answering(7)
    for call in (
        messages(thinking={"type": "disabled"}),
        read_call(CallKind.RESPONSES, b'{"input": "hi", "previous_response_id": "resp_1"}'),
    ):
        with pytest.raises(RemoteCountError):
            await remote.count(call)
    assert await remote.count(messages()) == [array("I", range(7)).tobytes()]
    assert len(seen) == 1


@pytest.mark.parametrize(
    ("source", "url"),
    [
        ({"type": "base64", "media_type": "image/png", "data": "QUJD"}, "data:image/png;base64,QUJD"),
        ({"type": "url", "url": "https://x/a.png"}, "https://x/a.png"),
    ],
)  # fmt: skip
async def test_a_replica_is_asked_how_long_images_are(source: dict[str, Any], url: str) -> None:
    remote, seen = answering(900)
    picture = {"role": "user", "content": [{"type": "image", "source": source}, {"type": "text", "text": "what?"}]}
    call = messages(messages=[picture])
    assert call.media == (("image", 1),)
    (ids,) = await remote.count(call)
    assert len(ids) // 4 == 900
    (asked,) = seen
    assert asked["messages"][0]["content"][0] == {"type": "image_url", "image_url": {"url": url}}


def test_what_is_not_countable_is_not_counted_here(tmp_path: Path) -> None:
    counter = LocalCounter(open_tokenizer(str(write_model(tmp_path)), wall_s=lambda: 0.0))
    assert not counter.can_count(read_call(CallKind.RESPONSES, b'{"input": "hi", "previous_response_id": "resp_1"}'))
    assert not counter.can_count(read_call(CallKind.RANKING, b'{"query": "a", "documents": ["b"]}'))
