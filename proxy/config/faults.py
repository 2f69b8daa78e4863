"""What is wrong with a policy file, told so that it can be mended: where, what was found, what is allowed, and why."""

import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from enum import StrEnum

from proxy.config.secret_forms import SECRET

_USER = re.compile(r"//\S*@")  # of an address: a password has no form of its own
_QUERY = re.compile(r"(//[^\s?#]*[?#])\S+")  # nor has a token in the query


class Severity(StrEnum):
    """Whether a policy can be used as it is."""

    FAULT = "fault"  # no
    WARNING = "warning"  # yes, but something in it has no effect or hardly the one that was meant


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault or warning. Lines and columns count from 1; 0 stands for the file as a whole."""

    file: str
    line: int
    column: int
    key: str
    got: str
    allowed: str
    because: str
    severity: Severity = Severity.FAULT

    def __str__(self) -> str:
        """Return ``file:line:column: key: got …; allowed …; because …``, the form editors jump to; a warning says so behind its place."""
        place = f"{self.file}:{self.line}:{self.column}" if self.line else self.file
        what = "warning: " if self.severity is Severity.WARNING else ""
        return f"{place}: {what}{self.key}: got {self.got}; allowed {self.allowed}; because {self.because}"

    def as_dict(self) -> dict[str, str | int]:
        """Return the fields, for a program."""
        return asdict(self)


class PolicyError(Exception):
    """A policy cannot be used; ``faults`` are all that is wrong with it, in the file's order."""

    def __init__(self, faults: Iterable[Fault]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(str(fault) for fault in self.faults))


class UnreadableError(PolicyError):
    """There is no text to judge: the file is not there, or is none of text."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `` (did you mean "x"?)`` for a word close to a known one, else nothing."""
    close = get_close_matches(word.lower().replace("-", "_"), list(known), n=1, cutoff=0.6)
    return f' (did you mean "{close[0]}"?)' if close else ""


def printable(text: str, longest: int = 60) -> str:
    """Return user text fit for one line of an error: without secrets, escaped where it would not print, and cut when it is long."""
    text = _QUERY.sub(r"\1…", _USER.sub("//…@", SECRET.sub("…", text)))
    shown = text if len(text) <= longest else text[: longest - 1] + "…"
    return shown if shown.isprintable() else shown.encode("unicode_escape").decode()


def quoted(text: str) -> str:
    """Return user text as it stands in an error, in quotes."""
    return f'"{printable(text)}"'
