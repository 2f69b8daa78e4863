"""Chat templates as the engine renders them (reference vllm.md §5.1; vLLM renderers/hf.py, transformers chat_template_utils.py).

The sandbox, its filters and its globals are transformers'; transformers itself is not imported. A template is compiled once, with
the names it reads and whether it loops over content parts ("openai") or wants plain text ("string"). A template that rejects the
conversation raises ChatTemplateError: the engine rejects such a request too.
"""

import copy
import json
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import jinja2
import jinja2.ext
import jinja2.meta
import jinja2.nodes
import jinja2.parser
import jinja2.sandbox

from proxy.adapters.plain_chats import PlainChats
from proxy.adapters.template_format import RENDER_ERRORS, loops_over_content, refuses_late_system

_CONTINUE_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
# Parameters of transformers' apply_chat_template: they never reach the template as variables.
_RESERVED_KWARGS = frozenset(
    {"self", "conversation", "messages", "chat_template", "tokenize", "padding", "truncation", "max_length", "return_tensors",
     "return_dict", "return_assistant_tokens_mask", "tokenizer_kwargs", "tools", "documents", "add_generation_prompt",
     "continue_final_message"}
)  # fmt: skip


class ChatTemplateError(Exception):
    """The template cannot be compiled, or it refuses the conversation."""


class _GenerationTag(jinja2.ext.Extension):
    """``{% generation %}`` marks assistant text for training; rendering only passes it through."""

    tags = {"generation"}  # noqa: RUF012  # jinja2 declares it as an instance-independent set

    def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
        lineno = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        call = self.call_method("_pass_through")
        return jinja2.nodes.CallBlock(call, [], [], body).set_lineno(lineno)

    def _pass_through(self, caller: Callable[[], str]) -> str:
        return caller()


def _raise_exception(message: str) -> None:
    raise jinja2.exceptions.TemplateError(message)


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # jinja2's own filter escapes HTML characters
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _environment(wall_s: Callable[[], float]) -> jinja2.sandbox.ImmutableSandboxedEnvironment:
    def strftime_now(form: str) -> str:
        return datetime.fromtimestamp(wall_s(), tz=UTC).astimezone().strftime(form)

    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationTag, jinja2.ext.loopcontrols]
    )
    env.filters["tojson"] = _tojson
    env.globals["raise_exception"] = _raise_exception
    env.globals["strftime_now"] = strftime_now
    return env


class ChatTemplate:
    """One compiled template. ``wall_s`` feeds ``strftime_now``. Rendering is safe from several threads."""

    def __init__(self, source: str, *, special_tokens: dict[str, str], wall_s: Callable[[], float]) -> None:
        """Compile. Raises ChatTemplateError with the line of a syntax error."""
        env = _environment(wall_s)
        try:
            tree = env.parse(source)
            self._template = env.from_string(source)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"chat template does not compile: {error}") from error
        self._source = source
        self._special_tokens = special_tokens
        self._names = frozenset(jinja2.meta.find_undeclared_variables(tree))
        self.wants_parts = loops_over_content(tree)
        self.wants_system_first = refuses_late_system(source)
        self.knows_developer = '"developer"' in source or "'developer'" in source

    def render(
        self,
        messages: list[dict[str, Any]],
        *,
        tools: list[dict[str, Any]] | None,
        documents: list[dict[str, Any]] | None,
        kwargs: dict[str, Any],
        add_generation_prompt: bool,
        continue_final_message: bool,
    ) -> str:
        """The prompt's text. ``messages`` are normalised already. Raises ChatTemplateError."""
        if not messages:
            raise ChatTemplateError("the conversation is empty")
        if continue_final_message and add_generation_prompt:
            raise ChatTemplateError("continue_final_message and add_generation_prompt exclude each other")
        variables = self._variables(kwargs)
        if continue_final_message:
            messages, final = self._mark_final(messages)
        try:
            text = self._template.render(
                {
                    **variables,
                    "messages": messages,
                    "tools": tools,
                    "documents": documents,
                    "add_generation_prompt": add_generation_prompt,
                }
            )
        except RENDER_ERRORS as error:
            raise ChatTemplateError(f"chat template rejected the request: {error}") from error
        return _cut_at_mark(text, final) if continue_final_message else text

    def _variables(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        given = {key: value for key, value in kwargs.items() if key in self._names and key not in _RESERVED_KWARGS}
        return {**self._special_tokens, **given}

    def plain_chats(self, kwargs: dict[str, Any]) -> PlainChats:
        """For conversations that are given nothing but ``kwargs``, and are to be answered."""
        nothing = {"tools": None, "documents": None, "add_generation_prompt": True}
        variables = {**self._variables(kwargs), **nothing}
        return PlainChats(self._source, self._template.environment, variables, wants_parts=self.wants_parts)

    def _mark_final(self, messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
        last = copy.deepcopy(messages[-1])
        content = last.get("content")
        if content is None or "content" not in self._source:
            raise ChatTemplateError("continue_final_message is set but there is no final content to continue")
        if isinstance(content, str):
            last["content"] = content + _CONTINUE_TAG
            return [*messages[:-1], last], content
        for part in reversed(content):
            if isinstance(part, dict) and "text" in part:
                text = str(part["text"])
                part["text"] = text + _CONTINUE_TAG
                return [*messages[:-1], last], text
        raise ChatTemplateError("continue_final_message is set but the final message holds no text")


def _cut_at_mark(text: str, final: str) -> str:
    tag = _CONTINUE_TAG.strip()
    if final.strip() not in text or tag not in text:
        raise ChatTemplateError("continue_final_message is set but the template drops the final message")
    at = text.rindex(tag)
    if text[at : at + len(_CONTINUE_TAG)] == _CONTINUE_TAG:
        return text[:at]
    return text[:at].rstrip()  # the template trimmed the message's end
