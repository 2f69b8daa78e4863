"""What kvgate does with each path that vLLM serves: the closed table, and what a path comes to once its disguises are off.

- *same*: relayed untouched. Every path that the table does not name is same as well: plugins add their own.
- *own*: kvgate answers itself, for the fleet; with other methods than those named here the path is same.
- *closed*: engine control. One client could stop a replica for all others, so it is answered 403 unless the policy opens it.

A closed path is closed for every method and in every spelling that a server on the way might read as that path: percent-encoded (more
than once), with doubled slashes, dot segments, parameters, other case, a slash or blank at its end, and under any prefix (vLLM's
``--root-path``, a balancer's). The engine itself is stricter; a spelling that only it would not understand is refused here all the same.
A call that takes KV is one in every such spelling as well (``wire.read_call``), or it would pass by admission and everybody's limits.
"""

import re
from collections.abc import Container, Mapping
from enum import StrEnum
from fnmatch import fnmatchcase
from functools import lru_cache
from types import MappingProxyType
from urllib.parse import unquote_to_bytes


class RouteKind(StrEnum):
    """What becomes of a request."""

    SAME = "same"
    OWN = "own"
    CLOSED = "closed"


# vLLM 0.32, all flags and models (reference: its build_app). `{id}` stands for one segment.
SAME_PATHS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        **dict.fromkeys(
            (
                *("/v1/chat/completions", "/v1/chat/completions/batch", "/v1/completions", "/v1/responses", "/v1/messages"),
                *(
                    "/v1/messages/count_tokens",
                    "/v1/systemone",
                    "/generative_scoring",
                    "/invocations",
                    "/tokenize",
                    "/detokenize",
                ),
                *("/v1/responses/{id}/cancel", "/v1/audio/transcriptions", "/v1/audio/translations", "/is_scaling_elastic_ep"),
                *("/v1/embeddings", "/v2/embed", "/pooling", "/classify", "/score", "/v1/score", "/rerank", "/v1/rerank"),
                *("/v2/rerank", "/cohere/v2/chat", "/cohere/v2/chat/render", "/inference/v1/generate"),
                *("/v1/chat/completions/render", "/v1/completions/render", "/v1/messages/render", "/v1/responses/render"),
                *("/v1/chat/completions/derender", "/v1/completions/derender"),
            ),
            ("POST",),
        ),
        **dict.fromkeys(
            (
                *("/v1/responses/{id}", "/v1/realtime", "/kv_event_sources", "/tokenizer_info"),
                *("/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json"),
            ),
            ("GET",),
        ),
        "/ping": ("GET", "POST"),
    }
)
OWN_PATHS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "/health": ("GET", "HEAD"),
        "/ready": ("GET", "HEAD"),
        "/metrics": ("GET", "HEAD"),
        "/version": ("GET",),
        "/load": ("GET",),
        "/v1/models": ("GET",),
    }
)
CLOSED_PATHS = frozenset(
    {
        *("/sleep", "/wake_up", "/is_sleeping", "/release_kv_cache_memory", "/pause", "/resume", "/is_paused"),
        *("/abort_requests", "/inference/v1/abort_requests", "/collective_rpc", "/server_info", "/get_world_size"),
        *("/reset_prefix_cache", "/reset_mm_cache", "/reset_encoder_cache", "/start_profile", "/stop_profile"),
        *("/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/adapters", "/adapters/{name}", "/scale_elastic_ep"),
        *("/fault_tolerance/apply", "/fault_tolerance/status"),
        *(
            "/init_weight_transfer_engine",
            "/shutdown_weight_transfer_engine",
            "/start_weight_update",
            "/start_draft_weight_update",
        ),
        *("/update_weights", "/finish_weight_update", "/update_weight_version", "/weight_info", "/weight_checker"),
    }
)
_ADAPTERS, _ADAPTER = "/adapters", "/adapters/{name}"  # SageMaker's way to load and unload them
_CLOSED_LAST_WORDS = frozenset(path.rpartition("/")[2] for path in CLOSED_PATHS)
_REMEMBERED_CHARS_MAX = 256  # of a path: clients choose them, and what is remembered takes memory
_DECODINGS_MAX = 8  # a path encoded more often is nobody's honest path
_NAME = re.compile(r"[A-Za-z0-9._-]+")
_PLAIN = frozenset("abcdefghijklmnopqrstuvwxyz0123456789_/")


def kind_of(method: str, path: str) -> RouteKind:
    """What becomes of a request. ``path`` is the decoded path, as an ASGI server tells it, without the query."""
    return _kind_remembered(method, path) if len(path) <= _REMEMBERED_CHARS_MAX else _kind(method, path)


def _kind(method: str, path: str) -> RouteKind:
    if method in OWN_PATHS.get(path, ()):
        return RouteKind.OWN
    return RouteKind.SAME if closed_path(path) is None else RouteKind.CLOSED


_kind_remembered = lru_cache(maxsize=1024)(_kind)  # clients ask for the same few


def closed_path(path: str) -> str | None:
    """The closed path, as the table has it, that ``path`` comes to, however it is spelled; None where it comes to none."""
    path = plain_path(path)
    parent, _, last = path.rpartition("/")
    if parent.endswith(_ADAPTERS):
        return _ADAPTER
    return under_any_prefix(path, CLOSED_PATHS) if last in _CLOSED_LAST_WORDS else None


def under_any_prefix(path: str, known: Container[str]) -> str | None:
    """The longest of the known paths that ``path`` ends with, whole segments of it; None where it ends with none."""
    while path:
        if path in known:
            return path
        cut = path.find("/", 1)
        path = path[cut:] if cut > 0 else ""
    return None


def plain_path(path: str) -> str:
    """The path without its disguises, in lower case."""
    if _PLAIN.issuperset(path) and "//" not in path and path[:1] == "/" and path[-1] != "/":
        return path
    raw = path.encode("utf-8", "surrogateescape")
    for _ in range(_DECODINGS_MAX):
        decoded = unquote_to_bytes(raw)
        if decoded == raw:
            break
        raw = decoded
    segments: list[str] = []
    for part in raw.decode("utf-8", "replace").replace("\\", "/").partition("?")[0].partition("#")[0].split("/"):
        name = part.partition(";")[0].strip().strip("\0").lower()
        if name == "..":
            del segments[-1:]
        elif name not in {"", "."}:
            segments.append(name)
    return "/" + "/".join(segments)


def in_table(method: str, path: str) -> bool:
    """Whether the table names the route; ``path`` as OpenAPI writes it, any name in braces."""
    template = "/".join("{id}" if part.startswith("{") and part.endswith("}") else part for part in path.split("/"))
    return closed_path(path) is not None or method in OWN_PATHS.get(path, ()) or method in SAME_PATHS.get(template, ())


def opened(path: str, allowed: tuple[str, ...]) -> bool:
    """Whether a closed path is opened by the policy's paths or globs: as the engine spells it, for no other spelling is."""
    closed = closed_path(path)
    parent, _, name = path.rpartition("/")
    spelled_out = path == closed or (closed == _ADAPTER and parent == _ADAPTERS and _NAME.fullmatch(name) is not None)
    return spelled_out and any(fnmatchcase(path, glob) for glob in allowed)
