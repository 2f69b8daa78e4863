"""One line in the log for every finished request, with the whole decision (``wire.decision_line``)."""

import logging
from collections.abc import Callable

from proxy.wire.decision import Decision
from proxy.wire.decision_line import EVENT, Line, decision_line, fields_of_line

log = logging.getLogger("kvgate.request")


class RequestLog:
    """Writes them where the log keeps such lines: to ``take`` where there is one, which spares each the way of a log record."""

    def __init__(self, take: Callable[[Line, float], None] | None = None) -> None:
        self._take = take

    def keep(self, one: Decision) -> None:
        """Write the line of a request that ended."""
        if not log.isEnabledFor(logging.INFO):
            return
        if self._take is not None:
            self._take(decision_line(one, None, "info", log.name, EVENT), one.arrived_wall_s + one.total_s)
            return
        # log.info would look up the line of code that called it, which is always this one
        record = logging.LogRecord(log.name, logging.INFO, __file__, 0, EVENT, (), None)
        record.fields = fields_of_line(decision_line(one))
        log.handle(record)
