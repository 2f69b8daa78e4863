"""Whether one glob takes everything that another takes, and one match every request of another.

Globs are ``fnmatch``'s: ``*``, ``?``, ``[ab]``, ``[!ab]``. The answer yes is always right; some pairs that differ only in how stars and
question marks are ordered (``*?`` and ``?*``) get a no. A class that is called unreachable is unreachable.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

from proxy.core.policy_classes import Match, TokenRange

CELLS_MAX = 10_000  # of the table below: globs of a hundred characters each; longer ones are compared as they stand
ANY, STAR = "?", "*"


def takes_all_of(general: str, special: str) -> bool:
    """Whether every text that ``special`` matches is matched by ``general``."""
    if general == special:
        return True
    wide, narrow = _tokens(general), _tokens(special)
    if len(wide) * len(narrow) > CELLS_MAX:
        return False
    # fits[j]: whether wide[i:] takes all of narrow[j:], for the i at hand, from the end.
    fits = [False] * len(narrow) + [True]
    for token in reversed(wide):
        last = fits
        fits = [False] * (len(narrow) + 1)
        for j in range(len(narrow), -1, -1):
            if token == STAR:
                fits[j] = last[j] or (j < len(narrow) and fits[j + 1])
            elif j < len(narrow):
                fits[j] = last[j + 1] and _one_takes(token, narrow[j])
    return fits[0]


def _tokens(glob: str) -> list[str]:
    """Split a glob as ``fnmatch`` does: a bracket that does not close is a character."""
    found: list[str] = []
    at = 0
    while at < len(glob):
        end = glob.find("]", at + 2 + (glob[at + 1 : at + 2] == "!")) if glob[at] == "[" else -1
        found.append(glob[at : end + 1] if end > 0 else glob[at])
        at = end + 1 if end > 0 else at + 1
    return found


def _one_takes(general: str, special: str) -> bool:
    """Whether a token for one character takes every character of another. Brackets are understood as far as they list characters."""
    if special == STAR:
        return False
    if general in (ANY, special):
        return True
    listed = _listed(general)
    return listed is not None and _listed(special) is not None and _listed(special) <= listed  # type: ignore[operator]


def _listed(token: str) -> frozenset[str] | None:
    """Return the characters that a token stands for; None where it does not list them."""
    if len(token) == 1:
        return None if token in (ANY, STAR) else frozenset(token)
    inside = token[1:-1]
    return None if inside.startswith("!") or "-" in inside else frozenset(inside)


def covers(earlier: Match, later: Match) -> bool:
    """Whether every request of ``later`` is one of ``earlier``. A kind of condition that is not known here must be the same in both."""
    for name in (part.name for part in fields(Match)):
        wide, narrow = getattr(earlier, name), getattr(later, name)
        if name == "path" and narrow is None:
            narrow = STAR  # every request has one
        if wide in (None, ()) or wide == narrow:
            continue
        if narrow in (None, ()) or name not in _TAKES or not _TAKES[name](wide, narrow):
            return False
    return True


def _headers_take(wide: Sequence[tuple[str, str]], narrow: Sequence[tuple[str, str]]) -> bool:
    has = dict(narrow)
    return all(name in has and takes_all_of(glob, has[name]) for name, glob in wide)


def _range_takes(wide: TokenRange, narrow: TokenRange) -> bool:
    return wide.least <= narrow.least and (wide.most is None or (narrow.most is not None and narrow.most <= wide.most))


def _keys_take(wide: Sequence[str], narrow: Sequence[str]) -> bool:
    return set(narrow) <= set(wide)


_TAKES: dict[str, Callable[[Any, Any], bool]] = {
    "model": takes_all_of,
    "path": takes_all_of,
    "tenant": takes_all_of,
    "lora": takes_all_of,
    "headers": _headers_take,
    "key_sha256": _keys_take,
    "prompt_tokens": _range_takes,
}
