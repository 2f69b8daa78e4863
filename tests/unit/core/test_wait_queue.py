"""Order, fairness and bounds of the queue."""

import math

import pytest

from proxy.core.demand import Demand
from proxy.core.wait_queue import Waiting, WaitQueue
from tests.support.builders import demand, promised


def queue(requests_max: int = 100, tokens_max: int = 10**6, bytes_max: int = 10**6) -> WaitQueue:
    return WaitQueue(requests_max=requests_max, tokens_max=tokens_max, bytes_max=bytes_max)


def push(to: WaitQueue, one: Demand, charge: float = 10.0, *, front: bool = False, at_s: float = 0.0) -> Waiting:
    entry = Waiting(one, at_s, charge_block_steps=charge, peak_blocks=5.0)
    to.push(entry, front=front)
    return entry


def order(of: WaitQueue) -> list[str]:
    return [entry.demand.request_id for entry in of.order()]


def serve(of: WaitQueue, count: int) -> list[str]:
    """Admit as the gate does: the head goes and its tenant is charged."""
    served = []
    for _ in range(count):
        entry = next(of.order())
        of.remove(entry.demand.request_id)
        of.charge(entry.demand, entry.charge_block_steps)
        served.append(entry.demand.tenant)
    return served


def test_bands_first_then_deadline_then_arrival() -> None:
    one = queue()
    push(one, demand("low-late", deadline_s=9.0))
    push(one, demand("low-soon", deadline_s=3.0))
    push(one, demand("high", priority=5, deadline_s=9.0))
    push(one, demand("low-soon-after", deadline_s=3.0))
    push(one, demand("negative", priority=-1, deadline_s=1.0))
    assert order(one) == ["high", "low-soon", "low-soon-after", "low-late", "negative"]
    assert [one.position(name) for name in ("high", "negative", "nobody")] == [1, 5, None]


def test_tenants_take_turns_whoever_has_more_waiting() -> None:
    one = queue()
    for index in range(20):
        push(one, demand(f"a{index}", tenant="a"))
    for index in range(3):
        push(one, demand(f"b{index}", tenant="b"))
    assert sorted(serve(one, 6)) == ["a"] * 3 + ["b"] * 3


def test_turns_are_of_token_time_not_of_requests() -> None:
    one = queue()
    for index in range(40):
        push(one, demand(f"a{index}", tenant="a"), 10.0)
        push(one, demand(f"b{index}", tenant="b"), 40.0)
    served = serve(one, 25)
    assert served.count("a") == pytest.approx(4 * served.count("b"), abs=4)


def test_weights_are_shares() -> None:
    one = queue()
    for index in range(40):
        push(one, demand(f"a{index}", tenant="a", weight=3.0))
        push(one, demand(f"b{index}", tenant="b", weight=1.0))
    assert serve(one, 24).count("a") == pytest.approx(18, abs=1)


def test_the_order_foretells_how_it_is_served() -> None:
    one = queue()
    for index in range(6):
        push(one, demand(f"a{index}", tenant="a"), 10.0 + index)
        push(one, demand(f"b{index}", tenant="b"), 25.0)
        push(one, demand(f"c{index}", tenant="c", priority=index % 2), 7.0)
    foretold = [entry.demand.tenant for entry in one.order()]
    assert serve(one, len(foretold)) == foretold


def test_absence_earns_no_credit() -> None:
    one = queue()
    for index in range(50):
        push(one, demand(f"a{index}", tenant="a"))
    serve(one, 30)
    for index in range(30):
        push(one, demand(f"b{index}", tenant="b"))
    assert serve(one, 20).count("b") == pytest.approx(10, abs=1)


def test_absence_earns_no_credit_where_nobody_waited_either() -> None:
    """``a`` ran alone without ever waiting; then both come. ``b`` must not be served all that ``a`` once had."""
    one = queue()
    one.charge(demand(tenant="a"), 1e6)
    for index in range(20):
        push(one, demand(f"b{index}", tenant="b"))
        push(one, demand(f"a{index}", tenant="a"))
    assert serve(one, 20).count("a") == pytest.approx(10, abs=1)


def test_what_was_not_used_is_given_back() -> None:
    one = queue()
    push(one, demand("a", tenant="a"))
    push(one, demand("b", tenant="b"))
    one.charge(demand(tenant="a"), 100.0)
    assert order(one) == ["b", "a"]
    one.charge(demand(tenant="a"), -100.0)
    one.charge(demand(tenant="b"), 1.0)
    assert order(one) == ["a", "b"]


def test_a_rerouted_request_goes_before_everybody_of_its_tenant() -> None:
    one = queue()
    push(one, demand("soon", deadline_s=1.0))
    push(one, demand("again", deadline_s=9.0), front=True)
    push(one, demand("sooner", deadline_s=0.5))
    push(one, demand("again-too", deadline_s=9.0), front=True)
    assert order(one) == ["again-too", "again", "sooner", "soon"]


@pytest.mark.parametrize(
    ("bound", "key"),
    [("requests_max", "queue.requests_max"), ("tokens_max", "queue.tokens_max"), ("bytes_max", "queue.bytes_max")],
)
def test_each_bound_at_its_edge(bound: str, key: str) -> None:
    """Ten units fill it: one less leaves room, exactly so many fits, one more does not."""
    small = {"requests_max": 10**6, "tokens_max": 10**6, "bytes_max": 10**6, bound: 10}
    one = queue(**small)
    for index in range(8):
        push(one, demand(f"q{index}", prompt=1, body_bytes=1))
    for extra in (1, 2):  # fills 9, then 10
        assert one.exceeds(demand("x", prompt=1, body_bytes=1)) is None, extra
        push(one, demand(f"x{extra}", prompt=1, body_bytes=1))
    assert one.exceeds(demand("x", prompt=1, body_bytes=1)) == (key, 11, 10)
    one.remove("q0")
    assert one.exceeds(demand("x", prompt=1, body_bytes=1)) is None


@pytest.mark.parametrize(("tokens", "fits"), [(9, True), (10, True), (11, False)])
def test_one_large_request_against_an_empty_queue(tokens: int, fits: bool) -> None:
    assert (queue(tokens_max=10).exceeds(demand(prompt=tokens)) is None) is fits
    assert (queue(bytes_max=10).exceeds(demand(body_bytes=tokens)) is None) is fits


def test_whom_to_displace_is_of_the_lowest_band_with_the_latest_deadline() -> None:
    one = queue(requests_max=3)
    assert one.displaceable(demand("new", priority=3)) == []
    push(one, demand("high", priority=2, deadline_s=99.0))
    push(one, demand("low-soon", tenant="a", deadline_s=3.0))
    push(one, demand("low-late", tenant="b", deadline_s=9.0))
    displaced = one.displaceable(demand("new", priority=3))
    assert displaced is not None
    assert [entry.demand.request_id for entry in displaced] == ["low-late"]
    assert one.displaceable(demand("equal")) is None


def test_sums_follow_who_waits() -> None:
    one = queue()
    push(one, demand("a", prompt=30, body_bytes=7), 11.0)
    push(one, demand("b", prompt=12, body_bytes=5), 2.0)
    assert (len(one), one.tokens, one.bytes, promised(one), one.peak_blocks) == (2, 42, 12, 13.0, 10.0)
    assert one.remove("a") is not None
    assert one.remove("a") is None
    assert (len(one), one.tokens, one.bytes, promised(one), one.peak_blocks) == (1, 12, 5, 2.0, 5.0)


def test_nobody_waits_twice() -> None:
    one = queue()
    push(one, demand("a"))
    with pytest.raises(AssertionError):
        push(one, demand("a"))


def test_deadlines_come_at_their_moment() -> None:
    one = queue()
    assert one.deadline_s_next() == math.inf
    push(one, demand("a", deadline_s=5.0))
    push(one, demand("b", deadline_s=3.0, priority=-5))
    assert one.deadline_s_next() == 3.0
    assert one.expired(2.999) == []
    assert [entry.demand.request_id for entry in one.expired(3.0)] == ["b"]
    assert {entry.demand.request_id for entry in one.expired(5.0)} == {"a", "b"}


def test_idle_tenants_are_forgotten_unless_they_are_ahead() -> None:
    one = queue()
    for index in range(3):
        push(one, demand(f"w{index}", tenant="waits"), 10.0)
    serve(one, 2)
    one.charge(demand(tenant="behind"), 5.0)
    one.charge(demand(tenant="ahead"), 500.0)
    one.forget_idle()
    for name in ("behind", "ahead"):
        push(one, demand(name, tenant=name), 10.0)
    assert order(one)[-1] == "ahead"


def test_who_stands_by_goes_after_the_promised_of_its_tenant_only() -> None:
    one = queue()
    by = Waiting(demand("by", tenant="a", deadline_s=1.0), 0.0, charge_block_steps=10.0, promised=False)
    one.push(by)
    push(one, demand("late", tenant="a", deadline_s=9.0))
    push(one, demand("other", tenant="b", deadline_s=9.0))
    push(one, demand("other-too", tenant="b", deadline_s=9.0))
    assert order(one) == ["late", "other", "by", "other-too"]
    assert promised(one) == 30.0
    assert one.standing_by() == [by]
    one.promise(by)
    assert order(one)[0] == "by"
    assert (promised(one), one.standing_by()) == (40.0, [])
    assert one.remove("by") is by
    assert promised(one) == 30.0


def test_a_place_promised_late_is_that_of_one_who_came_then() -> None:
    one = queue()
    by = Waiting(demand("by", deadline_s=10.0), 0.0, charge_block_steps=10.0, promised=False)
    one.push(by)
    one.now_s = 3.0
    push(one, demand("before", deadline_s=12.9), at_s=2.9)
    one.promise(by)
    push(one, demand("after", deadline_s=13.1), at_s=3.1)
    assert order(one) == ["before", "by", "after"]
    assert one.deadline_s_next() == 10.0


def test_one_that_leaves_while_standing_by_is_forgotten() -> None:
    one = queue()
    one.push(Waiting(demand("by"), 0.0, charge_block_steps=10.0, promised=False))
    one.remove("by")
    assert (one.standing_by(), promised(one), len(one)) == ([], 0.0, 0)


def test_the_latest_start_may_come_before_the_deadline_but_not_after() -> None:
    one = queue()
    one.push(Waiting(demand("soon", deadline_s=9.0), 0.0, start_by_s=4.0))
    one.push(Waiting(demand("late", deadline_s=9.0), 0.0, start_by_s=40.0))
    assert one.deadline_s_next() == 4.0
    assert [entry.demand.request_id for entry in one.expired(4.0)] == ["soon"]
    one.remove("soon")
    assert one.deadline_s_next() == 9.0


def test_an_expired_one_is_told_again_until_it_is_removed() -> None:
    one = queue()
    push(one, demand("a", deadline_s=5.0))
    assert len(one.expired(6.0)) == len(one.expired(6.0)) == 1
    one.remove("a")
    push(one, demand("a", deadline_s=8.0))
    assert (one.expired(6.0), one.deadline_s_next()) == ([], 8.0)
