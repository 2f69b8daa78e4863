"""What an OpenAI-style answer says of itself: usage and finish reasons, of a stream event or of a whole JSON body.

``read_usage`` decodes only those fields and skips the rest. Of a body whose beginning is missing, because a long one is not kept
whole, it finds the usage object alone: the last ``"usage"`` followed by an object cannot lie inside a string, where the quotes would
be escaped. Fails: anything that is not such an answer gives None, never an error.
"""

from dataclasses import dataclass

import msgspec

BODY_BYTES_KEPT_MAX = 1 << 20  # a longer JSON answer is read from its last bytes only
_USAGE_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts the engine reports. ``completion_tokens`` is the sum over all choices; ``cached_tokens`` is None where not told.

    ``finish_reasons`` holds one reason per choice, in the order of their index, as far as they were seen.
    """

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | None = None
    finish_reasons: tuple[str, ...] = ()


class _Details(msgspec.Struct):
    cached_tokens: int | None = None


class UsageField(msgspec.Struct):
    """``usage`` as it stands in the JSON, under OpenAI's names or those of the Responses and Messages APIs."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    prompt_tokens_details: _Details | None = None
    input_tokens_details: _Details | None = None

    def as_usage(self, finish_reasons: tuple[str, ...] = ()) -> Usage | None:
        """The same as a value; None when no prompt tokens are told, which is no usage at all."""
        prompt_tokens = self.prompt_tokens if self.prompt_tokens is not None else self.input_tokens
        if prompt_tokens is None:
            return None
        completion_tokens = self.completion_tokens if self.completion_tokens is not None else self.output_tokens
        details = self.prompt_tokens_details or self.input_tokens_details
        cached = details.cached_tokens if details is not None else None
        return Usage(prompt_tokens, completion_tokens or 0, cached, finish_reasons)


class ChoiceField(msgspec.Struct):
    """One choice, without its content."""

    index: int = 0
    finish_reason: str | None = None


class AnswerFields(msgspec.Struct):
    """The fields read of a stream event or body. ``error`` is raw JSON, empty when there is none."""

    choices: list[ChoiceField] = msgspec.field(default_factory=list)
    usage: UsageField | None = None
    system_fingerprint: str | None = None
    error: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)

    @property
    def has_error(self) -> bool:
        """Whether it carries an error other than null."""
        return bytes(self.error) not in (b"", b"null")


_decode_answer = msgspec.json.Decoder(AnswerFields).decode
_decode_usage = msgspec.json.Decoder(UsageField).decode


def decode_answer(data: bytes) -> AnswerFields | None:
    """One JSON object read for usage, choices and error; None if it is not an object with those shapes."""
    try:
        return _decode_answer(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _last_usage(tail: bytes) -> UsageField | None:
    key = tail.rfind(b'"usage"')
    start = tail.find(b"{", key, key + 16) if key >= 0 else -1
    if start < 0:
        return None
    end = start
    while (end := tail.find(b"}", end, start + _USAGE_BYTES_MAX) + 1) > 0:
        try:
            return _decode_usage(tail[start:end])
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue  # the brace of a nested object
    return None


def read_usage(body: bytes) -> Usage | None:
    """Usage and finish reasons of a whole JSON answer, or of its last bytes; None where there is no usage object."""
    answer = decode_answer(body)
    if answer is None:
        field = _last_usage(body)
        return field.as_usage() if field is not None else None
    if answer.usage is None:
        return None
    ordered = sorted(answer.choices, key=lambda choice: choice.index)
    return answer.usage.as_usage(tuple(choice.finish_reason for choice in ordered if choice.finish_reason is not None))


class BodyTail:
    """Collects a JSON answer that passes by, whole up to ``BODY_BYTES_KEPT_MAX``, of a longer one only the last bytes."""

    __slots__ = ("_bytes", "_parts")

    def __init__(self) -> None:
        self._parts: list[bytes] = []
        self._bytes = 0

    def feed(self, data: bytes) -> None:
        """Note the next bytes."""
        self._parts.append(data)
        self._bytes += len(data)
        if self._bytes > BODY_BYTES_KEPT_MAX:
            # Half is thrown away at a time, so a long body costs one copy per half of the limit, not one per chunk.
            kept = b"".join(self._parts)[-BODY_BYTES_KEPT_MAX // 2 :]
            self._parts = [kept]
            self._bytes = len(kept)

    def collected(self) -> bytes:
        """What was kept."""
        return b"".join(self._parts)

    def usage(self) -> Usage | None:
        """What the collected bytes say, of an OpenAI-style answer."""
        return read_usage(self.collected())
