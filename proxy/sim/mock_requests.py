"""Reads the bodies of chat and completion requests as vLLM 0.32 does, in the order it checks them.

Body shape first, then the model's name, the output limit against the context, the prompt itself, and last the sampling parameters.
Unknown fields are ignored. Logprobs are accepted and not computed. Tools are accepted as if a tool parser were configured.
"""

import zlib
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from proxy.sim.mock_errors import (
    bad_request,
    fault,
    missing,
    model_not_found,
    plain_bad_request,
    prompt_too_long,
    validation_error,
)
from proxy.sim.mock_fields import Fields
from proxy.sim.mock_text import MockTokenizer, TemplateFailedError

CHOICES_MAX = 16384
PROMPTS_MAX = 1024
COMPLETION_TOKENS_DEFAULT = 16


class Route(StrEnum):
    """Where a generation request came in; the value is the id's prefix."""

    CHAT = "chatcmpl"
    COMPLETIONS = "cmpl"


@dataclass(frozen=True, slots=True)
class ModelCard:
    """What requests are checked against."""

    name: str
    context_tokens_max: int


@dataclass(frozen=True, slots=True)
class Generation:
    """A valid request. ``limits`` are the effective ``max_tokens``, one per prompt; ``salt`` isolates its prefix blocks."""

    route: Route
    request_id: str
    prompts: list[list[int]]
    limits: list[int]
    n: int
    stream: bool
    usage_wanted: bool
    usage_continuous: bool
    ignore_eos: bool
    min_tokens: int
    stop: tuple[str, ...]
    stop_in_output: bool
    stream_interval: int
    priority: int
    salt: int
    shares_prefix: bool
    token_ids_wanted: bool
    echo: bool
    echo_only: bool


def read_generation(
    route: Route, body: dict[str, Any], *, card: ModelCard, tokenizer: MockTokenizer, header_id: str | None, fresh_id: str
) -> Generation:
    """A valid request, or ApiError. Tokenizes, so it takes time in the prompt's length.

    The answer's id is ``header_id`` (X-Request-Id), else the body's ``request_id``, else ``fresh_id``.
    """
    fields = Fields(body)
    chat = route is Route.CHAT
    options = body.get("stream_options") or {}
    stream = fields.flag("stream")
    if options and not stream:
        raise bad_request("Stream options can only be defined when `stream=True`.", "stream_options")
    if chat:
        _check_chat_shape(body)
    else:
        _check_prompt_shape(body)
    requested, name = _requested_tokens(route, fields)
    model = fields.text("model")
    if model and model != card.name:
        raise model_not_found(model, card.name)
    if requested is not None and requested > card.context_tokens_max:
        raise bad_request(
            f"{name}={requested} cannot be greater than max_model_len={card.context_tokens_max}. Please request fewer output tokens.",
            name,
            requested,
        )
    prompts = _chat_prompts(body, tokenizer, card) if chat else _completion_prompts(body, tokenizer, card)
    prompts = [_fitted(prompt, fields.integer("truncate_prompt_tokens"), card) for prompt in prompts]
    echo = fields.flag("echo")
    echo_only = not chat and echo and requested == 0
    limits = [min(card.context_tokens_max - len(prompt), _or(1 if echo_only else requested, card)) for prompt in prompts]
    n = _or_default(fields.integer("n"), 1)
    _check_sampling(fields, n, limits)
    usage_wanted = bool(options.get("include_usage"))
    salt = fields.text("cache_salt")
    return Generation(
        route=route,
        request_id=f"{route}-{header_id or fields.text('request_id') or fresh_id}",
        prompts=prompts,
        limits=limits,
        n=n,
        stream=stream,
        usage_wanted=usage_wanted,
        usage_continuous=usage_wanted and bool(options.get("continuous_usage_stats")),
        ignore_eos=fields.flag("ignore_eos"),
        min_tokens=_or_default(fields.integer("min_tokens"), 0),
        stop=fields.strings("stop"),
        stop_in_output=fields.flag("include_stop_str_in_output"),
        stream_interval=_or_default(fields.integer("stream_interval"), 1),
        priority=_or_default(fields.integer("priority"), 0),
        salt=zlib.crc32(salt.encode()) if salt else 0,
        shares_prefix=not (body.get("prompt_logprobs") is not None or (echo and (chat or body.get("logprobs") is not None))),
        token_ids_wanted=fields.flag("return_token_ids"),
        echo=echo and not chat,
        echo_only=echo_only,
    )


def _or(requested: int | None, card: ModelCard) -> int:
    return card.context_tokens_max if requested is None else requested


def _or_default(value: int | None, default: int) -> int:
    return default if value is None else value


def _requested_tokens(route: Route, fields: Fields) -> tuple[int | None, str]:
    if route is Route.COMPLETIONS:
        # A null here means the default, not the rest of the context.
        return _or_default(fields.integer("max_tokens"), COMPLETION_TOKENS_DEFAULT), "max_tokens"
    newer = fields.integer("max_completion_tokens")
    return (fields.integer("max_tokens"), "max_tokens") if newer is None else (newer, "max_completion_tokens")


def _check_chat_shape(body: dict[str, Any]) -> None:
    if "messages" not in body:
        raise validation_error(missing("body.messages", body))
    messages = body["messages"]
    if not isinstance(messages, list):
        raise validation_error(fault("list_type", "body.messages", "Input should be a valid list", messages))
    for index, message in enumerate(messages):
        # The server lists one such fault for every kind of message it knows; one is enough to be understood.
        if not isinstance(message, dict):
            text = "Input should be a valid dictionary"
            raise validation_error(fault("dict_type", f"body.messages.{index}", text, message))
        if not isinstance(message.get("role"), str):
            raise validation_error(missing(f"body.messages.{index}.role", message))
    tools = body.get("tools")
    if tools is not None and not isinstance(tools, list):
        raise validation_error(fault("list_type", "body.tools", "Input should be a valid list", tools))
    if tools == []:
        text = "`tools` must not be an empty array. Either provide at least one tool or omit the field entirely."
        raise bad_request(text, "tools")


def _check_prompt_shape(body: dict[str, Any]) -> None:
    prompt = body.get("prompt")
    if prompt is None or prompt == "":
        raise bad_request("Either prompt or prompt_embeds must be provided and non-empty.", "prompt")
    if not isinstance(prompt, str | list):
        a_list = fault("list_type", "body.prompt", "Input should be a valid list", prompt)
        raise validation_error(
            a_list, a_list, fault("string_type", "body.prompt", "Input should be a valid string", prompt), a_list
        )
    if isinstance(prompt, list):
        ids = all(type(each) is int and each >= 0 for each in prompt)
        texts = all(isinstance(each, str) for each in prompt)
        lists = all(isinstance(each, list) and all(type(one) is int and one >= 0 for one in each) for each in prompt)
        if not (ids or texts or lists):
            text = "Input should be a string, a list of strings, a list of token ids, or a list of lists of token ids"
            raise validation_error(fault("list_type", "body.prompt", text, prompt))
        if not ids and len(prompt) > PROMPTS_MAX:
            raise bad_request(f"prompt list length {len(prompt)} exceeds the maximum allowed count of {PROMPTS_MAX}.", "prompt")
    if body.get("suffix") is not None:
        raise plain_bad_request("suffix is only supported for models with FIM completion rendering", "suffix")


def _encoded(text: str, tokenizer: MockTokenizer, card: ModelCard) -> list[int]:
    """Token ids; a text that cannot fit whatever it says is refused before it costs tokenizing."""
    limit = card.context_tokens_max * tokenizer.characters_per_token_max
    if len(text) > limit:
        raise bad_request(
            f"This model's maximum context length is {card.context_tokens_max} tokens. However, your prompt contains {len(text)} "
            f"characters (more than {limit} characters, which is the upper bound for {card.context_tokens_max} input tokens). "
            "Please reduce the length of the input prompt.",
            "input_text",
            len(text),
        )
    return tokenizer.encode(text)


def _chat_prompts(body: dict[str, Any], tokenizer: MockTokenizer, card: ModelCard) -> list[list[int]]:
    messages = body["messages"]
    if not messages:
        raise plain_bad_request("Cannot apply chat template to an empty conversation. Provide at least one message.")
    # The request's own fields win over its template arguments; add_generation_prompt is always one of them.
    variables = dict(body.get("chat_template_kwargs") or {})
    variables |= {name: body[name] for name in ("documents", "tools") if body.get(name) is not None}
    variables["add_generation_prompt"] = Fields(body).flag("add_generation_prompt", default=True)
    try:
        text = tokenizer.render(messages, **variables)
    except TemplateFailedError as error:
        raise plain_bad_request(str(error)) from error
    return [_encoded(text, tokenizer, card)]


def _completion_prompts(body: dict[str, Any], tokenizer: MockTokenizer, card: ModelCard) -> list[list[int]]:
    prompt = body["prompt"]
    if prompt == []:
        raise plain_bad_request("You must pass at least one prompt")
    if isinstance(prompt, str) or type(prompt[0]) is int:
        prompt = [prompt]
    prompts = [_encoded(each, tokenizer, card) if isinstance(each, str) else each for each in prompt]
    for ids in prompts:
        if not ids:
            raise plain_bad_request("The decoder prompt cannot be empty")
        if max(ids) >= tokenizer.vocabulary_size:
            raise plain_bad_request(f"Token id {max(ids)} is out of vocabulary")
    return prompts


def _fitted(prompt: list[int], truncate: int | None, card: ModelCard) -> list[int]:
    """The prompt cut from the left as asked. Raises ApiError when it is longer than the context."""
    if truncate is not None and truncate != 0:
        prompt = prompt[-(card.context_tokens_max - 1 if truncate == -1 else truncate) :]
    if len(prompt) > card.context_tokens_max:
        raise prompt_too_long(card.context_tokens_max)
    return prompt


def _check_sampling(fields: Fields, n: int, limits: list[int]) -> None:
    if n < 1:
        raise plain_bad_request(f"n must be at least 1, got {n}.")
    if n > CHOICES_MAX:
        raise plain_bad_request(
            f"n must be at most {CHOICES_MAX}, got {n}. To increase this limit, set the VLLM_MAX_N_SEQUENCES environment variable."
        )
    _check_probabilities(fields)
    for limit in limits:
        if limit < 1:
            raise bad_request(f"max_tokens must be at least 1, got {limit}.", "max_tokens", limit)
    min_tokens = _or_default(fields.integer("min_tokens"), 0)
    if min_tokens < 0:
        raise plain_bad_request(f"min_tokens must be greater than or equal to 0, got {min_tokens}.")
    if min_tokens > min(limits):
        raise plain_bad_request(f"min_tokens must be less than or equal to max_tokens={min(limits)}, got {min_tokens}.")
    interval = fields.integer("stream_interval")
    if interval is not None and interval < 1:
        raise bad_request(f"stream_interval must be at least 1, got {interval}.", "stream_interval", interval)
    if "" in fields.strings("stop"):
        raise plain_bad_request("stop cannot contain an empty string.")


def _check_probabilities(fields: Fields) -> None:
    temperature = fields.number("temperature")
    if temperature is not None and temperature < 0:
        raise bad_request(f"temperature must be non-negative, got {temperature}.", "temperature", temperature)
    if temperature is not None and temperature > 2:
        raise bad_request(f"temperature must be in [0, 2], got {temperature}.", "temperature", temperature)
    top_p = fields.number("top_p")
    if top_p is not None and not 0 < top_p <= 1:
        raise bad_request(f"top_p must be in (0, 1], got {top_p}.", "top_p", top_p)
