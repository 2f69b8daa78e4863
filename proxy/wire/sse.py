"""Looking at an OpenAI chat or completions stream that passes by, and taking out the one event we asked for and the client did not.

``StreamObserver`` counts events that carry choices as an estimate of tokens, and reads usage, finish reasons, errors and the end
mark. It is fed with bytes cut anywhere. Almost every read is one or more whole ordinary events, told by four byte searches without
parsing; any other goes event by event, and only there is JSON decoded. A chunk is not a token (parsers, stop hold-back,
speculation): the estimate is corrected by usage where the stream has it, running where the client asked for continuous usage.
Fails: bytes that are no such stream count nothing; an event above ``EVENT_BYTES_MAX`` is counted and not read.

``UsageStripper`` removes the final usage event. An engine started with --enable-force-include-usage puts usage on every event, asked
or not; the client of such an engine expects the final one too, and keeps it: the first event with choices tells which engine it is.
"""

import re

from proxy.wire.answer_usage import AnswerFields, Usage, decode_answer

EVENT_BYTES_MAX = 1 << 20  # of an unfinished event that is kept; the largest with logprobs are some 100 KB
_USAGE_EVENT_BYTES_MAX = 1 << 14  # a usage event has no content, a few hundred bytes

_EVENT_END = re.compile(rb"\r?\n\r?\n")
_JSON_EVENT = b"data: {"
_CHOICE = b'"choices":[{'
_USAGE = b'"usage":{'
_USAGE_SPACED = b'"usage": {'
_FINISHED = b'"finish_reason":"'
_ROLE = b'"role"'
_FINGERPRINT = b'"system_fingerprint":"'
_HAS_CHOICE = re.compile(rb'"choices"\s*:\s*\[\s*\{')
_HAS_USAGE = re.compile(rb'"usage"\s*:\s*\{')
_CONTENT = re.compile(rb'"(content|reasoning|reasoning_content|tool_calls)"\s*:\s*(\[|"[^"])')


def _event_ends(buffer: bytes, searched: int) -> list[tuple[int, int]]:
    """Start and end of every blank line from ``searched`` on. Most engines never send CR, and then a plain search does."""
    if b"\r" in buffer:
        return [end.span() for end in _EVENT_END.finditer(buffer, searched)]
    ends = []
    while (start := buffer.find(b"\n\n", searched)) >= 0:
        searched = start + 2
        ends.append((start, searched))
    return ends


def event_data(event: bytes) -> bytes:
    """The ``data`` of one event, its lines joined as the SSE rules say; b"" for comments and events without data."""
    if event.startswith(b"data: ") and b"\n" not in event:
        return event[6:]
    lines = [line[5:].removeprefix(b" ") for line in event.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines)


class StreamObserver:
    """What is known of a stream so far.

    ``tokens_seen`` is the exact number of output tokens when usage told it, else the events that carried content. ``first_content`` is
    True from the first event with choices (with vLLM that is the first token, since the role is sent with it). ``failed`` is True after
    an error event, ``done`` after ``[DONE]``, ``usage`` is the final usage event's.
    """

    __slots__ = (
        "_carry",
        "_choice_tokens",
        "_estimate",
        "_finish_reasons",
        "_opened",
        "_skipping",
        "_usage",
        "answer_id",
        "done",
        "failed",
        "fingerprint",
        "first_content",
    )

    def __init__(self) -> None:
        self.done = False
        self.failed = False
        self.first_content = False
        self.answer_id: str | None = None  # of an answer that the engine keeps
        self.fingerprint: str | None = None  # ``system_fingerprint`` of the last event that told it
        self._carry = b""
        self._skipping = False  # inside an event that is too long to be kept
        self._opened = False  # an event past the role-only ones was seen
        self._estimate = 0
        self._choice_tokens: dict[int, int] = {}  # continuous usage is told per choice
        self._finish_reasons: dict[int, str] = {}
        self._usage: Usage | None = None

    @property
    def usage(self) -> Usage | None:
        """The final usage with the finish reasons, None until (unless) the stream tells it."""
        if self._usage is None:
            return None
        told = self._usage
        return Usage(told.prompt_tokens, told.completion_tokens, told.cached_tokens, self.finish_reasons)

    @property
    def finish_reasons(self) -> tuple[str, ...]:
        """One reason per finished choice, in the order of their index."""
        return tuple(reason for _, reason in sorted(self._finish_reasons.items()))

    @property
    def tokens_seen(self) -> int:
        """Output tokens over all choices, as well as they are known."""
        if self._usage is not None:
            return self._usage.completion_tokens
        if self._choice_tokens:
            return sum(self._choice_tokens.values())
        return self._estimate

    @property
    def events_seen(self) -> int:
        """Events that carried content, over all choices."""
        return self._estimate

    def feed(self, data: bytes) -> None:
        """Look at the next bytes of the stream, cut anywhere."""
        if self._opened and not self._carry and data.endswith(b"\n\n") and not self._skipping:
            ordinary = self._all_ordinary(data)
            if ordinary:
                self._estimate += ordinary
                return
        self._feed_events(data)

    def _all_ordinary(self, data: bytes) -> int:
        """How many events the data holds, if all are ordinary ones with a token each; else 0."""
        choices = data.count(_CHOICE)
        return choices if choices == data.count(b"\n\n") and _FINISHED not in data and _USAGE not in data else 0

    def _feed_events(self, data: bytes) -> None:
        buffer = self._carry + data
        # An end that began before this data is at most three bytes back; what lies further back was searched already.
        start, searched = 0, max(0, len(self._carry) - 3)
        for end, following in _event_ends(buffer, searched):
            if self._skipping:
                self._skipping = False
                self._opened = self.first_content = True
                self._estimate += 1
            elif end > start:
                self._event(buffer[start:end])
            start = following
        carry = buffer[start:]
        if self._skipping or len(carry) > EVENT_BYTES_MAX:
            self._skipping = True
            carry = carry[-3:]
        self._carry = carry

    def _event(self, event: bytes) -> None:
        data = event_data(event)
        if not data.startswith(b"{"):
            self.done = self.done or data == b"[DONE]"
            return
        answer = decode_answer(data)
        if answer is None:
            return
        if answer.has_error:
            self.failed = True
        if answer.choices:
            self.first_content = True
            if self._opened or _ROLE not in data or _CONTENT.search(data):
                self._opened = True
                self._estimate += 1
        self._account(answer)

    def _account(self, answer: AnswerFields) -> None:
        self.fingerprint = answer.system_fingerprint or self.fingerprint
        for choice in answer.choices:
            if choice.finish_reason is not None:
                self._finish_reasons[choice.index] = choice.finish_reason
        usage = answer.usage.as_usage() if answer.usage is not None else None
        if usage is None:
            return
        if not answer.choices:
            self._usage = usage
        elif len(answer.choices) == 1:
            self._choice_tokens[answer.choices[0].index] = usage.completion_tokens


class UsageStripper:
    """Takes the usage event out of a stream into which we, not the client, asked it, so that the client gets what it would have got.

    Asked for usage, the engine puts its ``system_fingerprint`` on the usage event; not asked, on every event that finishes a choice. So
    ``fingerprint``, where the engine has one, is put there. Every other byte passes unchanged. Whole events pass at once; an unfinished
    one is held while it may be one of these.
    """

    __slots__ = ("_fingerprint", "_held", "_last", "_over", "_settled")

    def __init__(self, fingerprint: str = "") -> None:
        self._fingerprint = f',"system_fingerprint":"{fingerprint}"}}'.encode() if fingerprint else b""
        self._held = b""
        self._last = b""  # the last three bytes given out of an event whose end has not been seen
        self._settled = False  # the first event with choices was seen
        self._over = False  # nothing is left to be taken out

    def feed(self, data: bytes) -> bytes:
        """The bytes to send now; b"" when all are held back or taken out."""
        if self._over:
            return data
        between_events = self._settled and not self._held and not self._last
        plain = _USAGE not in data and _USAGE_SPACED not in data and (not self._fingerprint or _FINISHED not in data)
        if plain and between_events and data.endswith(b"\n\n"):
            return data
        return self._feed_events(data)

    def flush(self) -> bytes:
        """What was still held when the stream ended."""
        held, self._held, self._over = self._held, b"", True
        return held

    def _feed_events(self, data: bytes) -> bytes:
        out: list[bytes] = []
        start = 0
        if self._last:
            match = _EVENT_END.search(self._last + data)
            if match is None:
                self._last = (self._last + data)[-3:]
                return data
            start = max(0, match.end() - len(self._last))
            out.append(data[:start])
            self._last = b""
        buffer = self._held + data[start:]
        start, searched = 0, max(0, len(self._held) - 3)
        self._held = b""
        for end, following in _event_ends(buffer, searched):
            if self._takes_out(buffer[start:end]):
                self._over = True
                return b"".join([*out, buffer[following:]])
            out += (self._restored(buffer[start:end]), buffer[end:following])
            start = following
        tail = buffer[start:]
        if self._holds(tail):
            self._held = tail
        else:
            out.append(tail)
            self._last = tail[-3:]
        return b"".join(out)

    def _holds(self, tail: bytes) -> bool:
        """Whether an unfinished event can still turn out to be the usage event, or is the first one and tells the engine's kind."""
        if self._over or len(tail) > _USAGE_EVENT_BYTES_MAX or not (tail.startswith(_JSON_EVENT) or _JSON_EVENT.startswith(tail)):
            return False
        return not self._settled or bool(self._fingerprint) or not _HAS_CHOICE.search(tail)

    def _restored(self, event: bytes) -> bytes:
        if self._fingerprint and _FINISHED in event and event.endswith(b"}") and _FINGERPRINT not in event:
            return event[:-1] + self._fingerprint
        return event

    def _takes_out(self, event: bytes) -> bool:
        if not event.startswith(_JSON_EVENT):
            return False
        if not _HAS_USAGE.search(event):
            self._settled = self._settled or _HAS_CHOICE.search(event) is not None
            return False
        answer = decode_answer(event_data(event))
        if answer is None or answer.usage is None:
            return False
        if not answer.choices:
            return not self._over
        if not self._settled:
            self._over = True  # usage on the first event with choices: the engine forces it on everybody
        return False
