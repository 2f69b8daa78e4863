"""The one place that reads the machine's clocks."""

import time


class SystemClock:
    """``ports.Clock`` on the machine's clocks."""

    def now_s(self) -> float:
        """Monotonic seconds; never steps back."""
        return time.monotonic()

    def wall_s(self) -> float:
        """Seconds since the Unix epoch; may step when the machine's time is set."""
        return time.time()
