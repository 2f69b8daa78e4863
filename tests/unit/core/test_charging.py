"""What is charged before a request ends."""

import pytest

from proxy.core.charging import MeanLength, Scale
from proxy.core.wait_queue import WaitQueue
from tests.support.builders import demand


def test_few_ends_count_beside_what_was_thought_before() -> None:
    one = MeanLength()
    assert one.expected(700.0) == 700.0
    one.ended(20.0)
    assert one.expected(60.0) == pytest.approx((20.0 + 3 * 60.0) / 4.0)


def test_lengths_that_change_are_followed() -> None:
    one = MeanLength()
    for tokens in [10.0] * 200 + [80.0] * 200:
        one.ended(tokens)
    assert one.expected(1000.0) == pytest.approx((50 * 80.0 + 3 * 1000.0) / 53.0, rel=0.05)


def test_the_scale_is_that_of_the_sums() -> None:
    one = Scale()
    assert one.ratio == 1.0
    one.admitted(30.0, 100.0)
    one.admitted(0.0, 0.0)
    assert one.ratio == pytest.approx(0.3)


def test_a_tenant_is_charged_by_its_own_answers_and_a_new_one_by_those_of_all() -> None:
    queue = WaitQueue(requests_max=9, tokens_max=9999, bytes_max=9999)
    assert queue.output_tokens_expected(demand(tenant="a"), 5000.0) == 5000.0
    for _ in range(300):
        queue.settle(demand(tenant="a"), 0.0, 1.0, 10.0)
        queue.settle(demand(tenant="b"), 0.0, 1.0, 410.0)
    expected = {name: queue.output_tokens_expected(demand(tenant=name), 5000.0) for name in ("a", "b", "new")}
    assert expected["a"] < 60.0
    assert expected["b"] > 380.0
    assert 180.0 < expected["new"] < 600.0
