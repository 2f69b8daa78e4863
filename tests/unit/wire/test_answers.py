"""Outcome to HTTP: the table, the retry advice at its edges, and what outside clients are not shown."""

import json
from typing import Any

import pytest

from proxy.core.outcome import Outcome, Refusal
from proxy.wire.answers import Answer, answer, context_overflow, error_shape, model_not_found, stream_error_event

WITHOUT_RESPONSE = {Outcome.COMPLETED, Outcome.CANCELLED, Outcome.CUT_OFF}


def refused(outcome: Outcome = Outcome.QUEUE_FULL, **fields: Any) -> Refusal:
    """Return a refusal; a test states only what matters to it."""
    return Refusal(**({"outcome": outcome, "gate": "queue.requests_max", "message": "the queue is full"} | fields))


def headers_of(got: Answer) -> dict[str, str]:
    """Return the headers; none comes twice."""
    pairs = {name.decode(): value.decode() for name, value in got.headers}
    assert len(pairs) == len(got.headers)
    return pairs


def error_of(got: Answer) -> dict[str, Any]:
    """Return the error object."""
    error: dict[str, Any] = json.loads(got.body)["error"]
    return error


@pytest.mark.parametrize("outcome", set(Outcome) - WITHOUT_RESPONSE)
def test_every_outcome_that_refuses_has_an_answer(outcome: Outcome) -> None:
    got = answer(refused(outcome, retry_after_s=2.0), jitter=0.5, brief=False)
    headers = headers_of(got)
    assert 400 <= got.status < 600
    assert headers["x-kvgate-outcome"] == outcome.value
    assert headers["x-should-retry"] in {"true", "false"}
    assert int(headers["content-length"]) == len(got.body)
    assert error_of(got)["code"] == outcome.value


@pytest.mark.parametrize("outcome", WITHOUT_RESPONSE)
def test_no_answer_is_made_up_where_the_response_is_not_ours(outcome: Outcome) -> None:
    with pytest.raises(ValueError, match=outcome.value):
        answer(refused(outcome), jitter=0.0, brief=False)


@pytest.mark.parametrize(
    ("outcome", "gate", "status", "retry"),
    [
        (Outcome.NEVER_FITS, "kv", 400, "false"),
        (Outcome.NEVER_FITS, "context", 400, "false"),
        (Outcome.QUEUE_TIMEOUT, "queue.wait_max", 429, "true"),
        (Outcome.QUEUE_FULL, "queue.requests_max", 429, "true"),
        (Outcome.DISPLACED, "queue.requests_max", 429, "true"),
        (Outcome.TENANT_RATE, "tenants.rate", 429, "true"),
        (Outcome.TENANT_SHARE, "tenants.share", 429, "true"),
        (Outcome.UNAUTHORIZED, "api_key", 401, "false"),
        (Outcome.NO_REPLICA, "replicas", 503, "true"),
        (Outcome.NO_REPLICA, "model", 404, "false"),
        (Outcome.DRAINING, "drain", 503, "true"),
        (Outcome.UPSTREAM_FAILED, "upstream.connect", 502, "true"),
        (Outcome.UPSTREAM_FAILED, "upstream.timeout", 504, "false"),
        (Outcome.INTERNAL, "internal", 500, "false"),
    ],
)
def test_the_table(outcome: Outcome, gate: str, status: int, retry: str) -> None:
    got = answer(refused(outcome, gate=gate, retry_after_s=3.0), jitter=0.0, brief=False)
    assert (got.status, headers_of(got)["x-should-retry"]) == (status, retry)
    assert ("retry-after" in headers_of(got)) == (status in {429, 503})


def test_a_failed_replica_is_retried_only_while_the_budget_has_tokens() -> None:
    got = answer(refused(Outcome.UPSTREAM_FAILED), jitter=0.0, brief=False, retry_budget=False)
    assert (got.status, headers_of(got)["x-should-retry"]) == (502, "false")


@pytest.mark.parametrize(
    ("estimate_s", "jitter", "seconds", "milliseconds", "retry"),
    [
        (1.0, 0.0, "1", "1000", "true"),
        (1.001, 0.0, "2", "1001", "true"),
        (0.0, 0.0, "1", "100", "true"),  # 0 would mean "no advice" to the OpenAI SDK
        (-5.0, 0.0, "1", "100", "true"),
        (2.0, 0.5, "3", "2250", "true"),
        (0.2, 0.999, "1", "450", "true"),
        (58.9, 0.0, "59", "58900", "true"),
        (58.9, 0.9, "59", "59000", "true"),
        (59.0, 0.9, "59", "59000", "true"),
        (59.001, 0.0, "59", "59000", "false"),
        (3600.0, 0.9, "59", "59000", "false"),
        (float("inf"), 0.9, "59", "59000", "false"),
    ],
)
def test_the_wait_told_is_rounded_up_jittered_and_capped(
    estimate_s: float, jitter: float, seconds: str, milliseconds: str, retry: str
) -> None:
    headers = headers_of(answer(refused(retry_after_s=estimate_s), jitter=jitter, brief=False))
    assert headers["retry-after"] == seconds
    assert headers["retry-after-ms"] == milliseconds
    assert headers["x-should-retry"] == retry


def test_a_longer_wait_than_sdks_obey_is_true_in_the_body() -> None:
    assert error_of(answer(refused(retry_after_s=600.25), jitter=0.5, brief=False))["retry_after_s"] == 600.25


@pytest.mark.parametrize("estimate_s", [None, float("nan")])
def test_without_an_estimate_no_retry_helps(estimate_s: float | None) -> None:
    headers = headers_of(answer(refused(retry_after_s=estimate_s), jitter=0.5, brief=False))
    assert headers["x-should-retry"] == "false"
    assert "retry-after" not in headers
    assert "retry-after-ms" not in headers


@pytest.mark.parametrize("jitter", [-0.1, 1.0, float("nan")])
def test_jitter_is_a_draw_from_zero_to_one(jitter: float) -> None:
    with pytest.raises(ValueError, match="jitter"):
        answer(refused(retry_after_s=1.0), jitter=jitter, brief=False)


def test_the_body_names_what_was_decided_on() -> None:
    refusal = refused(
        measured=513.0, limit=512, unit="requests", policy_key="queue.requests_max", queue_position=7, retry_after_s=1.23456
    )
    assert error_of(answer(refusal, jitter=0.0, brief=False)) == {
        "message": "the queue is full",
        "type": "rate_limit_error",
        "param": None,
        "code": "queue_full",
        "gate": "queue.requests_max",
        "measured": 513,
        "limit": 512,
        "unit": "requests",
        "policy_key": "queue.requests_max",
        "queue_position": 7,
        "retry_after_s": 1.235,
    }


@pytest.mark.parametrize("outcome", set(Outcome) - WITHOUT_RESPONSE)
def test_outside_clients_see_no_numbers(outcome: Outcome) -> None:
    refusal = refused(
        outcome, message="7777 of 8888", measured=7777, limit=8888, unit="blocks", policy_key="queue.x", queue_position=9999
    )
    got = answer(refusal, jitter=0.0, brief=True)
    assert set(error_of(got)) == {"message", "type", "param", "code", "retry_after_s"}
    for hidden in (b"7777", b"8888", b"9999", b"queue.x"):
        assert hidden not in got.body


@pytest.mark.parametrize("brief", [True, False])
def test_the_context_limit_is_told_as_the_engine_tells_it(brief: bool) -> None:
    got = answer(context_overflow(5000, 4096, exact=True), jitter=0.0, brief=brief)
    error = error_of(got)
    assert got.status == 400
    assert error["code"] == "context_length_exceeded"
    assert headers_of(got)["x-kvgate-outcome"] == "never_fits"
    assert error["message"] == (
        "This model's maximum context length is 4096 tokens. However, your prompt contains 5000 input tokens, which exceeds this "
        "limit even without any output tokens. Please reduce the length of the input prompt. (parameter=input_tokens, value=5000)"
        " (context_length_exceeded)"
    )


def test_the_gates_own_words_for_the_context_give_way_to_the_engines() -> None:
    refusal = refused(Outcome.NEVER_FITS, gate="context", message="too long", measured=5000, limit=4096, unit="tokens")
    assert error_of(answer(refusal, jitter=0.0, brief=False))["message"] == (
        context_overflow(5000, 4096, exact=True).message + " (context_length_exceeded)"
    )


def test_a_lower_bound_of_a_prompt_says_so() -> None:
    assert "contains at least 4097 input tokens" in context_overflow(4097, 4096, exact=False).message
    got = answer(context_overflow(4096, 4096, exact=False), jitter=0.0, brief=True)
    assert "contains at least 4096 input tokens" in error_of(got)["message"]
    assert error_of(got)["code"] == "context_length_exceeded"


def test_a_prompt_that_fills_the_context_is_told_as_the_engine_tells_it() -> None:
    assert (
        context_overflow(4096, 4096, exact=True).message
        == "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)"
    )


def test_an_unknown_model_is_not_found() -> None:
    got = answer(model_not_found("gpt-9"), jitter=0.0, brief=True)
    error = error_of(got)
    assert got.status == 404
    assert (error["message"], error["param"], error["code"]) == ("The model `gpt-9` does not exist.", "model", "model_not_found")


@pytest.mark.parametrize("outcome", [Outcome.CUT_OFF, Outcome.INTERNAL, Outcome.UPSTREAM_FAILED])
def test_a_stream_ends_with_an_error_event_and_done(outcome: Outcome) -> None:
    event, done, rest = stream_error_event(refused(outcome, message="line\nbreak"), brief=False).split(b"\n\n")
    assert done == b"data: [DONE]"
    assert rest == b""
    assert b"\n" not in event
    assert json.loads(event.removeprefix(b"data: "))["error"]["code"] == outcome.value


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (Outcome.NEVER_FITS, "invalid_request_error"), (Outcome.QUEUE_TIMEOUT, "rate_limit_error"),
        (Outcome.TENANT_RATE, "rate_limit_error"), (Outcome.NO_REPLICA, "overloaded_error"), (Outcome.UNAUTHORIZED, "authentication_error"),
        (Outcome.DRAINING, "overloaded_error"), (Outcome.UPSTREAM_FAILED, "api_error"), (Outcome.INTERNAL, "api_error"),
    ],
)  # fmt: skip
def test_messages_are_refused_in_anthropics_shape(outcome: Outcome, kind: str) -> None:
    refusal = Refusal(outcome, gate="g", message="m", retry_after_s=2.0)
    plain = answer(refusal, jitter=0.0, brief=False)
    shaped = answer(refusal, jitter=0.0, brief=False, shape=error_shape("/v1/messages/count_tokens"))
    assert shaped.status == plain.status
    body = json.loads(shaped.body)
    assert body["type"] == "error"
    assert body["error"] == json.loads(plain.body)["error"] | {"type": kind}
    assert json.loads(answer(refusal, jitter=0.0, brief=False, shape=error_shape("/v1/responses")).body) == json.loads(plain.body)
