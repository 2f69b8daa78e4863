"""The record of decisions: bounded, newest first, and found by what they hold."""

from typing import Any

from proxy.core.considered import Considered, Looks, ReplicaLook
from proxy.core.demand import CountSource
from proxy.core.outcome import Outcome, Refusal, Would
from proxy.core.saturation import Binding
from proxy.ports.record import RequestRecord
from proxy.serving.decisions import KEPT_MAX, Decisions, found_in, unpacked
from proxy.wire.decision import Decision, Looked, Refused
from tests.support.builders import FakeClock, demand

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


def test_every_field_is_in_its_place() -> None:
    """They are given by position: each has a value of its own here."""
    looks = Looks(
        (ReplicaLook("r1", Binding.KV, -0.25, 1000, 64.0, 7.0), ReplicaLook("r2", Binding.NONE, 0.5, 2000, 0.0, None)), 3
    )
    asked = demand("lease", priority=2, copies=3, cap=11)
    considered = Considered(12.5, 13.5, looks, looks._replace(others=4), 5, "kv_share")
    told = record(
        request_id="a", route="/b", outcome=Outcome.CUT_OFF, gate="g", traffic_class="c", tenant="d", model="e", replica="f", status=201,
        queue_wait_s=21.0, ttft_s=22.0, tpot_s=23.0, total_s=24.0, prompt_tokens=25, prompt_tokens_reported=26, output_tokens=27,
        output_tokens_forecast=28.0, count_source=CountSource.REMOTE, arrived_s=29.0, streaming=True, finish_reasons=("stop",),
        demand=asked, would=Would(30.0), own_s=31.0, refusal=Refusal(Outcome.CUT_OFF, "gate", "words", 32.0, 33.0, "u", "key", 34, 35.0),
        considered=considered, tried=(("g", "h"),), failure="i", degraded_to=36, fallback="j",
    )  # fmt: skip
    clock = FakeClock(100.0)
    kept = Decisions(clock, lambda: "observe", lambda _: None)
    kept.keep(told)
    assert unpacked(kept.packed().latest(1)[0]) == Decision(
        request_id="a", arrived_wall_s=29.0, phase="ended", outcome="cut_off", status=201, route="/b", model="e", traffic_class="c",
        tenant="d", priority=2, streaming=True, sequences=3, mode="observe", replica="f", prompt_tokens=25, count_source="remote",
        prompt_tokens_reported=26, output_tokens=27, output_tokens_max=11, output_tokens_forecast=28.0, degraded_to=36,
        mean_blocks=12.5, ceiling_blocks=13.5, was_held=True, ahead=5, held_by="kv_share",
        held=(Looked("r1", "kv", -0.25, 1000, 64.0, 7.0), Looked("r2", "none", 0.5, 2000, 0.0, None)), held_others=3,
        placed=(Looked("r1", "kv", -0.25, 1000, 64.0, 7.0), Looked("r2", "none", 0.5, 2000, 0.0, None)), placed_others=4,
        refused=Refused("gate", "words", 32.0, 33.0, "u", "key", 34, 35.0), tried=(("g", "h"),), fallback="j", queue_wait_s=21.0,
        ttft_s=22.0, tpot_s=23.0, total_s=24.0, own_s=31.0, would="hold", would_wait_s=30.0, finish_reasons=("stop",), failure="i",
    )  # fmt: skip
