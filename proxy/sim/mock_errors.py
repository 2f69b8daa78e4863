"""The mock's error answers, worded as vLLM 0.32 words them. Compared with the real server answer by answer."""

import json
from typing import Any

INPUT_CHARACTERS_MAX = 200


class ApiError(Exception):
    """An answer other than 200: status and JSON body."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        super().__init__(f"{status}: {body}")
        self.status = status
        self.body = body


def dump(value: Any) -> bytes:
    """JSON as the server writes it: no spaces, no escapes beyond need."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def _error(status: int, kind: str, message: str, param: str | None) -> ApiError:
    return ApiError(status, {"error": {"message": message, "type": kind, "param": param, "code": status}})


def bad_request(message: str, param: str | None = None, value: Any = None) -> ApiError:
    """Semantic validation. The parameter, and the value where there is one, are repeated at the message's end."""
    if param is not None:
        message += f" (parameter={param})" if value is None else f" (parameter={param}, value={value})"
    return _error(400, "BadRequestError", message, param)


def plain_bad_request(message: str, param: str | None = None) -> ApiError:
    """Semantic validation whose message does not repeat the parameter."""
    return _error(400, "BadRequestError", message, param)


def validation_error(*faults: dict[str, Any]) -> ApiError:
    """Body validation. A fault has type, loc (dotted) and msg, then input and ctx as needed, in this order."""
    label = "error" if len(faults) == 1 else "errors"
    message = f"{len(faults)} validation {label}:\n" + "\n".join(f"  {fault}" for fault in faults)
    return _error(400, "Bad Request", message, faults[0]["loc"])


def fault(kind: str, loc: str, message: str, value: Any) -> dict[str, Any]:
    """One fault of a body; ``value`` is shortened as the server does."""
    if isinstance(value, str):
        seen: str = value if len(value) <= INPUT_CHARACTERS_MAX else value[:INPUT_CHARACTERS_MAX] + "...[truncated]"
    elif isinstance(value, list | dict):
        seen = f"<{type(value).__name__} of {len(value)} items>"
    else:
        seen = str(value)
    return {"type": kind, "loc": loc, "msg": message, "input": seen}


def missing(loc: str, inside: Any) -> dict[str, Any]:
    """A required field is not there."""
    return fault("missing", loc, "Field required", inside)


def wrong_content_type() -> ApiError:
    """Not JSON by its header."""
    message = "1 validation error:\n  Unsupported Media Type: Only 'application/json' is allowed"
    return _error(400, "Bad Request", message, None)


def model_not_found(model: str, served: str) -> ApiError:
    """404 for a model that is not served."""
    return _error(404, "NotFoundError", f"The model `{model}` does not exist. Valid aliases: {served}.", "model")


def scale_out_disabled() -> ApiError:
    """The render and token-level routes without --enable-scale-out."""
    message = "Scale-out endpoints are disabled. Restart vllm serve with --enable-scale-out to enable them."
    return _error(403, "PermissionDeniedError", message, None)


def queue_full() -> ApiError:
    """--max-num-queued-reqs reached."""
    message = "The engine is currently busy and cannot accept new requests. Please try again later or on a different instance."
    return _error(503, "Service Unavailable", message, None)


def token_backlog_full() -> ApiError:
    """--max-num-queued-tokens reached."""
    message = "The engine has reached its prefill token backlog limit. Please try again later or on a different instance."
    return _error(503, "Service Unavailable", message, None)


def prompt_too_long(context: int) -> ApiError:
    """Tokenizing stops one token beyond the context, so the true length is not known."""
    return bad_request(
        f"This model's maximum context length is {context} tokens. However, your prompt contains at least {context + 1} input "
        "tokens, which exceeds this limit even without any output tokens. Please reduce the length of the input prompt.",
        "input_tokens",
        context + 1,
    )


UNAUTHORIZED = ApiError(401, {"error": "Unauthorized"})
NOT_FOUND = ApiError(404, {"detail": "Not Found"})
METHOD_NOT_ALLOWED = ApiError(405, {"detail": "Method Not Allowed"})
