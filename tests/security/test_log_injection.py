"""What clients and replicas choose never ends a line, steers a terminal or turns a text round, wherever operators read it.

Every field that a client or a replica can fill is filled with the same signs, and every place that shows any of them is looked at: the log
in both forms, metrics, the admin pages, traces, ``kvgate top`` and the snapshot.
"""

import asyncio
import gzip
import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from proxy.adapters.log_output import open_log
from proxy.adapters.tracing import OtelTracing
from proxy.cli import main
from tests.integration.serving.harness import until
from tests.security.attacked import ADMIN_TOKEN, Attacked, attacked

SIGNS = "\u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e\x1b[2J\x1b]0;x\x07\u202e\u2066\u200f\x9b31m\x7f"
LINE = "\r\n2026-11-30T00:00:00Z INFO kvgate request.finished outcome=completed forged=1\r\n"
NASTY = f"a{SIGNS}{LINE}b"
HALF = NASTY + "\ud800"
LONG = NASTY + "x" * 300_000
LINE_CHARS_MAX = 20_000
LINES_CHARS_MAX = 2_000_000
PAGES = ("/admin/requests?last=100", "/admin/live", "/admin/state", "/admin/replicas?history=1", "/admin/policy", "/admin/report",
         "/metrics", "/ready")  # fmt: skip
FIELDS = ("x-request-id", "user-agent", "x-tenant", "x-kvgate-session", "x-session-id", "x-kvgate-deadline-ms", "x-class", "traceparent",
          "tracestate", "x-forwarded-for", "referer", "authorization", "content-type", "x-stainless-read-timeout")  # fmt: skip
POLICY = {
    "tenants": {"from": ["header", "user"], "header": "x-tenant"},
    "limits": {"head_max": "64KiB"},
}


@contextmanager
def logged(form: str) -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level, stream = list(root.handlers), root.level, io.StringIO()
    try:
        open_log("debug", form, stream=stream)
        yield stream
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.captureWarnings(False)


def on_the_wire(value: str) -> str:
    """As a header may hold it: what HTTP itself refuses left out."""
    kept = value.replace("\r", "").replace("\n", "").replace("\x7f", "")
    kept = "".join(sign for sign in kept if sign >= " " or sign == "\t")
    return kept.encode("utf-8", "surrogatepass").decode("latin-1")


async def asked(kvgate: Attacked) -> None:
    """Requests of many fates, all of them nasty."""
    talk = [{"role": "user", "content": "hi"}]
    for value in (NASTY, HALF, LONG):
        for body in (
            {"model": value, "messages": talk}, {"model": "mock", "messages": talk, "user": value},
            {"model": "mock", "messages": talk, "prompt_cache_key": value, "tools": value}, {value: value, "model": "mock"},
            {"model": "mock", "messages": talk, "priority": value, "max_tokens": value}, {"model": "mock", "prompt": 5, "stream": value},
        ):  # fmt: skip
            await kvgate.post("/v1/chat/completions", body)
        await kvgate.post("/v1/" + quote(value[:2000].encode("utf-8", "surrogatepass")), {"model": "mock"})
        await kvgate.post("/v1/responses", {"model": "mock", "input": "x", "previous_response_id": value})
    for field in FIELDS:
        for value in (NASTY, LONG[:40_000]):
            await kvgate.post("/v1/chat/completions", {"model": "mock", "messages": talk}, {field: on_the_wire(value)})
    await kvgate.say(b"GET /" + on_the_wire(NASTY).encode("latin-1") + b" HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
    for answer in (NASTY, HALF, LONG):
        words = json.dumps({"error": {"message": answer, "type": answer, "code": answer}, "system_fingerprint": answer}).encode()
        for status in (b"200 OK", b"400 Bad Request", b"500 " + on_the_wire(NASTY).encode("latin-1"), b"503 Busy"):
            kvgate.replica.answer = b"HTTP/1.1 %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b" % (
                status, len(words), words)  # fmt: skip
            await kvgate.post("/v1/chat/completions", {"model": "mock", "messages": talk})
    kvgate.replica.answer = b"HTTP/1.1 2" + on_the_wire(NASTY).encode("latin-1") + b"\r\n\r\n"
    await kvgate.post("/v1/chat/completions", {"model": "mock", "messages": talk})
    said = {"mode": "observe", "for_s": 60, "reason": NASTY, "by": NASTY}
    known = {"authorization": f"Bearer {ADMIN_TOKEN}", "host": "localhost"}
    await kvgate.admin.request("POST", "/admin/mode", json.dumps(said).encode(), known)


async def looked_at(kvgate: Attacked, folder: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """What is shown, by where."""
    told = {}
    for page in PAGES:
        reply = await kvgate.admin.request("GET", page, headers={"host": "127.0.0.1"})
        assert (page, reply.status) == (page, 200)
        told[page] = reply.body.decode()
    url = f"http://127.0.0.1:{kvgate.admin.port}"
    out = folder / "all.json.gz"
    assert await asyncio.to_thread(main, ["snapshot", url, "-o", str(out), "--tenant-names"]) == 0
    told["snapshot"] = gzip.decompress(out.read_bytes()).decode()
    capsys.readouterr()
    for command in (["top", "--once", url], ["report", "--admin", url]):
        await asyncio.to_thread(main, command)
        told["kvgate " + command[0]] = capsys.readouterr().out
    return told


def lines_of(text: str) -> list[str]:
    """Lines as a reader by bytes has them, which must be those of any other reader."""
    lines = text.split("\n")
    assert lines[-1] == ""
    assert lines[:-1] == text.splitlines()
    return lines[:-1]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["json", "console"])
async def test_nothing_that_others_choose_ends_a_line_or_steers_a_terminal(
    form: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    with logged(form) as log:
        async with attacked(**POLICY) as kvgate:
            kvgate.proxy.services.tracing = OtelTracing(provider, kvgate.proxy.services.clock)
            await asked(kvgate)
            await until(kvgate.proxy.idle, "an idle proxy")
            told = await looked_at(kvgate, tmp_path, capsys)
    lines = lines_of(log.getvalue())
    assert len(lines) > 60
    for line in lines:
        assert line.isprintable(), line[:500]
        assert len(line) < LINE_CHARS_MAX
        if form == "json":
            assert json.loads(line)["event"]
        assert not line.startswith("2026-11-30T00:00:00Z"), line
    assert sum(map(len, lines)) < LINES_CHARS_MAX
    metrics = told.pop("/metrics")
    for line in lines_of(metrics):
        assert line.isprintable(), line[:500]
        assert len(line) < LINE_CHARS_MAX
    for where, text in told.items():
        if where.startswith("kvgate "):
            assert all(line.isprintable() for line in lines_of(text)), (where, text)
        else:
            json.loads(text)
            assert len(text) < LINES_CHARS_MAX, where
            assert all(line.isprintable() for line in text.split("\n")), where
    spans = exporter.get_finished_spans()
    assert spans
    for span in spans:
        assert len(span.to_json()) < LINE_CHARS_MAX
        assert span.name.isprintable(), span.name
        assert all(value.isprintable() for value in (span.attributes or {}).values() if isinstance(value, str))
