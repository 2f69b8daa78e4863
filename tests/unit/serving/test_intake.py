"""Deadlines: the least of what policy, queue and client say."""

import pytest

from proxy.core.demand import PromptPart
from proxy.core.policy import ClassQueue, Policy, Queue, TrafficClass
from proxy.serving.intake import (
    FINGERPRINT_BYTES,
    SESSION_CHARS_MAX,
    fingerprint_of,
    header_fields,
    held_at_once,
    session_of,
    wait_s_max,
)
from tests.support.builders import book

POLICY = Policy(queue=Queue(wait_s_max=30.0))
CHAT = TrafficClass("chat", deadline_s=10.0)
PLAIN = TrafficClass("default")


@pytest.mark.parametrize(
    ("traffic_class", "fields", "seconds"),
    [
        (PLAIN, {}, 30.0),
        (CHAT, {}, 10.0),
        (CHAT, {"x-kvgate-deadline-ms": "2500"}, 2.5),
        (CHAT, {"x-kvgate-deadline-ms": "250000"}, 10.0),
        (PLAIN, {"x-stainless-timeout": "600", "x-stainless-read-timeout": "7"}, 7.0),
        (PLAIN, {"x-envoy-expected-rq-timeout-ms": "1500.5"}, 1.5005),
        (PLAIN, {"x-kvgate-deadline-ms": "nan"}, 30.0),
        (PLAIN, {"x-kvgate-deadline-ms": "-1"}, 30.0),
        (PLAIN, {"x-kvgate-deadline-ms": "0"}, 0.0),
        (PLAIN, {"x-stainless-timeout": "0", "x-envoy-expected-rq-timeout-ms": "0"}, 30.0),
        (TrafficClass("bulk", queue=ClassQueue(wait_s_max=300.0)), {}, 300.0),
        (TrafficClass("bulk", queue=ClassQueue(wait_s_max=300.0), deadline_s=60.0), {}, 60.0),
        (TrafficClass("now", queue=ClassQueue(wait_s_max=0.0)), {}, 0.0),
        (PLAIN, {"x-kvgate-deadline-ms": "soon", "x-stainless-timeout": "NOT_GIVEN"}, 30.0),
        (PLAIN, {"x-kvgate-deadline-ms": "inf"}, 30.0),
    ],
)
def test_the_least_rules(traffic_class: TrafficClass, fields: dict[str, str], seconds: float) -> None:
    assert wait_s_max(POLICY, traffic_class, fields) == pytest.approx(seconds)


def test_headers_by_lower_case_name() -> None:
    assert header_fields([(b"X-A", b"1"), (b"x-a", b"\xe9"), (b"b", b"")]) == {"x-a": "é", "b": ""}


@pytest.mark.parametrize(
    ("fields", "key", "session"),
    [
        ({}, None, ""),
        ({}, "k", "k"),
        ({"x-session-id": "s"}, "k", "s"),
        ({"x-session-id": "s", "x-kvgate-session": "t"}, None, "t"),
        ({"x-session-id": ""}, "k", "k"),
        ({"x-session-id": "s" * 1000}, None, "s" * SESSION_CHARS_MAX),
    ],
)
def test_a_session_is_what_the_client_calls_one(fields: dict[str, str], key: str | None, session: str) -> None:
    assert session_of(fields, key) == session


def test_a_repeated_body_is_known_and_others_are_not() -> None:
    """By length and both ends; what differs only in the middle of a long body is taken for the same, which costs a seat at most."""
    body = b"{" + b"a" * 3 * FINGERPRINT_BYTES + b"}"
    assert fingerprint_of(body) == fingerprint_of(bytes(bytearray(body)))
    for other in (body + b" ", b"[" + body[1:], body[:-1] + b"]", b""):
        assert fingerprint_of(other) != fingerprint_of(body)
    assert fingerprint_of(b"") != 0


@pytest.mark.parametrize(
    ("tokens", "usable", "held"),
    [
        ([10, 20, 30], 1000, [30, 20, 10]),
        ([100] * 3000, 1000, [100] * 80),  # half of 1,000 blocks of 16
        ([100] * 3000, 100_000, [100] * 128),
        ([8000] * 5, 100_000, [8000, 8000]),
        ([5000, 9000], 1000, [9000]),  # one goes in any case, and then the pool judges it
    ],
)  # fmt: skip
def test_of_a_list_without_output_the_engine_holds_no_more_than_a_step_or_two(
    tokens: list[int], usable: int, held: list[int]
) -> None:
    parts = tuple(PromptPart(count) for count in tokens)
    assert [part.tokens for part in held_at_once(parts, [book(usable=usable)])] == held


def test_a_list_without_output_takes_no_more_than_half_of_the_sequences() -> None:
    parts = tuple(PromptPart(1) for _ in range(100))
    assert len(held_at_once(parts, [book(sequences_max=20), book()])) == 10
    assert len(held_at_once(parts, [book(sequences_max=1)])) == 1


def test_a_prompt_without_output_may_fill_the_context() -> None:
    (part,) = held_at_once((PromptPart(4096),), [book(usable=10_000, context=4096)])
    assert part.tokens == 4095  # the gate keeps a token free for whoever generates
