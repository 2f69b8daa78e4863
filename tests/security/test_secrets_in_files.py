"""Secrets that stand in addresses, files and the environment: a word that is wrong is named by its place, never by what it holds.

And what commands write down holds none of those that they were given.
"""

import asyncio
import gzip
import io
import json
import logging
import sys
import traceback
from pathlib import Path

import pytest

from proxy.adapters.log_output import open_log, safe_trace
from proxy.adapters.redis_link import RedisLink
from proxy.cli import main
from proxy.config.redis_url import store_address
from proxy.ports.store import StoreError
from tests.integration.mock_harness import running, settings
from tests.integration.serving.harness import admin_of, proxying, url_of

REFUSED = (
    "rediss://me:planted@h:99999/0", "rediss://me:planted@h:x/0", "redis://me:planted@h/abc", "redis://me:planted/slash@h/0",
    "redis://me:planted@h/0?ca=/missing", "foo://me:planted@h", "redis://:planted@[::1", "redis+sentinel://me:planted@h:1",
    "redis://me:planted@h/0?pool={}", "rediss://me:planted@h/0?password=planted2", "redis://h?password=planted", "me:planted@h",
    "redis://me:plan planted@h", "redis://me:planted@h:1,h2:x/0", "unix://me:planted@/x?db=y", "redis+cluster://me:planted@/0",
    "redis://me:%planted@h:y", "redis://planted@planted@h:z", "planted",
)  # fmt: skip
ODD = {
    "two words": b"sk-planted-file\nsecond planted\n",
    "no text": b"\xff\xfeplanted",
    "a private key": b"-----BEGIN PRIVATE KEY-----\nplantedplantedplanted\n-----END PRIVATE KEY-----\n",
    "a short one": b"planted",
    "one with a NUL": b"planted\0planted-0123456789",
    "a folder": None,
}


@pytest.fixture(params=ODD)
def odd(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    path, data = tmp_path / "odd", ODD[request.param]
    if data is None:
        path.mkdir()
    else:
        path.write_bytes(data)
    return path


def said(capsys: pytest.CaptureFixture[str]) -> str:
    told = capsys.readouterr()
    return told.out + told.err


def refused(words: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """What a command says that does not begin."""
    try:
        assert main(words) != 0
    except SystemExit as end:
        assert end.code != 0  # noqa: PT017  argparse ends so
    told = said(capsys)
    assert told
    return told


async def by_process(words: list[str]) -> int:
    """Run a command as a process of its own, which may set signal handlers; what it says goes where the test's own goes."""
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "proxy", *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    told, _ = await running.communicate()
    sys.stdout.write(told.decode())
    return running.returncode or 0


@pytest.mark.parametrize("url", REFUSED)
def test_an_address_of_a_store_that_is_refused_is_not_repeated(
    url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ["serve", "--replica", "http://127.0.0.1:9"]
    assert "planted" not in refused([*line, "--redis", url], capsys)
    monkeypatch.setenv("KVGATE_REDIS", url)
    assert "planted" not in refused(line, capsys)


@pytest.mark.parametrize("name", ["a private key", "two words", "a short one"])
async def test_a_store_that_cannot_be_reached_shows_no_password_in_any_trace(name: str, tmp_path: Path) -> None:
    """Nor what stands in a file that is no certificate."""
    ca = tmp_path / "ca.pem"
    ca.write_bytes(ODD[name] or b"")
    for url in (
        f"rediss://me:planted@127.0.0.1:9/0?ca={ca}",
        "rediss://me:planted@127.0.0.1:9/0",
        "redis://me:planted@127.0.0.1:9/0",
    ):
        link = RedisLink(store_address(url), 1.0)
        with pytest.raises((StoreError, OSError)) as caught:
            await link.call(link.client.execute_command("TIME"))
        shown = f"{caught.value!r} {caught.value} {safe_trace(caught.value)} {link!r}" + "".join(
            traceback.format_exception(caught.value)
        )
        assert "127.0.0.1" in shown
        assert "planted" not in shown
        await link.aclose()


@pytest.mark.parametrize("where", ["KVGATE_ADMIN_TOKEN", "--admin-token-file"])
def test_a_token_that_will_not_do_is_not_repeated(
    where: str, odd: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = ["serve", "--replica", "http://127.0.0.1:9"]
    if where.startswith("--"):
        told = refused([*line, where, str(odd)], capsys)
        assert str(odd) in told
    else:
        monkeypatch.setenv(where, "planted")
        told = refused(line, capsys)
        assert where in told
    assert "planted" not in told


def test_a_key_of_a_replica_that_will_not_do_is_not_repeated(
    odd: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = tmp_path / "policy.yaml"
    policy.write_text(f"replicas: [{{url: 'http://127.0.0.1:9', api_key_file: {odd}}}]\n", encoding="utf-8")
    main(["check", str(policy)])
    assert "planted" not in said(capsys)
    if odd.is_dir() or len(odd.read_bytes().split()) > 1 or odd.read_bytes().startswith(b"\xff"):
        assert "planted" not in refused(["serve", "--policy", str(policy)], capsys)


@pytest.mark.parametrize("command", ["mode", "drain", "resume", "snapshot", "record", "top", "report"])
def test_an_address_of_a_proxy_that_holds_a_secret_is_not_repeated(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    url = "http://me:planted@127.0.0.1:9/?token=planted"
    words = {"mode": ["off", "--for", "1h", "--reason", "r", "--admin", url], "drain": ["r0", "--reason", "r", "--admin", url],
             "resume": ["r0", "--admin", url], "record": ["--out", "x", "--admin", url], "top": ["--once", url],
             "report": ["--admin", url], "snapshot": [url]}  # fmt: skip
    assert "planted" not in refused([command, *words[command]], capsys)


@pytest.mark.slow
async def test_what_commands_write_down_holds_no_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A result of ``bench`` and what ``compare`` makes of it, a diagnosis, the log; of a recording see ``test_recording``."""
    for name, value in (("THEIR_KEY", "planted-replica-key"), ("KVGATE_ADMIN_TOKEN", "planted-admin-token-0123456789"),
                        ("KVGATE_REDIS", "redis://me:planted-password@127.0.0.1:9/0"), ("HF_TOKEN", "planted-hub-token")):  # fmt: skip
        monkeypatch.setenv(name, value)
    key = {"authorization": "Bearer planted-client-key", "x-api-key": "planted-other-key"}
    stream, root = io.StringIO(), logging.getLogger()
    handlers, level = list(root.handlers), root.level
    try:
        open_log("debug", "json", stream=stream)
        async with running(settings()) as mock:
            policy = {"replicas": [{"url": url_of(mock), "name": "r0", "api_key_env": "THEIR_KEY"}]}
            async with proxying(policy=policy) as proxy, admin_of(proxy) as admin:
                address, direct = f"http://127.0.0.1:{admin.port}", url_of(mock)
                proxied = proxy.base_url.removesuffix("/v1")
                for line in (
                    ["bench", proxied, "--workload", "fixed:20:4", "--concurrency", "2", "--requests", "6", "--duration", "5s",
                     "--out", str(tmp_path / "bench.json"), "--api-key-env", "THEIR_KEY"],
                    ["doctor", direct, "--watch", "1s", "--api-key-env", "THEIR_KEY"],
                    ["doctor", direct, "--watch", "1s", "--api-key-env", "THEIR_KEY", "--json"],
                    ["snapshot", address, "-o", str(tmp_path / "all.json.gz"), "--tenant-names"],
                ):  # fmt: skip
                    assert (await proxy.wire.chat(key, max_tokens=2)).status == 200
                    assert await by_process(line) <= 1  # the doctor finds something
    finally:
        root.handlers[:] = handlers
        root.setLevel(level)
        logging.captureWarnings(False)
    result = json.loads((tmp_path / "bench.json").read_text())
    assert result
    assert main(["compare", str(tmp_path / "bench.json"), str(tmp_path / "bench.json")]) == 0
    told = said(capsys) + stream.getvalue() + (tmp_path / "bench.json").read_text()
    told += gzip.decompress((tmp_path / "all.json.gz").read_bytes()).decode()
    assert "request.finished" in told
    at = told.find("planted")
    assert at < 0, told[max(0, at - 80) : at + 80]
