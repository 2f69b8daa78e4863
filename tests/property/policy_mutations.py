"""Policy files with one line changed, and what is known of the change: where a fault has to point, and whether there must be one.

In the text that is changed (``policy_text``) there is one key to a line, so that a line is a place.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from random import Random

from tests.property.policy_text import FULL

_LINE = re.compile(r"^( *(?:- )?)([A-Za-z0-9_-]+):(?: +(.*))?$")


class Expected(StrEnum):
    """What must become of a mutated text."""

    TAKEN_OR_LINE = "taken, or a fault in the line's section"
    AT_LINE = "refused, with a fault at the line"
    FROM_LINE = "refused, with a fault at the line or, where YAML notices late, after it"


@dataclass(frozen=True, slots=True)
class Mutation:
    """A mutated text. ``line`` counts from 1; ``shapeless``: what is wrong is the shape, so that the schema must see it too."""

    kind: str
    text: str
    line: int
    expected: Expected
    shapeless: bool = False


@dataclass(frozen=True, slots=True)
class Place:
    """A line with a key: its indentation with the dash, the key, and the value (None: the value is below)."""

    index: int
    indent: str
    key: str
    value: str | None


LINES = FULL.splitlines()
PLACES = [
    Place(index, match[1], match[2], match[3]) for index, line in enumerate(LINES) if (match := _LINE.match(line)) is not None
]
VALUED = [place for place in PLACES if place.value]
# Free names: any word does there.
NAMES_BELOW = {"weights", "list", "headers"}


def _is_name(place: Place) -> bool:
    """Whether the key is a name of the operator's, so that no other is wrong."""
    above = [one for one in PLACES if one.index < place.index and len(one.indent) < len(place.indent)]
    return bool(above) and above[-1].key in NAMES_BELOW


KEYED = [place for place in PLACES if not _is_name(place)]
NUMBERS = [place for place in VALUED if place.value and re.fullmatch(r"-?[0-9._]+", place.value) and not _is_name(place)]
MEASURES = [place for place in VALUED if place.value and re.fullmatch(r"[0-9.]+(us|ms|s|m|h|B|KiB|MiB|GiB)", place.value)]
WORDS = [place for place in VALUED if place.key in {"mode", "error_detail", "auth", "stream", "when_saturated", "scheme"}]


def _with(place: Place, line: str | None, *, after: bool = False) -> str:
    lines = LINES.copy()
    if after:
        lines.insert(place.index + 1, line or "")
    elif line is None:
        del lines[place.index]
    else:
        lines[place.index] = line
    return "\n".join(lines) + "\n"


def _valued(place: Place, value: str) -> str:
    return _with(place, f"{place.indent}{place.key}: {value}")


def _misspelt_key(random: Random) -> Mutation:
    place = random.choice(KEYED)
    at = random.randrange(1, len(place.key) + 1)
    wrong = place.key[:at] + random.choice("zqxj") + place.key[at:]
    rest = "" if place.value is None else f" {place.value}"
    return Mutation(
        "misspelt key", _with(place, f"{place.indent}{wrong}:{rest}"), place.index + 1, Expected.AT_LINE, shapeless=True
    )


def _number_that_is_none(random: Random) -> Mutation:
    place = random.choice(NUMBERS)
    value = random.choice(
        ["many", "-1e9", "9" * 40, "1,5", "[]", "{a: b}", "null", "~", "", "5s", "5 6", ".inf", ".nan", "true", "1 000"]
    )
    shapeless = value not in {"-1e9", ".inf", ".nan"}  # numbers to YAML
    return Mutation("number", _valued(place, value), place.index + 1, Expected.AT_LINE, shapeless=shapeless)


def _measure_that_is_none(random: Random) -> Mutation:
    place = random.choice(MEASURES)
    value = random.choice(
        ["30", "5d", "5 parsecs", "-1s", "-1MiB", "s", "MiB", "[1s]", "null", "1e3s", "1h30m", "1_000ms", "5S", "5mb"]
    )
    return Mutation("measure", _valued(place, value), place.index + 1, Expected.AT_LINE, shapeless=True)


def _measure_beyond_its_bounds(random: Random) -> Mutation:
    place = random.choice(MEASURES)
    unit = "GiB" if "B" in (place.value or "") else "h"
    value = random.choice([f"{10**9}{unit}", f"{10**30}{unit}"])
    return Mutation("measure beyond", _valued(place, value), place.index + 1, Expected.AT_LINE)


def _word_that_is_none(random: Random) -> Mutation:
    place = random.choice(WORDS)
    value = random.choice(["offf", "Enforce", "yes", "1", "[]", "{}", "null", "[queue, que]", '"enforce "'])
    return Mutation("word", _valued(place, value), place.index + 1, Expected.AT_LINE, shapeless=True)


def _key_twice(random: Random) -> Mutation:
    place = random.choice([one for one in VALUED if "-" not in one.indent])
    line = f"{place.indent}{place.key}: {place.value}"
    return Mutation("key twice", _with(place, line, after=True), place.index + 2, Expected.AT_LINE)


def _secret(random: Random) -> Mutation:
    place = random.choice(VALUED)
    value = random.choice(["sk-" + "abcd1234" * 4, "hf_" + "A1b2C3d4" * 4, '"Bearer abcdefgh12345678"', "ghp_" + "a1B2" * 9])
    return Mutation("secret", _valued(place, value), place.index + 1, Expected.AT_LINE)


def _tab(random: Random) -> Mutation:
    place = random.choice([one for one in PLACES if one.indent])
    return Mutation("tab", _with(place, f"\t{LINES[place.index].lstrip()}"), place.index + 1, Expected.FROM_LINE)


def _unclosed(random: Random) -> Mutation:
    place = random.choice(VALUED)
    return Mutation(
        "unclosed", _valued(place, random.choice(["[", "{", '"', "'", "[a", "{a: "])), place.index + 1, Expected.FROM_LINE
    )


def _unknown_line(random: Random) -> Mutation:
    place = random.choice([one for one in VALUED if "-" not in one.indent and not _is_name(one)])
    word = random.choice(["nonsense", "no_such_key", "wait", "maximum"])
    text = _with(place, f"{place.indent}{word}: 1", after=True)
    return Mutation("unknown line", text, place.index + 2, Expected.AT_LINE, shapeless=True)


def _section_of_another_kind(random: Random) -> Mutation:
    """What stands below a key is gone, and in its place nothing of the kind."""
    place = random.choice([one for one in PLACES if one.value is None])
    end = place.index + 1
    while end < len(LINES) and _depth(LINES[end]) > len(place.indent):
        end += 1
    value = random.choice(["[]", "null", "word", "5", "{}", "[{}]", "[[]]"])
    lines = [*LINES[: place.index], f"{place.indent}{place.key}: {value}", *LINES[end:]]
    expected = Expected.TAKEN_OR_LINE if value == "{}" else Expected.AT_LINE  # a map that says nothing will do in most places
    return Mutation("section", "\n".join(lines) + "\n", place.index + 1, expected, shapeless="{}" not in value)


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip())


def _other_value(random: Random) -> Mutation:
    """A value that may do: within bounds, or at odds with its neighbours."""
    place = random.choice(NUMBERS + MEASURES)
    unit = re.sub(r"[-0-9._]", "", place.value or "")
    return Mutation(
        "other value", _valued(place, f"{random.choice([0, 1, 2, 5, 40])}{unit}"), place.index + 1, Expected.TAKEN_OR_LINE
    )


def _line_gone(random: Random) -> Mutation:
    place = random.choice([one for one in VALUED if one.key != "trusted_callers"])  # the key that needs it is in another section
    return Mutation("line gone", _with(place, None), place.index + 1, Expected.TAKEN_OR_LINE)


KINDS: tuple[Callable[[Random], Mutation], ...] = (
    _misspelt_key, _number_that_is_none, _measure_that_is_none, _measure_beyond_its_bounds, _word_that_is_none, _key_twice, _secret,
    _tab, _unclosed, _unknown_line, _section_of_another_kind, _other_value, _line_gone,
)  # fmt: skip


def mutations(seed: int, count: int) -> list[Mutation]:
    """Return that many mutated texts, every kind as often as any other."""
    random = Random(seed)
    return [KINDS[index % len(KINDS)](random) for index in range(count)]
