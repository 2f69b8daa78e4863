"""What the gate is composed of, and what of it follows the policy while it runs (``core.gate``). Decides nothing."""

from proxy.core.degrading import Degrading
from proxy.core.events import Effect
from proxy.core.fleet import Fleet
from proxy.core.observing import Observing, among_first
from proxy.core.open_leases import OpenLeases
from proxy.core.outcome import GateCounters, Mode
from proxy.core.placement import Placement
from proxy.core.policy import Policy
from proxy.core.several import Several
from proxy.core.shedding import Shedding
from proxy.core.tenant_rates import TenantRates
from proxy.core.tenant_room import TenantRoom
from proxy.core.tenant_shares import TenantShares
from proxy.core.wait_queue import Waiting, WaitQueue


class GateParts:
    """The parts of one gate. ``mode`` may be changed while it runs."""

    def __init__(self, policy: Policy, now_s: float) -> None:
        self.policy = policy
        self.mode = policy.mode
        self.fleet = Fleet(policy, now_s)
        bounds = policy.queue
        self.queue = WaitQueue(requests_max=bounds.requests_max, tokens_max=bounds.tokens_max, bytes_max=bounds.bytes_max)
        self.placement = Placement(self.queue, self.fleet.warmth)
        self.degrading = Degrading(self.queue, self.placement)
        self.shedding = Shedding(self.queue, policy.relay.reroutes_max)
        self.counters = GateCounters()
        self.observing = Observing(self.shedding, self.counters)
        self.rates = TenantRates(policy.tenants)
        self.shares = TenantShares(policy.tenants, self.fleet, TenantRoom(self.fleet, self.queue, self.placement))
        self.leases = OpenLeases(self.fleet, self.queue, self.shares)
        self.adopt(policy)
        self.several: Several | None = None
        self._effects: list[Effect] = []

    def __repr__(self) -> str:
        return f"<Gate {self.mode} held={len(self.queue)} open={self.open_requests} {self.fleet!r}>"

    def adopt(self, policy: Policy) -> None:
        """Go by this policy from now on, but for the mode, which is the driver's to set: what is said by hand goes before it.

        Who waits or runs keeps what it came with: its class, deadline, tenant and weight are in its demand. A bound that is lower than what
        waits already takes nobody out, it only lets nobody more in. To be followed by a Tick, so that those who wait are looked at anew.
        """
        self.policy = policy
        self.fleet.adopt(policy)
        bounds = policy.queue
        self.queue.requests_max, self.queue.tokens_max, self.queue.bytes_max = (
            bounds.requests_max,
            bounds.tokens_max,
            bounds.bytes_max,
        )
        self.shedding.reroutes_max = policy.relay.reroutes_max
        self.rates.adopt(policy.tenants)
        self.shares.tenants = self.shedding.tenants = policy.tenants
        self.shares.room.adopt(policy.tenants.undisturbed_ratio)
        self.queue.takes = self._takes if policy.tenants.shared or self.shares.room.kept else None
        self.queue.class_bounds = {one.name: one.queue for one in policy.classes}

    def _takes(self, entry: Waiting) -> bool:
        return self.shares.takes(entry, self.queue.now_s)

    def forget_idle(self, now_s: float) -> None:
        """Close the accounts of tenants that would be opened again just as they are."""
        self.queue.forget_idle()
        self.rates.forget_idle(now_s)
        self.shares.room.forget(now_s)

    def share(self) -> Several:
        """From now on other proxies have the same replicas, and a store tells of them."""
        if self.several is None:
            self.several = Several(self.fleet, self.queue, self.placement.refusals, self.rates)
        return self.several

    @property
    def open_requests(self) -> int:
        """Requests that hold a lease."""
        return len(self.leases)

    def enforces(self, tenant: str) -> bool:
        """Whether requests of the tenant are held and refused where they do not fit; else they are only looked at."""
        return self.mode is Mode.ENFORCE and among_first(self.policy.enforce_ratio, tenant)

    def take_effects(self) -> list[Effect]:
        """What is still to be carried out: after a fault, that of everybody whom the fault did not concern."""
        effects, self._effects = self._effects, []
        return effects
