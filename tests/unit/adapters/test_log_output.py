"""One way out for every line: as JSON or for people, whatever a client or a library says, and without what a request holds."""

import asyncio
import io
import json
import logging
import warnings
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from proxy.adapters.log_limit import BURST, KEYS_MAX, WINDOW_S, LogLimit
from proxy.adapters.log_output import open_log, safe_trace
from proxy.wire.decision_line import Line, fields_of_line

SECRET = "the quiet harbour"
NOW_S = 1_796_047_795.2993  # wall time
NASTY = [
    "two words",
    "line\nfeed",
    "\x1b[31mred",
    "",
    "a\u2028b",
    "tab\there",
    "x outcome=completed",
    "\u202eevil",
    "\r\nforged",
    "\x00",
]


@pytest.fixture(autouse=True)
def root() -> Iterator[None]:
    """Leave logging as it was."""
    logger = logging.getLogger()
    handlers, level = list(logger.handlers), logger.level
    yield
    logger.handlers[:] = handlers
    logger.setLevel(level)
    logging.captureWarnings(False)


def opened(form: str, level: str = "info", **more: Any) -> io.StringIO:
    stream = io.StringIO()
    open_log(level, form, stream=stream, **more)
    return stream


def read(stream: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in stream.getvalue().splitlines()]


def test_a_line_of_ours_has_its_fields() -> None:
    stream = opened("json")
    log = logging.getLogger("kvgate.watcher")
    log.warning("replica.failed replica=%s reason=%s", "a:1", "no answer")
    log.error("discovery.failed source=%s reason=%s; what it told last stands", "dns", "nobody")
    log.info("kvgate %s: mode %s, %d replica(s)", "1.0", "enforce", 2)
    log.debug("unseen")
    log.info("store.asked event=%s", "theirs")
    first, second, third, fourth = read(stream)
    assert (fourth["event"], fourth["event_"]) == ("store.asked", "theirs")
    assert {key: first[key] for key in ("level", "logger", "event", "replica", "reason")} == {
        "level": "warning", "logger": "kvgate.watcher", "event": "replica.failed", "replica": "a:1", "reason": "no answer",
    }  # fmt: skip
    assert "message" not in first
    assert first["time"].endswith("+00:00")
    assert (second["source"], second["message"]) == ("dns", "discovery.failed source=dns reason=nobody; what it told last stands")
    assert third["event"] == "kvgate 1.0: mode enforce, 2 replica(s)"


def test_uvicorn_libraries_and_warnings_go_the_same_way() -> None:
    logging.getLogger("uvicorn").propagate = False  # as its own configuration leaves it
    stream = opened("json", several=True)
    logging.getLogger("uvicorn.error").warning("Invalid HTTP request received.")
    logging.getLogger("httpx").info("HTTP Request: GET http://replica/metrics")
    logging.getLogger("somebody.elses").info("hello %s", "there")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.warn("old", DeprecationWarning, stacklevel=1)
    lines = read(stream)
    assert [line["logger"] for line in lines] == ["uvicorn.error", "somebody.elses", "py.warnings"]
    assert all(isinstance(line["process"], int) for line in lines)


@pytest.mark.parametrize("text", NASTY)
def test_nobody_can_forge_a_line(text: str) -> None:
    for form in ("json", "console"):
        stream = opened(form)
        log = logging.getLogger("kvgate.x")
        log.info("request.finished", extra={"fields": {"model": text, "status": 200}})
        log.warning("replica.failed replica=%s reason=%s", "a", text)
        log.warning("a sentence about %s", text)
        log.error("internal_error part=%s", text, exc_info=OSError(text))
        lines = stream.getvalue().split("\n")
        assert all(line.isprintable() for line in lines), (form, lines)
        starts = [line for line in lines if line and not line.startswith("  | ")]
        assert len(starts) == 4, (form, lines)
    if form == "console":
        assert f" model={text!r} status=200" in lines[0]


def test_an_exception_tells_its_way_and_quotes_nobody() -> None:
    stream = opened("json")
    try:
        try:
            (SECRET + "\udc80").encode()
        except UnicodeEncodeError as error:
            raise KeyError(SECRET) from error
    except KeyError:
        logging.getLogger("asyncio").exception("Task exception was never retrieved")
    (line,) = read(stream)
    assert SECRET not in stream.getvalue()
    assert line["exception"].startswith("KeyError\n")
    assert "caused by\nUnicodeEncodeError\n" in line["exception"]
    assert "test_log_output.py" in line["exception"]
    assert (
        safe_trace(ConnectionRefusedError(111, "Connection refused")) == "ConnectionRefusedError: [Errno 111] Connection refused"
    )


def test_what_cannot_be_written_is_told_without_its_content() -> None:
    class Broken:
        def __str__(self) -> str:
            raise ValueError(SECRET)

    stream = opened("json")
    logging.getLogger("kvgate.x").info("request.finished", extra={"fields": {"a": Broken()}})
    assert stream.getvalue().startswith("log.failed logger=kvgate.x line=")
    logging.getLogger("kvgate.x").info("half %s", "\ud800")
    assert json.loads(stream.getvalue().splitlines()[1])["event"] == "half \\ud800"
    assert SECRET not in stream.getvalue()


# ---- lines of finished requests, which go past logging


def line(**fields: Any) -> Line:
    return Line(None, "info", "kvgate.request", "request.finished", "mine", **fields)


async def test_a_requests_line_is_what_logging_would_have_written() -> None:
    stream = io.StringIO()
    output = open_log("info", "json", stream=stream, several=True)
    for model in ("m", *NASTY, "half \ud800"):
        given = line(model=model, status=200, ttft_s=0.25, queue_wait_s=0.0)
        logging.getLogger("kvgate.request").info("request.finished", extra={"fields": {"id": "mine", **fields_of_line(given)}})
        output.take(given, NOW_S)
        output.flush()
        theirs, ours = read(stream)
        assert list(ours)[:4] == ["time", "level", "logger", "event"]
        assert len(ours.pop("time")) == len(theirs.pop("time")), "both to the millisecond"
        assert ours == theirs
        assert all(one.isprintable() for one in stream.getvalue().split("\n"))
        stream.seek(0)
        stream.truncate()


async def test_lines_keep_their_order_and_none_is_lost() -> None:
    stream = io.StringIO()
    output = open_log("info", "json", stream=stream)
    output.take(line(status=1), NOW_S)
    output.take(line(status=2), NOW_S)
    assert stream.getvalue() == "", "they are written together"
    logging.getLogger("kvgate.x").warning("replica.failed replica=%s", "a")
    output.take(line(status=3), NOW_S)
    await asyncio.sleep(0)
    assert [one.get("status", one["event"]) for one in read(stream)] == [1, 2, "replica.failed", 3]
    output.take(line(status=4), NOW_S)
    logging.shutdown([weakref.ref(output)])  # as at the end of the process
    assert read(stream)[-1]["status"] == 4


async def test_a_requests_line_that_cannot_be_written_is_told() -> None:
    class Full(io.StringIO):
        full = True

        def write(self, text: str, /) -> int:
            if self.full:
                self.full = False
                raise OSError(28, "No space left on device")
            return super().write(text)

    stream = Full()
    output = open_log("info", "json", stream=stream)
    output.take(line(status=1), NOW_S)
    output.flush()
    assert stream.getvalue() == "log.failed logger=kvgate.request lines=1\n"
    output.take(line(status=2), NOW_S)
    output.flush()
    assert json.loads(stream.getvalue().splitlines()[1])["status"] == 2


async def test_a_requests_line_tells_what_was_suppressed_before_it() -> None:
    stream = io.StringIO()
    output = open_log("info", "json", stream=stream)
    for _ in range(BURST + 2):
        logging.getLogger("kvgate.x").warning("replica.failed replica=%s", "a")
    output.limit.due_s = 0.0
    key, window = next(iter(output.limit._windows.items()))
    window.ends_s = 0.0
    output.take(line(status=1), NOW_S)
    output.flush()
    assert key[0] == "kvgate.x"
    assert [one["event"] for one in read(stream)][BURST:] == ["log.suppressed", "request.finished"]


# ---- the limit


def record(
    at_s: float, *args: object, text: str = "replica.failed replica=%s reason=%s", level: int = logging.WARNING
) -> logging.LogRecord:
    made = logging.LogRecord("kvgate.watcher", level, __file__, 1, text, args, None)
    made.created = at_s
    return made


def test_warnings_that_repeat_are_held_back_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    limit = LogLimit()
    seen = [limit.filter(record(100.0 + index / 100, "a", "x")) for index in range(BURST + 20)]
    assert seen == [True] * BURST + [False] * 20
    assert limit.filter(record(101.0, "b", "x")), "another replica's are not held back"
    assert limit.filter(record(101.0, text="other.warning"))
    assert caplog.messages == []
    assert limit.filter(record(100.0 + WINDOW_S, level=logging.INFO, text="request.finished"))
    assert caplog.messages == ["log.suppressed line=replica.failed about=a count=20"]
    assert limit.filter(record(101.0 + WINDOW_S, "a", "x")), "a new while has begun"
    assert len(caplog.messages) == 1, "told once"


def test_what_ends_a_request_and_what_is_critical_is_never_held_back() -> None:
    limit = LogLimit()
    for level in (logging.INFO, logging.CRITICAL):
        assert all(limit.filter(record(1.0, "a", "x", level=level)) for _ in range(10 * BURST))


def test_the_limit_remembers_a_bounded_number_of_kinds() -> None:
    limit = LogLimit()
    for index in range(3 * KEYS_MAX):
        assert limit.filter(record(1.0, f"replica{index}", "x"))
    assert len(limit._windows) == KEYS_MAX


def test_the_count_comes_out_of_the_log_itself() -> None:
    stream = opened("json")
    log = logging.getLogger("kvgate.watcher")
    for index in range(BURST + 3):
        log.handle(record(100.0 + index / 100, "a", "x"))
    log.handle(record(100.0 + WINDOW_S, "a", "y"))
    lines = read(stream)
    assert [line["event"] for line in lines] == ["replica.failed"] * BURST + ["log.suppressed", "replica.failed"]
    assert (lines[BURST]["about"], lines[BURST]["count"]) == ("a", 3)
