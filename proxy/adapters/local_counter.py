"""The exact rung: render and tokenize as the engine will, with the model's own tokenizer and chat template.

Runs in the pool's threads. Does not count media (their placeholders depend on the processor) and renders no template that a client
brought along: the engine refuses those unless it was told to trust them, and a template is a program.
"""

from array import array
from functools import cached_property

from proxy.adapters.chat_messages import (
    UnusualMessageError,
    developer_to_system,
    merge_system,
    normalise_messages,
    normalise_tools,
)
from proxy.adapters.chat_template import ChatTemplateError
from proxy.adapters.plain_chats import PlainChats
from proxy.adapters.segment_cache import ID_BYTES
from proxy.adapters.tokenizer_files import LoadedTokenizer
from proxy.ports import PromptTooLongError
from proxy.wire.body_fields import template_kwargs
from proxy.wire.call import Call, ChatPrompt
from proxy.wire.lax import utf8_bytes


class LocalCountError(Exception):
    """The own tokenizer cannot do this call; the next rung may."""


_EFFORTS = ("low", "medium", "high", "xhigh", "max")  # that Anthropic's API knows

# What text from outside can raise in the tokenizer (lone surrogates), and ids out of range in packing.
_ENCODE_ERRORS = (UnicodeError, TypeError, ValueError, OverflowError)


# Bound of what a template adds; a template that adds more than half of it to a probe is not trusted with it.
TEMPLATE_TOKENS_MAX = 512
MESSAGE_TOKENS_MAX = 64
MESSAGE_KEYS_CHARS_MAX = 128  # all that an API knows have less
ARGUMENT_BYTES_MAX = 32  # of a template argument: an effort, a date
# A template may write anything but plain text as JSON once more: quotes and line ends take two bytes then, and indentation more.
JSON_EXPANSION = 4
_TEXTS = frozenset({str})  # of a message that holds nothing else a template has only its text to write
_PROBE_TEXT = "Hi"
_PROBE_ROLES = (("user",), ("system", "user"), ("system", *("user", "assistant") * 8, "user"))


def has_only_ids(call: Call) -> bool:
    """Whether every prompt came as token ids, which need no tokenizer."""
    return not call.chats and not call.prompt_embeds and all(isinstance(prompt, tuple) for prompt in call.prompts)


def pack_prompts(call: Call) -> list[bytes]:
    """Packed 32-bit ids of a call that has only ids. Raises LocalCountError where they are out of range."""
    return [_pack_ids(prompt) for prompt in call.prompts if isinstance(prompt, tuple)]


def _pack_ids(ids: tuple[int, ...]) -> bytes:
    try:
        return array("I", ids).tobytes()
    except _ENCODE_ERRORS as error:
        raise LocalCountError(f"token ids out of range: {error}") from error


def _brings_template(chat: ChatPrompt) -> bool:
    return chat.chat_template is not None or chat.template_kwargs.get("chat_template") is not None


def _is_bare(chat: ChatPrompt) -> bool:
    """Whether messages are all that a template is given of it."""
    given = chat.tools is not None or chat.documents is not None or chat.template_kwargs or chat.thinking_off
    return not given and chat.add_generation_prompt and not chat.continue_final_message and not chat.merges_system


def _is_short(value: object) -> bool:
    """Whether a template that writes it, be it with every message, stays within what is allowed for the template's own."""
    return utf8_bytes(value) <= ARGUMENT_BYTES_MAX if isinstance(value, str) else value is None or isinstance(value, bool | float)


class LocalCounter:
    """Counts with one loaded tokenizer. Safe from several threads."""

    def __init__(self, source: LoadedTokenizer) -> None:
        self._source = source

    @property
    def cache_bytes(self) -> int:
        """Bytes of segments and words remembered."""
        encoder = self._source.encoder
        return encoder.cache_bytes + (0 if encoder.words is None else encoder.words.cache_bytes)

    @property
    def cost_ratio(self) -> float:
        """What counting costs now, of what encoding every word costs."""
        words = self._source.encoder.words
        return 1.0 if words is None else words.cost_ratio

    def can_count(self, call: Call) -> bool:
        """Whether an exact count is possible here at all."""
        if call.prompt_embeds or call.media or not call.countable:
            return False
        if not call.chats:
            return True
        return self._source.chat_refusal is None and not any(map(_brings_template, call.chats))

    def bound_tokens(self, call: Call) -> int | None:
        """A bound of the tokens of the call's one prompt, from its bytes; None where there is none. Never counts."""
        if len(call.chats) + len(call.prompts) != 1 or call.truncate_prompt_tokens is not None or not self.can_count(call):
            return None
        if not self._bytes_bound or call.previous_response_id is not None:
            return None
        if not call.chats:
            return None if isinstance(call.prompts[0], tuple) else call.prompt_bytes + TEMPLATE_TOKENS_MAX
        chat = call.chats[0]
        plain = chat.tools is None and chat.documents is None
        for message in chat.messages:  # all that a template may write of it is in its bytes, but for what every message has
            if sum(map(len, message)) > MESSAGE_KEYS_CHARS_MAX:
                return None
            plain = plain and _TEXTS.issuperset(map(type, message.values()))
        if not all(map(_is_short, chat.template_kwargs.values())):
            return None
        text = call.prompt_bytes * (1 if plain else JSON_EXPANSION)
        return text + TEMPLATE_TOKENS_MAX + MESSAGE_TOKENS_MAX * len(chat.messages)

    @cached_property
    def _bytes_bound(self) -> bool:
        """Whether tokens are no more than bytes here, with what a template adds: shown on probes."""
        if not self._source.encoder.bytes_bound:
            return False
        for roles in _PROBE_ROLES if self._source.chat_refusal is None else ():
            messages = tuple({"role": role, "content": _PROBE_TEXT} for role in roles)
            try:
                tokens = len(self._encode(self._render(ChatPrompt(messages)), True, None)) // ID_BYTES
            except (ChatTemplateError, UnusualMessageError, LocalCountError):
                continue  # it takes no such conversation
            if tokens > (TEMPLATE_TOKENS_MAX + MESSAGE_TOKENS_MAX * len(messages)) // 2:
                return False
        return True

    def encode(self, call: Call, context_tokens_max: int | None) -> list[bytes]:
        """Packed 32-bit ids per prompt. Raises LocalCountError; PromptTooLongError when a text cannot fit the context whatever it says.

        ``context_tokens_max`` None: do not look at the length (the engine will truncate).
        """
        try:
            if call.chats:
                return [self._encode(self._render(chat), chat.add_special_tokens, context_tokens_max) for chat in call.chats]
            return [
                _pack_ids(prompt)
                if isinstance(prompt, tuple)
                else self._encode(prompt, call.add_special_tokens, context_tokens_max)
                for prompt in call.prompts
            ]
        except (ChatTemplateError, UnusualMessageError, *_ENCODE_ERRORS) as error:
            raise LocalCountError(f"{type(error).__name__}: {error}") from error

    def _render(self, chat: ChatPrompt) -> str:
        plain = self._plain_chats
        if plain is None or not _is_bare(chat):
            return self._run_template(chat)
        return plain.prompt(chat.messages, lambda: self._run_template(chat))

    @cached_property
    def _plain_chats(self) -> PlainChats | None:
        template = self._source.template(with_tools=False)
        return None if template is None else template.plain_chats(self._source.template_kwargs)

    def _run_template(self, chat: ChatPrompt) -> str:
        tools = normalise_tools(chat.tools)
        template = self._source.template(tools is not None)
        if template is None:
            raise LocalCountError("there is no chat template")
        # the engine drops null and "auto" of what a request gives, and lays the rest over the server's own arguments
        asked = template_kwargs(chat.template_kwargs, self._least_effort) if chat.thinking_off else chat.template_kwargs
        given = {key: value for key, value in asked.items() if value is not None and value != "auto"}
        raw = chat.messages
        if chat.merges_system and self._source.wants_system_first:
            raw = merge_system(raw)
        messages = normalise_messages(raw, wants_parts=template.wants_parts, validated=chat.validated)
        if not template.knows_developer:
            messages = developer_to_system(messages)
        return template.render(
            messages,
            tools=tools,
            documents=None if chat.documents is None else list(chat.documents),
            kwargs={**self._source.template_kwargs, **given},
            add_generation_prompt=chat.add_generation_prompt,
            continue_final_message=chat.continue_final_message,
        )

    @cached_property
    def _least_effort(self) -> str:
        """What the engine takes for thinking switched off: "none", or "low" where "none" makes no prompt of its own."""
        without = self._probe("none")
        told_apart = without is not None and all(self._probe(effort) != without for effort in _EFFORTS)
        return "none" if told_apart else "low"

    def _probe(self, effort: str) -> str | None:
        messages = ({"role": "user", "content": "Hi"},)
        try:
            return self._render(ChatPrompt(messages, template_kwargs=template_kwargs(None, effort)))
        except (ChatTemplateError, UnusualMessageError):
            return None

    def _encode(self, text: str, add_special_tokens: bool, context_tokens_max: int | None) -> bytes:
        if context_tokens_max is not None and len(text) > context_tokens_max * self._source.token_chars_max:
            # the engine's own rule: a text of that many characters is refused before it is tokenized
            raise PromptTooLongError(-(-len(text) // self._source.token_chars_max), exact=False)
        return self._source.encode(text, add_special_tokens=add_special_tokens)
