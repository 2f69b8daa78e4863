"""Mutates JSON as JSON: what is somewhere in a body becomes something else that JSON can say. Flipped bytes seldom get that far."""

import json
import random
from collections.abc import Iterator
from typing import Any

ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2.5, 1e308, float("nan"), float("inf"), 10**30, -(10**30), "", "x", "\ud800", "5", "9" * 5000, "text",
    "user", "assistant", "function", "auto", [], [[]], {}, {"type": ["x"]}, {"type": "text", "text": "a"}, [None], ["x"], [{}], [1, 2],
    {"a": {"b": [1]}}, "image_url", "input_text", "message", "function_call", "reasoning", "tool_result", "tool_removal",
)  # fmt: skip
NESTED = (3, 50, 400)

Path = tuple[str | int, ...]


def mutated(body: bytes, seed: int) -> bytes | None:
    """The body with one to three values replaced; None where it is no JSON."""
    try:
        value = json.loads(body)
    except (ValueError, RecursionError):
        return None
    chance = random.Random(seed)
    for _ in range(chance.choice((1, 1, 1, 2, 3))):
        places = [place for place in _places(value) if place]
        if not places:
            break
        value = _with(value, chance.choice(places), _odd(chance))
    try:
        return json.dumps(value).encode()
    except (ValueError, RecursionError):
        return None


def _odd(chance: random.Random) -> Any:
    value = chance.choice(ODD)
    if chance.random() < 0.1:
        for _ in range(chance.choice(NESTED)):
            value = [value] if chance.random() < 0.5 else {"content": value}
    return value


def _places(value: Any, at: Path = ()) -> Iterator[Path]:
    yield at
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _places(one, (*at, key))
    elif isinstance(value, list):
        for index, one in enumerate(value):
            yield from _places(one, (*at, index))


def _with(value: Any, at: Path, new: Any) -> Any:
    if not at:
        return new
    copied = value.copy()
    copied[at[0]] = _with(copied[at[0]], at[1:], new)
    return copied
