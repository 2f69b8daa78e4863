"""The word said last rules, for as long as it was said for, and the policy before and after."""

from math import inf

import pytest

from proxy.core.outcome import Mode
from proxy.core.override import MODE, Override, Overrides, drain_of


def said(word: str | None, until_s: float, serial: str, subject: str = MODE) -> Override:
    return Override(subject, word, "because", "me", until_s, serial)


@pytest.fixture
def overrides() -> Overrides:
    return Overrides()


def test_an_override_rules_until_its_end_and_not_a_moment_longer(overrides: Overrides) -> None:
    assert overrides.mode(Mode.ENFORCE, 0.0) is Mode.ENFORCE
    assert overrides.ends_s_next() == inf
    overrides.say(said("off", 10.0, "1"))
    assert overrides.mode(Mode.ENFORCE, 9.999) is Mode.OFF
    assert overrides.mode(Mode.ENFORCE, 10.0) is Mode.ENFORCE
    assert overrides.ends_s_next() == 10.0
    assert [one.serial for one in overrides.forget_expired(10.0)] == ["1"]
    assert overrides.forget_expired(10.0) == []


def test_it_rules_whatever_the_policy_says_meanwhile(overrides: Overrides) -> None:
    overrides.say(said("observe", 10.0, "1"))
    assert {overrides.mode(policy, 1.0) for policy in Mode} == {Mode.OBSERVE}


def test_what_was_said_to_all_puts_aside_what_was_said_to_one_before(overrides: Overrides) -> None:
    overrides.say(said("observe", 99.0, "own"))
    overrides.hear({MODE: said("off", 10.0, "all")})
    assert overrides.mode(Mode.ENFORCE, 1.0) is Mode.OFF
    assert overrides.mode(Mode.ENFORCE, 11.0) is Mode.ENFORCE


def test_what_was_said_to_one_after_that_rules_there(overrides: Overrides) -> None:
    shared = {MODE: said("off", 50.0, "all")}
    overrides.hear(shared)
    overrides.say(said("enforce", 10.0, "own"))
    overrides.hear(shared)  # each beat tells it again, which is nothing new
    assert overrides.mode(Mode.OBSERVE, 1.0) is Mode.ENFORCE
    assert overrides.mode(Mode.OBSERVE, 11.0) is Mode.OFF, "its own is over, the shared one is not"


def test_a_withdrawal_puts_aside_everything(overrides: Overrides) -> None:
    overrides.hear({MODE: said("off", 50.0, "all")})
    overrides.say(said("observe", 50.0, "own"))
    overrides.hear({MODE: said(None, 60.0, "back")})
    assert overrides.in_force(MODE, 1.0) is None
    assert overrides.mode(Mode.ENFORCE, 1.0) is Mode.ENFORCE
    overrides.hear({})
    assert overrides.mode(Mode.ENFORCE, 1.0) is Mode.ENFORCE


def test_one_own_word_is_taken_back_once(overrides: Overrides) -> None:
    overrides.say(said("off", 10.0, "1"))
    assert overrides.take_back(MODE)
    assert not overrides.take_back(MODE)
    assert overrides.mode(Mode.ENFORCE, 1.0) is Mode.ENFORCE


def test_replicas_drain_each_by_itself(overrides: Overrides) -> None:
    overrides.say(said("drain", 10.0, "1", drain_of("b")))
    overrides.hear({drain_of("a"): said("drain", 20.0, "2", drain_of("a"))})
    assert list(overrides.drains(1.0)) == ["a", "b"]
    assert overrides.shared(overrides.drains(1.0)["a"])
    assert not overrides.shared(overrides.drains(1.0)["b"])
    assert list(overrides.drains(15.0)) == ["a"]
    overrides.hear({drain_of("a"): said(None, 99.0, "3", drain_of("a"))})
    assert list(overrides.drains(1.0)) == ["b"]
    assert overrides.mode(Mode.ENFORCE, 1.0) is Mode.ENFORCE
