"""Nothing of a request's content and no key is anywhere that operators look: planted, and looked for everywhere."""

import asyncio
import gzip
import io
import json
import logging
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from proxy.adapters.log_output import open_log
from proxy.adapters.tracing import OtelTracing
from proxy.cli import main
from tests.integration.mock_harness import running, settings
from tests.integration.serving.harness import RunningProxy, Wire, admin_of, proxying, until, url_of

PROMPT = "the quiet harbour of Lisbon at night"
HALF = "half a pair \ud800 of Lisbon"
CLIENT_KEY, REPLICA_KEY = "sk-client-0123456789abcdef0123", "replica-key-0123456789abcdef"
PAGES = (
    "/admin/requests?last=100",
    "/admin/live",
    "/admin/state",
    "/admin/replicas?history=1",
    "/admin/policy",
    "/metrics",
    "/ready",
)


async def served(proxy: RunningProxy) -> list[str]:
    """Requests of many fates that carry secrets; returns the completions."""
    key = {"authorization": f"Bearer {CLIENT_KEY}"}
    talk = [{"role": "user", "content": PROMPT}]
    whole = await proxy.wire.chat(key, messages=talk, max_tokens=12, ignore_eos=True)
    assert whole.status == 200
    assert (await proxy.wire.chat(key, messages=talk, max_tokens=4, stream=True)).status == 200
    assert (await proxy.wire.chat(key, messages=talk, model="nobody's")).status == 404
    assert (await proxy.wire.complete(key, prompt=PROMPT * 4000, max_tokens=2)).status == 400
    await proxy.wire.chat(key, messages=[{"role": "user", "content": HALF}], max_tokens=2)
    await proxy.wire.request("POST", "/v1/chat/completions", b'{"messages": [{"content": "' + PROMPT.encode() + b'"', key)
    await proxy.wire.request("POST", "/tokenize", json.dumps({"prompt": PROMPT}).encode(), key)
    return [whole.json()["choices"][0]["message"]["content"]]


async def looked_at(proxy: RunningProxy, admin: Wire, folder: Path) -> dict[str, str]:
    """Everything that is told, by where."""
    pages = {path: (await admin.request("GET", path)) for path in PAGES}
    assert {path: page.status for path, page in pages.items()} == dict.fromkeys(PAGES, 200)
    out = folder / "all.json.gz"
    assert await asyncio.to_thread(main, ["snapshot", f"http://127.0.0.1:{admin.port}", "-o", str(out), "--tenant-names"]) == 0
    return {path: page.body.decode() for path, page in pages.items()} | {"snapshot": unpacked(out), "repr": repr(proxy.services)}


def unpacked(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode()


@pytest.mark.parametrize("form", ["json", "console"])
async def test_nothing_planted_is_found(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THEIR_KEY", REPLICA_KEY)
    root = logging.getLogger()
    handlers, level, stream = list(root.handlers), root.level, io.StringIO()
    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    try:
        open_log("debug", form, stream=stream)
        async with running(settings()) as mock:
            policy = {"replicas": [{"url": url_of(mock), "api_key_env": "THEIR_KEY"}]}
            async with proxying(policy=policy) as proxy, admin_of(proxy) as admin:
                proxy.services.tracing = OtelTracing(provider, proxy.services.clock)
                completions = await served(proxy)
                await until(proxy.idle, "an idle proxy")
                told = await looked_at(proxy, admin, tmp_path)
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.captureWarnings(False)
        provider.shutdown()
    told["log"] = stream.getvalue()
    told["traces"] = "\n".join(span.to_json() for span in exporter.get_finished_spans())
    assert "request.finished" in told["log"]
    assert "gen_ai.request.model" in told["traces"]
    planted = ["Lisbon", CLIENT_KEY, CLIENT_KEY[3:], REPLICA_KEY, *completions, *(one[:24] for one in completions)]
    found = [(where, secret) for where, text in told.items() for secret in planted if secret in text]
    assert found == []
