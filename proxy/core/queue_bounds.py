"""How much may wait: of the whole queue and of each class, and whether a request may at all.

Decides by counts of requests, prompt tokens and body bytes, the one more included; bounds are inclusive. A request whose class does not
wait, or whose time is over, exceeds a bound of its own: displacing others would not help it.
"""

from collections.abc import Mapping

from proxy.core.demand import Demand
from proxy.core.policy_classes import ClassQueue
from proxy.core.waiting import Waiting

NO_QUEUE, NO_WAIT = "classes[].when_saturated", "queue.wait_max"  # bounds by which nobody waits


def _first_over(*bounds: tuple[str, int, int | None]) -> tuple[str, int, int] | None:
    """The first bound that its value is over; None as a limit bounds nothing."""
    for key, value, limit in bounds:
        if limit is not None and value > limit:
            return key, value, limit
    return None


class QueueBounds:
    """What waits, counted, and what may. ``class_bounds`` are of those classes that have some, by name."""

    def __init__(self, *, requests_max: int, tokens_max: int, bytes_max: int) -> None:
        self.requests_max = requests_max
        self.tokens_max = tokens_max
        self.bytes_max = bytes_max
        self.class_bounds: Mapping[str, ClassQueue] = {}
        self.by_class: dict[str, list[int]] = {}  # requests and prompt tokens that wait
        self.by_tenant: dict[str, list[int]] = {}  # likewise, of tenants of whom some wait
        self.requests = 0
        self.tokens = 0
        self.bytes = 0
        self.peak_blocks = 0.0
        self.now_s = 0.0  # of the event being handled

    def count(self, entry: Waiting, sign: int) -> None:
        """One came (1) or left (-1)."""
        demand = entry.demand
        of_class = self.by_class.setdefault(demand.traffic_class, [0, 0])
        of_class[0] += sign
        of_class[1] += sign * demand.prompt_tokens
        of_tenant = self.by_tenant.setdefault(demand.tenant, [0, 0])
        of_tenant[0] += sign
        of_tenant[1] += sign * demand.prompt_tokens
        if not of_tenant[0]:  # clients may choose their names
            del self.by_tenant[demand.tenant]
        self.requests += sign
        self.tokens += sign * demand.prompt_tokens
        self.bytes += sign * demand.body_bytes
        self.peak_blocks += sign * entry.peak_blocks

    def exceeds(self, demand: Demand) -> tuple[str, int, int] | None:
        """The bound that one more request would break: (policy key, value with it, limit)."""
        own = self.exceeds_own(demand)
        within = self.requests < self.requests_max and self.tokens + demand.prompt_tokens <= self.tokens_max
        if own is not None or (within and self.bytes + demand.body_bytes <= self.bytes_max):  # mostly, and for each request
            return own
        return _first_over(
            ("queue.requests_max", self.requests + 1, self.requests_max),
            ("queue.tokens_max", self.tokens + demand.prompt_tokens, self.tokens_max),
            ("queue.bytes_max", self.bytes + demand.body_bytes, self.bytes_max),
        )

    def exceeds_own(self, demand: Demand) -> tuple[str, int, int] | None:
        """As ``exceeds``, of the bounds that are its own or its class's: room in the whole queue would be of no use."""
        if not demand.may_queue:
            return NO_QUEUE, 1, 0
        if demand.deadline_s <= self.now_s:
            return NO_WAIT, 1, 0
        bounds = self.class_bounds.get(demand.traffic_class)
        if bounds is None:
            return None
        requests, tokens = self.by_class.get(demand.traffic_class, (0, 0))
        return _first_over(
            ("classes[].queue.requests_max", requests + 1, bounds.requests_max),
            ("classes[].queue.tokens_max", tokens + demand.prompt_tokens, bounds.tokens_max),
        )
