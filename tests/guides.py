"""Guides as programs: their shell blocks, what a block is marked with, and the commands of ours in them.

A block is marked in the words behind its language, which readers do not see: ```sh run``` is executed by a test, ```sh patch=FILE``` holds
``kubectl patch`` commands for the object in FILE (below ``deploy``). Every other block, and whatever stands in code within a sentence,
is only held against the real flags.
"""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
GUIDES = (ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "deploy").rglob("*.md")), ROOT / "policies" / "README.md")
BLOCK = re.compile(r"^( *)```(\S*)([^\n]*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
STOPS = {"|", "||", "&&", "&", ";", ">", "<", "2>", ">>"}


@dataclass(frozen=True, slots=True)
class Block:
    """One fenced block. ``marks`` are the words behind its language."""

    guide: Path
    language: str
    marks: tuple[str, ...]
    text: str

    @property
    def patched(self) -> Path | None:
        """The object that its patches are for."""
        named = [mark.partition("=")[2] for mark in self.marks if mark.startswith("patch=")]
        return ROOT / "deploy" / named[0] if named else None


def blocks(guide: Path) -> Iterator[Block]:
    """Yield the fenced blocks of a guide."""
    for indent, language, marks, text in BLOCK.findall(guide.read_text("utf-8")):
        plain = "\n".join(line.removeprefix(indent) for line in text.splitlines())
        yield Block(guide, language, tuple(marks.split()), plain)


def marked(guide: Path, mark: str) -> list[Block]:
    """Return those with a mark."""
    return [block for block in blocks(guide) if mark in block.marks]


def lines_of(text: str) -> Iterator[str]:
    """Yield a script's commands, continued lines put together, comments left out."""
    for line in text.replace("\\\n", " ").splitlines():
        stripped = line.strip().removeprefix("$ ")
        if stripped and not stripped.startswith("#"):
            yield stripped


def words(line: str) -> list[str]:
    """Return a command's words as a shell splits them; of a line that a shell would not take, none."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:
        return []


def commands(line: str) -> Iterator[list[str]]:
    """Yield the words behind ``kvgate`` of each simple command of a line that runs it."""
    simple: list[list[str]] = [[]]
    for word in words(line):
        if word in STOPS:
            simple.append([])
        elif simple[-1] or (word != "sudo" and not re.match(r"\w+=", word)):
            simple[-1].append(word)
    for program, *rest in filter(None, simple):
        if program == "kvgate" or program.endswith("/kvgate"):
            yield rest


def lines_in_code(guide: Path) -> Iterator[str]:
    """Yield what stands in code within sentences and begins with our name."""
    text = BLOCK.sub("", guide.read_text("utf-8"))
    for quoted in re.findall(r"`([^`]+)`", text):
        line = " ".join(quoted.split())
        if re.match("kvgate [a-z-]", line):
            yield line
