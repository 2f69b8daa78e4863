"""The guide in ``policies/README.md``, followed to the letter: what it tells to write is good, and what it says will be printed is."""

import io
import re
import shlex
from pathlib import Path
from types import SimpleNamespace

import pytest

from proxy.cli import main
from proxy.config.policy_file import review

README = (Path(__file__).parents[3] / "policies" / "README.md").read_text("utf-8")
GUIDE = README[README.index("## From nothing to a policy") : README.index("## Cookbook")]
COOKBOOK = README[README.index("## Cookbook") : README.index("## How it is written")]


def blocks_of(text: str, kind: str) -> list[str]:
    """Return the fenced blocks of a kind."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [inside for of, inside in fences if of == kind]


def words(text: str) -> list[str]:
    """Return the lines with single spaces, without empty ones."""
    return [" ".join(line.split()) for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("recipe", blocks_of(COOKBOOK, "yaml"))
def test_a_recipe_is_good_as_it_stands(recipe: str) -> None:
    found = review(recipe, "policy.yaml")
    assert [str(fault) for fault in (*found.faults, *found.warnings)] == []


def test_there_are_recipes() -> None:
    assert len(blocks_of(COOKBOOK, "yaml")) >= 8


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fresh folder with the policy that the steps add up to."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "policy.yaml").write_text("".join(blocks_of(GUIDE, "yaml")))
    return tmp_path


def run(command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    """Run a line of the guide and return what it prints: ``kvgate …``, ``printf %s WORD | kvgate …``, ``echo WORD > FILE``."""
    line = shlex.split(command, comments=True)
    if line[0] == "echo":
        Path(line[-1]).write_text(line[1] + "\n")
        return ""
    if line[0] == "printf":
        monkeypatch.setattr("sys.stdin", SimpleNamespace(buffer=io.BytesIO(line[2].encode())))
        line = line[line.index("|") + 1 :]
    if ">" in line:
        line = line[: line.index(">")]
    assert line[0] == "kvgate"
    if line[2].startswith("--") and line[1] == "check" and line[2] != "--strict":  # prints and ends
        with pytest.raises(SystemExit, match="0"):
            main(line[1:])
    else:
        assert main(line[1:]) == 0
    return capsys.readouterr().out


def test_the_first_step_is_a_whole_policy(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "policy.yaml").write_text(blocks_of(GUIDE, "yaml")[0])
    assert (
        run("kvgate check --strict policy.yaml", monkeypatch, capsys) == "policy.yaml: good: mode enforce, 1 replica, 1 class\n"
    )


@pytest.mark.usefixtures("folder")
def test_the_steps_add_up_to_a_good_policy(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    said = run("kvgate check --strict policy.yaml", monkeypatch, capsys)
    assert said == "policy.yaml: good: mode enforce, 1 replica, 2 classes\n"


@pytest.mark.usefixtures("folder")
def test_each_command_prints_what_the_guide_says(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    told = 0
    for block in blocks_of(GUIDE, "")[1:]:  # the first is of the policy's first step
        for part in block.split("$ ")[1:]:
            command, _, wanted = part.partition("\n")
            printed = words(run(command, monkeypatch, capsys))
            assert [line for line in words(wanted) if line not in printed] == []
            told += len(words(wanted))
    assert told >= 7


@pytest.mark.usefixtures("folder")
def test_its_digests_are_those_of_its_keys(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for tenant in ("acme", "zoo"):
        digest = run(f"printf %s {tenant}-key-1 | kvgate check --hash-key", monkeypatch, capsys).strip()
        assert f"key_sha256: {digest}" in GUIDE
