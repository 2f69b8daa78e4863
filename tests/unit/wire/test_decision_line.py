"""The line of a finished request holds the whole decision, flat, and nothing that is not known."""

import logging

import pytest

from proxy.core.saturation import Binding
from proxy.serving.request_log import RequestLog
from proxy.wire.decision import Looked, Refused
from proxy.wire.decision_line import line_of
from tests.unit.wire.test_decision import decision, held, look


def test_one_that_went_at_once_is_told_without_words() -> None:
    assert line_of(decision()) == {
        "id": "mine", "route": "/v1/chat/completions", "outcome": "completed", "class": "default", "tenant": "acme", "model": "m",
        "replica": "r0", "status": 200, "wait_s": 0.0001, "ttft_s": 0.1, "tpot_s": 0.01, "total_s": 0.5, "prompt_tokens": 100,
        "prompt_tokens_engine": 100, "output_tokens": 20, "output_forecast": 30.0, "counted": "exact", "blocks_mean": 8.5,
        "blocks_ceiling": 10.0, "placed": "r0:fits:0.420",
    }  # fmt: skip


def test_one_that_waited_is_told_with_what_bound_and_why() -> None:
    scored = (Looked("r1", "none", 0.1, 1000, 0.0, 512.4), look())
    line = line_of(held(held=(look(), look("r1", Binding.SEATS)), placed=scored, placed_others=6, tried=(("r9", "reset"),)))
    assert (line["ahead"], line["held"], line["placed"]) == (
        0,
        "r0:kv:-0.050,r1:seats:-0.050",
        "r1:fits:0.100:512,r0:kv:-0.050,+6",
    )
    assert line["reroutes"] == 1
    assert line["reason"].startswith("Waited 2.5 s")


def test_a_refusal_is_told_by_its_gate() -> None:
    refused = Refused("queue.requests_max", "The queue is full.", 3, 2, "", None, None, None)
    line = line_of(decision(placed=(), replica=None, outcome="queue_full", refused=refused, tenant=""))
    assert line["gate"] == "queue.requests_max"
    assert "replica" not in line
    assert line["reason"] == "Refused (queue_full): The queue is full."


def test_one_line_where_the_log_keeps_it(caplog: pytest.LogCaptureFixture) -> None:
    log = RequestLog()
    caplog.set_level(logging.WARNING, "kvgate.request")
    log.keep(decision())
    assert caplog.records == []
    caplog.set_level(logging.INFO, "kvgate.request")
    log.keep(decision())
    (record,) = (one for one in caplog.records if one.name == "kvgate.request")  # what was held back before is told with any line
    assert record.message == "request.finished"
    assert record.__dict__["fields"]["id"] == "mine"
