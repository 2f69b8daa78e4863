"""One line in the log for every finished request, with the whole decision (``wire.decision_line``)."""

import logging

from proxy.wire.decision import Decision
from proxy.wire.decision_line import line_of

log = logging.getLogger("kvgate.request")


def log_decision(one: Decision) -> None:
    """Write it, where the log keeps such lines."""
    if log.isEnabledFor(logging.INFO):
        log.info("request.finished", extra={"fields": line_of(one)})
