"""Fields that several request formats have in common, read as the engine reads them (reference vllm.md §4.4).

Reading is lax where the engine is lax, and harmless where the engine will refuse: a limit below one reads as one, a bad flag as its
default. Only what leaves the prompt or the sampling counts unknown raises UnreadableCallError.
"""

from collections import Counter
from typing import Any

from proxy.wire.call import ChatPrompt
from proxy.wire.lax import UnreadableCallError, lax_bool, lax_int, utf8_bytes

# The engine refuses more (VLLM_MAX_N_SEQUENCES and 64-bit fields); clamping keeps later arithmetic in machine range.
COPIES_MAX = 16384
TOKENS_MAX = 2**31 - 1

TEXT_PART_TYPES = frozenset({"text", "input_text", "output_text", "refusal", "thinking", "tool_reference"})
# Keys that make a part media whatever its ``type`` says (vLLM renderers/chat_utils.py, has_non_text_content).
MEDIA_PART_KEYS = (
    "image_url", "image_embeds", "image_pil", "input_image", "audio_url", "audio_embeds", "input_audio",
    "video_url", "video_embeds", "prompt_embeds",
)  # fmt: skip
MEDIA_KINDS = ("image", "audio", "video")
_NO_MEDIA: Counter[str] = Counter()  # of most conversations; nobody adds to it
# What few requests say. One without any of it is read by two look-ups in a set instead of one for each.
RARE_SAMPLING = frozenset(
    {
        "n", "stream_options", "truncate_prompt_tokens", "use_beam_search", "cache_salt", "response_format", "structured_outputs",
        "user", "prompt_cache_key", "priority",
    }
)  # fmt: skip
RARE_IN_CHATS = frozenset(
    {
        "tools", "documents", "chat_template_kwargs", "reasoning_effort", "chat_template", "add_generation_prompt",
        "continue_final_message", "add_special_tokens",
    }
)  # fmt: skip


def sampling_fields(fields: dict[str, Any]) -> dict[str, Any]:
    """What chat, completion and token calls say alike, as arguments of ``Call``; what is absent has its default there."""
    said = {"model": text_or_none(fields.get("model")), "stream": lax_bool(fields.get("stream"), default=False)}
    if RARE_SAMPLING.isdisjoint(fields):
        return said
    options = fields.get("stream_options")
    options = options if isinstance(options, dict) else {}
    copies = fields.get("n")
    n = 1 if copies is None else lax_int(copies)
    if n is None:
        raise UnreadableCallError("n is not an integer")
    truncate = fields.get("truncate_prompt_tokens")
    priority = lax_int(fields.get("priority"))
    return said | {
        "usage_wanted": lax_bool(options.get("include_usage"), default=False),
        "usage_continuous": lax_bool(options.get("continuous_usage_stats"), default=False),
        "has_stream_options": "stream_options" in fields,
        "n": min(max(n, 1), COPIES_MAX),
        "truncate_prompt_tokens": None if truncate is None else truncation(truncate),
        "beam_search": lax_bool(fields.get("use_beam_search"), default=False),
        "cache_salt": text_or_none(fields.get("cache_salt")),
        "has_response_format": fields.get("response_format") is not None or fields.get("structured_outputs") is not None,
        "user": text_or_none(fields.get("user")),
        "prompt_cache_key": text_or_none(fields.get("prompt_cache_key")),
        "priority": priority,
    }


def output_tokens(value: Any, absent: int | None) -> int | None:
    """A limit on output tokens, at least one. Raises UnreadableCallError."""
    if value is None:
        return absent
    limit = lax_int(value)
    if limit is None:
        raise UnreadableCallError("max_tokens is not an integer")
    return min(max(limit, 1), TOKENS_MAX)  # echo with 0 runs one step; other values below 1 are refused by the engine


def truncation(value: Any) -> int | None:
    """A length to truncate prompts to; −1 stands for the context."""
    limit = lax_int(value)
    return None if limit is None or limit < -1 else min(limit, TOKENS_MAX)


def template_kwargs(given: Any, effort: Any) -> dict[str, Any]:
    """Template arguments: the client's, with the reasoning effort and what follows from it laid over them."""
    kwargs = dict(given) if isinstance(given, dict) else {}
    if effort is not None:
        kwargs.setdefault("enable_thinking", effort != "none")
        kwargs["reasoning_effort"] = effort
    return kwargs


def prompts_of(value: Any) -> tuple[str | tuple[int, ...], ...]:
    """One or several prompts, each text or token ids. Raises UnreadableCallError."""
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
        return tuple(token_ids(ids) for ids in value)
    return (token_ids(value),)


def token_ids(values: list[Any]) -> tuple[int, ...]:
    """Token ids as the engine reads them. Raises UnreadableCallError."""
    if set(map(type, values)) <= {int}:
        return tuple(values)
    ids = tuple(lax_int(value) for value in values)
    if None in ids:
        raise UnreadableCallError("prompt mixes text and token ids")
    return ids  # type: ignore[return-value]


def objects(value: Any) -> tuple[dict[str, Any], ...] | None:
    """A list of objects that is not empty, else None."""
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        return None
    return tuple(value)


def text_or_none(value: Any) -> str | None:
    """A string, else None. Halves of surrogate pairs, which JSON can escape and nothing that tells of a name can write, become ``?``."""
    if not isinstance(value, str):
        return None
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def chat_prompt(fields: dict[str, Any], messages: Any) -> tuple[ChatPrompt, Counter[str]]:
    """A conversation with the fields around it, and its media by kind. Raises UnreadableCallError."""
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise UnreadableCallError("messages is not a list of objects")
    if RARE_IN_CHATS.isdisjoint(fields):
        media, text_bytes = measure_messages(messages)
        return ChatPrompt(tuple(messages), text_bytes=text_bytes), media
    tools = objects(fields.get("tools"))
    documents = objects(fields.get("documents"))
    media, text_bytes = measure_messages(messages)
    text_bytes += sum(json_bytes(extra) for extra in (*(tools or ()), *(documents or ())))
    chat = ChatPrompt(
        messages=tuple(messages),
        tools=tools,
        documents=documents,
        template_kwargs=template_kwargs(fields.get("chat_template_kwargs"), fields.get("reasoning_effort")),
        chat_template=text_or_none(fields.get("chat_template")),
        add_generation_prompt=lax_bool(fields.get("add_generation_prompt"), default=True),
        continue_final_message=lax_bool(fields.get("continue_final_message"), default=False),
        add_special_tokens=lax_bool(fields.get("add_special_tokens"), default=False),
        text_bytes=text_bytes,
    )
    return chat, media


def measure_messages(messages: list[dict[str, Any]]) -> tuple[Counter[str], int]:
    """Media items by kind, and UTF-8 bytes of all text that a template may render."""
    media = _NO_MEDIA
    text_bytes = 0
    for message in messages:
        for key, value in message.items():
            if isinstance(value, str):
                text_bytes += len(value) if value.isascii() else utf8_bytes(value)
            elif key == "content" and isinstance(value, list):
                for part in value:
                    if is_media_part(part):
                        media = media or Counter()
                        media[media_kind(part)] += 1
                    else:
                        text_bytes += json_bytes(part)
            else:
                text_bytes += json_bytes(value)
    return media, text_bytes


def media_kind(part: dict[str, Any]) -> str:
    """What a media part holds: image, audio, video or other."""
    says = " ".join([str(part.get("type")), *(key for key in MEDIA_PART_KEYS if key in part)])
    return next((kind for kind in MEDIA_KINDS if kind in says), "other")


def media_counts(media: Counter[str]) -> tuple[tuple[str, int], ...]:
    """The same in the form that ``Call`` keeps."""
    return tuple(sorted(media.items())) if media else ()


def is_media_part(part: Any) -> bool:
    """Whether a content part stands for something other than text, by vLLM's own rule."""
    if not isinstance(part, dict):
        return False
    kind = part.get("type", "text")
    return not isinstance(kind, str) or kind not in TEXT_PART_TYPES or any(key in part for key in MEDIA_PART_KEYS)


def json_bytes(value: Any) -> int:
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
