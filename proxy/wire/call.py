"""One API call as read from its body: only the fields that change KV demand or accounting (reference vllm.md §4.4)."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class CallKind(StrEnum):
    """Which route the call came by."""

    CHAT = "chat"
    COMPLETIONS = "completions"


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """What a chat template is rendered from. Message and tool objects are as the client sent them, parsed JSON.

    ``template_kwargs`` are the client's ``chat_template_kwargs`` with ``reasoning_effort`` and what follows from it laid over them.
    """

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] | None = None
    documents: tuple[dict[str, Any], ...] | None = None
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    chat_template: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False


@dataclass(frozen=True, slots=True)
class Call:
    """A read request. ``output_tokens_max`` is None where the route's default is the rest of the context.

    ``prompts`` (completions) holds strings or tuples of token ids; ``chat`` holds the conversation. ``usage_wanted`` says whether
    the client asked for usage in the stream. ``media_items`` counts images, audio and video parts.
    """

    kind: CallKind
    model: str | None
    stream: bool = False
    usage_wanted: bool = False
    usage_continuous: bool = False
    n: int = 1
    output_tokens_max: int | None = None
    prompts: tuple[str | tuple[int, ...], ...] = ()
    prompt_embeds: bool = False
    embeds_bytes: tuple[int, ...] = ()  # base64 length of each embedded prompt; the engine puts these before ``prompts``
    add_special_tokens: bool = True  # completions
    truncate_prompt_tokens: int | None = None
    chat: ChatPrompt | None = None
    beam_search: bool = False
    shares_prefix: bool = True
    cache_salt: str | None = None
    has_tools: bool = False
    has_response_format: bool = False
    user: str | None = None
    prompt_cache_key: str | None = None  # OpenAI's name for requests that share a prefix
    priority: int | None = None
    media_items: int = 0
    has_stream_options: bool = False
    prompt_bytes: int = 0  # size of the prompt text in UTF-8 bytes, for bounds and ratios
