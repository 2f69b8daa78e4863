"""Laws of tenants' rates and shares, over random arrivals in random sizes.

A rate lets through, over any window, no more than it fills in it and its bucket holds; a ceiling holds at every moment; where no tenant has
a limit, nobody waits while there is room.
"""

from dataclasses import replace
from itertools import accumulate

from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.core.events import Arrive, Effect, Finished, Forward, Granted, Observed, ReplicaFound, Reserve
from proxy.core.gate import Gate
from proxy.core.outcome import Outcome
from proxy.core.policy import TenantPolicy, Tenants
from proxy.core.tenant_rates import TOKENS, TenantRates
from tests.support.builders import demand, engine_sample, knows_lengths, policy, scrape, spec

PER_S, BURST_S = 50.0, 8.0
BUCKET = PER_S * BURST_S
USABLE = 100
GAP_S = 1e-4  # so short that nothing is thought to have come to its end

arrivals = st.lists(
    st.tuples(st.sampled_from([0.0, 0.0, 0.1, 1.0, 5.0]), st.integers(1, 600), st.integers(0, 200), st.floats(0.0, 1.0)),
    min_size=1, max_size=40,
)  # fmt: skip


def windows_hold(times_s: list[float], charged: list[float], largest: float) -> None:
    """Net charges of every window are within what it fills, the bucket, and one larger request."""
    totals = [0.0, *accumulate(charged)]
    for start in range(len(charged)):
        for end in range(start, len(charged)):
            within = totals[end + 1] - totals[start]
            assert within <= PER_S * (times_s[end] - times_s[start]) + max(BUCKET, largest) + 1e-6


@settings(max_examples=150, deadline=None)
@given(arrivals)
def test_no_window_has_more_than_its_rate_and_the_bucket(steps: list[tuple[float, int, int, float]]) -> None:
    """Forecasts are bounds here: each request uses a part of what was reserved, and ends a while after the next ones came."""
    rates = TenantRates(Tenants(listed=(TenantPolicy("a", tokens_per_min=60.0 * PER_S, burst_s=BURST_S),)))
    now_s, times_s, charged, used = 0.0, [], [], 0.0
    open_: list[tuple[str, int, float]] = []
    largest = max(prompt + out for _, prompt, out, _ in steps)
    for index, (gap_s, prompt, out, part) in enumerate(steps):
        now_s += gap_s
        if rates.refusal(demand(f"q{index}", prompt=prompt, tenant="a"), out, now_s) is None:
            times_s.append(now_s)
            charged.append(float(prompt + out))
            open_.append((f"q{index}", prompt + out, prompt + part * out))
        if len(open_) > 2:
            name, reserved, took = open_.pop(0)
            rates.end(name, took, now_s)
            times_s.append(now_s)
            charged.append(took - reserved)
            used += took
    windows_hold(times_s, charged, float(largest))
    assert used <= PER_S * now_s + max(BUCKET, largest) + 1e-6, "from the beginning on it holds of what was used"


@settings(max_examples=100, deadline=None)
@given(arrivals)
def test_a_refused_request_would_have_exceeded_the_rate_and_is_taken_when_told(
    steps: list[tuple[float, int, int, float]],
) -> None:
    rates = TenantRates(Tenants(listed=(TenantPolicy("a", tokens_per_min=60.0 * PER_S, burst_s=BURST_S),)))
    now_s = 0.0
    for index, (gap_s, prompt, out, _) in enumerate(steps):
        now_s += gap_s
        asked = demand(f"q{index}", prompt=prompt, tenant="a")
        left = rates.left("a", now_s).get(TOKENS, BUCKET)
        refusal = rates.refusal(asked, out, now_s)
        assert (refusal is None) == (left >= min(prompt + out, BUCKET) * (1.0 - 1e-9))
        if refusal is not None:
            assert refusal.retry_after_s is not None
            now_s += refusal.retry_after_s + 1e-9
            assert rates.refusal(replace(asked, request_id=f"again{index}"), out, now_s) is None


class Pool:
    """One replica whose requests have the lengths that are known of them; it does what the gate says."""

    def __init__(self, *tenants: TenantPolicy) -> None:
        self.gate = Gate(replace(policy(), tenants=Tenants(listed=tenants)), 0.0)
        self.gate.handle(ReplicaFound(spec("r0", usable=USABLE)), 0.0)
        self.running: list[str] = []
        self.lengths: dict[str, tuple[int, int]] = {}
        self.tenant_of: dict[str, str] = {}
        self.now_s = 0.0

    def pass_on(self, effects: list[Effect]) -> None:
        """Carry out, until nothing is left to do."""
        for effect in effects:
            if isinstance(effect, Reserve):
                self.pass_on(self.gate.handle(Granted(effect.request_id), self.now_s))
            elif isinstance(effect, Forward):
                self.running.append(effect.request_id)

    def held(self, *tenants: str) -> float:
        """Most blocks that what runs of these will hold at once, from now on: all of it takes a token a step."""
        running = [self.lengths[name] for name in self.running if self.tenant_of[name] in tenants]
        steps = range(1, max((out for _, out in running), default=0) + 1)
        return max((sum(-(-(prompt + step - 1) // 16) for prompt, out in running if step <= out) for step in steps), default=0.0)

    def arrive(self, name: str, tenant: str, prompt: int, out: int) -> None:
        """One request comes, of exactly ``out`` tokens."""
        asked = demand(name, prompt=prompt, cap=out, tenant=tenant, arrived_s=self.now_s)
        knows_lengths(self.gate.fleet.model, asked, outputs=20)
        self.lengths[name], self.tenant_of[name] = (prompt, out), tenant
        self.pass_on(self.gate.handle(Observed(scrape("r0", self.now_s, engine_sample())), self.now_s))
        self.pass_on(self.gate.handle(Arrive(asked), self.now_s))

    def end(self) -> None:
        """The oldest ends."""
        if self.running:
            self.pass_on(self.gate.handle(Finished(self.running.pop(0), Outcome.COMPLETED, 1), self.now_s))


moves = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(16, 480), st.integers(1, 160), st.booleans()), min_size=1, max_size=25
)


@settings(max_examples=40, deadline=None)
@given(moves, st.sampled_from([0.1, 0.3, 0.5]))
def test_a_ceiling_is_never_exceeded_but_by_one_alone(steps: list[tuple[str, int, int, bool]], share: float) -> None:
    pool = Pool(TenantPolicy("a", kv_share_max=share))
    for index, (tenant, prompt, out, ends) in enumerate(steps):
        pool.now_s += GAP_S
        pool.arrive(f"q{index}", tenant, prompt, out)
        own = [name for name in pool.running if pool.tenant_of[name] == "a"]
        assert pool.held("a") <= share * USABLE + 1e-6 or len(own) == 1
        if ends:
            pool.end()


@settings(max_examples=40, deadline=None)
@given(moves, st.sampled_from([0.2, 0.5]))
def test_what_is_kept_for_a_tenant_stays_free(steps: list[tuple[str, int, int, bool]], share: float) -> None:
    pool = Pool(TenantPolicy("a", kv_share_min=share))
    for index, (tenant, prompt, out, ends) in enumerate(steps):
        pool.now_s += GAP_S
        before = len(pool.running)
        pool.arrive(f"q{index}", tenant, prompt, out)
        kept = max(0.0, share * USABLE - pool.held("a"))
        if len(pool.running) > max(1, before) and {pool.tenant_of[name] for name in pool.running[before:]} != {"a"}:
            assert pool.held("b", "c") <= USABLE - kept + 1e-6
        if ends:
            pool.end()


@settings(max_examples=25, deadline=None)
@given(moves)
def test_with_limits_that_bind_nobody_everything_goes_as_without(steps: list[tuple[str, int, int, bool]]) -> None:
    """Whatever the machinery is asked on the way, it holds nobody whom it need not hold."""
    plain = Pool()
    wide = Pool(TenantPolicy("z", kv_share_max=0.01), TenantPolicy("a", tokens_per_min=1e12, requests_per_s=1e6))
    for index, (tenant, prompt, out, ends) in enumerate(steps):
        for pool in (plain, wide):
            pool.now_s += GAP_S
            pool.arrive(f"q{index}", tenant, prompt, out)
            if ends:
                pool.end()
        assert plain.running == wide.running
