"""The one place that reads the machine's clocks."""

import time


class SystemClock:
    """``ports.Clock`` on the machine's clocks. They are no functions of ours: each request asks some seventeen times."""

    now_s = staticmethod(time.monotonic)  # seconds; never steps back
    wall_s = staticmethod(time.time)  # seconds since the Unix epoch; may step when the machine's time is set
