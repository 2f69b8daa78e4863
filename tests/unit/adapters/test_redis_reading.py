"""Words as they stand in Redis: what a proxy tells comes back as it was, anything else is no word, whatever its kind."""

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import pytest

from proxy.adapters.redis_reading import (
    MALFORMED,
    STEPS_MAX,
    TEXT_MAX,
    UnknownWordError,
    account_of,
    card_of,
    completion_of,
    kept_of,
    override_of,
    record_fields,
)
from proxy.core.exchange import RATE_KEYS, Completion
from proxy.core.override import LASTS_S_MAX, MODE, TEXT_CHARS_MAX, Override
from proxy.core.shared_health import Notice
from proxy.ports.store import KeptResponse, ProxyCard
from tests.support.shared_rows import record

HEALTH = (Notice("r0", 5.25, 7.25, 1), Notice("r1", answered_s=7.5))
CARD = ProxyCard("a", "d", "1", "enforce", "http://a", ((0, 2.5), (-5, 0.0)), 1000.0, HEALTH)
DONE = Completion("r0", ("m", "t", False, 3, -1), 15.0, True, 100, 15.0, True, False)
SAID = Override(MODE, "observe", "because", "me", 1060.0, "1")
NOW_S = 1000.0


def card(**fields: Any) -> ProxyCard:
    return card_of(b"a", json.dumps(asdict(CARD) | fields).encode())


def said(subject: str = MODE, **fields: Any) -> Override:
    return override_of(subject.encode(), json.dumps(asdict(SAID) | {"subject": subject} | fields).encode(), NOW_S)


def done(**fields: Any) -> Completion:
    return completion_of(list((DONE._asdict() | fields).values()))


def told_record(**fields: Any) -> dict[str, Any]:
    return record_fields(json.dumps(asdict(record()) | fields).encode())


def test_what_a_proxy_tells_comes_back() -> None:
    assert (card(), said(), done()) == (CARD, SAID, DONE)
    assert said("drain:r0", word="drain").word == "drain"
    assert said(word=None).word is None
    assert kept_of(["resp_1", "r0", 17]) == KeptResponse("resp_1", "r0", 17)
    assert kept_of(["resp_1", "r0"]) == KeptResponse("resp_1", "r0")
    assert account_of(b"-5|x|y", b"-0.25") == ((-5, "x|y"), -0.25)
    for key in RATE_KEYS.values():
        assert account_of(f"{key}|t".encode(), b"1")[0] == (key, "t")
    assert told_record()["z"] == 2.0


def test_what_a_newer_proxy_tells_besides_is_passed_over() -> None:
    assert card(said_since=7) == CARD
    assert card(health=[[*notice, "since"] for notice in CARD.health]) == CARD
    assert said(said_since=7) == SAID
    assert completion_of([*DONE, "since"]) == DONE
    assert kept_of(["resp_1", "r0", 17, "since"]) == KeptResponse("resp_1", "r0", 17)
    for word, subject in (("panic", MODE), ("drain", "cordon:r0"), ("kill", "drain:r0")):
        with pytest.raises(UnknownWordError):
            said(subject, word=word)


@pytest.mark.parametrize(
    ("read", "name", "limit", "beyond"),
    [
        (card, "policy_digest", "d" * TEXT_MAX, "d" * (TEXT_MAX + 1)),
        (card, "seen_s", STEPS_MAX, STEPS_MAX * 1.001),
        (card, "clocks", [[0, STEPS_MAX]], [[0, STEPS_MAX * 1.001]]),
        (said, "reason", "r" * TEXT_CHARS_MAX, "r" * (TEXT_CHARS_MAX + 1)),
        (said, "until_s", NOW_S + LASTS_S_MAX, NOW_S + LASTS_S_MAX + 61.0),
        (done, "output_tokens", STEPS_MAX, STEPS_MAX * 1.001),
        (done, "output_tokens", 0.0, -1.0),
        (told_record, "bias_blocks", -1e12, -1.001e12),
        (told_record, "z", 10.0, 10.001),
        (told_record, "sigma_blocks", 0.0, -0.001),
        (told_record, "running", 0, -1),
    ],
)
def test_a_word_has_bounds(read: Callable[..., Any], name: str, limit: object, beyond: object) -> None:
    read(**{name: limit})
    with pytest.raises(MALFORMED):
        read(**{name: beyond})


NO_WORDS: list[object] = [
    None,
    True,
    5,
    -1,
    10**400,
    1e308,
    float("nan"),
    float("inf"),
    "",
    "\ud800",
    "x" * 10_000,
    [],
    [[]],
    {},
    {"a": 1},
]
READERS: dict[str, Callable[..., object]] = {"card": card, "override": said, "completion": done, "record": told_record}
FIELDS = {
    "card": list(asdict(CARD)),
    "override": list(asdict(SAID)),
    "completion": list(DONE._fields),
    "record": list(asdict(record())),
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in FIELDS.items() for name in names])
def test_whatever_stands_in_a_field_is_read_or_is_no_word(kind: str, name: str) -> None:
    """Nothing else is raised; and what is read can be written again and sent on."""
    for word in NO_WORDS:
        try:
            found = READERS[kind](**{name: word})
        except (*MALFORMED, UnknownWordError):
            continue
        repr(found).encode()


@pytest.mark.parametrize("data", [b"", b"x", b"5", b"[]", b"{}", b"null", b"\xff", b"[" * 100_000, b'"x"'])
def test_whatever_is_no_object_is_no_word(data: bytes) -> None:
    for read in (lambda: card_of(b"a", data), lambda: override_of(b"mode", data, NOW_S), lambda: record_fields(data)):
        with pytest.raises(MALFORMED):
            read()


@pytest.mark.parametrize(
    ("field", "charge"),
    [(b"0|gold", b"nan"), (b"0|gold", b"inf"), (b"0|gold", b"-inf"), (b"0|gold", b"x"), (b"0|gold", b"1e16"), (b"gold", b"1"),
     (b"x|gold", b"1"), (b"9" * 5000 + b"|gold", b"1"), (b"2000000|gold", b"1"), (b"0|\xff", b"1"), (b"0|" + b"x" * 1001, b"1")],
)  # fmt: skip
def test_an_account_is_a_number_of_a_tenant(field: bytes, charge: bytes) -> None:
    with pytest.raises(MALFORMED):
        account_of(field, charge)
