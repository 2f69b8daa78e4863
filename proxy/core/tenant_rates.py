"""Whether a tenant has used up its rates of requests and tokens, and when it is worth its while to come back.

Decides by one token bucket for each rate ``r`` (per second) of a tenant: it holds ``B = r * burst`` at most, is full at first, and fills at
``r``. A request asks for its prompt and the output tokens that it is expected to have (``core.charging``), and goes when that is there; one
that asks for more than ``B`` goes when the bucket is full, and leaves a debt. At its end the bucket is charged what it really used
instead. So over any ``W`` seconds, with what open requests will come to have used beyond their reservation as ``e`` (0 where forecasts
hold) and what those open at the beginning give back as ``g``,

    used by those admitted <= r * W + max(B, the largest request) + g + e

and from the beginning on ``g`` is 0. A debt is paid before anybody else goes, so no error adds up.

Told to return: who is refused learns when the bucket will have filled, after those told before it of whom a share returns
(``core.promises``); a seat is kept for it then, which newcomers do not take.

Several proxies. Each has buckets of the whole rate and charges them with what the others have used, once a beat (``core.exchange``). Until
it hears of them, ``N`` proxies may let in ``N - 1`` times more than a bucket holds: the overshoot is what the others let in within one
beat, at most ``(N - 1) * B``, once; it is a debt then, and the rate holds in the long run.

Fails: without a cap and before any answer has ended, the reservation is the forecast's guess. What goes without admission (``mode`` other
than enforce, a fault) is not counted.
"""

from dataclasses import dataclass, field
from math import inf

from proxy.core.demand import Demand
from proxy.core.outcome import Outcome, Refusal
from proxy.core.policy_tenants import TenantPolicy, Tenants
from proxy.core.promises import Promises

REQUESTS, TOKENS = "requests_per_s", "tokens_per_min"
KINDS = (REQUESTS, TOKENS)
SLACK = 1e-9  # of what is asked for: rounding must not refuse what is just there
MINUTE_S = 60.0
SWEEP_S = 5.0  # ten thousand tenants take some 10 ms


@dataclass(slots=True)
class Bucket:
    """What may be used of one rate at ``at_s``; below zero it is a debt."""

    rate_per_s: float
    size: float
    level: float
    at_s: float

    def at(self, now_s: float) -> float:
        """Fill until ``now_s``; return what is there."""
        if now_s > self.at_s:
            self.level = max(self.level, min(self.size, self.level + self.rate_per_s * (now_s - self.at_s)))
            self.at_s = now_s
        return self.level

    def missing(self, amount: float, now_s: float) -> float:
        """How much has to come before ``amount`` may go; below zero: so much is there besides."""
        return min(amount, self.size) * (1.0 - SLACK) - self.at(now_s)

    def resized(self, rate_per_s: float, size: float) -> None:
        """The policy has changed: what was used stays used."""
        self.level += size - self.size
        self.rate_per_s, self.size = rate_per_s, size


@dataclass(slots=True)
class Account:
    """A tenant's buckets, by kind, and how many of its requests hold a reservation."""

    policy: TenantPolicy
    buckets: dict[str, Bucket] = field(default_factory=dict)
    open: int = 0


@dataclass(frozen=True, slots=True)
class Reservation:
    """What a request was charged on admission, by kind."""

    tenant: str
    amounts: dict[str, float]


def rates_of(policy: TenantPolicy) -> dict[str, tuple[float, float]]:
    """By kind, the rate per second and the size of its bucket. At least one request is always in it."""
    found = {}
    if policy.requests_per_s is not None:
        found[REQUESTS] = policy.requests_per_s, max(1.0, policy.requests_per_s * policy.burst_s)
    if policy.tokens_per_min is not None:
        per_s = policy.tokens_per_min / MINUTE_S
        found[TOKENS] = per_s, max(1.0, per_s * policy.burst_s)
    return found


class TenantRates:
    """The buckets of one proxy. Tenants without a rate have none."""

    def __init__(self, tenants: Tenants) -> None:
        self.promises = {kind: Promises() for kind in KINDS}
        self.charged: dict[tuple[str, str], float] | None = None  # by kind and tenant, since last taken; None: nobody asks
        self._swept_s = 0.0
        self._tenants = tenants
        self._accounts: dict[str, Account] = {}
        self._reserved: dict[str, Reservation] = {}

    def __repr__(self) -> str:
        """Counts for people and tests."""
        return f"<TenantRates tenants={len(self._accounts)} open={len(self._reserved)}>"

    @property
    def active(self) -> bool:
        """Whether any tenant has a rate."""
        return self._tenants.rated

    def adopt(self, tenants: Tenants) -> None:
        """Go by another policy from now on: what was used stays used."""
        self._tenants = tenants
        for name in list(self._accounts):
            account, policy = self._accounts[name], tenants.policy_of(name)
            if not policy.rated:
                del self._accounts[name]
                continue
            account.policy, rates = policy, rates_of(policy)
            for kind in KINDS:
                if kind not in rates:
                    account.buckets.pop(kind, None)
                elif kind in account.buckets:
                    account.buckets[kind].resized(*rates[kind])

    def refusal(self, demand: Demand, output_tokens: float, now_s: float) -> Refusal | None:
        """Reserve what the request is expected to use, of all its sequences; or say why it may not."""
        account = self._account(demand.tenant, now_s)
        if account is None:
            return None
        amounts = {REQUESTS: 1.0, TOKENS: demand.prompt_tokens + output_tokens}
        waits_s = {kind: self._wait_s(demand, kind, bucket, amounts[kind], now_s) for kind, bucket in account.buckets.items()}
        kind = max(waits_s, key=lambda one: waits_s[one])
        if waits_s[kind] > 0.0:
            self.promises[kind].told(demand, amounts[kind], waits_s[kind], now_s)
            return self._refusal(demand, account.policy, kind, amounts[kind], waits_s[kind])
        kept = {kind: amounts[kind] for kind in account.buckets}
        for kind, amount in kept.items():
            self._charge(account, demand.tenant, kind, amount)
        account.open += 1
        self._reserved[demand.request_id] = Reservation(demand.tenant, kept)
        return None

    def _wait_s(self, demand: Demand, kind: str, bucket: Bucket, amount: float, now_s: float) -> float:
        """Until the bucket has it: whoever was told to come now waits for nobody else. Zero or less: it has."""
        missing, promises = bucket.missing(amount, now_s), self.promises[kind]
        if promises.claim(demand, now_s):
            return missing / bucket.rate_per_s
        return promises.wait_s(demand.priority, demand.tenant, missing, bucket.rate_per_s, now_s)

    def _refusal(self, demand: Demand, policy: TenantPolicy, kind: str, amount: float, wait_s: float) -> Refusal:
        rate = {REQUESTS: policy.requests_per_s, TOKENS: policy.tokens_per_min}[kind] or inf
        per = "requests per second" if kind == REQUESTS else "tokens per minute"
        message = f"The tenant {demand.tenant!r} has used up its rate of {rate:g} {per}; this request asks for {amount:.0f} more."
        return Refusal(
            Outcome.TENANT_RATE, gate=kind, message=message, measured=round(amount, 3), limit=rate, unit=per,
            policy_key=self._tenants.key_of(demand.tenant, kind), retry_after_s=wait_s,
        )  # fmt: skip

    def used_up(self, tenant: str, now_s: float) -> bool:
        """Whether nothing of the tenant can go now, however small it is."""
        account = self._accounts.get(tenant)
        return account is not None and any(bucket.missing(1.0, now_s) > 0.0 for bucket in account.buckets.values())

    def end(self, request_id: str, used_tokens: float, now_s: float, *, served: bool = True) -> None:
        """The request is over, with so many tokens in and out; not ``served``, it did not count at all. A second end is none."""
        reserved = self._reserved.pop(request_id, None)
        account = None if reserved is None else self._accounts.get(reserved.tenant)
        if reserved is None or account is None:
            return
        account.open -= 1
        used = {REQUESTS: float(served), TOKENS: used_tokens if served else 0.0}
        for kind, bucket in account.buckets.items():
            if kind in reserved.amounts:
                bucket.at(now_s)
                self._charge(account, reserved.tenant, kind, used[kind] - reserved.amounts[kind])

    def charged_elsewhere(self, kind: str, tenant: str, amount: float, now_s: float) -> None:
        """Requests of the tenant at other proxies have used so much."""
        account = self._account(tenant, now_s)
        if account is not None and kind in account.buckets:
            account.buckets[kind].at(now_s)
            self._take(account.buckets[kind], amount)

    def left(self, tenant: str, now_s: float) -> dict[str, float]:
        """What the tenant may use now, by kind."""
        account = self._accounts.get(tenant)
        return {} if account is None else {kind: bucket.at(now_s) for kind, bucket in account.buckets.items()}

    def resume(self, tenant: str, left: dict[str, float], now_s: float) -> None:
        """Go on from what the tenant had ``left``."""
        account = self._account(tenant, now_s)
        for kind, bucket in () if account is None else account.buckets.items():
            bucket.level = min(bucket.size, left.get(kind, bucket.size))

    def tenants(self) -> list[str]:
        """Those with an account."""
        return list(self._accounts)

    def forget_idle(self, now_s: float) -> None:
        """Close accounts that would be opened again just as they are; now and then, since it goes through all of them."""
        if now_s - self._swept_s < SWEEP_S:
            return
        self._swept_s = now_s
        for name, account in list(self._accounts.items()):
            if not account.open and all(bucket.at(now_s) >= bucket.size for bucket in account.buckets.values()):
                del self._accounts[name]

    def _account(self, tenant: str, now_s: float) -> Account | None:
        account = self._accounts.get(tenant)
        if account is None:
            policy = self._tenants.policy_of(tenant)
            if not policy.rated:
                return None
            account = self._accounts[tenant] = Account(policy)
        if len(account.buckets) < len(rates := rates_of(account.policy)):
            for kind, (rate_per_s, size) in rates.items():
                account.buckets.setdefault(kind, Bucket(rate_per_s, size, size, now_s))
        return account

    def _charge(self, account: Account, tenant: str, kind: str, amount: float) -> None:
        self._take(account.buckets[kind], amount)
        if self.charged is not None:
            self.charged[kind, tenant] = self.charged.get((kind, tenant), 0.0) + amount

    @staticmethod
    def _take(bucket: Bucket, amount: float) -> None:
        bucket.level = min(bucket.size, bucket.level - amount)  # what is given back to a full bucket is lost
