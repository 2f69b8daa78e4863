"""Warnings that come again and again are let through a few times in a while; how many were not is told when the while is over.

A warning is the same where its format and what it is first about are: a fault of one replica does not hide another's. What ends a request
(``info``) and what is critical is never held back. Nothing here starts a timer: a count is told with the next line of any kind.

Fails: of more than ``KEYS_MAX`` kinds of warnings at a time the oldest kind is forgotten, and begins anew.
"""

import logging
from collections import OrderedDict
from math import inf

BURST = 5
WINDOW_S = 10.0
KEYS_MAX = 512

_Key = tuple[str, str, str]


class _Window:
    __slots__ = ("ends_s", "let_through", "suppressed")

    def __init__(self, ends_s: float) -> None:
        self.ends_s = ends_s
        self.let_through = 0
        self.suppressed = 0


class LogLimit(logging.Filter):
    """A filter for a handler. Time is that of the records."""

    def __init__(self) -> None:
        super().__init__()
        self._windows: OrderedDict[_Key, _Window] = OrderedDict()
        self.due_s = inf  # when the first window with something to tell ends

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is to be written; sets its ``suppressed`` to how many like it were not."""
        if record.created >= self.due_s:
            self.tell(record.created)
        if record.levelno < logging.WARNING or record.levelno >= logging.CRITICAL or hasattr(record, "suppressed"):
            return True
        first = record.args[0] if isinstance(record.args, tuple) and record.args else ""
        key = (record.name, str(record.msg), str(first)[:64])
        window = self._windows.get(key)
        if window is None or record.created >= window.ends_s:
            window = self._windows[key] = _Window(record.created + WINDOW_S)
            self._windows.move_to_end(key)
            if len(self._windows) > KEYS_MAX:
                self._windows.popitem(last=False)
        if window.let_through < BURST:
            window.let_through += 1
            return True
        window.suppressed += 1
        self.due_s = min(self.due_s, window.ends_s)
        return False

    def tell(self, now_s: float) -> None:
        """Say what was suppressed in the windows that are over."""
        over = [key for key, window in self._windows.items() if window.ends_s <= now_s]
        told = [(key, window.suppressed) for key in over if (window := self._windows.pop(key)).suppressed]
        self.due_s = min((window.ends_s for window in self._windows.values() if window.suppressed), default=inf)
        for (name, text, first), count in told:
            event = text.partition(" ")[0]
            logging.getLogger(name).warning(
                "log.suppressed line=%s about=%s count=%d", event, first, count, extra={"suppressed": count}
            )
