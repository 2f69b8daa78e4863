"""What guides tell people to type exists: commands, flags, files, links, and the patches of objects.

What can be executed here is, in ``tests/integration/guides``.
"""

import contextlib
import io
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from proxy.cli import COMMANDS, command_parser
from tests.guides import GUIDES, ROOT, blocks, commands, lines_in_code, lines_of, marked, words

SHELL = {"sh", "bash", "shell", ""}
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def typed(guide: Path) -> Iterator[list[str]]:
    """Yield every command of ours in a guide."""
    for block in blocks(guide):
        if block.language in SHELL:
            for line in lines_of(block.text):
                yield from commands(line)
    for line in lines_in_code(guide):
        yield from commands(line)


def fault_of(command: list[str]) -> str | None:
    """What our own parser says of a command; None where it takes it. ``…`` stands for words that the reader knows."""
    name, *rest = command
    if name.startswith("-"):
        return None if name in {"--version", "--help"} else f"no flag {name}"
    if name not in COMMANDS:
        return f"no command {name}"
    parser = command_parser(name)[0]
    known = {flag for action in parser._actions for flag in action.option_strings}
    flags = {word.partition("=")[0] for word in rest[: rest.index("--") if "--" in rest else None] if re.match(r"--?[a-z]", word)}
    return f"{name} has no {', '.join(sorted(flags - known))}" if flags - known else None


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: str(guide.relative_to(ROOT)))
def test_every_command_and_flag_in_a_guide_exists(guide: Path) -> None:
    assert {fault: " ".join(command) for command in typed(guide) if (fault := fault_of(command))} == {}


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: str(guide.relative_to(ROOT)))
def test_every_link_leads_somewhere(guide: Path) -> None:
    dead = []
    for link in LINK.findall(guide.read_text("utf-8")):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = link.partition("#")
        target = (guide.parent / path).resolve() if path else guide
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            dead.append(link)
    assert dead == []


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ +(.+?) *$", page.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("guide", GUIDES, ids=lambda guide: str(guide.relative_to(ROOT)))
def test_every_file_that_a_command_names_is_there(guide: Path) -> None:
    named = {
        word.split("=")[-1].strip("'\"")
        for block in blocks(guide)
        if block.language == "sh"
        for line in lines_of(block.text)
        for word in words(line)
        if re.match(r"(deploy|policies)/\S+$", word.split("=")[-1])
    }
    assert {name for name in named if not any(ROOT.glob(name))} == set()


def test_what_is_marked_is_found() -> None:
    assert marked(ROOT / "deploy" / "TROUBLE.md", "run")
    assert [block for block in blocks(ROOT / "deploy" / "MOVING.md") if block.patched]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("sudo /opt/kvgate/bin/kvgate check --strict policy.yaml | head", None),
        ("kvgate mode off --all --for 1h --reason …", None),
        ("kvgate mode off --al", "mode has no --al"),
        ("kvgate dorctor http://a:8000", "no command dorctor"),
        ("kvgate bench --sweep max-num-seqs=16 -- vllm serve --no-flag-of-ours", None),
    ],
)
def test_a_flag_that_is_not_there_would_be_found(line: str, said: str | None) -> None:
    (command,) = commands(line)
    with contextlib.redirect_stderr(io.StringIO()):
        assert fault_of(command) == said
