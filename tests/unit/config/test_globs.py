"""Which globs and matches cover which."""

from dataclasses import fields
from fnmatch import fnmatchcase

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.config.globs import covers, takes_all_of
from proxy.core.policy_classes import Match, TokenRange


@pytest.mark.parametrize(
    ("general", "special"),
    [
        ("*", ""), ("*", "a"), ("*", "*"), ("a*", "ab*"), ("*a*", "ba*c"), ("?", "[ab]"), ("?*", "a"), ("[ab]", "a"), ("[abc]x", "[ab]x"),
        ("/v1/*", "/v1/chat/*"), ("llama-*", "llama-3*-70b"), ("*", "[!x]"), ("a**", "a"), ("[", "["), ("[!a]", "[!a]"), ("[]]", "]"),
    ],
)  # fmt: skip
def test_what_is_covered(general: str, special: str) -> None:
    assert takes_all_of(general, special)


@pytest.mark.parametrize(
    ("general", "special"),
    [
        ("a", "*"),
        ("a*", "*a"),
        ("?", "*"),
        ("?", ""),
        ("a", "A"),
        ("[ab]", "[abc]"),
        ("[ab]", "?"),
        ("ab*", "a*"),
        ("", "a"),
        ("[!a]", "a"),
    ],
)
def test_what_is_not(general: str, special: str) -> None:
    assert not takes_all_of(general, special)


PIECES = st.lists(st.sampled_from(["a", "b", "*", "?", "[ab]", "[!a]", "[", "]", "[a-b]", "-"]), max_size=5).map("".join)


@given(PIECES, PIECES, st.lists(st.text("ab[]-c", max_size=6), min_size=20, max_size=20))
def test_a_yes_is_right(general: str, special: str, texts: list[str]) -> None:
    if takes_all_of(general, special):
        assert [text for text in texts if fnmatchcase(text, special) and not fnmatchcase(text, general)] == []


def test_very_long_globs_are_compared_as_they_stand() -> None:
    assert takes_all_of("*" + "a" * 4000, "*" + "a" * 4000)
    assert not takes_all_of("*" * 200, "a" * 200)


@pytest.mark.parametrize(
    ("earlier", "later", "wanted"),
    [
        (Match(), Match(model="a"), True),
        (Match(model="a*"), Match(model="ab", path="/x"), True),
        (Match(model="a*"), Match(path="/x"), False),
        (Match(path="*"), Match(), True),
        (Match(path="/v1/*"), Match(), False),
        (Match(headers=(("x", "a*"),)), Match(headers=(("x", "ab"), ("y", "1"))), True),
        (Match(headers=(("x", "*"),)), Match(headers=(("y", "1"),)), False),
        (Match(headers=(("x", "a"), ("y", "1"))), Match(headers=(("x", "a"),)), False),
        (Match(tenant="x"), Match(), False),
        (Match(tenant="x*"), Match(tenant="xy", lora="*"), True),
        (Match(lora="*"), Match(model="m"), False),
        (Match(stream=True), Match(stream=True, path="/x"), True),
        (Match(stream=True), Match(stream=False), False),
        (Match(stream=False), Match(), False),
        (Match(key_sha256=("a", "b")), Match(key_sha256=("b",)), True),
        (Match(key_sha256=("a",)), Match(key_sha256=("a", "b")), False),
        (Match(prompt_tokens=TokenRange(10)), Match(prompt_tokens=TokenRange(10, 20)), True),
        (Match(prompt_tokens=TokenRange(0, 20)), Match(prompt_tokens=TokenRange(10, 20)), True),
        (Match(prompt_tokens=TokenRange(0, 20)), Match(prompt_tokens=TokenRange(10)), False),
        (Match(prompt_tokens=TokenRange(10)), Match(), False),
    ],
)
def test_matches_that_cover(earlier: Match, later: Match, wanted: bool) -> None:
    assert covers(earlier, later) is wanted


@pytest.mark.parametrize("name", [part.name for part in fields(Match)])
def test_no_condition_is_overlooked(name: str) -> None:
    """One that is set in the earlier match alone leaves something to the later one."""
    values = {"headers": (("x", "1"),), "key_sha256": ("a",), "stream": True, "prompt_tokens": TokenRange(1)}
    assert not covers(Match(**{name: values.get(name, "a")}), Match())  # type: ignore[arg-type]
