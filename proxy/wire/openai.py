"""Read OpenAI chat and completion bodies: only what changes KV demand or its accounting (reference vllm.md §4.4).

Reading is lax where the engine is lax, and harmless where the engine will refuse: a limit below one reads as one, a bad flag as its
default. Only a body whose prompt or sampling counts cannot be made out raises UnreadableCallError; the engine refuses such a body
too, so it may be forwarded without a lease.
"""

from typing import Any

from proxy.wire.call import Call, CallKind, ChatPrompt
from proxy.wire.inject import inject_usage
from proxy.wire.lax import UnreadableCallError, lax_bool, lax_int, parse_object, utf8_bytes

__all__ = ["UnreadableCallError", "inject_usage", "read_call"]

COMPLETION_TOKENS_DEFAULT = 16
# The engine refuses more (VLLM_MAX_N_SEQUENCES and 64-bit fields); clamping keeps later arithmetic in machine range.
COPIES_MAX = 16384
TOKENS_MAX = 2**31 - 1

TEXT_PART_TYPES = frozenset({"text", "input_text", "output_text", "refusal", "thinking", "tool_reference"})
# Keys that make a part media whatever its ``type`` says (vLLM renderers/chat_utils.py, has_non_text_content).
MEDIA_PART_KEYS = (
    "image_url", "image_embeds", "image_pil", "input_image", "audio_url", "audio_embeds", "input_audio",
    "video_url", "video_embeds", "prompt_embeds",
)  # fmt: skip


def read_call(kind: CallKind, body: bytes) -> Call:
    """Read a body. Raises UnreadableCallError (and nothing else, whatever the bytes)."""
    fields = parse_object(body)
    return _read_chat(fields) if kind is CallKind.CHAT else _read_completions(fields)


def _read_chat(fields: dict[str, Any]) -> Call:
    messages = fields.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise UnreadableCallError("messages is not a list of objects")
    tools = _objects(fields.get("tools"))
    documents = _objects(fields.get("documents"))
    media_items, text_bytes = _measure_messages(messages)
    for extra in (*(tools or ()), *(documents or ())):
        text_bytes += _text_bytes(extra)
    limit = fields.get("max_completion_tokens")
    chat = ChatPrompt(
        messages=tuple(messages),
        tools=tools,
        documents=documents,
        template_kwargs=_template_kwargs(fields),
        chat_template=_text(fields.get("chat_template")),
        add_generation_prompt=lax_bool(fields.get("add_generation_prompt"), default=True),
        continue_final_message=lax_bool(fields.get("continue_final_message"), default=False),
        add_special_tokens=lax_bool(fields.get("add_special_tokens"), default=False),
    )
    # echo makes the engine compute prompt_logprobs = top_logprobs (0 by default), which rules out a prefix lookup
    echo = lax_bool(fields.get("echo"), default=False)
    return Call(
        kind=CallKind.CHAT,
        output_tokens_max=_output_tokens(limit if limit is not None else fields.get("max_tokens"), None),
        chat=chat,
        has_tools=tools is not None,
        shares_prefix=not echo and fields.get("prompt_logprobs") is None,
        media_items=media_items,
        prompt_bytes=text_bytes,
        **_common(fields),
    )


def _read_completions(fields: dict[str, Any]) -> Call:
    prompts = _prompts(fields.get("prompt"))
    embeds = _embeds_bytes(fields.get("prompt_embeds"))
    if not prompts and not embeds:
        raise UnreadableCallError("prompt is missing or empty")
    echo = lax_bool(fields.get("echo"), default=False)
    # null is the rest of the context in older engines and 16 in 0.32; the larger bound is safe for both
    output_tokens_max = _output_tokens(fields.get("max_tokens", COMPLETION_TOKENS_DEFAULT), None)
    logprobs_of_prompt = fields.get("prompt_logprobs") is not None or (echo and fields.get("logprobs") is not None)
    return Call(
        kind=CallKind.COMPLETIONS,
        output_tokens_max=output_tokens_max,
        prompts=prompts,
        prompt_embeds=bool(embeds),
        embeds_bytes=embeds,
        add_special_tokens=lax_bool(fields.get("add_special_tokens"), default=True),
        shares_prefix=not logprobs_of_prompt,
        prompt_bytes=sum(utf8_bytes(prompt) for prompt in prompts if isinstance(prompt, str)),
        **_common(fields),
    )


def _common(fields: dict[str, Any]) -> dict[str, Any]:
    options = fields.get("stream_options")
    options = options if isinstance(options, dict) else {}
    copies = fields.get("n")
    n = 1 if copies is None else lax_int(copies)
    if n is None:
        raise UnreadableCallError("n is not an integer")
    truncate = fields.get("truncate_prompt_tokens")
    priority = lax_int(fields.get("priority"))
    return {
        "model": _text(fields.get("model")),
        "stream": lax_bool(fields.get("stream"), default=False),
        "usage_wanted": lax_bool(options.get("include_usage"), default=False),
        "usage_continuous": lax_bool(options.get("continuous_usage_stats"), default=False),
        "has_stream_options": "stream_options" in fields,
        "n": min(max(n, 1), COPIES_MAX),
        "truncate_prompt_tokens": None if truncate is None else _truncation(truncate),
        "beam_search": lax_bool(fields.get("use_beam_search"), default=False),
        "cache_salt": _text(fields.get("cache_salt")),
        "has_response_format": fields.get("response_format") is not None or fields.get("structured_outputs") is not None,
        "user": _text(fields.get("user")),
        "prompt_cache_key": _text(fields.get("prompt_cache_key")),
        "priority": priority,
    }


def _output_tokens(value: Any, absent: int | None) -> int | None:
    if value is None:
        return absent
    limit = lax_int(value)
    if limit is None:
        raise UnreadableCallError("max_tokens is not an integer")
    return min(max(limit, 1), TOKENS_MAX)  # echo with 0 runs one step; other values below 1 are refused by the engine


def _truncation(value: Any) -> int | None:
    limit = lax_int(value)
    return None if limit is None or limit < -1 else min(limit, TOKENS_MAX)


def _template_kwargs(fields: dict[str, Any]) -> dict[str, Any]:
    given = fields.get("chat_template_kwargs")
    kwargs = dict(given) if isinstance(given, dict) else {}
    effort = fields.get("reasoning_effort")
    if effort is not None:
        kwargs.setdefault("enable_thinking", effort != "none")
        kwargs["reasoning_effort"] = effort
    return kwargs


def _prompts(value: Any) -> tuple[str | tuple[int, ...], ...]:
    if value is None or value == "":
        return ()
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list):
        raise UnreadableCallError("prompt is neither text nor a list")
    kinds = set(map(type, value))
    if not kinds:
        return ()
    if kinds == {str}:
        return tuple(value)
    if kinds == {list}:
        return tuple(_token_ids(ids) for ids in value)
    return (_token_ids(value),)


def _token_ids(values: list[Any]) -> tuple[int, ...]:
    if set(map(type, values)) <= {int}:
        return tuple(values)
    ids = tuple(lax_int(value) for value in values)
    if None in ids:
        raise UnreadableCallError("prompt mixes text and token ids")
    return ids  # type: ignore[return-value]


def _embeds_bytes(value: Any) -> tuple[int, ...]:
    if isinstance(value, str):
        return (len(value),)
    if isinstance(value, list):
        return tuple(len(item) for item in value if isinstance(item, str))
    return ()


def _objects(value: Any) -> tuple[dict[str, Any], ...] | None:
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        return None
    return tuple(value)


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _measure_messages(messages: list[dict[str, Any]]) -> tuple[int, int]:
    """Media items and UTF-8 bytes of all text that a template may render."""
    media_items = text_bytes = 0
    for message in messages:
        for key, value in message.items():
            if isinstance(value, str):
                text_bytes += utf8_bytes(value)
            elif key == "content" and isinstance(value, list):
                for part in value:
                    if is_media_part(part):
                        media_items += 1
                    else:
                        text_bytes += _text_bytes(part)
            else:
                text_bytes += _text_bytes(value)
    return media_items, text_bytes


def is_media_part(part: Any) -> bool:
    """Whether a content part stands for something other than text, by vLLM's own rule."""
    if not isinstance(part, dict):
        return False
    kind = part.get("type", "text")
    return not isinstance(kind, str) or kind not in TEXT_PART_TYPES or any(key in part for key in MEDIA_PART_KEYS)


def _text_bytes(value: Any) -> int:
    """Bytes of keys and scalars in a parsed value, about as a template's ``tojson`` writes them; iterative, so depth is no limit."""
    total = 0
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, str):
            total += utf8_bytes(item) + 4
        elif isinstance(item, dict):
            pending.extend(item.values())
            total += sum(utf8_bytes(key) + 4 for key in item)
        elif isinstance(item, list):
            pending.extend(item)
        else:
            total += 4
    return total
