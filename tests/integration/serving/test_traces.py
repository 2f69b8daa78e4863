"""Traces: what a request's spans are, whose children they are, that sampling is respected, and that a real OTLP receiver gets them."""

import asyncio
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode

from proxy.adapters.tracing import OtelTracing
from proxy.app.tracing import tracing_of, wanted
from tests.integration.mock_harness import running, settings
from tests.integration.serving.harness import RunningProxy, proxying, url_of
from tests.integration.serving.test_modes import fill, leave_all, small
from tests.integration.serving.test_reroutes import BROKEN, beside_a_faulty_one
from tests.support.upstream_servers import asgi_server

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE_ID}-00f067aa0ba902b7-01"


class Exported:
    """A provider whose spans are kept."""

    def __init__(self, **more: Any) -> None:
        self.exporter = InMemorySpanExporter()
        self.provider = TracerProvider(**more)
        self.provider.add_span_processor(SimpleSpanProcessor(self.exporter))

    def on(self, proxy: RunningProxy) -> None:
        proxy.services.tracing = OtelTracing(self.provider, proxy.services.clock)

    def spans(self) -> list[ReadableSpan]:
        return list(self.exporter.get_finished_spans())

    def named(self, name: str) -> ReadableSpan:
        (found,) = [span for span in self.spans() if span.name == name]
        return found


@pytest.fixture
def exported() -> Iterator[Exported]:
    made = Exported()
    yield made
    made.provider.shutdown()


def parent_of(span: ReadableSpan) -> int | None:
    return None if span.parent is None else span.parent.span_id


def id_of(span: ReadableSpan) -> int:
    assert span.context is not None
    return span.context.span_id


async def test_a_request_is_told_as_spans_within_the_clients_trace(exported: Exported) -> None:
    async with running(settings()) as mock, proxying(url_of(mock)) as proxy:
        exported.on(proxy)
        headers = {"traceparent": PARENT, "x-request-id": "mine", "x-kvgate-tenant": "acme"}
        usage = {"include_usage": True}
        reply = await proxy.wire.chat(headers, max_tokens=4, ignore_eos=True, stream=True, stream_options=usage)
        assert reply.status == 200
        await proxy.until_idle(mock)
        root = next(span for span in exported.spans() if span.name.startswith("chat "))
        assert root.context is not None
        assert f"{root.context.trace_id:032x}" == TRACE_ID
        assert parent_of(root) == 0x00F067AA0BA902B7
        upstream = exported.named("upstream")
        assert {parent_of(exported.named(name)) for name in ("tokenize", "queue", "upstream")} == {id_of(root)}
        assert parent_of(exported.named("first token")) == id_of(upstream)
        for span in exported.spans():
            assert root.start_time is not None
            assert root.end_time is not None
            assert span.start_time is not None
            assert span.end_time is not None
            assert root.start_time <= span.start_time <= span.end_time <= root.end_time, span.name
        told = dict(root.attributes or {})
        expected = {
            "gen_ai.operation.name": "chat", "gen_ai.provider.name": "vllm", "gen_ai.request.max_tokens": 4,
            "gen_ai.usage.output_tokens": 4, "gen_ai.response.finish_reasons": ("length",), "http.response.status_code": 200,
            "kvgate.request_id": "mine", "kvgate.outcome": "completed", "kvgate.tenant": "acme", "gen_ai.request.stream": True,
        }  # fmt: skip
        assert {name: told.get(name) for name in expected} == expected
        assert isinstance(told["gen_ai.usage.input_tokens"], int)


async def test_the_engine_is_told_the_span_that_it_works_for(exported: Exported) -> None:
    async with beside_a_faulty_one(BROKEN) as (_, mock, proxy):
        exported.on(proxy)
        seen: list[dict[str, str]] = []
        opened = proxy.services.upstream.open

        async def noting(base_url: str, method: bytes, target: bytes, headers: Any, body: bytes, **more: Any) -> Any:
            seen.append({name.decode(): value.decode() for name, value in headers})
            return await opened(base_url, method, target, headers, body, **more)

        proxy.services.upstream.open = noting  # type: ignore[method-assign]
        assert (await proxy.wire.chat({"traceparent": PARENT, "tracestate": "vendor=1"}, max_tokens=2)).status == 200
        await proxy.until_idle(mock)
        first, second = [span for span in exported.spans() if span.name == "upstream"]
        told = [headers["traceparent"] for headers in seen]
        assert told == [f"00-{TRACE_ID}-{id_of(span):016x}-01" for span in (first, second)], "of each replica its own"
        assert {headers["tracestate"] for headers in seen} == {"vendor=1"}
        assert [span.status.status_code for span in (first, second)] == [StatusCode.ERROR, StatusCode.UNSET]
        assert [(span.attributes or {})["kvgate.replica"] for span in (first, second)] == ["bad", "good"]


@pytest.mark.parametrize("sampled", ["01", "00"])
async def test_the_clients_sampling_is_respected(sampled: str, exported: Exported) -> None:
    async with running(settings()) as mock, proxying(url_of(mock)) as proxy:
        exported.on(proxy)
        assert (await proxy.wire.chat({"traceparent": PARENT[:-2] + sampled}, max_tokens=1)).status == 200
        await proxy.until_idle(mock)
        assert bool(exported.spans()) is (sampled == "01")


async def test_one_that_is_not_sampled_is_told_so_to_the_engine() -> None:
    exported = Exported(sampler=ALWAYS_OFF)
    async with running(settings()) as mock, proxying(url_of(mock)) as proxy:
        exported.on(proxy)
        trace = OtelTracing(exported.provider, proxy.services.clock).begin({}, proxy.services.clock.now_s())
        sent = dict(trace.sent("r0", [(b"traceparent", PARENT.encode()), (b"x", b"y")]))
        assert int(sent[b"traceparent"][-2:], 16) & 1 == 0
        assert sent[b"x"] == b"y"
        assert (await proxy.wire.chat(max_tokens=1)).status == 200
        assert exported.spans() == []


async def test_refusals_and_waits_are_told(exported: Exported) -> None:
    async with small({"queue": {"requests_max": 1}}) as (mocks, proxy):
        exported.on(proxy)
        exchanges = await fill(proxy)
        assert (await proxy.wire.chat({"traceparent": PARENT}, max_tokens=900)).status == 429
        await leave_all(exchanges)
        await proxy.until_idle(*mocks)
        refused = next(span for span in exported.spans() if (span.attributes or {}).get("kvgate.outcome") == "queue_full")
        assert (refused.attributes or {})["kvgate.gate"] == "queue.requests_max"
        assert "upstream" not in {span.name for span in exported.spans() if parent_of(span) == id_of(refused)}
        queues = [span for span in exported.spans() if span.name == "queue"]
        assert any((span.attributes or {})["kvgate.held"] for span in queues)


async def test_a_real_receiver_gets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies: list[bytes] = []
    got = asyncio.Event()

    async def receiver(scope: Any, receive: Any, send: Any) -> None:
        assert scope["path"] == "/v1/traces"
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        bodies.append(body)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"application/x-protobuf")]})
        await send({"type": "http.response.body", "body": b""})
        got.set()

    async with asgi_server(receiver) as port, running(settings()) as mock, proxying(url_of(mock)) as proxy:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setenv("OTEL_SERVICE_NAME", "edge")
        tracing = tracing_of({"OTEL_EXPORTER_OTLP_ENDPOINT": "set"}, proxy.services.clock)
        assert tracing is not None
        proxy.services.tracing = tracing
        assert (await proxy.wire.chat({"traceparent": PARENT}, max_tokens=1)).status == 200
        await proxy.until_idle(mock)
        await asyncio.to_thread(tracing.close)
        await asyncio.wait_for(got.wait(), 10)
    told = ExportTraceServiceRequest.FromString(bodies[0])
    (resource,) = told.resource_spans
    assert [one.value.string_value for one in resource.resource.attributes if one.key == "service.name"] == ["edge"]
    spans = [span for scope in resource.scope_spans for span in scope.spans]
    assert {span.trace_id.hex() for span in spans} == {TRACE_ID}
    assert {"upstream", "tokenize", "queue"} <= {span.name for span in spans}


def test_it_is_on_only_where_a_collector_is_named() -> None:
    there = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}
    assert wanted(there)
    assert wanted({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces", "OTEL_TRACES_EXPORTER": "otlp"})
    for off in ({}, there | {"OTEL_SDK_DISABLED": "true"}, there | {"OTEL_TRACES_EXPORTER": "none"}):
        assert not wanted(off)


async def test_nothing_of_it_is_loaded_where_it_is_off() -> None:
    program = "import sys, proxy.app; sys.exit(any(name.startswith('opentelemetry') for name in sys.modules))"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program)
    assert await process.wait() == 0
