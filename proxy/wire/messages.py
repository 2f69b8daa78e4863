"""Read Anthropic's ``/v1/messages`` bodies as the engine does: it makes a chat of them and serves that (vLLM anthropic/serving.py).

Content blocks become content parts, tool uses become tool calls, tool results become messages of their own before the message they came
in. System texts are joined without a space. What a later engine may know and this file does not (another block type) makes the call
uncountable, so that it is estimated from its bytes; a body without messages raises UnreadableCallError.
"""

import json
from collections import Counter
from typing import Any

from proxy.wire.body_fields import (
    json_bytes,
    measure_messages,
    media_counts,
    objects,
    output_tokens,
    template_kwargs,
    text_or_none,
)
from proxy.wire.call import Call, CallKind, ChatPrompt
from proxy.wire.lax import UnreadableCallError, lax_bool

_BILLING_HEADER = "x-anthropic-billing-header"  # changes on every call of a coding agent; the engine leaves it out
_TOOL_CHANGES = frozenset({"tool_addition", "tool_removal"})
_BLOCK_TYPES = _TOOL_CHANGES | {
    "text", "image", "tool_use", "tool_result", "tool_reference", "thinking", "redacted_thinking",
}  # fmt: skip

Message = dict[str, Any]


def read_messages(fields: dict[str, Any]) -> Call:
    """Read a body. Raises UnreadableCallError."""
    given = objects(fields.get("messages"))
    if given is None:
        raise UnreadableCallError("messages is not a list of objects")
    messages = [*_system(fields.get("system")), *(made for message in given for made in _message(message))]
    tools = _tools(objects(fields.get("tools")) or (), given)
    media, text_bytes = measure_messages(messages)
    text_bytes += sum(map(json_bytes, tools))
    config = _object(fields.get("output_config"))
    thinking = _object(fields.get("thinking")).get("type")
    chat = ChatPrompt(
        messages=tuple(messages),
        tools=tools or None,
        template_kwargs=template_kwargs(fields.get("chat_template_kwargs"), config.get("effort")),
        merges_system=True,
        thinking_off=thinking == "disabled",
        text_bytes=text_bytes,
    )
    return Call(
        kind=CallKind.MESSAGES,
        model=text_or_none(fields.get("model")),
        stream=lax_bool(fields.get("stream"), default=False),
        usage_wanted=True,
        output_tokens_max=output_tokens(fields.get("max_tokens"), None),
        chats=(chat,),
        countable=all(text_or_none(block.get("type")) in _BLOCK_TYPES for message in given for block in _blocks(message)),
        has_tools=bool(tools),
        has_response_format=config.get("format") is not None,
        cache_salt=text_or_none(fields.get("cache_salt")),
        user=text_or_none(_object(fields.get("metadata")).get("user_id")),
        media=media_counts(Counter(media)),
        prompt_bytes=text_bytes,
    )


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _blocks(message: Message) -> tuple[dict[str, Any], ...]:
    return objects(message.get("content")) or ()


def _system(system: Any) -> list[Message]:
    """The leading system message. The header is left out of blocks only: of text the chat route takes its line away."""
    text = system if isinstance(system, str) else _joined_texts(objects(system) or ())
    return [{"role": "system", "content": text}] if text else []


def _joined_texts(blocks: tuple[dict[str, Any], ...]) -> str:
    texts = [block["text"] for block in blocks if block.get("type") == "text" and isinstance(block.get("text"), str)]
    return "".join(text for text in texts if not text.startswith(_BILLING_HEADER))


def _message(message: Message) -> list[Message]:
    """The chat messages that one message becomes: tool results first, then what is left of it."""
    role, content = message.get("role"), message.get("content")
    if role == "system":
        text = content if isinstance(content, str) else _joined_texts(_blocks(message))
        return [{"role": "system", "content": text}] if text and not text.startswith(_BILLING_HEADER) else []
    made: list[Message] = []
    own: Message = {"role": role}
    if isinstance(content, str):
        own["content"] = content
    else:
        _convert(_blocks(message), own, made)
    if role != "user" or "content" in own:
        made.append(own)
    return made


def _convert(blocks: tuple[dict[str, Any], ...], own: Message, before: list[Message]) -> None:
    """Put blocks into ``own``; what becomes a message of its own goes ``before`` it."""
    parts: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for block in blocks:
        kind = block.get("type")
        if kind == "thinking" and isinstance(block.get("thinking"), str):
            thoughts.append(block["thinking"])
        elif kind == "tool_use":
            calls.append(_tool_call(block))
        elif kind == "tool_result" and own["role"] == "user":
            before += _tool_result(block)
        elif (part := _part(block)) is not None:
            parts.append(part)
    if thoughts:
        own["reasoning"] = "".join(thoughts)
    if calls:
        own["tool_calls"] = calls
    if len(parts) == 1 and parts[0]["type"] == "text":
        own["content"] = parts[0]["text"]
    elif parts:
        own["content"] = parts


def _tool_call(block: dict[str, Any]) -> dict[str, Any]:
    function = {"name": block.get("name") or "", "arguments": json.dumps(block.get("input") or {})}
    return {"id": block.get("id") or "", "type": "function", "function": function}


def _part(block: dict[str, Any]) -> dict[str, Any] | None:
    """The content part that a block becomes; None where it becomes none."""
    match block.get("type"):
        case "text" if block.get("text"):
            return {"type": "text", "text": block["text"]}
        case "image" if block.get("source"):
            return _image(block["source"])
        case "tool_result":  # in an assistant's message
            return {"type": "text", "text": f"Tool result: {block.get('content') or ''}"}
    return None


def _image(source: Any) -> dict[str, Any]:
    """An image part, with the address or the data, for a replica that is asked how long it makes the prompt."""
    given = _object(source)
    if given.get("type") == "url":
        url = given.get("url", "")
    else:
        url = f"data:{given.get('media_type', 'image/jpeg')};base64,{given.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": url}}


def _tool_result(block: dict[str, Any]) -> list[Message]:
    """A user's tool result: its text, then its images, then the tools it refers to."""
    content, call_id = block.get("content"), block.get("tool_use_id") or ""
    items = objects(content) or ()
    texts = [item.get("text", "") for item in items if item.get("type") == "text"]
    text = content if isinstance(content, str) else "\n".join(text for text in texts if isinstance(text, str))
    made: list[Message] = [{"role": "tool", "tool_call_id": call_id, "content": text}]
    images = [_image(item.get("source")) for item in items if item.get("type") == "image"]
    if images:
        made.append({"role": "user", "content": images})
    names = [item.get("tool_name") or item.get("name") for item in items if item.get("type") == "tool_reference"]
    references = [{"type": "tool_reference", "name": name} for name in names if name]
    if references:
        made.append({"role": "tool", "tool_call_id": call_id, "content": references})
    return made


def _tools(declared: tuple[dict[str, Any], ...], messages: tuple[Message, ...]) -> tuple[dict[str, Any], ...]:
    """The tools in effect at the end of the conversation, as chat tools."""
    tools: dict[Any, dict[str, Any]] = {str(tool.get("name")): tool for tool in declared}
    removed: set[str] = set()
    for block in (block for message in messages for block in _blocks(message) if _changes_tools(block)):
        change = _object(block.get("tool"))
        defined = change.get("type") == "tool_definition"
        tool = _object(change.get("definition")) if defined else tools.get(str(change.get("name")), {})
        name = str(tool.get("name"))
        if block["type"] == "tool_removal":
            removed.add(name)
            continue
        tools[name] = tool if defined else {**tool, "defer_loading": None}
        removed.discard(name)
    return tuple(_tool(tool) for name, tool in tools.items() if name not in removed)


def _changes_tools(block: Message) -> bool:
    return text_or_none(block.get("type")) in _TOOL_CHANGES


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    schema = tool.get("input_schema")
    if isinstance(schema, dict) and "type" not in schema:
        schema = {**schema, "type": "object"}
    named = {"name": tool.get("name"), "description": tool.get("description"), "parameters": schema}
    return {"type": "function", "function": named | {"strict": tool.get("strict"), "defer_loading": tool.get("defer_loading")}}
