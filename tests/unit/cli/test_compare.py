"""``kvgate compare``: the table, the plot, what a program reads, and how it ends."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from proxy.advise.result_file import BenchResult, encode
from proxy.cli import main
from tests.unit.advise.runs import run


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Result files: one run, one that preempts and is slower, one that is neither."""
    folder = tmp_path_factory.mktemp("results")
    made: dict[str, BenchResult] = {
        "first": run(1, label="64 at a time"), "slower": run(2, slower=1.6, preempted_per_s=0.1, usage=0.95), "equal": run(3),
    }  # fmt: skip
    for name, one in made.items():
        (folder / f"{name}.json").write_bytes(encode(one))
    return {name: str(folder / f"{name}.json") for name in made}


def test_worse_is_told_with_a_table_curves_and_exit_code_1(files: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", files["first"], files["slower"]]) == 1
    lines = capsys.readouterr().out.splitlines()
    (row,) = [line for line in lines if line.startswith("TTFT p90")]
    assert row.rstrip().endswith("WORSE")
    assert "█" in row
    assert " to +" in row
    assert any(line.startswith("  preempted") and line.endswith("in all 0") for line in lines)
    usage = lines.index(next(line for line in lines if line.startswith("  KV usage")))
    assert "▆" in lines[usage]
    assert "█" in lines[usage + 1]
    assert any(line.startswith("Worse: ") for line in lines)
    assert lines[-1].startswith("Next: go back")
    assert lines[0].startswith("before  http://a (64 at a time): chat, seed 1, 5 requests/s, 300 s, ")


@pytest.mark.parametrize(("before", "after"), [("slower", "first"), ("first", "first")])
def test_better_and_noise_end_with_0(before: str, after: str, files: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", files[before], files[after]]) == 0
    assert ("Better: " if before != after else "Noise: ") in capsys.readouterr().out


def test_a_program_reads_the_figures(files: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--json", files["first"], files["slower"]]) == 1
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert (told["verdict"], told["paired"], told["doubts"]) == ("worse", True, [])
    (row,) = [each for each in told["figures"] if each["name"] == "ttft_s_p90"]
    assert row["change"] == pytest.approx(row["after"] / row["before"] - 1)
    assert row["low"] < row["change"] < row["high"]


@pytest.mark.parametrize(("suffix", "start"), [(".png", b"\x89PNG"), (".svg", b"<?xml")])
def test_a_plot_is_drawn(suffix: str, start: bytes, files: dict[str, str], tmp_path: Path) -> None:
    path = tmp_path / f"change{suffix}"
    main(["compare", files["first"], files["equal"], "--plot", str(path)])
    assert path.read_bytes().startswith(start)
    if suffix == ".svg":
        picture = path.read_text()
        assert all(title in picture for title in ("KV usage", "preemptions so far", "TTFT, share within", "before: 64 at a time"))
        again = tmp_path / "again.svg"
        main(["compare", files["first"], files["equal"], "--plot", str(again)])
        assert again.read_text() == picture


def test_without_matplotlib_the_extra_is_named(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert main(["compare", files["first"], files["equal"], "--plot", str(tmp_path / "a.png")]) == 2
    assert capsys.readouterr().err.endswith("a.png: matplotlib is not installed; pip install 'kvgate[plot]'\n")


@pytest.mark.parametrize(
    ("argv", "told"),
    [
        (["none.json", "none.json"], "none.json: No such file or directory; give two results of kvgate bench"),
        (["pyproject.toml", "none.json"], "pyproject.toml: no result of kvgate bench ("),
        (["none.json", "none.json", "--plot", "a.pdf"], "--plot a.pdf: must end in .png or .svg"),
    ],
)
def test_what_is_no_result_is_told(argv: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", *argv]) == 2
    assert capsys.readouterr().err.startswith(f"kvgate compare: {told}")


def test_a_folder_that_is_not_there_is_told(files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", files["first"], files["equal"], "--plot", str(tmp_path / "no" / "a.svg")]) == 2
    assert "cannot be written (No such file or directory)" in capsys.readouterr().err
