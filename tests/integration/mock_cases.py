"""Requests whose answers were recorded from a real vLLM 0.32 (``mock_recordings.json``), and how two answers are compared.

The recorded server ran a tiny model with random weights: served name ``tiny``, context 4,096, blocks of 32. What necessarily differs is
masked: ids, times, fingerprints, generated text, and numbers that depend on the tokenizer.
"""

import json
import re
from typing import Any

MODEL = "tiny"
CONTEXT = 4096
CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
JSON_HEADERS = {"content-type": "application/json"}

Case = tuple[str, str, bytes, dict[str, str]]

_chat: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "Hello there"}],
    "max_tokens": 3,
    "ignore_eos": True,
}
_prompt: dict[str, Any] = {"model": MODEL, "prompt": "Hello there", "max_tokens": 3, "ignore_eos": True}
_usage = {"stream": True, "stream_options": {"include_usage": True}}
_continuous = {"stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}}
_long = [{"role": "user", "content": "word " * 5000}]
_tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}


def _post(path: str, body: dict[str, Any] | bytes, headers: dict[str, str] | None = None) -> Case:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return ("POST", path, content, JSON_HEADERS if headers is None else headers)


def _without(body: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in body.items() if key != name}


_CHAT_CHANGES: dict[str, dict[str, Any]] = {
    "chat": {},
    "chat_stream": {"stream": True},
    "chat_stream_usage": _usage,
    "chat_stream_cont": _continuous,
    "chat_stream_cont_only": {"stream": True, "stream_options": {"continuous_usage_stats": True}},
    "chat_n2": {"n": 2},
    "chat_n2_stream": {"n": 2, **_usage},
    "chat_opts_nostream": {"stream_options": {"include_usage": True}},
    "chat_max0": {"max_tokens": 0},
    "chat_maxneg": {"max_tokens": -1},
    "chat_maxbig": {"max_tokens": 5000},
    "chat_maxcbig": {"max_completion_tokens": 5000},
    "chat_maxc0": {"max_completion_tokens": 0},
    "chat_maxstr": {"max_tokens": "abc"},
    "chat_n0": {"n": 0},
    "chat_nneg": {"n": -2},
    "chat_nbig": {"n": 20000},
    "chat_temp": {"temperature": -1},
    "chat_mintok": {"min_tokens": 10},
    "chat_toolong": {"messages": _long},
    "chat_toolong_stream": {"messages": _long, "stream": True},
    "chat_unknown": {"model": "nope"},
    "chat_tools_empty": {"tools": []},
    "chat_tools_none": {"tool_choice": "none", "tools": [_tool]},
    "chat_bodyreqid": {"request_id": "body-id"},
    "chat_parts": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}]}]
    },
    "chat_rti": {"return_token_ids": True},
    "chat_rti_stream": {"return_token_ids": True, "stream": True},
    "chat_priority": {"priority": 3},
    "chat_interval": {"max_tokens": 8, "stream": True, "stream_interval": 3},
}

_COMPLETION_CHANGES: dict[str, dict[str, Any]] = {
    "comp": {},
    "comp_stream": {"stream": True},
    "comp_stream_usage": _usage,
    "comp_stream_cont": _continuous,
    "comp_list": {"prompt": ["Hello", "there you are"]},
    "comp_list_n2": {"prompt": ["Hello", "there you are"], "n": 2},
    "comp_list_n2_stream": {"prompt": ["Hello", "there you are"], "n": 2, **_usage},
    "comp_ids": {"prompt": [5, 6, 7]},
    "comp_idlists": {"prompt": [[5, 6, 7], [8, 9]]},
    "comp_ids_oov": {"prompt": [5, 60_000_000]},
    "comp_emptylist": {"prompt": []},
    "comp_emptystr": {"prompt": ""},
    "comp_emptylistlist": {"prompt": [[]]},
    "comp_nullprompt": {"prompt": None},
    "comp_badprompt": {"prompt": {"a": 1}},
    "comp_echo": {"echo": True},
    "comp_echo_stream": {"echo": True, "stream": True},
    "comp_echo0": {"echo": True, "max_tokens": 0},
    "comp_max0": {"max_tokens": 0},
    "comp_maxneg": {"max_tokens": -1},
    "comp_maxbig": {"max_tokens": 5000},
    "comp_ids_max": {"prompt": [7] * 4096, "max_tokens": 1},
    "comp_ids_max_stream": {"prompt": [7] * 4096, "max_tokens": 1, "stream": True},
    "comp_ids_over": {"prompt": [7] * 4097, "max_tokens": 1},
    "comp_ids_clamp": {"prompt": [7] * 4090, "max_tokens": 100},
    "comp_str_over": {"prompt": "word " * 5000},
    "comp_unknown": {"model": "nope"},
    "comp_suffix": {"suffix": "x"},
    "comp_opts_nostream": {"stream_options": {"include_usage": True}},
    "comp_rti_stream": {"return_token_ids": True, "stream": True},
    "comp_mintok": {"min_tokens": 10},
    "comp_trunc": {"prompt": [7] * 100, "truncate_prompt_tokens": 10},
}

CASES: dict[str, Case] = {
    **{name: _post(CHAT, {**_chat, **changes}) for name, changes in _CHAT_CHANGES.items()},
    **{name: _post(COMPLETIONS, {**_prompt, **changes}) for name, changes in _COMPLETION_CHANGES.items()},
    "chat_nomodel": _post(CHAT, _without(_chat, "model")),
    "chat_badjson": _post(CHAT, b'{"model": "tiny", '),
    "chat_badjson2": _post(CHAT, b"nonsense"),
    "chat_empty_body": _post(CHAT, b""),
    "chat_array_body": _post(CHAT, b"[1]"),
    "chat_missing_messages": _post(CHAT, {"model": MODEL}),
    "chat_ctype": _post(CHAT, _chat, {"content-type": "text/plain"}),
    "chat_messages_string": _post(CHAT, {"model": MODEL, "messages": "hi"}),
    "chat_messages_empty": _post(CHAT, {"model": MODEL, "messages": []}),
    "chat_reqid": _post(CHAT, _chat, {**JSON_HEADERS, "x-request-id": "my-id"}),
    "chat_orca": _post(CHAT, _chat, {**JSON_HEADERS, "endpoint-load-metrics-format": "JSON"}),
    "chat_get": ("GET", CHAT, b"", {}),
    "chat_put": ("PUT", CHAT, b"", {}),
    "chat_options": ("OPTIONS", CHAT, b"", {}),
    "chat_head": ("HEAD", CHAT, b"", {}),
    "comp_default": _post(COMPLETIONS, _without(_prompt, "max_tokens")),
    "comp_noprompt": _post(COMPLETIONS, {"model": MODEL, "max_tokens": 3}),
    "comp_badjson": _post(COMPLETIONS, b"{"),
    "comp_get": ("GET", COMPLETIONS, b"", {}),
    "models": ("GET", "/v1/models", b"", {}),
    "model_one": ("GET", "/v1/models/tiny", b"", {}),
    "models_post": _post("/v1/models", b"{}"),
    "health": ("GET", "/health", b"", {}),
    "health_post": _post("/health", b""),
    "version": ("GET", "/version", b"", {}),
    "load": ("GET", "/load", b"", {}),
    "ping": ("GET", "/ping", b"", {}),
    "ping_post": _post("/ping", b""),
    "unknown": ("GET", "/nope", b"", {}),
    "unknown_v1": ("GET", "/v1/nope", b"", {}),
    "root": ("GET", "/", b"", {}),
    "kv_event": ("GET", "/kv_event_sources", b"", {}),
    "server_info": ("GET", "/server_info?config_format=json", b"", {}),
    "tok": _post("/tokenize", {"model": MODEL, "prompt": "Hello there"}),
    "tok_chat": _post("/tokenize", {"messages": _chat["messages"]}),
    "tok_unknown": _post("/tokenize", {"model": "nope", "prompt": "x"}),
    "tok_bad": _post("/tokenize", {"model": MODEL}),
    "tok_list": _post("/tokenize", {"prompt": ["a", "b"]}),
    "tok_get": ("GET", "/tokenize", b"", {}),
    "detok_unknown": _post("/detokenize", {"model": "nope", "tokens": [5]}),
    "detok_bad": _post("/detokenize", {"tokens": "x"}),
    "render": _post(CHAT + "/render", _chat),
    "render_c": _post(COMPLETIONS + "/render", _prompt),
    "derender": _post(CHAT + "/derender", {}),
    "generate": _post("/inference/v1/generate", {}),
    "abortreq": _post("/inference/v1/abort_requests", {"request_ids": []}),
    "render_get": ("GET", CHAT + "/render", b"", {}),
}

_MASKS = (
    (r'"(chatcmpl|cmpl|modelperm)-[0-9a-f]{16}"', r'"\1-ID"'),
    (r'"created":\d+', '"created":0'),
    (r"vllm-0\.32\.0-[0-9a-f]{8}", "FINGERPRINT"),
    (r'"(content|text)":"(?:[^"\\]|\\.)+"', r'"\1":"TEXT"'),
    (r'"root":"[^"]*"', '"root":"ROOT"'),
    (r'"(prompt_tokens|total_tokens|count)":\d+', r'"\1":0'),
    (r"\[\d+(?:,\d+)*\]", "[IDS]"),
)


def masked(body: str) -> list[str]:
    """An answer's events (one, when it did not stream) with what must differ masked, in an order that choices cannot change."""
    for pattern, instead in _MASKS:
        body = re.sub(pattern, instead, body)
    return sorted(body.split("\n\n"))
