"""Keys, tokens and passwords are nowhere but where they belong: planted in a real process, and looked for in all that it tells anybody.

What a request holds is planted in ``integration/serving/test_no_secrets.py``.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from proxy.adapters.redis_link import RedisLink
from proxy.cli import command_parser, main
from proxy.cli.commands import COMMANDS as COMMANDS_OF_KVGATE
from proxy.config.redis_url import store_address
from proxy.config.settings import ServeSettings
from proxy.serving.access import AdminAccess
from tests.integration.mock_harness import running, settings
from tests.integration.serving.harness import Wire, url_of
from tests.integration.serving.test_serve_command import serve
from tests.support.upstream_servers import Peer, ScriptedUpstream

ADMIN = "planted-admin-token-0123456789"
PASSWORD = "planted-redis-password"
CLIENT = "planted-client-key"
TENANT = "planted-tenant-key"
REPLICA = "planted-replica-key"
OUTSIDE = "planted-outside-key"
SENT = {"authorization": f"Bearer {CLIENT}"}
PAGES = (
    *("/metrics", "/ready", "/version", "/load", "/v1/models"),
    *("/admin/requests?last=100", "/admin/live", "/admin/state", "/admin/replicas?history=1", "/admin/policy", "/admin/proxies"),
    *("/admin/mode", "/admin/report", "/admin/snapshot", "/admin/snapshot?tenant_names=1", "/"),
)
POLICY = """
mode: enforce
error_detail: full
replicas: [{url: "%s", api_key_env: THEIR_KEY}, {url: "http://127.0.0.1:9", api_key_file: %s}]
tenants: {list: {gold: {key_sha256: [%s], requests_per_s: 0.001, burst: 1s}}}
classes:
  - {name: elsewhere, match: {headers: {x-class: elsewhere}}, when_saturated: [reroute, shed],
     fallbacks: [{url: "http://127.0.0.1:9", model: other, api_key_env: OUTSIDE_KEY}]}
scrape: {interval: 100ms}
"""


@asynccontextmanager
async def a_store_that_refuses() -> AsyncIterator[str]:
    """Something that answers whatever it is told with what Redis says of a wrong password."""

    async def refuse(peer: Peer) -> None:
        while await peer.reader.read(4096):
            await peer.send(b"-WRONGPASS invalid username-password pair or user is disabled.\r\n" * 4)

    async with ScriptedUpstream.running(refuse) as server:
        yield f"redis://kvgate:{PASSWORD}@127.0.0.1:{server.port}/0"


async def asked(clients: Wire, admin: Wire) -> dict[str, str]:
    """What callers of both ports are told, by what they asked."""
    tenant = {"x-api-key": TENANT}
    told = {
        "served": await clients.chat(SENT, max_tokens=2),
        "nobody's model": await clients.chat(SENT, max_tokens=2, model="nobody"),
        "a tenant's": await clients.chat(tenant, max_tokens=2),
        "a tenant's second": await clients.chat(tenant, max_tokens=2),
        "elsewhere": await clients.chat(SENT | {"x-class": "elsewhere"}, max_tokens=10**9),
        "closed": await clients.request("POST", "/sleep", b"", {"authorization": f"Bearer {ADMIN}"}),
        "a wrong token": await admin.request("POST", "/admin/mode", b"{}", SENT),
        "a right token": await admin.request("POST", "/admin/mode", b"{}", {"authorization": f"Bearer {ADMIN}"}),
        "malformed": await clients.request("POST", "/v1/chat/completions", b"{", SENT),
        "a WebSocket": await clients.request(
            "GET", "/sleep", b"", SENT | {"connection": "upgrade", "upgrade": "websocket", "sec-websocket-key": "x"}
        ),
    }
    told |= {page: await admin.request("GET", page) for page in PAGES}
    return {what: f"{reply.status} {reply.headers} {reply.body.decode()}" for what, reply in told.items()}


@pytest.mark.slow
async def test_a_process_tells_no_secret(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("KVGATE_ADMIN_TOKEN", ADMIN), ("THEIR_KEY", REPLICA), ("OUTSIDE_KEY", OUTSIDE)):
        monkeypatch.setenv(name, value)
    (tmp_path / "key").write_text("planted-file-key\n", encoding="utf-8")
    digest = hashlib.sha256(TENANT.encode()).hexdigest()
    async with a_store_that_refuses() as store, running(settings()) as mock:
        monkeypatch.setenv("KVGATE_REDIS", store)
        policy = POLICY % (url_of(mock), tmp_path / "key", digest)
        async with serve("--log-level", "debug", policy=policy, folder=tmp_path) as kvgate:
            clients, admin = await kvgate.ports()
            await kvgate.said("mock, context")
            told = await asked(clients, admin)
            path = tmp_path / "policy.yaml"
            path.write_text(policy + "\nno_such_key: 1\n", encoding="utf-8")
            await kvgate.said("policy.kept")
            told["/admin/policy of a bad file"] = (await admin.request("GET", "/admin/policy")).body.decode()
            await kvgate.said("store.failed")
        told["log"] = "\n".join(kvgate.lines)
    assert {what[:3] for what in told.values() if what[:3].isdigit()} >= {"200", "401", "403", "429"}
    assert "invalid username-password" in told["/admin/proxies"] + told["/ready"]
    found = [(what, text[max(0, text.find("planted") - 60) :][:120]) for what, text in told.items() if "planted" in text]
    assert found == []
    assert [what for what, text in told.items() if digest in text] == []


COMMANDS = (
    ["check", "{policy}"],
    ["check", "{policy}", "--json"],
    [
        "explain",
        "{policy}",
        "--request",
        "{body}",
        "--header",
        f"authorization: Bearer {TENANT}",
        "--header",
        f"x-api-key: {CLIENT}",
    ],
    ["explain", "{policy}", "--request", "{body}", "--json", "--header", f"authorization: Bearer {TENANT}"],
)


@pytest.mark.parametrize("line", COMMANDS, ids=lambda line: " ".join(line[:1] + line[-1:])[:24])
def test_commands_tell_no_secret(
    line: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("KVGATE_ADMIN_TOKEN", ADMIN), ("THEIR_KEY", REPLICA), ("OUTSIDE_KEY", OUTSIDE)):
        monkeypatch.setenv(name, value)
    (tmp_path / "key").write_text("planted-file-key\n", encoding="utf-8")
    policy, body = tmp_path / "policy.yaml", tmp_path / "body.json"
    policy.write_text(
        POLICY % ("http://127.0.0.1:8", tmp_path / "key", hashlib.sha256(TENANT.encode()).hexdigest()), encoding="utf-8"
    )
    body.write_text(json.dumps({"model": "m", "messages": [{"role": "user", "content": "planted prompt"}]}), encoding="utf-8")
    assert main([word.format(policy=policy, body=body) for word in line]) == 0
    said = capsys.readouterr()
    assert said.out
    assert "planted" not in said.out + said.err


@pytest.mark.parametrize("form", [[], ["--json"]])
def test_the_doctor_tells_no_secret(form: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody answers it: what it says then is of addresses, and an address that holds a key is taken by no command."""
    monkeypatch.setenv("THEIR_KEY", REPLICA)
    assert main(["doctor", "http://127.0.0.1:9", "--watch", "1s", "--api-key-env", "THEIR_KEY", *form]) == 1
    said = capsys.readouterr()
    assert "127.0.0.1:9" in said.out
    with pytest.raises(SystemExit):
        main(["doctor", f"http://me:{REPLICA}@127.0.0.1:9", *form])
    refused = capsys.readouterr()
    assert "planted" not in said.out + said.err + refused.out + refused.err


def test_no_command_takes_a_secret_where_every_user_of_the_machine_reads_it() -> None:
    """``ps`` shows command lines: what names a key, a token or a password there names a place to read it from."""
    named = {
        (command, flag)
        for command in COMMANDS_OF_KVGATE
        for action in command_parser(command)[0]._actions
        for flag in action.option_strings
        if command != "mock-vllm" and re.search(r"key|token$|token-|password|secret", flag)  # vLLM's own flags are its own
    }
    assert {command for command, _ in named} >= {"serve", "doctor", "bench"}
    assert {flag for _, flag in named if not flag.endswith(("-file", "-env", "-hash-key"))} == set()


SECRETS_IN_FILES = (
    "api_key: sk-planted0123456789abcdef\n",
    "replicas: [{url: 'http://a:8000', headers: {authorization: Bearer sk-planted0123456789abcdef}}]\n",
    "replicas: [{url: 'http://me:sk-planted0123456789abcdef@a:8000'}]\n",
    "replicas: [{url: 'http://me:planted@a:8000'}]\n",
    "replicas: ['http://planted@a:8000/x@y']\n",
    "replicas: ['http://a:8000/?token=planted']\n",
    "replicas: ['http://a:8000/#planted']\n",
    "? sk-planted0123456789abcdef\n: 1\n",
    "tenants: {list: {x: {key_sha256: [sk-planted0123456789abcdef]}}}\n",
)


@pytest.mark.parametrize("text", SECRETS_IN_FILES)
def test_a_fault_does_not_repeat_the_secret_that_it_is_about(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "policy.yaml").write_text(text, encoding="utf-8")
    assert main(["check", str(tmp_path / "policy.yaml")]) != 0
    said = capsys.readouterr()
    assert said.out + said.err
    assert "planted" not in said.out + said.err


async def test_nothing_shows_a_secret_of_its_own() -> None:
    """What stands in a traceback, a debugger or a log line that somebody adds in a hurry."""
    address = store_address(f"rediss://kvgate:{PASSWORD}@127.0.0.1:1/0")
    link = RedisLink(store_address(f"redis://kvgate:{PASSWORD}@127.0.0.1:1/0"), 1.0)
    shown = [address, link, ServeSettings(admin_token=ADMIN, store=address), AdminAccess(ADMIN)]
    assert [one for one in shown if "planted" in f"{one!r} {one}"] == []
    await link.aclose()
    await asyncio.sleep(0)
