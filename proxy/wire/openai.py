"""Read OpenAI chat and completion bodies, and vLLM's own relatives of them: batches of chats, and token ids in and out.

Only what changes KV demand or its accounting is read (reference vllm.md §4.4). Only a body whose prompt or sampling counts cannot be
made out raises UnreadableCallError; the engine refuses such a body too, so it may be forwarded without a lease.
"""

from collections import Counter
from typing import Any

from proxy.wire.body_fields import (
    COPIES_MAX,
    TOKENS_MAX,
    chat_prompt,
    media_counts,
    output_tokens,
    prompts_of,
    sampling_fields,
    token_ids,
)
from proxy.wire.call import Call, CallKind
from proxy.wire.inject import inject_usage
from proxy.wire.lax import UnreadableCallError, lax_bool, utf8_bytes

__all__ = ["COPIES_MAX", "TOKENS_MAX", "UnreadableCallError", "inject_usage"]

COMPLETION_TOKENS_DEFAULT = 16


def read_chat(fields: dict[str, Any]) -> Call:
    """Read a chat. Raises UnreadableCallError."""
    chat, media = chat_prompt(fields, fields.get("messages"))
    limit = fields.get("max_completion_tokens")
    # echo makes the engine compute prompt_logprobs = top_logprobs (0 by default), which rules out a prefix lookup
    echo = "echo" in fields and lax_bool(fields["echo"], default=False)
    return Call(
        kind=CallKind.CHAT,
        output_tokens_max=output_tokens(limit if limit is not None else fields.get("max_tokens"), None),
        chats=(chat,),
        has_tools=chat.tools is not None,
        shares_prefix=not echo and fields.get("prompt_logprobs") is None,
        media=media_counts(media),
        prompt_bytes=chat.text_bytes,
        **sampling_fields(fields),
    )


def read_chat_batch(fields: dict[str, Any]) -> Call:
    """Read a list of conversations; each is sampled once. Raises UnreadableCallError."""
    conversations = fields.get("messages")
    if not isinstance(conversations, list) or not conversations:
        raise UnreadableCallError("messages is not a list of conversations")
    chats, media = [], Counter[str]()
    for messages in conversations:
        chat, items = chat_prompt(fields, messages)
        chats.append(chat)
        media += items
    limit = fields.get("max_completion_tokens")
    return Call(
        kind=CallKind.CHAT_BATCH,
        output_tokens_max=output_tokens(limit if limit is not None else fields.get("max_tokens"), None),
        chats=tuple(chats),
        shares_prefix=fields.get("prompt_logprobs") is None,
        media=media_counts(media),
        prompt_bytes=sum(chat.text_bytes for chat in chats),
        **sampling_fields(fields) | {"stream": False},
    )


def read_completions(fields: dict[str, Any]) -> Call:
    """Read a text completion. Raises UnreadableCallError."""
    prompts = prompts_of(fields.get("prompt"))
    embeds = _embeds_bytes(fields.get("prompt_embeds"))
    if not prompts and not embeds:
        raise UnreadableCallError("prompt is missing or empty")
    echo = lax_bool(fields.get("echo"), default=False)
    # null is the rest of the context in older engines and 16 in 0.32; the larger bound is safe for both
    limit = output_tokens(fields.get("max_tokens", COMPLETION_TOKENS_DEFAULT), None)
    logprobs_of_prompt = fields.get("prompt_logprobs") is not None or (echo and fields.get("logprobs") is not None)
    return Call(
        kind=CallKind.COMPLETIONS,
        output_tokens_max=limit,
        prompts=prompts,
        prompt_embeds=bool(embeds),
        embeds_bytes=embeds,
        add_special_tokens=lax_bool(fields.get("add_special_tokens"), default=True),
        shares_prefix=not logprobs_of_prompt,
        prompt_bytes=sum(utf8_bytes(prompt) for prompt in prompts if isinstance(prompt, str)),
        **sampling_fields(fields),
    )


def read_generate(fields: dict[str, Any]) -> Call:
    """Read token ids to continue. Raises UnreadableCallError."""
    ids, sampling = fields.get("token_ids"), fields.get("sampling_params")
    if not isinstance(ids, list) or not ids or not isinstance(sampling, dict):
        raise UnreadableCallError("token_ids or sampling_params is missing")
    features = fields.get("features")
    raw_media = fields.get("content_parts") or (features.get("mm_hashes") if isinstance(features, dict) else None)
    return Call(
        kind=CallKind.GENERATE,
        output_tokens_max=output_tokens(sampling.get("max_tokens"), None),
        prompts=(token_ids(ids),),
        # placeholder ids say nothing of what is in an image, and parts sent raw are put in by the engine
        shares_prefix=not raw_media and sampling.get("prompt_logprobs") is None,
        media=(("other", len(fields["content_parts"])),) if isinstance(fields.get("content_parts"), list) else (),
        **sampling_fields(fields | {"n": sampling.get("n"), "response_format": sampling.get("structured_outputs")}),
    )


def _embeds_bytes(value: Any) -> tuple[int, ...]:
    if isinstance(value, str):
        return (len(value),)
    if isinstance(value, list):
        return tuple(len(item) for item in value if isinstance(item, str))
    return ()
