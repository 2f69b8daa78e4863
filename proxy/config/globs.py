"""Whether one glob takes everything that another takes, and one match every request of another.

Globs are ``fnmatch``'s: ``*``, ``?``, ``[ab]``, ``[!ab]``. The answer yes is always right; some pairs that differ only in how stars and
question marks are ordered (``*?`` and ``?*``) get a no. A class that is called unreachable is unreachable.
"""

from collections.abc import Mapping

from proxy.core.policy_classes import Match

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
    """Whether every request of ``later`` is one of ``earlier``."""
    model = earlier.model is None or (later.model is not None and takes_all_of(earlier.model, later.model))
    path = earlier.path is None or takes_all_of(earlier.path, later.path or STAR)
    return model and path and _headers_cover(dict(earlier.headers), dict(later.headers))


def _headers_cover(earlier: Mapping[str, str], later: Mapping[str, str]) -> bool:
    return all(name in later and takes_all_of(glob, later[name]) for name, glob in earlier.items())
