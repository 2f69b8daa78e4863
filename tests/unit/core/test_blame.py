"""Whose fault an error is, by what the others answer to the same request."""

from proxy.core.blame import Blame, Failure
from proxy.core.health import EjectReason, Outliers
from proxy.core.policy_relay import Health

A, B, C = (Failure(name, "status 500", at_s) for name, at_s in (("a", 1.0), ("b", 2.0), ("c", 3.0)))


def test_the_first_error_counts_at_once_and_a_second_of_the_same_replica_does_not() -> None:
    blame = Blame()
    assert blame.met(A) == (A, None)
    assert blame.met(A._replace(sent_s=9.0)) == (None, None)
    assert not blame.undecided
    assert blame.answered() == ()


def test_what_a_second_replica_fails_too_counts_for_neither() -> None:
    blame = Blame()
    blame.met(A)
    assert blame.met(B) == (None, A)
    assert blame.met(C) == (None, None)
    assert blame.undecided


def test_what_another_answers_counts_for_each_that_failed_it_once() -> None:
    blame = Blame()
    for one in (A, B, A, C):
        blame.met(one)
    assert blame.answered() == (A, B, C)
    assert blame.answered() == ()
    assert blame.met(B) == (B, None), "what comes after that is judged anew"


def outliers() -> Outliers:
    found = Outliers(Health())
    for name in ("a", "b", "c", "d"):
        found.seen(name, ("m",), 0.0, usable=True)
        for _ in range(50):
            found.answered(name, 0.0)
    return found


def test_what_is_taken_back_ejects_nobody_and_what_comes_before_still_counts() -> None:
    found = outliers()
    for at in range(4):
        assert found.failed("a", at / 10, at / 10) is None
    assert not found.acquit("a", 0.4, 7.0), "that one never counted"
    assert not found.acquit("a", 0.4, 0.1), "still three in a row: it stays in doubt"
    assert found.failed("a", 0.5, 0.45) is None
    assert found.failed("a", 0.6, 0.55) is EjectReason.CONSECUTIVE


def test_an_ejection_for_what_is_taken_back_ends() -> None:
    found = outliers()
    for at in range(5):
        found.failed("a", at / 10, at / 10)
    assert found.ejected("a")
    assert found.acquit("a", 0.6, 0.4)
    assert found.returns("a", 0.6)
    assert not found.ejected("a")


def test_doubt_ends_with_what_it_was_for() -> None:
    found = outliers()
    found.failed("a", 0.1, 0.1)
    found.failed("a", 0.2, 0.2)
    assert found.slow_start_of("a", 0.3) is not None
    assert found.acquit("a", 0.3, 0.2)
    assert found.slow_start_of("a", 0.3) is None


def test_what_is_taken_back_and_counts_after_all_is_no_incident_of_its_own() -> None:
    """Its second verdict may come within the same second, and must not pass for the same lost connection."""
    found = outliers()
    for at in range(5):
        found.failed("a", at / 10, at / 10)
        if at < 4:
            found.acquit("a", at / 10 + 0.01, at / 10)
            found.failed("a", at / 10 + 0.02, at / 10)
    assert found.ejected("a")


def test_failures_before_an_answer_are_not_taken_from_those_after_it() -> None:
    found = outliers()
    found.failed("a", 0.1, 0.1)
    found.answered("a", 0.2)
    for at in (0.3, 0.4, 0.5, 0.6):
        found.failed("a", at, at)
    found.acquit("a", 0.65, 0.1)
    assert found.failed("a", 0.7, 0.7) is EjectReason.CONSECUTIVE
