"""Who waits, counted by class, tenant and model: for metrics and people, so it may be taken a few requests at a time.

Decides nothing. ``peak_blocks`` of those that wait for a model is the sum of their forecast peaks; of a request that came back from a
replica that failed it, whose forecast was not made anew, it is its prompt.

Fails: taken in several goes it tells of no single moment; a request that has left since it was listed is still counted.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from proxy.core.waiting import Waiting


@dataclass(slots=True)
class Wanted:
    """What those that wait for one model ask for."""

    peak_blocks: float = 0.0
    sequences: int = 0


@dataclass(slots=True)
class QueueCensus:
    """The count so far, of requests that wait at ``now_s``."""

    now_s: float
    oldest_s_by_class: dict[str, float] = field(default_factory=dict)
    requests_by_tenant: dict[str, int] = field(default_factory=dict)
    wanted_by_model: dict[str, Wanted] = field(default_factory=dict)

    def take(self, entries: Iterable[Waiting], block_size: int) -> None:
        """Count these as well; ``block_size`` is for prompts without a forecast."""
        oldest, tenants, models, now_s = self.oldest_s_by_class, self.requests_by_tenant, self.wanted_by_model, self.now_s
        for entry in entries:
            demand = entry.demand
            age_s = now_s - demand.arrived_s
            if age_s > oldest.get(demand.traffic_class, -1.0):
                oldest[demand.traffic_class] = age_s
            tenants[demand.tenant] = tenants.get(demand.tenant, 0) + 1
            wanted = models.get(demand.length_class.model)
            if wanted is None:
                wanted = models[demand.length_class.model] = Wanted()
            wanted.peak_blocks += entry.peak_blocks or demand.prompt_tokens / block_size
            wanted.sequences += demand.sequences

    @property
    def oldest_s(self) -> float:
        """Age of the longest wait; 0 where nobody waits."""
        return max(self.oldest_s_by_class.values(), default=0.0)
