"""Outcome to HTTP: the only place that turns a refusal into a status, headers and a body.

Which status, and whether to come back (SDKs retry 408, 409, 429 and 5xx on their own, so a careless status triples the load):

    never_fits                      400  no retry; the context limit in the engine's own words, with ``context_length_exceeded``
    queue_*, displaced, tenant_*    429  Retry-After, retry-after-ms
    unauthorized                    401  no retry
    no_replica, draining            503  Retry-After from health checks; 404 for a model nobody serves (gate ``model``)
    upstream_failed                 502  retry while the retry budget has tokens; 504 on time-out (gate ``upstream.timeout``): no retry
    internal                        500  no retry
    cut_off                         an error event in the stream, which is all that can still be said

Formula of the wait told to clients: estimate + jitter × max(estimate ÷ 4, 0.25 s). Jitter only adds, because an earlier return is
refused again; it spreads a crowd that was refused at once. Several SDKs obey at most 60 s, so a longer estimate tells 59 s and "do
not retry", with the true value in the body. It fails where clients ignore both headers and come back at their own pace.
"""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import assert_never

import msgspec

from proxy.core.outcome import Outcome, Refusal

RETRY_AFTER_S_MAX = 59  # SDKs that cap at 60 s compare in different ways; 59 is below either way
RETRY_AFTER_S_MIN = 0.1  # the OpenAI SDK takes 0 for "no advice" and returns at its own pace
JITTER_SHARE = 0.25
JITTER_S_MIN = 0.25

NO_REPLICA = "-"  # of an answer that is no replica's; an empty header is lost on some ways

GATE_CONTEXT = "context"
GATE_CONTEXT_BOUND = "context.bound"  # as context, by a lower bound of the prompt's length instead of its count
GATE_MODEL = "model"
GATE_API_KEY = "api_key"
GATE_UPSTREAM_TIMEOUT = "upstream.timeout"


# Anthropic's names for what a status says; its SDK makes its exceptions by status and shows these.
_ANTHROPIC_TYPES = {
    400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error",
    413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error", 504: "timeout_error",
}  # fmt: skip


class ErrorShape(StrEnum):
    """Whose error object a client is given. ``RESPONSES`` differs from ``OPENAI`` once it streams."""

    OPENAI = "openai"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"


def error_shape(path: str) -> ErrorShape:
    """The shape of the API that a path belongs to."""
    if path.startswith("/v1/messages"):
        return ErrorShape.ANTHROPIC
    return ErrorShape.RESPONSES if path.startswith("/v1/responses") else ErrorShape.OPENAI


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole response: status, header pairs (names in lower case) and body."""

    status: int
    headers: tuple[tuple[bytes, bytes], ...]
    body: bytes


@dataclass(frozen=True, slots=True)
class _Row:
    """One line of the table: ``status`` is None where no response can be made any more."""

    status: int | None
    type: str
    brief: str


def _row(refusal: Refusal) -> _Row:  # noqa: C901  one case per outcome, flat, is the point
    """Return the table's line for an outcome."""
    match refusal.outcome:
        case Outcome.NEVER_FITS:
            return _Row(400, "invalid_request_error", "The request is larger than any replica can hold. Send a shorter prompt.")
        case Outcome.QUEUE_TIMEOUT | Outcome.QUEUE_FULL | Outcome.DISPLACED:
            return _Row(429, "rate_limit_error", "The service is at capacity. Retry after the time given in Retry-After.")
        case Outcome.TENANT_RATE | Outcome.TENANT_SHARE:
            return _Row(
                429, "rate_limit_error", "Your share of the service is used up. Retry after the time given in Retry-After."
            )
        case Outcome.UNAUTHORIZED:
            return _Row(401, "invalid_request_error", "Incorrect API key provided.")
        case Outcome.NO_REPLICA if refusal.gate == GATE_MODEL:
            return _Row(404, "invalid_request_error", refusal.message)  # it repeats the client's own word
        case Outcome.NO_REPLICA:
            return _Row(503, "server_error", "No replica can be reached at present.")
        case Outcome.DRAINING:
            return _Row(503, "server_error", "This proxy is shutting down. Send the request again.")
        case Outcome.UPSTREAM_FAILED if refusal.gate == GATE_UPSTREAM_TIMEOUT:
            return _Row(504, "server_error", "The replica did not answer in time.")
        case Outcome.UPSTREAM_FAILED:
            return _Row(502, "server_error", "The replica failed before it answered.")
        case Outcome.CUT_OFF:
            return _Row(None, "server_error", "The replica failed in the middle of its answer.")
        case Outcome.INTERNAL:
            return _Row(500, "server_error", "The proxy failed.")
        case Outcome.COMPLETED | Outcome.CANCELLED:
            raise ValueError(f"{refusal.outcome}: there is nobody to tell, or the replica's own answer stands")
        case _ as unknown:
            assert_never(unknown)


def answer(
    refusal: Refusal, *, jitter: float, brief: bool, retry_budget: bool = True, shape: ErrorShape = ErrorShape.OPENAI
) -> Answer:
    """Return the response to a request that is not forwarded.

    ``jitter`` is drawn by the caller from [0, 1); ``brief`` hides what is decided on from outside clients; ``retry_budget`` says
    whether clients may be told to retry a failed replica. Raises ValueError for outcomes that have no response of ours.
    """
    row = _row(refusal)
    if row.status is None:
        raise ValueError(f"{refusal.outcome}: the response has begun; use stream_error_event")
    error = _error(refusal, row, brief=brief)
    body = msgspec.json.encode(_anthropic(error, row.status) if shape is ErrorShape.ANTHROPIC else {"error": error})
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
        (b"x-kvgate-outcome", refusal.outcome.encode()),
        *_retry_headers(refusal, row.status, jitter=jitter, retry_budget=retry_budget),
    ]
    return Answer(row.status, tuple(headers), body)


def way_headers(waited_s: float, replica: str | None) -> list[tuple[bytes, bytes]]:
    """Return what an answer tells of its way, beside its outcome: the wait for a place, and the replica that it is from or went to last."""
    return [(b"x-kvgate-queue-ms", b"%d" % round(waited_s * 1e3)), (b"x-kvgate-replica", (replica or NO_REPLICA).encode())]


def stream_error_event(
    refusal: Refusal, *, brief: bool, shape: ErrorShape = ErrorShape.OPENAI, sequence_number: int = 0
) -> bytes:
    """Return what ends a stream that cannot be finished, in the form that the API's own clients raise an error for.

    Chats and completions: an error event and ``[DONE]``, as vLLM does it. Messages: an ``error`` event. Responses: the same with the
    ``sequence_number`` its events carry, and the error as a member too, because SDKs raise only then.
    """
    row = _row(refusal)
    error = _error(refusal, row, brief=brief)
    if shape is ErrorShape.ANTHROPIC:
        error["type"] = _ANTHROPIC_TYPES.get(row.status or 0, "api_error")
    return error_event(error, shape, sequence_number)


def error_event(error: dict[str, object], shape: ErrorShape, sequence_number: int = 0) -> bytes:
    """Return the events that end a stream with this error object."""
    if shape is ErrorShape.OPENAI:
        return b"data: " + msgspec.json.encode({"error": error}) + b"\n\ndata: [DONE]\n\n"
    event: dict[str, object] = {"type": "error", "error": error}
    if shape is ErrorShape.RESPONSES:
        told = {key: error.get(key) for key in ("code", "message", "param")}
        event = {"type": "error", "sequence_number": sequence_number, **told, "error": error}
    return b"event: error\ndata: " + msgspec.json.encode(event) + b"\n\n"


def _anthropic(error: dict[str, object], status: int | None) -> dict[str, object]:
    """Anthropic's object around the same facts; of a stream that has begun there is no status to go by."""
    return {"type": "error", "error": error | {"type": _ANTHROPIC_TYPES.get(status or 0, "api_error")}}


def context_overflow(prompt_tokens: int, context_tokens_max: int, *, exact: bool) -> Refusal:
    """Return the refusal of a prompt that leaves no room for one output token; not ``exact`` means a lower bound."""
    gate = GATE_CONTEXT if exact else GATE_CONTEXT_BOUND
    message = _context_message(prompt_tokens, context_tokens_max, exact=exact)
    return Refusal(Outcome.NEVER_FITS, gate, message, measured=prompt_tokens, limit=context_tokens_max, unit="tokens")


def _context_message(prompt_tokens: int, context_tokens_max: int, *, exact: bool) -> str:
    """Return the words of vLLM 0.32."""
    if exact and prompt_tokens == context_tokens_max:
        return "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)"
    return (
        f"This model's maximum context length is {context_tokens_max} tokens. However, your prompt contains "
        f"{'' if exact else 'at least '}{prompt_tokens} input tokens, which exceeds this limit even without any output tokens. "
        f"Please reduce the length of the input prompt. (parameter=input_tokens, value={prompt_tokens})"
    )


def model_not_found(model: str) -> Refusal:
    """Return the refusal of a model that no replica serves, worded as vLLM words it."""
    return Refusal(Outcome.NO_REPLICA, GATE_MODEL, f"The model `{model}` does not exist.")


def _error(refusal: Refusal, row: _Row, *, brief: bool) -> dict[str, object]:
    """Return OpenAI's error object, with the decision in further fields."""
    message = row.brief if brief else refusal.message
    code, param = refusal.outcome.value, None
    if refusal.gate in {GATE_CONTEXT, GATE_CONTEXT_BOUND} and refusal.measured is not None and refusal.limit is not None:
        # What LangChain and LiteLLM look for, the former in the message; not brief either, for the engine tells anybody the numbers.
        code, param = "context_length_exceeded", "messages"
        told = _context_message(int(refusal.measured), int(refusal.limit), exact=refusal.gate == GATE_CONTEXT)
        message = f"{told} ({code})"
    elif refusal.gate == GATE_MODEL:
        code, param = "model_not_found", "model"
    elif refusal.gate == GATE_API_KEY:
        code = "invalid_api_key"
    error: dict[str, object] = {
        "message": message,
        "type": row.type,
        "param": param,
        "code": code,
    }
    if not brief:
        error["gate"] = refusal.gate
        error["measured"] = _number(refusal.measured)
        error["limit"] = _number(refusal.limit)
        error["unit"] = refusal.unit or None
        error["policy_key"] = refusal.policy_key
        error["queue_position"] = refusal.queue_position
    error["retry_after_s"] = _number(refusal.retry_after_s)  # advice to the client, and beyond 59 s said nowhere else
    return error


def _number(value: float | None) -> float | int | None:
    """Return a number as people write it: whole where it is whole, else to a thousandth; None where there is none."""
    if value is None or not math.isfinite(value):
        return None
    return int(value) if value == int(value) else round(value, 3)


def _retry_headers(refusal: Refusal, status: int, *, jitter: float, retry_budget: bool) -> list[tuple[bytes, bytes]]:
    """Return the retry advice. A refusal without an estimate is one that no retry can help."""
    if not 0.0 <= jitter < 1.0:
        raise ValueError(f"jitter {jitter} is outside [0, 1)")
    if status in {400, 401, 404, 500, 504}:
        return [(b"x-should-retry", b"false")]
    if status == 502:
        return [(b"x-should-retry", b"true" if retry_budget else b"false")]
    estimate_s = refusal.retry_after_s
    if estimate_s is None or math.isnan(estimate_s):
        return [(b"x-should-retry", b"false")]
    wait_s = min(float(RETRY_AFTER_S_MAX), _jittered(estimate_s, jitter))
    return [
        (b"retry-after", b"%d" % math.ceil(wait_s)),
        (b"retry-after-ms", b"%d" % math.ceil(wait_s * 1000)),
        (b"x-should-retry", b"false" if estimate_s > RETRY_AFTER_S_MAX else b"true"),
    ]


def _jittered(estimate_s: float, jitter: float) -> float:
    """Return the wait to tell: never below the estimate."""
    estimate_s = max(RETRY_AFTER_S_MIN, estimate_s)
    return estimate_s + jitter * max(JITTER_SHARE * estimate_s, JITTER_S_MIN)
