"""The command line: help, one-line errors and exit codes."""

import shlex

import pytest

from proxy import __version__
from proxy.cli import COMMANDS, command_parser, main, top_parser


def exit_of(argv: list[str]) -> int:
    """Run a command line to its exit code, whichever way it leaves."""
    try:
        return main(argv)
    except SystemExit as left:
        return left.code if isinstance(left.code, int) else -1


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_of(["--version"]) == 0
    assert capsys.readouterr().out == f"kvgate {__version__}\n"


def test_help_lists_every_command_and_ends_with_an_example() -> None:
    text = top_parser().format_help()
    assert all(name in text for name in COMMANDS)
    assert text.rstrip().splitlines()[-1].strip() == COMMANDS["serve"].example


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command_ends_with_an_example_that_it_takes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_of([name, "--help"]) == 0
    last = shlex.split(capsys.readouterr().out.rstrip().splitlines()[-1])
    assert last[:2] == ["kvgate", name]
    command_parser(name)[0].parse_args(last[2:])


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (
            ["srve"],
            f'kvgate: no command "srve" (did you mean "serve"?); the commands are {", ".join(COMMANDS)}; see kvgate --help',
        ),
        (["--vers"], "kvgate: unrecognized arguments: --vers; see kvgate --help"),
        (["serve", "--prot", "1"], "kvgate serve: unrecognized arguments: --prot 1; see kvgate serve --help"),
        (["serve", "--rep", "x"], "kvgate serve: unrecognized arguments: --rep x; see kvgate serve --help"),
        (["serve", "--port"], "kvgate serve: argument --port: expected one argument; see kvgate serve --help"),
        (["check"], "kvgate check: the following arguments are required: FILE; see kvgate check --help"),
    ],
)
def test_what_was_asked_wrongly_is_told_in_one_line(argv: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_of(argv) == 2
    assert capsys.readouterr().err == line + "\n"


def test_no_command_shows_the_help_and_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_of([]) == 2
    assert "commands" in capsys.readouterr().err


def test_settings_faults_come_one_a_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVGATE_KV_BLOCKS", "many")
    assert exit_of(["serve", "--port", "x", "--workers", "2"]) == 2
    starts = [line.split(";")[0] for line in capsys.readouterr().err.splitlines()]
    assert starts == [
        'kvgate serve: --port: got "x"',
        'kvgate serve: KVGATE_KV_BLOCKS: got "many"',
        "kvgate serve: --workers: got 2",
    ]
