"""A decision in words: every limit has some, and the numbers are those of the record."""

from typing import Any

import msgspec
import pytest

from proxy.core.outcome import Outcome
from proxy.core.saturation import Binding
from proxy.wire.decision import BINDING_WORDS, Decision, Looked, Refused, reason, shown

PLAIN: dict[str, Any] = {
    "request_id": "mine", "arrived_wall_s": 1_800_000_000.5, "phase": "ended", "outcome": "completed", "status": 200,
    "route": "/v1/chat/completions", "model": "m", "traffic_class": "default", "tenant": "acme", "priority": 0, "streaming": True,
    "sequences": 1, "mode": "enforce", "replica": "r0", "prompt_tokens": 100, "count_source": "exact", "prompt_tokens_reported": 100,
    "output_tokens": 20, "output_tokens_max": 50, "output_tokens_forecast": 30.0, "degraded_to": None, "mean_blocks": 8.5,
    "ceiling_blocks": 10.0, "was_held": False, "ahead": None, "held_by": "", "held": (), "held_others": 0,
    "placed": (Looked("r0", "none", 0.42, 1000, 64.0, None),), "placed_others": 0, "refused": None, "tried": (), "fallback": None,
    "queue_wait_s": 0.0001, "ttft_s": 0.1, "tpot_s": 0.01, "total_s": 0.5, "own_s": 0.0001, "would": None, "would_wait_s": None,
    "finish_reasons": ("stop",), "failure": None,
}  # fmt: skip


def decision(**changes: Any) -> Decision:
    return Decision(**(PLAIN | changes))


def look(replica: str = "r0", binding: Binding = Binding.KV, headroom: float = -0.05) -> Looked:
    return Looked(replica, binding.value, headroom, 1000, 0.0, None)


def held(**changes: Any) -> Decision:
    return decision(**({"was_held": True, "ahead": 0, "queue_wait_s": 2.54, "held": (look(),)} | changes))


def test_every_limit_has_words() -> None:
    assert set(BINDING_WORDS) == set(Binding)
    for binding in Binding:
        assert reason(held(held=(look(binding=binding),))), binding


def test_every_outcome_can_be_told() -> None:
    for outcome in Outcome:
        assert shown(decision(outcome=outcome.value))["outcome"] == outcome


@pytest.mark.parametrize(
    ("one", "words"),
    [
        (decision(), "Admitted at once to r0: 42% of its KV cache left at the forecast peak, 64 prompt tokens cached there."),
        (
            held(placed=(Looked("r1", "none", 0.1, 1000, 0.0, 512.0), look()), placed_others=6),
            (
                "Waited 2.5 s: on r0, the KV cache was 50 of 1000 blocks short at the forecast peak. Admitted to r1, the least delay of 8"
                " looked at: 10% of its KV cache left at the forecast peak."
            ),
        ),
        (
            held(ahead=3, held=(), phase="waiting", outcome=None, placed=(), replica=None, queue_wait_s=0.25),
            "Waits 250 ms behind 3 others: others were before it.",
        ),
        (
            held(held=(look(binding=Binding.SEATS), look("r1")), held_others=1, placed=(), replica=None, outcome="cancelled", total_s=2.6),
            "Waited 2.5 s: on r0, the nearest of 3, all its sequence slots were taken. The client left after 2.6 s.",
        ),
        (
            held(held=(look(), look("r1", Binding.NONE, 0.7)), placed=(), phase="waiting", outcome=None, replica=None),
            "Waits 2.5 s: it was faster to wait for a replica that has its prefix cached than to go to r1.",
        ),
        (held(held_by="kv_share_max", placed=(), replica=None), "Waited 2.5 s: its tenant's kv_share_max was used up."),
        (
            decision(
                placed=(), replica=None, outcome="queue_full",
                refused=Refused("queue.requests_max", "The queue is full.", 3, 2, "", "queue.requests_max", 3, 4.5),
            ),
            "Refused (queue_full): The queue is full. Told to come back in 4.5 s.",
        ),
        (
            decision(tried=(("r9", "reset: closed"),), degraded_to=16),
            (
                "r9 failed it (reset: closed), so it was placed anew. Admitted to r0: 42% of its KV cache left at the forecast peak, 64"
                " prompt tokens cached there. Its max_tokens was cut to 16, as its class allows."
            ),
        ),
        (
            decision(placed=(), outcome="cut_off", failure="reset: closed", would="hold", would_wait_s=1.5),
            (
                "Forwarded to r0. The replica failed in the middle of the answer (reset: closed). Enforcing would have held it for about"
                " 1.5 s."
            ),
        ),
        (decision(placed=(), status=400), "Forwarded to r0. The replica answered with status 400."),
    ],
)  # fmt: skip
def test_the_reason_says_what_happened(one: Decision, words: str) -> None:
    assert reason(one) == words


def test_what_is_shown_is_grouped_and_can_be_written() -> None:
    one = shown(held(held=(look(headroom=float("-inf")),)))
    assert one["arrived"] == "2027-01-15T08:00:00.500+00:00"
    assert one["held"]["replicas"][0]["bound_by"] == "kv"
    read = msgspec.json.decode(msgspec.json.encode(one))
    assert read["held"]["replicas"][0]["headroom_ratio"] is None
    assert read["seconds"]["queue_wait"] == 2.54


def test_a_decision_is_kept_as_it_is() -> None:
    one = held(tried=(("r9", "status 500"),), refused=Refused("kv", "never", 1.0, 2.0, "blocks", None, None, None))
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(one), type=Decision) == one
