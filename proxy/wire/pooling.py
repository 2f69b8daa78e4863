"""Read bodies of routes that generate nothing: embeddings, pooling, classification, scores, ranks, generative scoring, and decisions.

Each prompt is prefilled and forgotten, so a call's need is its prompts, all at once at most. Lists multiply: every pair of a query and a
document is a prompt where the model reads both together, and an upper bound where it embeds them one by one. Special tokens between
the two are the model's own, so pairs are estimated from their bytes; embeddings of plain text count as completions do.
"""

from collections import Counter
from typing import Any

from proxy.wire.body_fields import chat_prompt, json_bytes, measure_messages, media_counts, prompts_of, sampling_fields
from proxy.wire.call import Call, CallKind, ChatPrompt
from proxy.wire.lax import UnreadableCallError, lax_bool, utf8_bytes

PAIRS_MAX = 16384
_DECISION_MEDIA = (("image", "images"), ("audio", "audio"), ("video", "videos"))
_TEXT_PAIRS = (("query", "documents"), ("queries", "documents"), ("queries", "items"), ("data_1", "data_2"), ("text_1", "text_2"))


def read_pooling(fields: dict[str, Any]) -> Call:
    """Read texts, token ids or conversations to be pooled. Raises UnreadableCallError."""
    messages, given = fields.get("messages"), fields.get("input", fields.get("texts"))
    if messages is None and isinstance(given, list) and given and isinstance(given[0], dict | list) and _are_messages(given):
        messages = given
    if messages is not None:
        return _read_chats(fields, messages)
    if isinstance(fields.get("inputs"), list) or isinstance(fields.get("images"), list):  # Cohere's mixed items
        return _read_items([*(fields.get("inputs") or ()), *(fields.get("images") or ())], fields)
    prompts = prompts_of(given)
    if not prompts:
        raise UnreadableCallError("there is nothing to pool")
    return Call(
        kind=CallKind.POOLING,
        output_tokens_max=1,
        prompts=prompts,
        add_special_tokens=lax_bool(fields.get("add_special_tokens"), default=True),
        prompt_bytes=_bytes_of(prompts),
        **_alone(fields),
    )


def _are_messages(given: list[Any]) -> bool:
    return all(isinstance(item, dict) or (isinstance(item, list) and bool(item) and isinstance(item[0], dict)) for item in given)


def _read_chats(fields: dict[str, Any], messages: Any) -> Call:
    several = isinstance(messages, list) and bool(messages) and isinstance(messages[0], list)
    read = [chat_prompt(fields | {"add_generation_prompt": fields.get("add_generation_prompt", False)}, one)
            for one in (messages if several else [messages])]  # fmt: skip
    media = sum((items for _, items in read), Counter[str]())
    chats = tuple(chat for chat, _ in read)
    return Call(
        kind=CallKind.POOLING,
        output_tokens_max=1,
        chats=chats,
        media=media_counts(media),
        prompt_bytes=sum(chat.text_bytes for chat in chats),
        **_alone(fields),
    )


def _read_items(items: list[Any], fields: dict[str, Any]) -> Call:
    """Items of text and images; an image alone may be a plain string."""
    chats, media = [], Counter[str]()
    for item in items:
        content = item.get("content") if isinstance(item, dict) else [{"type": "image_url"}]
        found, size = measure_messages([{"content": content}])
        media += found
        chats.append(ChatPrompt(messages=(), text_bytes=size))
    if not chats:
        raise UnreadableCallError("there is nothing to pool")
    return Call(
        kind=CallKind.POOLING,
        output_tokens_max=1,
        chats=tuple(chats),
        countable=False,
        media=media_counts(media),
        prompt_bytes=sum(chat.text_bytes for chat in chats),
        **_alone(fields),
    )


def read_ranking(fields: dict[str, Any]) -> Call:
    """Read queries and documents; lists of equal length pair off, one query goes with every document. Raises UnreadableCallError."""
    names = next((pair for pair in _TEXT_PAIRS if pair[0] in fields and pair[1] in fields), None)
    if names is None:
        raise UnreadableCallError("there is no query or there are no documents")
    left, right = (value if isinstance(value, list) else [value] for value in (fields[name] for name in names))
    return _pairs(CallKind.RANKING, left * len(right) if len(left) == 1 else left, right, fields)


def read_scoring(fields: dict[str, Any]) -> Call:
    """Read a query and the items that one token each is generated for. Raises UnreadableCallError."""
    query, items = fields.get("query"), fields.get("items")
    if not isinstance(items, list) or not items:
        raise UnreadableCallError("there are no items")
    return _pairs(CallKind.SCORING, [query] * len(items), items, fields)


def read_decisions(fields: dict[str, Any]) -> Call:
    """Read a state and the questions about it, each of which is a prompt that begins with the state. Raises UnreadableCallError."""
    questions = fields.get("questions")
    if not isinstance(questions, dict) or not 0 < len(questions) <= PAIRS_MAX or fields.get("state") is None:
        raise UnreadableCallError("there is no state or there are no questions")
    shared = json_bytes(fields["state"]) + json_bytes(fields.get("instructions"))
    media = Counter({kind: len(fields[name]) for kind, name in _DECISION_MEDIA if isinstance(fields.get(name), list)})
    chats = tuple(ChatPrompt(messages=(), text_bytes=shared + json_bytes(question)) for question in questions.values())
    return Call(
        kind=CallKind.DECISIONS,
        output_tokens_max=1,
        chats=chats,
        countable=False,
        media=media_counts(+media),
        prompt_bytes=sum(chat.text_bytes for chat in chats),
        **_alone(fields),
    )


def _pairs(kind: CallKind, left: list[Any], right: list[Any], fields: dict[str, Any]) -> Call:
    if not right or len(left) != len(right) or len(right) > PAIRS_MAX:
        raise UnreadableCallError("queries and documents do not pair off")
    if all(isinstance(side, list) for side in (left[0], right[0])) and kind is CallKind.SCORING:  # token ids
        joined = prompts_of([[*first, *second] for first, second in zip(left, right, strict=True)])
        return Call(kind=kind, output_tokens_max=1, prompts=joined, **_alone(fields))
    media, chats = Counter[str](), []
    for first, second in zip(left, right, strict=True):
        size = 0
        for side in (first, second):
            if isinstance(side, str):
                size += utf8_bytes(side)
                continue
            content = side.get("content", [side]) if isinstance(side, dict) else side
            found, text = measure_messages([{"content": content}])
            media += found
            size += text
        chats.append(ChatPrompt(messages=(), text_bytes=size))
    return Call(
        kind=kind,
        output_tokens_max=1,
        chats=tuple(chats),
        countable=False,
        media=media_counts(media),
        prompt_bytes=sum(chat.text_bytes for chat in chats) + json_bytes(fields.get("instruction")),
        **_alone(fields),
    )


def _bytes_of(prompts: tuple[str | tuple[int, ...], ...]) -> int:
    return sum(utf8_bytes(prompt) for prompt in prompts if isinstance(prompt, str))


def _alone(fields: dict[str, Any]) -> dict[str, Any]:
    """Common fields of a call that neither streams nor samples."""
    kept = ("model", "truncate_prompt_tokens", "cache_salt", "user", "priority")
    return sampling_fields({name: fields[name] for name in kept if name in fields})
