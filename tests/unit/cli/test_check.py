"""``kvgate check`` on the command line: what it says, and the exit code that a pipeline goes by."""

import hashlib
import io
import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from proxy.cli import main

GOOD = "replicas: [http://a]\nclasses: [{name: a, match: {model: x}}]\n"
BAD = "mode: onn\nquee: {}\n"
WARNED = "queue: {wait_max: 10s}\nclasses: [{name: a, match: {model: x}, deadline: 20s}]\n"


def checked(tmp_path: Path, *flags: str, **texts: str) -> int:
    """Write the files and check them all."""
    for name, text in texts.items():
        (tmp_path / f"{name}.yaml").write_text(text)
    return main(["check", *(str(tmp_path / f"{name}.yaml") for name in texts), *flags])


def test_a_good_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(tmp_path, good=GOOD) == 0
    assert capsys.readouterr() == (f"{tmp_path}/good.yaml: good: mode enforce, 1 replica, 2 classes\n", "")


def test_all_faults_of_all_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(tmp_path, bad=BAD, good=GOOD, worse="mode: [\n") == 1
    out, err = capsys.readouterr()
    assert out.startswith(f"{tmp_path}/good.yaml: good")
    places = [line.removeprefix(f"{tmp_path}/").split(": got")[0] for line in err.splitlines()]
    assert places == ["bad.yaml:1:7: mode", "bad.yaml:2:1: quee", "worse.yaml:2:1: yaml"]


def test_a_warning_is_told_and_is_no_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(tmp_path, warned=WARNED) == 0
    out, err = capsys.readouterr()
    assert "warned.yaml: good" in out
    assert (
        f"{tmp_path}/warned.yaml:2:50: warning: classes[0].deadline: got 20 s; allowed up to 10 s; because queue.wait_max" in err
    )


def test_strict_makes_warnings_faults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(tmp_path, "--strict", warned=WARNED) == 1
    assert capsys.readouterr().out == ""
    assert checked(tmp_path, "--strict", good=GOOD) == 0


def test_a_file_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.yaml").write_text(BAD)
    assert main(["check", str(tmp_path / "bad.yaml"), str(tmp_path / "none.yaml")]) == 2
    assert "none.yaml: file: got a file that cannot be opened (no such file or directory)" in capsys.readouterr().err


def test_for_a_program(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert checked(tmp_path, "--json", bad="mode: onn\n", warned=WARNED) == 1
    bad, warned = json.loads(capsys.readouterr().out)["files"]
    assert (bad["good"], bad["faults"][0]["line"], bad["faults"][0]["key"]) == (False, 1, "mode")
    assert bad["faults"][0]["severity"] == "fault"
    assert (warned["good"], warned["faults"], warned["warnings"][0]["severity"]) == (True, [], "warning")


def test_the_schema_that_editors_take(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="0"):
        main(["check", "--schema"])
    assert json.loads(capsys.readouterr().out)["properties"]["mode"]["enum"] == ["enforce", "observe", "off"]


@pytest.mark.parametrize("typed", [b"sk-key", b"sk-key\n", b"sk-key\r\n"])
def test_a_key_by_its_hash(typed: bytes, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(typed)))
    with pytest.raises(SystemExit, match="0"):
        main(["check", "--hash-key"])
    assert capsys.readouterr().out == hashlib.sha256(b"sk-key").hexdigest() + "\n"


def test_serve_tells_warnings_before_it_serves(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("proxy.app.run_serve", lambda _: 0)
    (tmp_path / "p.yaml").write_text(WARNED)
    assert main(["serve", "--policy", str(tmp_path / "p.yaml"), "--replica", "http://a"]) == 0
    assert f"kvgate serve: {tmp_path}/p.yaml:2:50: warning: classes[0].deadline" in capsys.readouterr().err
