"""One line in the log for every finished request, with the whole decision (``wire.decision_line``)."""

import logging

from proxy.wire.decision import Decision
from proxy.wire.decision_line import line_of

log = logging.getLogger("kvgate.request")


def log_decision(one: Decision) -> None:
    """Write it, where the log keeps such lines."""
    if log.isEnabledFor(logging.INFO):
        # log.info would look up the line of code that called it, which is always this one
        record = logging.LogRecord(log.name, logging.INFO, __file__, 0, "request.finished", (), None)
        record.fields = line_of(one)
        log.handle(record)
