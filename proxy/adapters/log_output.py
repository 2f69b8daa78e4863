"""Where every line of a process goes: standard error, as JSON or for people, through one handler for our own, uvicorn's and libraries'.

Never a prompt, a completion or a key: our own lines name counts and ids, and of an exception its type and the places it came through are
written, its message only where it is the system's (``OSError``) or our own, since others may quote what they choked on
(``UnicodeEncodeError`` carries the whole text).
"""

import asyncio
import logging
import os
import sys
import traceback
from contextlib import nullcontext, suppress
from datetime import UTC, datetime
from typing import Any, TextIO

import msgspec
import structlog

from proxy.adapters.log_limit import LogLimit
from proxy.wire.decision_line import Line, fields_of_line
from proxy.wire.log_text import console_fields, fields_of, plain, word

QUIET = ("httpx", "httpcore", "uvicorn.error", "opentelemetry")  # a line per scrape says nothing
CHAIN_MAX = 4  # causes of an exception that are told
FRAMES_MAX = 30

_encode = msgspec.json.Encoder(enc_hook=str).encode
_Fields = dict[str, Any]


def open_log(level: str, form: str, *, several: bool = False, stream: TextIO | None = None) -> "LogOutput":
    """Send lines from ``level`` on to ``stream`` (standard error) as ``form``: json or console. ``several`` processes name themselves."""
    handler = LogOutput(stream or sys.stderr, several=several, as_json=form == "json")
    processors: list[Any] = [_fields, _process] if several else [_fields]
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=processors,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, _json if form == "json" else _console],
            pass_foreign_args=True,
        )
    )
    handler.addFilter(handler.limit)
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False  # no line tells them, and each has its price
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):  # whoever ran one before may have left handlers of its own there
        logging.getLogger(name).handlers.clear()
        logging.getLogger(name).propagate = True
    for name in QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
    logging.captureWarnings(True)
    return handler


class LogOutput(logging.StreamHandler[TextIO]):
    """Writes lines; of one that cannot be written it says that, and nothing of what was in it.

    Lines that come with their fields, one for each request, go past structlog where they become JSON: they are that already. Those that
    come as a ``Line`` go past logging too, and are written together when the turn of the event loop ends, before any other line.
    """

    def __init__(self, stream: TextIO, *, several: bool, as_json: bool) -> None:
        super().__init__(stream)
        self.limit = LogLimit()
        self.as_json = as_json
        self._several = several
        self._lines: list[str] = []  # not written yet
        self._second, self._second_text = 0, ""

    def format(self, record: logging.LogRecord) -> str:
        """The line."""
        given = getattr(record, "fields", None)
        if given is None or not self.as_json or record.exc_info:
            return super().format(record)
        line = _head(record) | {"event": record.msg, **given}
        return _json(None, "", _process(None, "", line) if self._several else line)

    def take(self, line: Line, created_s: float) -> None:
        """Write a request's line as JSON, soon; ``created_s`` is wall time. Only from the event loop."""
        if created_s >= self.limit.due_s:
            self.limit.tell(created_s)
        line.time = self._time(created_s)
        if self._several:
            line.process = os.getpid()
        try:
            packed = _encode(line)
            text = packed.decode()
            plain = packed.isascii() and b"\x7f" not in packed  # below a blank JSON escapes everything
            if not plain and not text.isprintable():
                text = _json(None, "", fields_of_line(line))
        except UnicodeEncodeError:
            text = _json(None, "", fields_of_line(line))
        self._lines.append(text)
        if len(self._lines) == 1:
            asyncio.get_running_loop().call_soon(self.flush)

    def emit(self, record: logging.LogRecord) -> None:
        """Write a line, behind those that came before it."""
        self._write_lines()
        super().emit(record)

    def flush(self) -> None:
        """Write what waits, and empty the stream's buffer."""
        with self.lock or nullcontext():
            self._write_lines()
            super().flush()

    def _write_lines(self) -> None:
        if self._lines:
            lines, self._lines = self._lines, []
            try:
                self.stream.write("\n".join(lines) + "\n")
            except (OSError, ValueError):  # as in handleError, but there is no record
                with suppress(OSError, ValueError):
                    self.stream.write(f"log.failed logger=kvgate.request lines={len(lines)}\n")

    def _time(self, created_s: float) -> str:
        """As ``_head`` tells it; a second's digits are made once."""
        milliseconds = int(created_s * 1000.0)
        second, rest = divmod(milliseconds, 1000)
        if second != self._second or not self._second_text:
            self._second, self._second_text = second, datetime.fromtimestamp(second, UTC).strftime("%Y-%m-%dT%H:%M:%S.")
        return f"{self._second_text}{rest:03d}+00:00"

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802  logging's name
        """Tell of a line that is lost."""
        with suppress(OSError, ValueError):  # there is nowhere else to tell it
            self.stream.write(f"log.failed logger={word(record.name)} line={word(record.lineno)}\n")


def _fields(_: Any, __: str, line: _Fields) -> _Fields:
    """The line as a word and its fields, where it is one."""
    record: logging.LogRecord = line["_record"]
    text, args = line["event"], line.pop("positional_args", None)
    told = _head(record)
    given = getattr(record, "fields", None)
    if given is not None:
        told |= {"event": text, **given}
    elif (found := fields_of(record.msg, args)) is not None:
        told |= {"event": found.event, **found.fields}
        if found.says_more:
            told["message"] = text
    else:
        told["event"] = text
    if record.exc_info and record.exc_info[1] is not None:
        told["exception"] = safe_trace(record.exc_info[1])
    return told | {"_record": record, "_from_structlog": False}


def _head(record: logging.LogRecord) -> _Fields:
    return {
        "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
        "level": record.levelname.lower(),
        "logger": record.name,
    }


def _process(_: Any, __: str, line: _Fields) -> _Fields:
    line["process"] = os.getpid()
    return line


def _json(_: Any, __: str, line: Any) -> str:
    try:
        text = _encode(line).decode()
        if text.isprintable():
            return text
    except UnicodeEncodeError:  # half a surrogate pair, which no JSON may hold
        pass
    return _encode({key: plain(value) if isinstance(value, str) else value for key, value in line.items()}).decode()


def _console(_: Any, __: str, line: Any) -> str:
    head = f"{line.pop('time')} {line.pop('level').upper()} "
    if (process := line.pop("process", None)) is not None:
        head += f"[{process}] "
    line.pop("logger")
    trace = line.pop("exception", "")
    text, event = line.pop("message", None), plain(str(line.pop("event")))
    body = plain(text) if text is not None else f"{event} {console_fields(line.items())}".rstrip()
    return head + body + "".join(f"\n  | {plain(one)}" for one in trace.splitlines())


def safe_trace(error: BaseException) -> str:
    """Type and way of an exception and its causes, one place a line; its message where that cannot quote a request."""
    told: list[str] = []
    one: BaseException | None = error
    while one is not None and len(told) < CHAIN_MAX * FRAMES_MAX:
        lines = [f"{kind_of(one)}{_message(one)}"]
        frames = traceback.extract_tb(one.__traceback__)[-FRAMES_MAX:]
        lines += [f"  {frame.filename}:{frame.lineno} in {frame.name}" for frame in frames]
        told += lines
        one = one.__cause__ or (None if one.__suppress_context__ else one.__context__)
        if one is not None:
            told.append("caused by")
    return "\n".join(told)


def kind_of(error: BaseException) -> str:
    """The exception's type by its full name."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _message(error: BaseException) -> str:
    ours = type(error).__module__.startswith("proxy.")
    return f": {error}" if ours or isinstance(error, OSError) else ""
