"""Metrics by tenant. Clients may choose names, so only the first ``NAMES_MAX`` of a process are shown; all later ones are ``other``."""

from collections.abc import Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric

from proxy.adapters.metric_families import labelled
from proxy.adapters.tallies import Tallies, Tally
from proxy.core.outcome import Outcome
from proxy.ports.record import RequestRecord
from proxy.ports.state import TenantState

NAMES_MAX = 100  # three counters each: what a scrape of a thousand series more costs is not felt, what a million would is
OTHER = "other"


class TenantNames:
    """Which tenants are shown by name."""

    def __init__(self) -> None:
        self._known: set[str] = set()

    def shown(self, tenant: str) -> str:
        """The label's value."""
        if tenant not in self._known:
            if len(self._known) >= NAMES_MAX:
                return OTHER
            self._known.add(tenant)
        return tenant


class TenantMetrics:
    """Counters that move as requests end, and gauges that are read when somebody asks."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._names = TenantNames()
        self._ended: dict[tuple[str, Outcome], tuple[Tally, Tally, Tally]] = {}  # looked up once: no more than names and outcomes
        self._tokens = Tallies("kvgate_tenant_tokens", "Tokens of finished requests", ("tenant",), registry)
        self._requests = Tallies("kvgate_tenant_requests", "Requests ended", ("tenant", "outcome"), registry)
        self._steps = Tallies(
            "kvgate_tenant_kv_token_steps", "Tokens of KV held times the steps they were held for", ("tenant",), registry
        )
        self._refusals = Tallies(
            "kvgate_tenant_refusals", "Requests refused for their tenant's rate or share", ("tenant", "gate"), registry
        )

    def request_finished(self, record: RequestRecord) -> None:
        """Count it."""
        tenant = self._names.shown(record.tenant)
        tokens = (record.prompt_tokens_reported or 0) + (record.output_tokens or 0)
        key = (tenant, record.outcome)
        found = self._ended.get(key)
        if found is None:
            requests = self._requests.of(tenant, record.outcome.value)
            found = self._ended[key] = requests, self._tokens.of(tenant), self._steps.of(tenant)
        requests, tokens_total, steps = found
        requests.total += 1.0
        if tokens:
            tokens_total.total += tokens
        if record.output_tokens:
            steps.total += kv_token_steps(record)
        if record.gate is not None and record.outcome.value.startswith("tenant_"):
            self._refusals.of(tenant, record.gate).total += 1.0

    def state(self, tenants: tuple[TenantState, ...]) -> Iterator[Metric]:
        """What tenants with a limit may still take, and hold. Those beyond the cap are left out: what is left does not add up."""
        left = GaugeMetricFamily(
            "kvgate_tenant_left", "Requests and tokens that the tenant may use now", labels=("tenant", "limit")
        )
        held = GaugeMetricFamily("kvgate_tenant_kv_blocks", "Forecast peak of the KV blocks it holds", labels=("tenant",))
        queued: dict[str, float] = {}
        for one in tenants:
            if one.queue_requests:
                shown = self._names.shown(one.name)
                queued[shown] = queued.get(shown, 0.0) + one.queue_requests
            if self._names.shown(one.name) != one.name:
                continue
            for kind, value in one.left:
                left.add_metric((one.name, kind), value)
            if one.kv_blocks is not None:
                held.add_metric((one.name,), one.kv_blocks)
        yield left
        yield held
        yield labelled("kvgate_tenant_queue_requests", "Its requests that wait in kvgate", "tenant", queued)


def kv_token_steps(record: RequestRecord) -> float:
    """KV token-time of a finished request: its prompt for as many steps as each sequence had output tokens, and those for half of them."""
    sequences = 1 if record.demand is None else record.demand.sequences
    prompt = (record.prompt_tokens_reported or record.prompt_tokens or 0) / sequences
    output = (record.output_tokens or 0) / sequences
    return sequences * output * (prompt + output / 2.0)
