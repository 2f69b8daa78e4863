"""Messages and tools in the shape vLLM 0.32 hands to a chat template of content format "string".

Written apart from the proxy's own normalisation on purpose: a test holds the two against each other.
"""

import json
from typing import Any

TEXT_OF_PART = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal", "thinking": "thinking"}


class UnreadableMessageError(Exception):
    """The server would refuse this message; the text is for the client."""


def template_messages(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Content as text, tool-call arguments as objects, and developer turns as part of the one system message."""
    shaped = [_message(message) for message in messages]
    if not any(message["role"] == "developer" for message in shaped):
        return shaped
    systems = [message for message in shaped if message["role"] in ("developer", "system")]
    if systems == shaped[:1]:
        return [{**systems[0], "role": "system"}, *shaped[1:]]
    text = "\n\n".join(message["content"] for message in systems if message["content"])
    return [{"role": "system", "content": text}, *(message for message in shaped if message not in systems)]


def template_tools(tools: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tools with their declared fields in declared order; description and parameters are always there."""
    return [_tool(tool) for tool in tools]


def template_variables(given: dict[str, Any]) -> dict[str, Any]:
    """Template arguments of a request: null and "auto" are as if not given."""
    return {name: value for name, value in given.items() if value is not None and value != "auto"}


def _message(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    parts = [] if content is None else content if isinstance(content, list) else [content]
    shaped: dict[str, Any] = {"role": message["role"], "content": "\n".join(text for part in parts if (text := _part_text(part)))}
    calls = message.get("tool_calls")
    if message["role"] == "assistant" and isinstance(calls, list) and calls:
        shaped["tool_calls"] = [_tool_call(call) for call in calls]
    return shaped


def _part_text(part: Any) -> str:
    if isinstance(part, str):
        return part
    kind = part.get("type") if isinstance(part, dict) else None
    if kind not in TEXT_OF_PART:
        raise UnreadableMessageError(f"Unknown part type: {kind}")
    return str(part.get(TEXT_OF_PART[kind]) or "")


def _tool_call(call: Any) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise UnreadableMessageError("chat completions only support assistant tool_calls of type 'function'.")
    arguments = function.get("arguments")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except ValueError:
            arguments = {}  # a broken call of an earlier turn must not end the conversation
    rest = {name: value for name, value in function.items() if name not in ("arguments", "name")}
    shaped = {"arguments": arguments if isinstance(arguments, dict) else {}, "name": function.get("name"), **rest}
    return {**call, "function": shaped}


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    function = tool.get("function")
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise UnreadableMessageError("a tool needs a function with a name")
    shaped = {name: function.get(name) for name in ("name", "description", "parameters")}
    shaped |= {name: function[name] for name in ("strict", "defer_loading") if function.get(name) is not None}
    return {"type": "function", "function": shaped}
