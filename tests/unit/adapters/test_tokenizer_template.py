"""Chat templates and the shape of messages before they get there."""

import json
from typing import Any

import pytest

from proxy.adapters.chat_messages import UnusualMessageError, developer_to_system, normalise_messages, normalise_tools
from proxy.adapters.chat_template import ChatTemplate, ChatTemplateError

USER = {"role": "user", "content": "hi"}


def template(source: str) -> ChatTemplate:
    return ChatTemplate(source, special_tokens={"eos_token": "</s>"}, wall_s=lambda: 86_400.0 * 365)


def render(source: str, messages: list[dict[str, Any]] | None = None, **options: Any) -> str:
    defaults: dict[str, Any] = {
        "tools": None, "documents": None, "kwargs": {}, "add_generation_prompt": False, "continue_final_message": False,
    }  # fmt: skip
    return template(source).render([USER] if messages is None else messages, **(defaults | options))


@pytest.mark.parametrize(
    ("source", "parts"),
    [
        ("{{ messages[0].content }}", False),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
        ("{% for m in messages %}{% for c in m.content %}{{ c.text }}{% endfor %}{% endfor %}", True),
        ("{% for m in messages %}{% for c in m['content'] | list %}{{ c }}{% endfor %}{% endfor %}", True),
        ("{% set x = messages[1:] %}{% for m in x %}{% for c in m.content %}{% endfor %}{% endfor %}", True),
        ("{% for m in messages %}{% set content = m.content %}{% for c in content %}{% endfor %}{% endfor %}", True),
        ("{% macro f(p) %}{% for c in p %}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(m.content) }}{% endfor %}", True),
        (
            "{% macro f(p) %}{% for c in p %}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(p=m.content) }}{% endfor %}",
            True,
        ),
        ("{% macro f(p) %}{% for c in p %}{% endfor %}{% endmacro %}{% for m in messages %}{{ f(m.role) }}{% endfor %}", False),
        ("{% for c in tools %}{{ c }}{% endfor %}", False),
        ("{% for i, m in messages | items %}{% endfor %}", False),
    ],
)
def test_content_format(source: str, parts: bool) -> None:
    assert template(source).wants_parts is parts


def test_the_environment_is_transformers() -> None:
    assert render("  {% if true %}\nx\n  {% endif %}\n") == "x\n"
    assert render("{{ {'a': '<é>'} | tojson }}{{ {'a': 1} | tojson(indent=1) }}") == '{"a": "<é>"}{\n "a": 1\n}'
    assert render("{% for i in [1, 2, 3] %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "1"
    assert render("{% generation %}a{% endgeneration %}") == "a"
    assert render("{{ strftime_now('%Y') }}") == "1971"
    assert render("{{ eos_token }}") == "</s>"


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}", "{{ messages.append(1) }}", "{{ ''.__class__.__mro__ }}", "{{ 1 / 0 }}", "{{ none.x.y }}",
        "{{ messages[5].x }}", "{{ 'a' + 1 }}", "{{ x | tojson }}", "{% for i in range(10**9) %}{% endfor %}",
    ],
)  # fmt: skip
def test_a_rejecting_template_raises_its_own_error(source: str) -> None:
    with pytest.raises(ChatTemplateError):
        render(source)


def test_only_declared_arguments_reach_the_template() -> None:
    source = "{{ thinking }}|{{ padding }}|{{ tools }}"
    assert render(source, kwargs={"thinking": 1, "padding": 2, "other": 3}) == "1||None"
    assert render("{{ eos_token }}", kwargs={"eos_token": "own"}) == "own"


CONTENT = "{% for m in messages %}[{{ m.content }}]{% endfor %}"


def test_a_final_message_is_continued() -> None:
    final = {"role": "assistant", "content": "It is "}
    assert render(CONTENT, [USER, final], continue_final_message=True) == "[hi][It is "
    trimmed = "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}"
    assert render(trimmed, [USER, final], continue_final_message=True) == "[hi][It is"
    parts = "{% for m in messages %}{% for c in m.content %}[{{ c.text }}]{% endfor %}{% endfor %}"
    message = {"role": "assistant", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
    assert render(parts, [message], continue_final_message=True) == "[a][b"
    assert message["content"][1] == {"type": "text", "text": "b"}


@pytest.mark.parametrize(
    ("source", "messages", "options"),
    [
        (CONTENT, [], {}),
        (CONTENT, [USER], {"add_generation_prompt": True}),
        (CONTENT, [{"role": "user", "content": None}], {}),
        (CONTENT, [{"role": "user", "content": []}], {}),
        ("fixed content", [USER], {}),
        ("fixed", [USER], {}),
    ],
)
def test_a_final_message_that_cannot_be_continued(source: str, messages: list[dict[str, Any]], options: dict[str, Any]) -> None:
    with pytest.raises(ChatTemplateError):
        render(source, messages, continue_final_message=True, **options)


@pytest.mark.parametrize(
    ("message", "text", "parts"),
    [
        (USER, "hi", [{"type": "text", "text": "hi"}]),
        ({"role": "user"}, "", []),
        ({"role": "user", "content": ""}, "", [{"type": "text", "text": ""}]),
        (
            {"role": "user", "content": ["a", {"type": "text", "text": "b", "cache_control": 1}, {"type": "text", "text": None}]},
            "a\nb",
            [{"type": "text", "text": "a"}, {"type": "text", "text": "b", "cache_control": 1}],
        ),
        (
            {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "refusal", "refusal": "no"}]},
            "a\nno",
            [{"type": "text", "text": "a"}, {"type": "text", "text": "no"}],
        ),
        (
            {"role": "tool", "content": [{"type": "text", "text": "a"}, {"type": "tool_reference", "name": "f"}]},
            "a\nf",
            [{"type": "text", "text": "a"}, {"type": "tool_reference", "name": "f"}],
        ),
        ({"role": "tool", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}, "a\nb", "a\nb"),
        ({"role": "user", "content": [{"type": "input_text", "text": None}]}, "", [{"type": "text", "text": None}]),
        ({"role": "system", "content": "x-anthropic-billing-header: 1"}, "", []),
        ({"role": "system", "content": "x-anthropic-billing-header: 1\nrest"}, "rest", [{"type": "text", "text": "rest"}]),
        ({"role": "user", "content": "x-anthropic-billing-header: 1"}, "x-anthropic-billing-header: 1", None),
    ],
)
def test_content_as_text_and_as_parts(message: dict[str, Any], text: str, parts: Any) -> None:
    assert normalise_messages((message,), wants_parts=False)[0]["content"] == text
    if parts is not None:
        assert normalise_messages((message,), wants_parts=True)[0]["content"] == parts


@pytest.mark.parametrize(
    "message",
    [
        {"content": "a"}, {"role": 5, "content": "a"}, {"role": "user", "content": 5}, {"role": "user", "content": [5]},
        {"role": "user", "content": [{"text": "a"}]}, {"role": "user", "content": [{"type": "image_url"}]},
        {"role": "user", "content": [{"type": "text", "text": "a", "uuid": "u"}]},
        {"role": "user", "content": [{"type": "text", "text": 5}]}, {"role": "assistant", "tool_calls": 5},
        {"role": "assistant", "tool_calls": [5]}, {"role": "assistant", "tool_calls": [{"type": "custom", "custom": {}}]},
    ],
)  # fmt: skip
def test_messages_the_engine_refuses(message: dict[str, Any]) -> None:
    with pytest.raises(UnusualMessageError):
        normalise_messages((message,), wants_parts=False)


def test_a_tool_result_without_text_is_refused_where_parts_are_joined() -> None:
    with pytest.raises(UnusualMessageError):
        normalise_messages(({"role": "tool", "content": [{"type": "input_text"}]},), wants_parts=True)


def test_fields_of_a_message() -> None:
    calls = [
        {"index": 0, "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}, "id": "i"},
        {"type": "function", "id": "j", "function": {"x": 1, "name": "g", "arguments": "[1]"}},
        {"type": "function", "id": "k", "function": {"name": "h", "arguments": ""}},
    ]
    message = {"foo": 1, "role": "assistant", "name": "n", "reasoning_content": "r", "tool_calls": calls}
    before = json.dumps(message)
    (found,) = normalise_messages((message,), wants_parts=False)
    # the engine's own order: the templates print it
    assert json.dumps(found) == json.dumps(
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [
                {"id": "i", "function": {"arguments": {"a": 1}, "name": "f"}, "type": "function", "index": 0},
                {"id": "j", "function": {"arguments": {}, "name": "g", "x": 1}, "type": "function"},
                {"id": "k", "function": {"arguments": {}, "name": "h"}, "type": "function"},
            ],
            "reasoning": "r",
            "reasoning_content": "r",
            "name": "n",
        }
    )
    assert json.dumps(message) == before
    (tool,) = normalise_messages(({"role": "tool", "content": "x", "tool_call_id": "i", "tool_calls": []},), wants_parts=False)
    assert tool == {"role": "tool", "content": "x", "tool_call_id": "i"}
    (empty,) = normalise_messages(({"role": "assistant", "content": "x", "tool_calls": []},), wants_parts=False)
    assert empty == {"role": "assistant", "content": "x"}


def test_tools_as_the_engine_dumps_them() -> None:
    tools = (
        {"function": {"x": 1, "name": "f"}, "type": "function", "y": 1},
        {"type": "function", "function": {"parameters": {"b": 1, "a": 2}, "description": "d", "name": "g", "strict": "true"}},
        {"type": "function", "function": {"name": "h"}, "defer_loading": True},
    )
    assert json.dumps(normalise_tools(tools)) == json.dumps(
        [
            {"type": "function", "function": {"name": "f", "description": None, "parameters": None}},
            {
                "type": "function",
                "function": {"name": "g", "description": "d", "parameters": {"b": 1, "a": 2}, "strict": True},
            },
            {
                "type": "function",
                "function": {"name": "h", "description": None, "parameters": None, "defer_loading": True},
                "defer_loading": True,
            },
        ]
    )
    assert normalise_tools(None) is None
    for bad in ({}, {"function": {}}, {"type": "x", "function": {"name": "f"}}):
        with pytest.raises(UnusualMessageError):
            normalise_tools((bad,))


def test_developer_messages_become_the_system_message() -> None:
    developer = {"role": "developer", "content": "dev", "tools": None}
    assert developer_to_system([USER]) == [USER]
    assert developer_to_system([developer, USER]) == [{"role": "system", "content": "dev"}, USER]
    parts = {"role": "system", "content": [{"type": "text", "text": "a"}, "b"]}
    merged = developer_to_system([parts, USER, developer])
    assert merged == [{"role": "system", "content": "a\nb\n\ndev"}, USER]
