"""How often a queue is looked at again while nothing else happens.

Formula: every ``TICK_STEPS`` decode steps of the fastest replica, within ``[TICK_S_MIN, TICK_S_MAX]``: a forecast hardly changes in fewer
steps. Fails: nothing; a later Tick only admits later.
"""

TICK_STEPS = 2.0
TICK_S_MIN, TICK_S_MAX = 0.02, 0.1


def tick_s(steps_per_s_max: float) -> float:
    """Seconds between looks at a queue, where the fastest replica steps so often."""
    return min(max(TICK_STEPS / max(steps_per_s_max, TICK_STEPS / TICK_S_MAX), TICK_S_MIN), TICK_S_MAX)
