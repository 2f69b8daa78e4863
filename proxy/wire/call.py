"""One API call as read from its body: only the fields that change KV demand or accounting (reference vllm.md §4.4)."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any


class CallKind(StrEnum):
    """Which route the call came by."""

    CHAT = "chat"
    COMPLETIONS = "completions"
    CHAT_BATCH = "chat_batch"  # several conversations, one choice each
    RESPONSES = "responses"
    MESSAGES = "messages"  # Anthropic's
    GENERATE = "generate"  # token ids in and out
    SCORING = "scoring"  # generative scoring: one token for each pair of query and item
    POOLING = "pooling"  # embeddings, classification: prompts and no output
    DECISIONS = "decisions"  # structured ones: a prompt and one token for each question
    SPEECH = "speech"  # recordings to be written down: a prompt for each piece
    COHERE_CHAT = "cohere_chat"
    INVOCATION = "invocation"  # read as one of the others
    RANKING = "ranking"  # scores and ranks: each pair of query and document is a prompt, and there is no output

    @property
    def prefill_only(self) -> bool:
        """Whether nothing is generated beyond what the prefill gives, so that no length can be learned."""
        return self in _PREFILL_ONLY


_PREFILL_ONLY = frozenset({CallKind.SCORING, CallKind.DECISIONS, CallKind.POOLING, CallKind.RANKING})


_FORGOTTEN: dict[str, Any] = {}


@dataclass(slots=True)  # not frozen: that triples the price of making one, and each request makes one
class ChatPrompt:
    """What a chat template is rendered from. Message and tool objects are as the client sent them, parsed JSON.

    ``template_kwargs`` are the client's ``chat_template_kwargs`` with ``reasoning_effort`` and what follows from it laid over them.
    Two choices depend on the template, as in the engine: ``merges_system`` moves later system messages into the first one where the
    template wants it first, ``thinking_off`` asks for whatever reasoning effort the template knows as the least.
    """

    messages: tuple[dict[str, Any], ...]
    tools: tuple[dict[str, Any], ...] | None = None
    documents: tuple[dict[str, Any], ...] | None = None
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    chat_template: str | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    validated: bool = True  # the engine validates the messages as chat messages, which orders the keys of tool calls
    merges_system: bool = False
    thinking_off: bool = False
    text_bytes: int = 0  # of messages, tools and documents in UTF-8

    def forget_text(self) -> None:
        """Let go of what was said; how many messages there were, and what else is learned from, stays."""
        self.messages = (_FORGOTTEN,) * len(self.messages)
        self.tools = self.tools and (_FORGOTTEN,)
        self.documents = None


@dataclass(slots=True)  # not frozen: that triples the price of making one, and each request makes one
class Call:
    """A read request. ``output_tokens_max`` is None where the route's default is the rest of the context.

    ``prompts`` (completions) holds strings or tuples of token ids; ``chats`` holds the conversations, mostly one. ``usage_wanted`` says
    whether the client asked for usage in the stream, or its route always tells it. ``media`` counts parts that are no text by their
    kind (image, audio, video, speech, other). Not ``countable`` is a prompt of which only the engine knows how it is made;
    ``history_tokens`` come before it from a stored conversation, by an upper bound.
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
    chats: tuple[ChatPrompt, ...] = ()
    countable: bool = True
    history_tokens: int = 0
    previous_response_id: str | None = None
    background: bool = False  # the answer is out before the work is done
    beam_search: bool = False
    shares_prefix: bool = True
    cache_salt: str | None = None
    has_tools: bool = False
    has_response_format: bool = False
    user: str | None = None
    prompt_cache_key: str | None = None  # OpenAI's name for requests that share a prefix
    priority: int | None = None
    media: tuple[tuple[str, int], ...] = ()
    has_stream_options: bool = False
    prompt_bytes: int = 0  # size of the prompt text in UTF-8 bytes, for bounds and ratios

    @property
    def chat(self) -> ChatPrompt | None:
        """The conversation, where the call holds just one."""
        return self.chats[0] if len(self.chats) == 1 else None

    @property
    def media_items(self) -> int:
        """Parts that are no text."""
        return sum(count for _, count in self.media)

    def forget_text(self) -> None:
        """Let go of the prompts themselves, which have been counted and sent and may be long."""
        for chat in self.chats:
            chat.forget_text()
        self.prompts = ("",) * len(self.prompts)
