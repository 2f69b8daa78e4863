"""OpenTelemetry traces: a span for each request, and in it for counting its prompt, for its wait, for each replica it was sent to, and for
the first token; with the GenAI semantic conventions, and W3C context in from the client and out to vLLM, whose spans become children.

Everything is configured by the standard variables (``OTEL_EXPORTER_OTLP_ENDPOINT``, ``OTEL_TRACES_SAMPLER``, ``OTEL_SERVICE_NAME``,
``OTEL_PROPAGATORS`` …). A request's span and a replica's are begun when they begin, for their ids go to the replica; the others are made of
the record at its end, and of a request that is not sampled none is. No content: models, counts, times, ids.

Fails: spans leave in batches by a thread; when the collector cannot keep up, the SDK drops some and says so in the log.
"""

from collections.abc import Mapping

from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from proxy import __version__
from proxy.core.outcome import Outcome
from proxy.ports import Clock, Headers
from proxy.ports.record import RequestRecord
from proxy.wire.log_text import plain

OPERATIONS = {
    "/v1/chat/completions": "chat",
    "/v1/messages": "chat",
    "/v1/responses": "chat",
    "/v1/completions": "text_completion",
}
EMBEDDINGS = ("/v1/embeddings", "/v2/embed", "/pooling")
FAULTS = frozenset({Outcome.UPSTREAM_FAILED, Outcome.CUT_OFF, Outcome.INTERNAL})
NAME_CHARS_MAX = 512  # as the log has it: the longest names of models and replicas are paths
CONTEXT_FIELDS = frozenset({b"traceparent", b"tracestate"})


def exporting_provider() -> TracerProvider:
    """Spans go to the collector that the environment names."""
    provider = TracerProvider(resource=Resource.create({"service.name": "kvgate", "service.version": __version__} | _named()))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    return provider


def _named() -> dict[str, str]:
    """The service's name where the environment gives it one, which goes before ours."""
    name = Resource.create().attributes.get("service.name", "")
    return {} if str(name).startswith("unknown_service") else {"service.name": str(name)}


class OtelTracing:
    """``ports.tracing.Tracing``."""

    def __init__(self, provider: TracerProvider, clock: Clock) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("kvgate", __version__)
        self._clock = clock

    def begin(self, fields: dict[str, str], arrived_s: float) -> "OtelTrace":
        """Go on with the client's trace, or begin one."""
        return OtelTrace(self._tracer, self._clock, propagate.extract(fields), arrived_s)

    def close(self) -> None:
        """Send what is left."""
        self._provider.shutdown()


class OtelTrace:
    """``ports.tracing.Trace``."""

    def __init__(self, tracer: trace.Tracer, clock: Clock, parent: Context, arrived_s: float) -> None:
        self._tracer = tracer
        self._clock = clock
        self._wall_s = clock.wall_s() - clock.now_s()  # by one difference, so that spans lie in one another
        self._span = tracer.start_span("request", parent, SpanKind.SERVER, start_time=self._ns(arrived_s))
        self._context = trace.set_span_in_context(self._span, parent)
        self._upstream: Span | None = None
        self._sent_s = arrived_s

    def _ns(self, at_s: float) -> int:
        return int((at_s + self._wall_s) * 1e9)

    def sent(self, replica: str, headers: Headers) -> Headers:
        """Begin the span of a replica, whose id it is told."""
        self._sent_s = self._clock.now_s()
        self._end_upstream(self._sent_s, failed=True)
        self._upstream = self._tracer.start_span(
            "upstream", self._context, SpanKind.CLIENT, {"kvgate.replica": replica}, start_time=self._ns(self._sent_s)
        )
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(self._upstream, self._context))
        own = [(name.encode(), value.encode()) for name, value in carrier.items() if name.encode() in CONTEXT_FIELDS]
        return [*(field for field in headers if field[0] not in CONTEXT_FIELDS), *own]

    def _end_upstream(self, at_s: float, *, failed: bool) -> None:
        if self._upstream is None:
            return
        if failed:
            self._upstream.set_status(Status(StatusCode.ERROR))
        self._upstream.end(self._ns(at_s))

    def ended(self, record: RequestRecord) -> None:
        """End every span, and make those that lie between."""
        now_s = record.arrived_s + record.total_s
        failed = record.outcome in FAULTS
        if self._span.is_recording():
            self._between(record)
            operation = _operation(record.route)
            self._span.update_name(_shown(f"{operation} {record.model}".rstrip()))
            self._span.set_attributes(_attributes(record, operation))
            if failed:
                self._span.set_status(Status(StatusCode.ERROR, record.outcome.value))
        self._end_upstream(now_s, failed=failed)
        self._span.end(self._ns(now_s))

    def _between(self, record: RequestRecord) -> None:
        if record.tokenized_s is not None:
            self._part("tokenize", *record.tokenized_s, {"kvgate.count_source": record.count_source or ""})
        placed = record.queue_wait_s
        if record.demand is not None and (placed is not None or record.held):
            begun_s = record.tokenized_s[1] if record.tokenized_s is not None else record.arrived_s
            until_s = record.arrived_s + (record.total_s if placed is None else placed)
            self._part("queue", begun_s, max(begun_s, until_s), {"kvgate.held": record.held})
        if record.ttft_s is not None and self._upstream is not None:
            inside = trace.set_span_in_context(self._upstream, self._context)
            self._part("first token", self._sent_s, max(self._sent_s, record.arrived_s + record.ttft_s), {}, inside)

    def _part(
        self, name: str, begun_s: float, ended_s: float, attributes: Mapping[str, AttributeValue], inside: Context | None = None
    ) -> None:
        span = self._tracer.start_span(name, inside or self._context, attributes=dict(attributes), start_time=self._ns(begun_s))
        span.end(self._ns(ended_s))


def _operation(route: str) -> str:
    return OPERATIONS.get(route) or ("embeddings" if route in EMBEDDINGS else "generate_content")


def _attributes(record: RequestRecord, operation: str) -> dict[str, AttributeValue]:
    """By the semantic conventions where they have a name, else ``kvgate.…``; nothing that is not known."""
    demand = record.demand
    found: dict[str, AttributeValue | None] = {
        "gen_ai.operation.name": operation,
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": record.model,
        "gen_ai.request.stream": record.streaming,
        "gen_ai.request.max_tokens": None if demand is None else demand.output_tokens_max,
        "gen_ai.request.choice.count": None if demand is None or demand.copies == 1 else demand.copies,
        "gen_ai.response.finish_reasons": [_shown(one) for one in record.finish_reasons] or None,
        "gen_ai.response.time_to_first_chunk": record.ttft_s,
        "gen_ai.usage.input_tokens": record.prompt_tokens_reported or record.prompt_tokens,
        "gen_ai.usage.output_tokens": record.output_tokens,
        "http.route": record.route,
        "http.response.status_code": record.status,
        "kvgate.request_id": record.request_id,
        "kvgate.outcome": record.outcome.value,
        "kvgate.gate": record.gate,
        "kvgate.traffic_class": record.traffic_class,
        "kvgate.tenant": record.tenant,
        "kvgate.replica": record.replica,
        "kvgate.reroutes": record.reroutes,
    }
    return {name: _shown(value) if isinstance(value, str) else value for name, value in found.items() if value is not None}


def _shown(text: str) -> str:
    """What clients and replicas choose, as one word of a span."""
    return plain(text[:NAME_CHARS_MAX])
