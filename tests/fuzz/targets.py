"""What is fuzzed: each target takes any bytes, and fails (an assertion, or anything else that is raised) where a promise is not kept.

``python -m tests.fuzz.run`` lets libFuzzer look for such bytes; what it found lies in ``corpus/TARGET/`` and is replayed by the ordinary
tests. The first byte often says how the rest is used: where a stream is cut, which kind of call a body is.
"""

import json
import math
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import httptools

from proxy.adapters.redis_reading import (
    MALFORMED,
    UnknownWordError,
    account_of,
    card_of,
    completion_of,
    kept_of,
    override_of,
    record_fields,
)
from proxy.config.faults import PolicyError
from proxy.config.policy_file import review
from proxy.config.replica_list import parse_replicas
from proxy.core.policy_tenants import Tenants, TenantSource
from proxy.wire.call import CallKind
from proxy.wire.dcgm import read_gpu_util
from proxy.wire.engine_priority import asked_priority, with_priority
from proxy.wire.http_fields import FieldError, encode_request_head, end_to_end, parse_base_url
from proxy.wire.inject import inject_usage, with_member
from proxy.wire.kvgate_metrics import is_gate, read_gate
from proxy.wire.lax import UnreadableCallError, parse_object
from proxy.wire.log_text import json_plain, plain, word
from proxy.wire.output_cap import CAP_FIELDS, with_output_cap
from proxy.wire.read_call import CALL_ROUTES, call_route, read_call
from proxy.wire.routes import closed_path, opened, plain_path
from proxy.wire.serve_command import read_command, read_server_info
from proxy.wire.sse import StreamObserver, UsageStripper
from proxy.wire.typed_streams import MessagesObserver, ResponsesObserver
from proxy.wire.vllm_latencies import read_latencies
from proxy.wire.vllm_metrics import looks_like_exposition, read_cache_config, read_scrape, usage_lookalikes

KINDS = list(CallKind)
ORIGIN = parse_base_url("http://replica:8000/prefix")


def stream(data: bytes) -> None:
    """Observers and the stripper find the same however the bytes are cut, and the stripper invents nothing."""
    if not data:
        return
    size, text = data[0] % 7 + 1, data[1:]
    cut = [text[at : at + size] for at in range(0, len(text), size)]
    for kind in (StreamObserver, MessagesObserver, ResponsesObserver):
        assert _observed(kind(), [text]) == _observed(kind(), cut)
    whole, pieces = _stripped([text]), _stripped(cut)
    assert whole == pieces
    assert len(whole) <= len(text)
    assert _is_subsequence(whole, text)


def _observed(observer: StreamObserver, parts: list[bytes]) -> tuple[Any, ...]:
    for part in parts:
        observer.feed(part)
    seen = observer
    return (
        seen.tokens_seen,
        seen.usage,
        seen.finish_reasons,
        seen.done,
        seen.failed,
        seen.first_content,
        seen.fingerprint,
        seen.answer_id,
    )


def _stripped(parts: list[bytes]) -> bytes:
    stripper = UsageStripper()
    return b"".join([*(stripper.feed(part) for part in parts), stripper.flush()])


def _is_subsequence(part: bytes, whole: bytes) -> bool:
    """Whether ``part`` is ``whole`` less one run of bytes."""
    ahead = next((at for at, (one, other) in enumerate(zip(part, whole, strict=False)) if one != other), len(part))
    return not part[ahead:] or whole.endswith(part[ahead:])


def body(data: bytes) -> None:
    """A body is read or unreadable, as ``json`` reads it; what is written into it changes that one thing."""
    if not data:
        return
    kind, text = KINDS[data[0] % len(KINDS)], data[1:]
    try:
        call = read_call(kind, text)
    except UnreadableCallError:
        return
    assert call.n >= 1
    assert call.output_tokens_max is None or call.output_tokens_max >= 1
    for name in (call.model, call.user, call.cache_salt, call.prompt_cache_key):
        assert name is None or name.encode()
    if kind is CallKind.SPEECH:
        return
    fields = parse_object(text)
    assert _same(fields, json.loads(text))
    injected = inject_usage(text, call)
    if injected != text:
        options = parse_object(injected)["stream_options"]
        assert options["include_usage"] is True
        assert _same(parse_object(injected) | {"stream_options": 0}, fields | {"stream_options": 0})
    if kind in CAP_FIELDS and with_output_cap(text, kind, 7) != text:
        capped = parse_object(with_output_cap(text, kind, 7))
        assert {name for name in capped if not _same(capped[name], fields.get(name))} <= {CAP_FIELDS[kind]}
    asked = asked_priority([], call.priority)
    _, prioritised = with_priority([], text, call.priority, 3)
    assert call.priority is None or asked == 0 or parse_object(prioritised).get("priority") in {3, fields.get("priority")}
    renamed = with_member(text, "model", "other")
    assert renamed == text or parse_object(renamed)["model"] == "other"


def _same(one: Any, other: Any) -> bool:
    """Equal, NaN being equal to itself, and 1 not to 1.0 or true; however deep."""
    pending = [(one, other)]
    while pending:
        left, right = pending.pop()
        if type(left) is not type(right):
            return False
        if isinstance(left, dict):
            if left.keys() != right.keys():
                return False
            pending += [(value, right[key]) for key, value in left.items()]
        elif isinstance(left, list):
            if len(left) != len(right):
                return False
            pending += zip(left, right, strict=True)
        elif left != right and not (isinstance(left, float) and math.isnan(left) and math.isnan(right)):
            return False
    return True


def metrics(data: bytes) -> None:
    """An exposition is read whatever it is; ratios lie in 0..1, and no number is negative, infinite or NaN."""
    for engine in read_scrape(data, block_size=16).engines:
        numbers = [value for name in engine.__slots__ if isinstance(value := getattr(engine, name), int | float)]
        assert all(math.isfinite(value) and value >= 0 for value in numbers), engine
    cache = read_cache_config(data)
    assert cache is None or cache.block_size is None or cache.block_size > 0
    looks_like_exposition(data)
    usage_lookalikes(data)
    read_latencies(data)
    read_gpu_util(data)
    if is_gate(data):
        read_gate(data)


def command(data: bytes) -> None:
    """A command line and ``/server_info``: known numbers are positive or absent."""
    flags = read_command(data.decode("utf-8", "replace").split("\n"))
    assert all(value is None or value >= 0 for value in (flags.max_num_seqs, flags.max_num_batched_tokens, flags.tensor_parallel))
    try:
        answer = json.loads(data)
    except (ValueError, RecursionError):
        return
    read_server_info(answer)


class _Head:
    """What a parser finds in a head."""

    def __init__(self) -> None:
        self.fields: list[tuple[bytes, bytes]] = []
        self.messages = 0

    def on_message_begin(self) -> None:
        self.messages += 1

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields.append((name, value))


def head(data: bytes) -> None:
    """A head that is written is one request, with the fields that were meant and no other; nothing can be taken from what we add."""
    target, *lines = data.split(b"\n\n")
    fields = [(name.lower(), value) for name, _, value in (line.partition(b":") for line in lines)]
    ours = (b"x-ours", b"kept")
    try:
        written = encode_request_head(ORIGIN, b"GET", target, [*end_to_end(fields), ours], 0)
    except FieldError:
        return
    found = _Head()
    parser = httptools.HttpRequestParser(found)
    try:
        parser.feed_data(written)
    except (httptools.HttpParserError, httptools.HttpParserUpgrade):
        return  # a control character in a value: the replica refuses it as well
    assert found.messages == 1
    assert ours in found.fields
    names = [name for name, _ in found.fields]
    assert names.count(b"host") == 1
    assert not {b"content-length", b"transfer-encoding", b"connection", b"upgrade"} & set(names)
    assert len(found.fields) <= len(fields) + 2


def path(data: bytes) -> None:
    """What a path comes to does not change by looking at it again, and nothing but the engine's own spelling can be opened."""
    text = data.decode("latin-1")
    closed = closed_path(text)
    undisguised = plain_path(text)
    assert closed_path(undisguised) == closed or "%" in undisguised
    assert closed_path("/any" + undisguised) == closed
    assert closed is not None or not opened(text, ("*",))
    route = call_route(text)
    assert route is None or route in CALL_ROUTES
    assert call_route(text + "\n") == route


def policy(data: bytes) -> None:
    """A policy, or faults that say where; likewise a list of replicas."""
    text = data.decode("utf-8", "replace")
    found = review(text, "policy.yaml")
    assert (found.policy is None) == bool(found.faults)
    lines = text.count("\n") + text.count("\r") + text.count("\x85") + text.count("\u2028") + text.count("\u2029") + 2
    for fault in (*found.faults, *found.warnings):
        assert 0 <= fault.line <= lines
        assert "\n" not in str(fault)
    with suppress(PolicyError):
        parse_replicas(data, "replicas.yaml")


def tenant(data: bytes) -> None:
    """A tenant is named by at most 64 characters that can be written, and log lines stay lines."""
    text = data.decode("latin-1")
    tenants = Tenants(sources=(TenantSource.JWT, TenantSource.HEADER))
    for headers in ({"authorization": text}, {"x-kvgate-tenant": text}):
        name = tenants.tenant_of(headers, None)
        assert 0 < len(name) <= 64
        name.encode()
    assert word(text).isprintable()
    assert plain(text).isprintable()


def row(data: bytes) -> None:
    """A word in a shared Redis is read or is none; what is read can be written, sent on and counted with."""
    text = data[1:]
    readers: tuple[Callable[[], object], ...] = (
        lambda: card_of(b"a", text),
        lambda: override_of(b"mode", text, 1e9),
        lambda: override_of(b"drain:r0", text, 1e9),
        lambda: completion_of(json.loads(text)),
        lambda: kept_of(json.loads(text)),
        lambda: account_of(text, b"1"),
        lambda: account_of(b"0|t", text),
        lambda: record_fields(text),
    )
    with suppress(UnknownWordError, *MALFORMED):
        found = readers[data[0] % len(readers) if data else 0]()
        repr(found).encode()
    with suppress(ValueError, RecursionError):
        value = json.loads(text.decode())
        assert json.loads(json_plain(text)) == value or value != value  # noqa: PLR0124  NaN


TARGETS: dict[str, Callable[[bytes], None]] = {
    one.__name__: one for one in (stream, body, metrics, command, head, path, policy, tenant, row)
}
