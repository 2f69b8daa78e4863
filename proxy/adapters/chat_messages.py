"""Bring messages and tools into the shape the engine hands to a chat template (vLLM 0.32 renderers/chat_utils.py).

Validation there reorders keys (declared fields first, the client's extras after) and fills in nulls; templates that print an object
as JSON show that order, so it is reproduced. Input is never changed: every object that differs is made anew. What the engine would
refuse raises UnusualMessageError, or is passed on where the template decides.
"""

import json
from typing import Any

BILLING_HEADER = "x-anthropic-billing-header"
_TEXT_FIELD = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}
_SKIPPED_WHEN_NULL = frozenset({"text", "refusal"})
# Declared fields of any content part: they do not reach the template, other fields of a part do.
_PART_FIELDS = frozenset(
    {"audio_embeds", "audio_url", "closed", "data", "file", "image_embeds", "image_pil", "image_url", "input_audio", "name",
     "prompt_cache_breakpoint", "refusal", "text", "thinking", "type", "uuid", "video_embeds", "video_url"}
)  # fmt: skip
_TRUE_WORDS = frozenset({"1", "on", "t", "true", "y", "yes"})


class UnusualMessageError(Exception):
    """A message has a shape the engine refuses, or one that cannot be counted from text alone."""


def normalise_messages(
    messages: tuple[dict[str, Any], ...], *, wants_parts: bool, validated: bool = True
) -> list[dict[str, Any]]:
    """Messages for a template of content format "openai" (``wants_parts``) or "string". Raises UnusualMessageError.

    Not ``validated``: the engine made the tool calls itself, and their keys stay in the order it made them in.
    """
    return [_message(message, wants_parts, validated) for message in messages]


def normalise_tools(tools: tuple[dict[str, Any], ...] | None) -> list[dict[str, Any]] | None:
    """Tools as the engine's ``model_dump()`` gives them: description and parameters always there. Raises UnusualMessageError."""
    return None if tools is None else [_tool(tool) for tool in tools]


def developer_to_system(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """For templates without the developer role: make it system, and merge system messages into the first."""
    if not any(message["role"] == "developer" for message in messages):
        return messages
    converted = [
        {key: value for key, value in message.items() if key != "tools"} | {"role": "system"}
        if message["role"] == "developer"
        else message
        for message in messages
    ]
    systems = [index for index, message in enumerate(converted) if message["role"] == "system"]
    if systems == [0]:
        return converted
    texts = [text for index in systems if (text := _joined(converted[index].get("content", "")))]
    others = [message for message in converted if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *others]


def merge_system(messages: tuple[dict[str, Any], ...]) -> tuple[dict[str, Any], ...]:
    """For templates that want the system message first: all system texts in one, as the engine joins Anthropic's."""
    texts = [str(message.get("content")) for message in messages if message.get("role") == "system"]
    others = tuple(message for message in messages if message.get("role") != "system")
    return ({"role": "system", "content": "".join(texts)}, *others) if texts else others


def _joined(content: Any) -> Any:
    if not isinstance(content, list):
        return content
    texts = [part["text"] if isinstance(part, dict) else part for part in content if isinstance(part, str) or "text" in part]
    if not all(isinstance(text, str) for text in texts):
        raise UnusualMessageError("a content part has no text")
    return "\n".join(texts)


def _message(message: dict[str, Any], wants_parts: bool, validated: bool) -> dict[str, Any]:
    role = message.get("role")
    if not isinstance(role, str):
        raise UnusualMessageError("a message has no role")
    parts = _content_parts(message.get("content"))
    if role == "system":
        parts = _without_billing_header(parts)
    items = [item for part in parts if (item := _part(part, wants_parts))]
    result: dict[str, Any] = {"role": role, "content": items if wants_parts else "\n".join(items)}
    if role == "assistant":
        _add_assistant_fields(result, message, validated)
    elif role == "tool":
        if "tool_call_id" in message:
            result["tool_call_id"] = message["tool_call_id"]
        if wants_parts and all(part["type"] == "text" for part in items):
            result["content"] = _joined(items)
    for key in ("name", "task"):
        if isinstance(message.get(key), str):
            result[key] = message[key]
    if role == "developer":
        result["tools"] = _developer_tools(message.get("tools"))
    return result


def _content_parts(content: Any) -> list[Any]:
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if isinstance(content, list):
        return content
    raise UnusualMessageError("a message's content is neither text nor a list")


def _without_billing_header(parts: list[Any]) -> list[Any]:
    """The engine drops a line that coding agents put first and change on every call."""
    kept: list[Any] = []
    for part in parts:
        is_text_part = isinstance(part, dict) and part.get("type") == "text"
        text = part if isinstance(part, str) else part.get("text") if is_text_part else None
        if not (isinstance(text, str) and text.startswith(BILLING_HEADER)):
            kept.append(part)
            continue
        rest = text.partition("\n")[2]
        if rest:
            kept.append(rest if isinstance(part, str) else {**part, "text": rest})
    return kept


def _part(part: Any, wants_parts: bool) -> Any:
    """One content part: text in string mode, an object otherwise; a falsy value is left out."""
    if isinstance(part, str):
        return {"type": "text", "text": part} if wants_parts else part
    if not isinstance(part, dict):
        raise UnusualMessageError("a content part is neither text nor an object")
    kind = part.get("type")
    if kind == "tool_reference":
        name = part.get("name")
        return {"type": "tool_reference", "name": name} if wants_parts else name
    if not isinstance(kind, str) or kind not in _TEXT_FIELD or part.get("uuid") is not None:
        raise UnusualMessageError(f"a content part of type {kind!r} is no text")
    text = part.get(_TEXT_FIELD[kind])
    if text is None and (kind in _SKIPPED_WHEN_NULL or not wants_parts):
        return None
    if text is not None and not isinstance(text, str):
        raise UnusualMessageError(f"a content part of type {kind!r} has no text")
    if not wants_parts:
        return text
    return {"type": "text", "text": text} | {key: value for key, value in part.items() if key not in _PART_FIELDS}


def _add_assistant_fields(result: dict[str, Any], message: dict[str, Any], validated: bool) -> None:
    calls = message.get("tool_calls")
    if calls is not None:
        if not isinstance(calls, list):
            raise UnusualMessageError("tool_calls is not a list")
        if calls:
            result["tool_calls"] = [_tool_call(call, validated) for call in calls]
    reasoning = message.get("reasoning")
    if reasoning is None:
        reasoning = message.get("reasoning_content")
    if reasoning is not None:
        result["reasoning"] = result["reasoning_content"] = reasoning


def _tool_call(call: Any, validated: bool) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type", "function") != "function":
        raise UnusualMessageError("a tool call is not of type function")
    function = _ordered(function, ("arguments", "name") if validated else ())
    function["arguments"] = _arguments(function.get("arguments"))
    return _ordered({**call, "function": function}, ("id", "function", "type"))


def _arguments(value: Any) -> dict[str, Any]:
    """Arguments as an object: what does not decode to one counts as empty, as in the engine."""
    if isinstance(value, str) and value:
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


def _developer_tools(tools: Any) -> Any:
    if not isinstance(tools, list):
        return tools
    return [_ordered(tool, ("function", "type")) if isinstance(tool, dict) else tool for tool in tools]


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str) or tool.get("type", "function") != "function":
        raise UnusualMessageError("a tool is no function with a name")
    dumped: dict[str, Any] = {
        "name": function["name"],
        "description": function.get("description"),
        "parameters": function.get("parameters"),
    }
    deferred = tool.get("defer_loading")
    for key, value in (("strict", function.get("strict")), ("defer_loading", function.get("defer_loading", deferred))):
        if value is not None:
            dumped[key] = _truth(value)
    result: dict[str, Any] = {"type": "function", "function": dumped}
    if deferred is not None:
        result["defer_loading"] = _truth(deferred)
    return result


def _truth(value: Any) -> bool:
    return value.lower() in _TRUE_WORDS if isinstance(value, str) else bool(value)


def _ordered(value: dict[str, Any], first: tuple[str, ...]) -> dict[str, Any]:
    known = {key: value[key] for key in first if key in value}
    return known | {key: item for key, item in value.items() if key not in known}
