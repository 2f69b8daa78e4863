"""What the requests on one replica were promised, what they still ask of it, and who ended: kept as they come and go.

*Targets.* The least TTFT and TPOT target among them, in O(classes of the policy): equal targets are counted.
*Prefill backlog.* Prompt tokens sent and not known to be prefilled, less those expected in the prefix cache. The engine serves first come
first served, so of the oldest the part is taken off that the time since the one before it was placed has sufficed for. Cost: O(requests
not yet placed), which the backlog's bound keeps few.
*Prefill rate.* Of a request whose first token was seen, or whose answer came, ``T`` after it was sent with ``ahead`` tokens before it and
its own, the engine has prefilled at least ``ahead / T`` tokens a second: the mean over the last ``RATES_KEPT`` or so is a lower bound.
*Outlook.* Prefill tokens per step of a population that is replaced as it ends: the sum of prompt tokens / forecast output tokens.

Fails: a lease whose answer is not streamed counts as backlog until the engine's running count has room for it.
"""

from collections import Counter
from math import inf

from proxy.core.demand import Demand
from proxy.core.ledger import Lease

RATES_KEPT = 16.0
PREFILL_S_MIN = 1e-4  # nothing is seen to be faster


class Targets:
    """Promises and prefill work of one replica's leases."""

    def __init__(self) -> None:
        self.sequences_ended = 0
        self.prefill_outlook = 0.0
        self._leases = 0
        self._output_tokens = 0.0
        self._ttft_s: Counter[float] = Counter()
        self._tpot_s: Counter[float] = Counter()
        self._unplaced: dict[str, Lease] = {}
        self._ahead_tokens: dict[str, int] = {}  # of the unplaced, with their own, when they were sent
        self.sent_tokens = 0  # over the unplaced, less what is cached: 0 only where there is none
        self.prefill_tokens_per_s = 0.0
        self._front_s = -inf  # when the oldest of them came to the front

    def add(self, lease: Lease) -> None:
        """A lease was booked."""
        demand = lease.demand
        if demand.ttft_s is not None:
            self._ttft_s[demand.ttft_s] += 1
        if demand.tpot_s is not None:
            self._tpot_s[demand.tpot_s] += 1
        self.prefill_outlook += prefill_per_step(demand, lease.output_tokens_forecast)
        self._leases += 1
        self._output_tokens += lease.output_tokens_forecast
        if not lease.placed:
            self._unplaced[lease.lease_id] = lease
            self.sent_tokens += demand.prompt_tokens - lease.cached_tokens
            self._ahead_tokens[lease.lease_id] = self.sent_tokens

    def remove(self, lease: Lease, now_s: float) -> None:
        """A lease ended."""
        demand = lease.demand
        if demand.ttft_s is not None:
            _one_less(self._ttft_s, demand.ttft_s)
        if demand.tpot_s is not None:
            _one_less(self._tpot_s, demand.tpot_s)
        self._leases -= 1
        if not self._leases:  # what rounding left over would add up
            self.prefill_outlook = self._output_tokens = 0.0
        else:
            self.prefill_outlook -= prefill_per_step(demand, lease.output_tokens_forecast)
            self._output_tokens -= lease.output_tokens_forecast
        if lease.lease_id in self._unplaced:
            self._leaves_backlog(lease, now_s if lease.output_tokens else None)
        self.sequences_ended += demand.sequences

    def _leaves_backlog(self, lease: Lease, prefilled_s: float | None) -> None:
        """It is prefilled, since ``prefilled_s`` at the latest; None: it ended before."""
        del self._unplaced[lease.lease_id]
        self.sent_tokens -= lease.demand.prompt_tokens - lease.cached_tokens
        ahead_tokens = self._ahead_tokens.pop(lease.lease_id)
        if prefilled_s is not None:
            rate = ahead_tokens / max(PREFILL_S_MIN, prefilled_s - lease.sent_s)
            self.prefill_tokens_per_s += (rate - self.prefill_tokens_per_s) / RATES_KEPT

    def clear(self) -> None:
        """A new engine epoch."""
        self._ttft_s.clear()
        self._tpot_s.clear()
        self._unplaced.clear()
        self._ahead_tokens.clear()
        self.sent_tokens = 0
        self._leases, self._output_tokens, self.prefill_outlook, self._front_s = 0, 0.0, 0.0, -inf

    @property
    def output_tokens_mean(self) -> float:
        """Forecast output tokens per sequence, over the leases."""
        return self._output_tokens / max(1, self._leases)

    @property
    def ttft_s_min(self) -> float:
        """The least TTFT target in seconds; infinite without any."""
        return min(self._ttft_s) if self._ttft_s else inf

    @property
    def any_tpot(self) -> bool:
        """Whether anybody has a TPOT target."""
        return bool(self._tpot_s)

    def tpot_s_min(self, at_least_s: float = 0.0) -> float:
        """The least TPOT target in seconds that is not below ``at_least_s``; infinite without any."""
        return min((target_s for target_s in self._tpot_s if target_s >= at_least_s), default=inf)

    def unplaced(self, now_s: float) -> list[Lease]:
        """Leases not known to be placed, in the order of sending."""
        self.placed_go(now_s)
        return list(self._unplaced.values())

    def placed_go(self, now_s: float) -> None:
        """Those that are known to be placed by now are no backlog any more."""
        for lease in self._unplaced.values():
            if lease.placed:
                break
        else:  # mostly
            return
        for lease in [lease for lease in self._unplaced.values() if lease.placed]:
            self._leaves_backlog(lease, lease.placed_s if lease.placed_s > lease.sent_s else None)
            self._front_s = now_s

    def backlog_tokens(self, now_s: float, tokens_per_s: float) -> float:
        """Prefill work ahead of whoever is sent now, where the engine prefills ``tokens_per_s``."""
        self.placed_go(now_s)
        for oldest in self._unplaced.values():
            since_s = max(0.0, now_s - max(oldest.sent_s, self._front_s))
            done = min(oldest.demand.prompt_tokens - oldest.cached_tokens - 1.0, since_s * tokens_per_s)
            return self.sent_tokens - max(0.0, done)
        return 0.0


def _one_less(counts: Counter[float], target_s: float) -> None:
    counts[target_s] -= 1
    if not counts[target_s]:
        del counts[target_s]


def prefill_per_step(demand: Demand, output_tokens: float) -> float:
    """Prefill tokens per step that requests like this one bring when each is followed by the next."""
    return demand.prompt_tokens / max(1.0, output_tokens)
