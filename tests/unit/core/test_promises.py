"""Seats kept for those told to return."""

import pytest

from proxy.core.demand import Demand
from proxy.core.promises import EARLY_S, JITTER_SHARE, LATE_S, PROMISES_MAX, RETURNS_PRIOR, TOLD_S_MAX, Promises
from tests.support.builders import demand


def one(serial: int, **more: object) -> Demand:
    return demand(f"q{serial}", fingerprint=serial, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("at_s", "known"),
    [
        (20.0 - EARLY_S - 0.01, False), (20.0 - EARLY_S, True), (20.0, True),
        (20.0 * (1.0 + JITTER_SHARE) + LATE_S, True), (20.0 * (1.0 + JITTER_SHARE) + LATE_S + 0.01, False),
    ],
)  # fmt: skip
def test_a_seat_is_kept_from_a_little_before_until_the_jitter_is_over(at_s: float, *, known: bool) -> None:
    promises = Promises()
    promises.told(one(1), 100.0, 20.0, 0.0)
    assert promises.claim(one(1), at_s) is known
    assert not promises.claim(one(1), at_s)


def test_another_request_is_not_taken_for_it() -> None:
    promises = Promises()
    promises.told(one(1, prompt=100, cap=50, tenant="a"), 100.0, 5.0, 0.0)
    for other in (
        one(2, prompt=100, cap=50, tenant="a"), one(1, prompt=101, cap=50, tenant="a"),
        one(1, prompt=100, cap=51, tenant="a"), one(1, prompt=100, cap=50, tenant="b"),
    ):  # fmt: skip
        assert not promises.claim(other, 5.0)
    assert promises.claim(one(1, prompt=100, cap=50, tenant="a"), 5.0)


def test_equal_requests_have_a_seat_each() -> None:
    promises = Promises()
    for _ in range(2):
        promises.told(one(1), 100.0, 5.0, 0.0)
    assert [promises.claim(one(1), 5.0) for _ in range(3)] == [True, True, False]


def test_nothing_is_kept_for_who_should_not_come_or_cannot_be_known() -> None:
    promises = Promises()
    promises.told(one(1), 100.0, TOLD_S_MAX + 0.01, 0.0)
    promises.told(demand(), 100.0, 5.0, 0.0)
    assert len(promises) == 0
    promises.told(one(1), 100.0, TOLD_S_MAX, 0.0)
    assert len(promises) == 1


def test_seats_are_bounded() -> None:
    promises = Promises()
    for serial in range(PROMISES_MAX + 5):
        promises.told(one(serial + 1), 1.0, 5.0, 0.0)
    assert len(promises) == PROMISES_MAX


def test_how_many_return_is_learned() -> None:
    kept, broken = Promises(), Promises()
    for serial in range(1, 101):
        for promises in (kept, broken):
            promises.told(one(serial), 10.0, 1.0, 10.0 * serial)
        kept.claim(one(serial), 10.0 * serial + 1.2)
    broken.claim(one(999), 1e6)
    assert Promises().return_ratio == 0.5
    assert kept.return_ratio > 0.95
    assert broken.return_ratio < RETURNS_PRIOR / 100.0
    assert len(kept) == len(broken) == 0


def test_work_is_that_of_the_line_and_goes_when_it_is_claimed_or_lapses() -> None:
    promises = Promises()
    promises.told(one(1, tenant="a"), 100.0, 5.0, 0.0)
    promises.told(one(2, tenant="a"), 60.0, 6.0, 0.0)
    promises.told(one(3, tenant="b"), 7.0, 5.0, 0.0)
    assert promises.work(0, "a") == pytest.approx(0.5 * 160.0)
    assert promises.work(0, "b") == pytest.approx(0.5 * 7.0)
    assert (promises.work(1, "a"), promises.work(0, "nobody")) == (0.0, 0.0)
    promises.claim(one(1, tenant="a"), 5.0)
    assert promises.work(0, "a") == pytest.approx(promises.return_ratio * 60.0)
    promises.claim(one(9), 100.0)
    assert (promises.work(0, "a"), promises.work(0, "b"), len(promises)) == (0.0, 0.0, 0)


def test_a_line_moves_on_with_those_who_are_due_let_in() -> None:
    promises = Promises()
    for serial, wait_s in enumerate((2.0, 11.5, 30.0)):
        promises.told(one(serial + 1), 40.0, wait_s, 0.0)
    assert promises.wait_s(0, "default", 100.0, 10.0, 0.0) == pytest.approx(10.0 + 2.0 + 2.0)
    assert promises.wait_s(0, "other", 100.0, 10.0, 0.0) == pytest.approx(10.0)
