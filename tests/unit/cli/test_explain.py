"""``kvgate explain`` on the command line."""

import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from proxy.cli import main

BODY = '{"model": "llama-3", "messages": [{"role": "user", "content": "hi"}], "stream": true, "max_tokens": 50}'
POLICY = "classes:\n  - {name: chat, match: {headers: {x-class: chat*}}, priority: 10, ttft: 2s}\n  - {name: bulk, match: {path: /v1/*}}\n"


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    """A policy and a body."""
    policy, body = tmp_path / "p.yaml", tmp_path / "body.json"
    policy.write_text(POLICY)
    body.write_text(BODY)
    return str(policy), str(body)


def test_a_table_for_people(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    policy, body = files
    assert main(["explain", policy, "--request", body, "--header", "X-Class: batch", "--header", "x-kvgate-tenant: acme"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    wanted = [
        "mode enforce, so it may be held and refused",
        "request POST /v1/chat/completions, model llama-3, streamed, about 2 prompt tokens, at most 50 output tokens",
        f"1 chat no match ({policy}:2)",
        'fails headers.x-class takes "chat*"; the request has "batch"',
        f"-> 2 bulk chosen ({policy}:3)",
        "3 default not asked: bulk matched before (built in)",
        "-> header x-kvgate-tenant: names acme",
        "waits at most 30 s, because of queue.wait_max",
        "queue.wait_max 30s default",
    ]
    assert [line for line in wanted if line not in lines] == []


def test_an_object_for_a_program(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    policy, body = files
    assert main(["explain", policy, "--request", body, "--header", "x-class: chat", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["traffic_class"], found["classes"][0]["rules"][0]["held"]) == ("chat", True)
    assert {"key": "classes[0].ttft", "value": "2s", "line": 2} in found["limits"]


def test_what_serving_would_find_out(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", files[0], "--request", files[1], "--prompt-tokens", "9", "--caller", "::1", "--lora"]) == 0
    assert ", 9 prompt tokens, " in capsys.readouterr().out
    with pytest.raises(SystemExit, match="2"):
        main(["explain", files[0], "--request", files[1], "--caller", "here"])


def test_who_is_observed_and_who_is_kept_out(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    Path(files[0]).write_text(f"enforce_ratio: 0\nauth: require\ntenants: {{list: {{acme: {{key_sha256: {'a' * 64}}}}}}}\n")
    assert main(["explain", files[0], "--request", files[1]]) == 0
    out = capsys.readouterr().out
    assert "neither held nor refused: its tenant is not among the share" in out
    assert "key       unknown: auth: require answers 401" in out


def test_the_body_from_stdin(files: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(BODY.encode())))
    assert main(["explain", files[0], "--request", "-"]) == 0


@pytest.mark.parametrize(
    ("policy", "body", "flags", "line"),
    [
        ("mode: onn", BODY, [], 'p.yaml:1:7: mode: got "onn"'),
        (POLICY, "[]", [], "is no body for /v1/chat/completions"),
        (POLICY, None, [], "body.json cannot be opened (no such file or directory)"),
        (POLICY, BODY, ["--path", "/v1/models"], '--path: got "/v1/models"; it takes no KV'),
    ],
)
def test_what_cannot_be_explained(
    policy: str, body: str | None, flags: list[str], line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "p.yaml").write_text(policy)
    if body is not None:
        (tmp_path / "body.json").write_text(body)
    assert main(["explain", str(tmp_path / "p.yaml"), "--request", str(tmp_path / "body.json"), *flags]) == 2
    assert line in capsys.readouterr().err


def test_a_header_without_a_colon(files: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["explain", files[0], "--request", files[1], "--header", "x-class"])
    assert "got \"x-class\"; allowed 'NAME: VALUE'" in capsys.readouterr().err
