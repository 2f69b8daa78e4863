"""What a request comes to in the end: each figure under its own name, for the record is made by position."""

from types import SimpleNamespace
from typing import Any

from proxy.core.considered import Considered
from proxy.core.demand import CountSource, PromptPart
from proxy.core.outcome import Outcome, Refusal, Would
from proxy.core.policy import Facts, TrafficClass
from proxy.ports import PromptCount
from proxy.ports.record import RequestRecord
from proxy.serving.course import Course
from proxy.serving.intake import Intake
from proxy.serving.relay_result import RelayEnd, RelayResult
from proxy.wire.answer_usage import Usage
from proxy.wire.call import Call, CallKind
from tests.support.builders import demand

FIELDS = {"x-request-id": "id", "x-stainless-retry-count": "1"}


def intake() -> Intake:
    call = Call(CallKind.CHAT, "model", stream=True, n=2, output_tokens_max=40)
    traffic_class = TrafficClass("class", ttft_s=50.0, tpot_s=51.0)
    return Intake(
        "/route", b"/target", [], FIELDS, b"body", call, "model", traffic_class, "tenant", 100.0, 130.0, Facts(""), 101.0, 60.0
    )  # fmt: skip


def placed(held: bool) -> Any:
    lease = SimpleNamespace(
        held=held, would=Would(8.0), considered=Considered(1.0, 2.0), output_tokens_forecast=33.0, demand=demand(cap=30)
    )
    return SimpleNamespace(lease=lease, waited_s=4.0)


def test_one_that_was_served() -> None:
    counted = PromptCount((PromptPart(7), PromptPart(8)), CountSource.REMOTE)
    course = Course(intake(), counted=counted, demand=demand(), admission=placed(held=False), reroutes=2, replica="r0")
    course.outcome, course.status, course.counted_s, course.fallback = Outcome.COMPLETED, 200, 102.0, "elsewhere"
    course.tried = [("r1", "refused")]
    course.result = RelayResult(
        RelayEnd.COMPLETED, is_stream=True, status=200, usage=Usage(17, 21), finish_reasons=("stop", "length"), tokens_seen=3,
        events_seen=12, first_token_s=110.0, last_byte_s=120.0,
    )  # fmt: skip
    admission = course.admission
    assert admission is not None
    assert course.record(125.0) == RequestRecord(
        request_id="id", route="/route", outcome=Outcome.COMPLETED, gate=None, traffic_class="class", tenant="tenant", model="model",
        replica="r0", status=200, queue_wait_s=4.0, ttft_s=10.0, tpot_s=0.5, total_s=25.0, prompt_tokens=15, prompt_tokens_reported=17,
        output_tokens=21, output_tokens_forecast=33.0, count_source=CountSource.REMOTE, reroutes=2, ttft_target_s=50.0, tpot_target_s=51.0,
        arrived_s=100.0, streaming=True, finish_reasons=("stop", "length"), demand=course.demand, held=False, would=Would(8.0), own_s=3.0,
        client_wait_s=60.0, refusal=None, considered=admission.lease.considered, tried=(("r1", "refused"),), failure=None, degraded_to=30,
        fallback="elsewhere", tokenized_s=(101.0, 102.0), itl_s=2.0, client_retry="x-stainless-retry-count",
    )  # fmt: skip
    course.admission = placed(held=True)
    held = course.record(125.0)
    assert (held.held, held.own_s) == (True, None)


def test_one_that_was_refused() -> None:
    refusal, considered = Refusal(Outcome.QUEUE_TIMEOUT, "gate", "words"), Considered(3.0)
    course = Course(intake(), counted=PromptCount((PromptPart(7),), CountSource.EXACT), demand=demand())
    course.outcome, course.status, course.refusal, course.considered = refusal.outcome, 429, refusal, considered
    told = course.record(125.0)
    assert (told.gate, told.refusal, told.considered, told.status) == ("gate", refusal, considered, 429)
    assert (told.prompt_tokens, told.count_source, told.held) == (7, CountSource.EXACT, True)
    nothing = (
        told.replica,
        told.queue_wait_s,
        told.ttft_s,
        told.tpot_s,
        told.itl_s,
        told.output_tokens,
        told.own_s,
        told.failure,
    )
    assert nothing == (None,) * 8
