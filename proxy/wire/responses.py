"""Read ``/v1/responses`` bodies as the engine does: it makes a chat of them and serves that (vLLM openai/responses/utils.py).

Reasoning, text and tool calls of one turn come as items of their own and are merged into one assistant message. Of a conversation that
the engine stored (``previous_response_id``) nothing is known here; the driver adds a bound. Items that the engine may know
and this file does not know make the call uncountable: it is estimated from its bytes. Tools that the engine runs itself (web search,
code, MCP) are not shown to the model, and what their loops add is not foreseen.
"""

import json
from typing import Any

from proxy.wire.body_fields import (
    json_bytes,
    measure_messages,
    media_counts,
    objects,
    output_tokens,
    sampling_fields,
    template_kwargs,
    text_or_none,
)
from proxy.wire.call import Call, CallKind, ChatPrompt
from proxy.wire.lax import UnreadableCallError, lax_bool

_CUSTOM_INPUT = "input"  # the one argument of the function that stands for a custom tool
_UNFINISHED = frozenset({"in_progress", "incomplete"})
_OUTPUT_TYPES = frozenset({"function_call_output", "custom_tool_call_output"})
_CUSTOM_SCHEMA = {
    "type": "object",
    "properties": {_CUSTOM_INPUT: {"type": "string", "description": "The freeform text payload for this tool."}},
    "required": [_CUSTOM_INPUT],
    "additionalProperties": False,
}

Item = dict[str, Any]


def read_responses(fields: dict[str, Any]) -> Call:
    """Read a body. Raises UnreadableCallError."""
    given = fields.get("input")
    if isinstance(given, list) and all(isinstance(item, dict) for item in given):
        items: list[Item] = given
    elif isinstance(given, str):
        items = [{"role": "user", "content": given}]
    else:
        raise UnreadableCallError("input is neither text nor a list of objects")
    instructions = fields.get("instructions")
    messages: list[Item] = [{"role": "system", "content": instructions}] if instructions else []
    known = _add_items(items, messages)
    declared = objects(fields.get("tools")) or ()
    tools = tuple(made for tool in declared for made in _tools(tool))
    known = known and not fields.get("previous_input_messages")
    media, text_bytes = measure_messages(messages)
    text_bytes += sum(map(json_bytes, tools)) if known else json_bytes([given, *declared, fields.get("previous_input_messages")])
    reasoning, text = _object(fields.get("reasoning")), _object(fields.get("text"))
    continued = not isinstance(given, str) and bool(items) and _is_unfinished(items[-1])
    chat = ChatPrompt(
        messages=tuple(messages),
        tools=tools or None,
        template_kwargs=template_kwargs(fields.get("chat_template_kwargs"), reasoning.get("effort")),
        add_generation_prompt=not continued,
        continue_final_message=continued,
        add_special_tokens=True,
        validated=False,
        text_bytes=text_bytes,
    )
    previous = text_or_none(fields.get("previous_response_id"))
    wanted = {
        "truncate_prompt_tokens": None if fields.get("truncation", "disabled") == "disabled" else -1,
        "response_format": text.get("format"),
        **{key: fields[key] for key in _SAMPLING if key in fields},
    }
    return Call(
        kind=CallKind.RESPONSES,
        output_tokens_max=output_tokens(fields.get("max_output_tokens"), None),
        chats=(chat,),
        countable=known and previous is None,
        previous_response_id=previous,
        background=lax_bool(fields.get("background"), default=False),
        has_tools=bool(declared),
        media=media_counts(media),
        prompt_bytes=text_bytes,
        **sampling_fields(wanted) | {"usage_wanted": True},
    )


_SAMPLING = ("model", "stream", "cache_salt", "structured_outputs", "user", "prompt_cache_key", "priority")


def _object(value: Any) -> Item:
    return value if isinstance(value, dict) else {}


def _is_unfinished(item: Item) -> bool:
    return item.get("type", "message") in ("message", "reasoning") and text_or_none(item.get("status")) in _UNFINISHED


def _add_items(items: list[Item], messages: list[Item]) -> bool:
    """Append what the items become to ``messages``; whether every item was one whose making is known."""
    known = True
    for item in items:
        last = messages[-1] if messages and messages[-1]["role"] == "assistant" else None
        kind, role = text_or_none(item.get("type")), item.get("role")
        if kind in {"function_call", "custom_tool_call"}:
            _merge_call(_tool_call(item), last, messages)
        elif kind == "reasoning":
            known = known and not item.get("encrypted_content")
            _merge("reasoning", _first_text(item.get("content")) or _first_text(item.get("summary")) or "", last, messages)
        elif kind in _OUTPUT_TYPES:
            messages.append({"role": "tool", "content": item.get("output"), "tool_call_id": item.get("call_id")})
        elif role == "assistant" and (text := _first_text(item.get("content"))) is not None:
            _merge("content", text, last, messages)
        elif isinstance(role, str):
            messages.append(item)
        else:
            known = False
    return known


def _merge(key: str, value: str, last: Item | None, messages: list[Item]) -> None:
    """Into the assistant message before, where that has none yet; else a message of its own."""
    if last is not None and last.get(key) is None:
        last[key] = value
    else:
        messages.append({"role": "assistant", key: value})


def _merge_call(call: Item, last: Item | None, messages: list[Item]) -> None:
    if last is None:
        messages.append({"role": "assistant", "tool_calls": [call]})
    else:
        earlier = last.get("tool_calls")
        last["tool_calls"] = [*(earlier if isinstance(earlier, list) else ()), call]


def _tool_call(item: Item) -> Item:
    name, arguments = item.get("name"), item.get("arguments")
    if item.get("type") == "custom_tool_call":
        arguments = json.dumps({_CUSTOM_INPUT: item.get("input") or ""}, ensure_ascii=False)
    elif item.get("namespace"):
        name = f"{item['namespace']}__{name}"
    return {"id": item.get("call_id"), "function": {"name": name, "arguments": arguments}, "type": "function"}


def _first_text(content: Any) -> str | None:
    """An item's text: of several parts the engine takes the first alone."""
    if isinstance(content, list) and content:
        content = content[0].get("text") if isinstance(content[0], dict) else None
    return content if isinstance(content, str) else None


def _tools(tool: Item) -> list[Item]:
    """The chat tools that one tool stands for; those the engine runs itself are not shown to the model."""
    if tool.get("type") == "custom":
        return [_function(tool | {"parameters": _CUSTOM_SCHEMA}, str(tool.get("name")))]
    if tool.get("type") == "function":
        return [_function(tool, str(tool.get("name")))]
    if tool.get("type") == "namespace":
        inner = objects(tool.get("tools")) or ()
        return [_function(one, f"{tool.get('name')}__{one.get('name')}") for one in inner if one.get("type") == "function"]
    return []


def _function(tool: Item, name: str) -> Item:
    named = {"name": name, "description": tool.get("description"), "parameters": tool.get("parameters")}
    return {"type": "function", "function": named | {"strict": tool.get("strict"), "defer_loading": tool.get("defer_loading")}}
