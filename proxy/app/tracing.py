"""Traces where the environment names a collector, by OpenTelemetry's own variables; nothing is imported where it does not."""

import logging
from collections.abc import Mapping

from proxy.ports import Clock
from proxy.ports.tracing import Tracing

ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
EXPORTERS = frozenset({"", "otlp"})

log = logging.getLogger("kvgate.traces")


def wanted(environ: Mapping[str, str]) -> bool:
    """Whether spans have somewhere to go, and nobody has switched them off."""
    off = environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    return any(environ.get(name) for name in ENDPOINTS) and not off and environ.get("OTEL_TRACES_EXPORTER", "") in EXPORTERS


def tracing_of(environ: Mapping[str, str], clock: Clock) -> Tracing | None:
    """What traces requests; None where nobody wants it, or what it needs is not installed, which is told."""
    if not wanted(environ):
        return None
    try:
        from proxy.adapters.tracing import OtelTracing, exporting_provider  # noqa: PLC0415  an extra, and slow to load
    except ModuleNotFoundError:
        log.warning("traces.off: OTEL_EXPORTER_OTLP_ENDPOINT is set, and traces need pip install 'kvgate[otel]'")
        return None
    log.info("traces.on")
    return OtelTracing(exporting_provider(), clock)
