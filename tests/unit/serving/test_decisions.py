"""The record of decisions: bounded, newest first, and found by what they hold."""

from typing import Any

from proxy.core.outcome import Outcome, Refusal
from proxy.ports.record import RequestRecord
from proxy.serving.decisions import KEPT_MAX, Decisions, found_in, unpacked
from tests.support.builders import FakeClock

PLAIN: dict[str, Any] = {
    "request_id": "mine", "route": "/v1/completions", "outcome": Outcome.COMPLETED, "gate": None, "traffic_class": "default",
    "tenant": "default", "model": "m", "replica": "r0", "status": 200, "queue_wait_s": 0.0, "ttft_s": None, "tpot_s": None,
    "total_s": 1.0, "prompt_tokens": 10, "prompt_tokens_reported": 10, "output_tokens": 5, "output_tokens_forecast": 5.0,
    "count_source": None,
}  # fmt: skip


def record(**changes: Any) -> RequestRecord:
    return RequestRecord(**(PLAIN | changes))


def decisions(clock: FakeClock | None = None) -> Decisions:
    return Decisions(clock or FakeClock(100.0), lambda: "enforce", lambda _: None)


def test_the_last_are_kept_and_no_more() -> None:
    kept = decisions()
    for index in range(KEPT_MAX + 7):
        kept.keep(record(request_id=f"r{index}"))
    assert kept.ended_total == KEPT_MAX + 7
    packed = kept.packed().latest(2 * KEPT_MAX)
    assert (len(packed), unpacked(packed[0]).request_id, unpacked(packed[-1]).request_id) == (KEPT_MAX, "r7", f"r{KEPT_MAX + 6}")
    assert [one.request_id for one in kept.since(KEPT_MAX + 5)] == [f"r{KEPT_MAX + 5}", f"r{KEPT_MAX + 6}"]
    assert len(kept.since(0)) == KEPT_MAX
    assert found_in(kept.packed(), {"request_id": "r3"}, 5) == []
    assert [one.request_id for one in found_in(kept.packed(), {}, 2)] == [f"r{KEPT_MAX + 6}", f"r{KEPT_MAX + 5}"]


def test_what_is_found_is_equal_and_not_alike() -> None:
    kept = decisions()
    refusal = Refusal(Outcome.QUEUE_FULL, "queue", "tenant acme and mine are named here")
    kept.keep(record(request_id="other", tenant="acm", refusal=refusal, outcome=Outcome.QUEUE_FULL))
    kept.keep(record(tenant="acme"))
    kept.keep(record(request_id="mine2", tenant="acme"))
    assert [one.tenant for one in found_in(kept.packed(), {"request_id": "mine"}, 9)] == ["acme"]
    assert [one.request_id for one in found_in(kept.packed(), {"tenant": "acme"}, 9)] == ["mine2", "mine"]
    assert [one.request_id for one in found_in(kept.packed(), {"tenant": "acme", "outcome": "queue_full"}, 9)] == []
    assert [one.request_id for one in found_in(kept.packed(), {"outcome": "queue_full"}, 9)] == ["other"]
    assert kept.open(9) == []


def test_words_of_clients_are_bounded_and_times_are_of_the_wall() -> None:
    clock = FakeClock(100.0)
    kept = decisions(clock)
    kept.keep(record(model="x" * 10_000, arrived_s=40.0, refusal=Refusal(Outcome.NO_REPLICA, "model", "y" * 10_000)))
    one = unpacked(kept.packed().latest(1)[0])
    assert len(one.model) == 128
    assert one.refused is not None
    assert len(one.refused.message) == 512
    assert one.arrived_wall_s == 40.0
    assert len(kept.packed().latest(1)[0]) < 1200
