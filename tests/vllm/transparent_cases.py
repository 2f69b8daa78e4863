"""What an engine is asked to see whether kvgate changes anything: every route well, badly and oddly, and recorded requests of others."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from proxy.wire.routes import RouteKind, kind_of
from tests.vllm.recorded_bodies import ROUTES as RECORDED_ROUTES
from tests.vllm.recorded_bodies import all_bodies
from tests.vllm.transparent import Case

JSON = ("content-type", "application/json")
ORIGIN = ("origin", "https://page.example")
RECORDED_STRIDE = 97  # of about 4,400 recorded agent turns and tool prompts: every 97th, and all that are single
GREEDY: dict[str, Any] = {"temperature": 0, "seed": 7}
MESSAGES = [{"role": "user", "content": "one two"}]
TOOLS = [
    {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}
]

GOOD: dict[str, list[dict[str, Any]]] = {
    "/v1/chat/completions": [
        {"max_tokens": 8},
        {"max_tokens": 8, "stream": True},
        {"max_tokens": 8, "stream": True, "stream_options": {"include_usage": True}},
        {"max_tokens": 5, "stream": True, "stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        {"max_tokens": 4, "n": 2, "logprobs": True, "top_logprobs": 2},
        {"max_tokens": 4, "tools": TOOLS, "tool_choice": "none"},
        {"max_tokens": 6, "response_format": {"type": "json_object"}},
        {"max_tokens": 4, "return_token_ids": True, "unknown_field": {"kept": [1, None]}},
        {"max_completion_tokens": 4, "stop": ["x"], "user": "somebody", "priority": 0},
    ],
    "/v1/chat/completions/batch": [{"messages": [MESSAGES, MESSAGES], "max_tokens": 4}],
    "/v1/completions": [
        {"prompt": "one two three", "max_tokens": 8},
        {"prompt": "one two three", "max_tokens": 8, "stream": True},
        {"prompt": ["one", "two words"], "n": 2, "max_tokens": 3, "logprobs": 1},
        {"prompt": [5, 6, 7], "max_tokens": 3, "echo": True},
        {"prompt": [[5, 6], [7, 8]], "max_tokens": 3, "stream": True, "stream_options": {"include_usage": True}},
        {"prompt": "beams", "max_tokens": 3, "n": 2, "use_beam_search": True},
    ],
    "/v1/responses": [
        {"input": "one two", "max_output_tokens": 6, "store": False},
        {"input": "one two", "max_output_tokens": 6, "stream": True, "store": False},
        {"input": MESSAGES, "instructions": "Be short.", "max_output_tokens": 4, "store": False},
        {"input": "x", "previous_response_id": "resp_none"},
    ],
    "/v1/messages": [
        {"messages": MESSAGES, "max_tokens": 6},
        {"messages": MESSAGES, "max_tokens": 6, "stream": True, "system": "Be short."},
        {"messages": [{"role": "user", "content": [{"type": "text", "text": "one"}]}], "max_tokens": 4, "stop_sequences": ["x"]},
        {"messages": MESSAGES},
    ],
    "/v1/messages/count_tokens": [{"messages": MESSAGES}, {"messages": "no list"}],
    "/v1/systemone": [{"state": "a door", "questions": ["is it open?"]}],
    "/generative_scoring": [{"query": "is", "items": ["a", "b"], "label_token_ids": [5, 6]}, {"query": "is"}],
    "/tokenize": [{"prompt": "two words"}, {"messages": MESSAGES, "return_token_strs": True}, {"prompt": ""}],
    "/detokenize": [{"tokens": [5, 6]}, {"tokens": ["x"]}],
    "/invocations": [{"messages": MESSAGES, "max_tokens": 4}, {"prompt": "one", "max_tokens": 4, "stream": True}, {"tokens": 3}],
    "/v1/embeddings": [
        {"input": "one two"},
        {"input": ["one", "two words"], "encoding_format": "base64"},
        {"input": [5, 6, 7]},
        {"input": "x", "dimensions": -1},
    ],
    "/v2/embed": [{"texts": ["one", "two"], "input_type": "search_query", "embedding_types": ["float"]}, {"texts": 3}],
    "/pooling": [{"input": "one two"}, {"input": ["one", "two"]}],
    "/classify": [{"input": "one two"}],
    "/score": [{"text_1": "one", "text_2": ["two", "three"]}],
    "/v1/score": [{"text_1": "one", "text_2": "two"}],
    "/rerank": [{"query": "one", "documents": ["two", "three"], "top_n": 1}],
    "/v1/rerank": [{"query": "one", "documents": ["two", "three"]}],
    "/v2/rerank": [{"query": "one", "documents": []}],
}
ANY = (
    b'{"model": "%s", "messages": [{"role": "user", "content": "%s"}], "prompt": "%s", "input": "%s",'
    b' "max_tokens": %s, "temperature": 0%s}'
)


def _any(model: str, text: bytes = b"x", max_tokens: bytes = b"2", more: bytes = b"") -> bytes:
    """A body that most routes would take."""
    return ANY % (model.encode(), text, text, text, max_tokens, more)


def odd_bodies(model: str) -> Iterator[tuple[str, bytes]]:
    """Bodies that are no good, or good in an odd way."""
    yield "empty", b""
    yield "cut", b'{"model": "'
    yield "a list", b"[]"
    yield "null", b"null"
    yield "a text", b'"text"'
    yield "an empty object", b"{}"
    yield "blank", b"  \n"
    yield "wrong types", b'{"model": 7, "messages": "x", "prompt": {"a": 1}, "input": false, "max_tokens": "many", "tokens": "x"}'
    yield "a huge number", _any(model, max_tokens=b"1" + b"0" * 40)
    yield "a negative number", _any(model, max_tokens=b"-5")
    yield "a fraction", _any(model, max_tokens=b"1.5")
    yield "not a number", _any(model, max_tokens=b"NaN")
    yield "an escaped NUL", _any(model, rb"a\u0000b")
    yield "a raw NUL", _any(model, b"a\0b")
    yield "half a surrogate", _any(model, rb"\ud800")
    yield "no UTF-8", _any(model, b"\xff\xfe")
    yield "UTF-8 with a mark", b"\xef\xbb\xbf" + _any(model)
    yield "UTF-16", _any(model).decode().encode("utf-16")
    yield "deep", b'{"messages": ' + b"[" * 3000 + b"]" * 3000 + b"}"
    yield "deep and open", b"[" * 5000
    yield "the same key twice", _any(model, more=b', "max_tokens": 1, "model": "%s"' % model.encode())
    yield "an unknown key", _any(model, more=b', "nobody_knows": {"a": [1, null]}')
    yield "something behind", _any(model) + b" behind"
    yield "stream without a truth value", _any(model, more=b', "stream": "perhaps"')
    yield "options without a stream", _any(model, more=b', "stream_options": {"include_usage": true}')
    yield "n of none", _any(model, more=b', "n": 0')


def of_route(method: str, path: str, model: str) -> Iterator[Case]:
    """Everything that one route is asked."""
    target = path.replace("{response_id}", "resp_of-nobody")
    for fields in GOOD.get(path, []):
        body = json.dumps({"model": model} | GREEDY | ({"messages": MESSAGES} if "chat" in path else {}) | fields).encode()
        yield Case(path, method, target, body, what="good")
    if method == "POST":
        for what, body in odd_bodies(model):
            yield Case(path, method, target, body, what=what)
        good = _any(model)
        yield Case(path, method, target, good, (), what="no content type")
        yield Case(path, method, target, good, (("content-type", "text/plain"),), what="text")
        yield Case(path, method, target, good, (("content-type", "application/json; charset=utf-8"),), what="a charset")
        yield Case(path, method, target, good, (("content-type", "multipart/form-data; boundary=x"),), what="no multipart")
        yield Case(path, method, target, good, (JSON, ("accept-encoding", "gzip, br")), what="may be compressed")
        yield Case(path, method, target, good, (JSON, ORIGIN), what="from a page")
        yield Case(path, method, target, good, chunked=True, what="chunked")
        yield Case(path, method, target, gzip.compress(good, mtime=0), (JSON, ("content-encoding", "gzip")), what="compressed")
        yield Case(path, method, target + "?a=%2F&a=1&b", good, what="a query")
    yield from of_methods(path, target)


def of_methods(path: str, target: str) -> Iterator[Case]:
    """Every other method, other spellings, and what browsers ask."""
    for method in ("GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "POST", "TRACE", "QUERY"):
        if kind_of(method, path) is RouteKind.SAME:
            yield Case(path, method, target, b"", (), what="bare")
    if kind_of("GET", path) is RouteKind.SAME:
        yield Case(path, "GET", target, b'{"a": 1}', what="GET with a body")
        yield Case(path, "GET", target, b"", (ORIGIN,), what="from a page")
    for asked in ("POST", "GET"):
        headers = (ORIGIN, ("access-control-request-method", asked), ("access-control-request-headers", "authorization"))
        yield Case(path, "OPTIONS", target, b"", headers, what=f"may a page {asked}?")
    yield Case(path, "POST", target + "/", b"{}", what="a slash more")
    yield Case(path, "POST", "/" + target, b"{}", what="two slashes")
    yield Case(path, "POST", target.upper(), b"{}", what="upper case")


UNKNOWN = "unknown paths"


def of_unknown_paths() -> Iterator[Case]:
    """Paths that nobody serves."""
    targets = (
        "/",
        "/nothing",
        "/v1/nothing",
        "/a%20b/%C3%A9?q=%2F&q=2",
        "/v1/models/nobody",
        "/v1//chat/completions",
        "/%",
        "/a;b=c",
    )
    for target in (*targets, "/v1/../v1/nothing", "/metric", "/favicon.ico", "/static/x", "/docs/x", "/" + "a" * 4000):
        for method in ("GET", "POST", "HEAD", "OPTIONS", "DELETE"):
            yield Case(UNKNOWN, method, target, b"{}" if method == "POST" else b"", what="unknown")


WEBSOCKETS = "WebSockets"
UPGRADE = (("upgrade", "websocket"), ("sec-websocket-version", "13"), ("sec-websocket-key", "c2l4dGVlbiBieXRlcyBrZQ=="))


def of_websockets() -> Iterator[Case]:
    """Requests for an upgrade that this engine refuses: its model is no realtime one."""
    for target in ("/v1/realtime", "/v1/realtime?model=x", "/v1/chat/completions", "/nothing"):
        yield Case(WEBSOCKETS, "GET", target, b"", UPGRADE, what="an upgrade")
        yield Case(WEBSOCKETS, "GET", target, b"", UPGRADE[:1], what="half an upgrade")


PAGES = "descriptions"


def of_descriptions() -> Iterator[Case]:
    """The engine's pages about itself."""
    for target in ("/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json", "/docs/", "/openapi.json?x=1"):
        for method in ("GET", "HEAD", "OPTIONS", "POST"):
            yield Case(PAGES, method, target, b"", (), what="a page")


RECORDED = "recorded requests"


def of_recordings(folder: Path, model: str) -> Iterator[Case]:
    """Other people's requests: the cassettes as they are but for the model, then agent sessions and tool prompts, sampled."""
    for line in (folder / "requests" / "openai_api_cassettes.jsonl").read_text("utf-8").splitlines():
        entry = json.loads(line)
        request = entry["request"]
        if "unknown-model" in entry["name"]:
            continue  # that is told by kvgate, for all replicas together
        if isinstance(request, dict):
            short = {"max_completion_tokens": 3} if "chat" in entry["path"] else {"max_tokens": 3}
            asked = {key: value for key, value in request.items() if key not in {"max_tokens", "max_completion_tokens"}}
            request = (
                asked | GREEDY | (short if "bad-request" not in entry["name"] else {"max_tokens": request.get("max_tokens")})
            )
            request |= {"model": model}
        yield Case(RECORDED, entry["method"], entry["path"], json.dumps(request).encode(), what=entry["name"])
    for name, kind, body in all_bodies(folder / "requests", model, stride=RECORDED_STRIDE):
        if not name.startswith("cassette"):
            text = json.dumps(body | GREEDY).encode()
            if len(text) < 8000:  # beyond the context of this engine kvgate answers itself
                yield Case(RECORDED, "POST", f"/v1/{RECORDED_ROUTES[kind]}", text, what=name)


def every_case(routes: list[tuple[str, str]], model: str, data: Path | None) -> Iterator[Case]:
    """The suite."""
    for method, path in routes:
        if kind_of(method, path) is RouteKind.SAME:
            yield from of_route(method, path, model)
    yield from of_unknown_paths()
    yield from of_descriptions()
    yield from of_websockets()
    if data is not None:
        yield from of_recordings(data, model)
