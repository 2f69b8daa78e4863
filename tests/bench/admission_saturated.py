"""Saturated pools: what is preempted and what is lost against known lengths, small pools and large, and what each part of the law is worth.

Closed loops of so many clients that somebody always waits. Small pools hold about 35 sequences, large ones five times that.
"""

from functools import partial
from math import inf

from proxy.core.policy import Budget, Policy
from proxy.sim.scenario import KVGATE, ORACLE, Scenario
from tests.bench.admission_rows import AT_LEAST, AT_MOST, Experiment, Plan, Read, Row, Table
from tests.bench.admission_runs import Results, Task

PASS_THROUGH = "passthrough"
PREEMPTED, RATE, USED = "preemptions_per_1000", "tokens_per_s", "kv_usage_ratio_mean_while_queued"
PREEMPTED_MAX = 5.0
BLOCKS = {"small": {"chat": 2500, "rag": 6000, "reasoning": 4000}, "large": {"chat": 12_500, "rag": 30_000, "reasoning": 20_000}}
REQUESTS = {"small": {"chat": 3000, "rag": 2000, "reasoning": 1500}, "large": {"chat": 4000, "rag": 3000, "reasoning": 2000}}
COMPARED = (KVGATE, ORACLE, PASS_THROUGH, "threshold-own:0.9", "past-future:code")
RATE_TARGETS = {"small": {"chat": 0.985, "rag": 0.985, "reasoning": 0.90}, "large": {"chat": 0.995, "rag": 0.995}}
USED_TARGETS = {"small": {"chat": 0.92, "reasoning": 0.77}, "large": {"chat": 0.95, "reasoning": 0.88}}
FIXED_Z = (0.5, 1.0, 1.5, 2.0, 3.0)
Z_TARGET = 0.98
ABLATED = (("small", "reasoning"), ("large", "reasoning"), ("small", "chat"))
FEEDBACK_ONLY = "threshold-learned"
AGES_S = (0.5, 1.0)
SECONDS = {KVGATE: 8e-3, ORACLE: 8e-3}  # of CPU per request, roughly; the rest below
SECONDS_PLAIN = 1e-3


def scenario(plan: Plan, pool: str, workload: str, seed: int, *, age_s: float = 0.0, policy: Policy | None = None) -> Scenario:
    """A saturated pool."""
    return Scenario(
        workload=workload, seed=seed, kv_blocks=BLOCKS[pool][workload], load=inf, requests=plan.requests(REQUESTS[pool][workload]),
        metrics_age_s=age_s, policy=policy or Policy(),
    )  # fmt: skip


def run(plan: Plan, pool: str, workload: str, who: str, seed: int, *, age_s: float = 0.0) -> Task:
    """One policy there; the first seed keeps its usage over time, for the plots."""
    at = scenario(plan, pool, workload, seed, age_s=age_s)
    heavy = 3.0 if workload == "reasoning" else 1.0
    cost = plan.requests(REQUESTS[pool][workload]) * SECONDS.get(who, SECONDS_PLAIN) * heavy
    series = (("series", 1.0),) if seed == plan.seeds[0] and age_s == 0.0 else ()
    return Task("simulated", at, who, series, cost)


def fixed(plan: Plan, pool: str, workload: str, z: float, seed: int) -> Task:
    """The gate with z pinned: the forecast decides, outcomes change nothing (but for the pause after a burst)."""
    pinned = Policy(budget=Budget(z_min=z, z_max=z))
    cost = run(plan, pool, workload, KVGATE, seed).cost
    return Task("simulated", scenario(plan, pool, workload, seed, policy=pinned), KVGATE, (), cost)


def pools(plan: Plan) -> list[tuple[str, str]]:
    """Which pools; a quick look takes the small ones."""
    return [(pool, workload) for pool in (("small",) if plan.quick else BLOCKS) for workload in BLOCKS[pool]]


def seeds_of(plan: Plan, pool: str) -> tuple[int, ...]:
    """Large pools are five times the work, and scatter less."""
    return plan.seeds if pool == "small" else plan.few_seeds


def saturated_tasks(plan: Plan) -> list[Task]:
    """Everybody on every pool."""
    return [run(plan, *at, who, seed) for at in pools(plan) for who in COMPARED for seed in seeds_of(plan, at[0])]


def saturated_tables(plan: Plan, results: Results) -> list[Table]:
    """Against the targets; then everybody's figures, cold start included and without."""
    read = Read(results, plan.seeds)
    preempted, rates, used, beside, everybody = [], [], [], [], []
    for pool, workload in pools(plan):
        make = {who: partial(run, plan, pool, workload, who) for who in COMPARED}
        ours, at = make[KVGATE], f"{workload}, {pool} pool"
        preempted.append(Row(at, read.values(ours, PREEMPTED), AT_MOST, PREEMPTED_MAX, digits=1))
        preempted.append(
            Row(f"{at}, after 500 completions", read.values(ours, f"warm_{PREEMPTED}"), AT_MOST, PREEMPTED_MAX, digits=1)
        )
        preempted.append(Row(f"{at}, true lengths known", read.values(make[ORACLE], PREEMPTED), AT_MOST, 0.0, digits=1))
        target = RATE_TARGETS[pool].get(workload)
        rates.append(Row(at, read.ratios(ours, make[ORACLE], RATE), AT_LEAST, target))
        rates.append(Row(f"{at}, after 500 completions", read.ratios(ours, make[ORACLE], f"warm_{RATE}"), AT_LEAST, target))
        target = USED_TARGETS[pool].get(workload)
        used.append(Row(at, read.values(ours, USED), AT_LEAST, target))
        used.append(Row(f"{at}, after 500 completions", read.values(ours, f"warm_{USED}"), AT_LEAST, target))
        beside.append(Row(f"{at}: share of offered requests shed", read.values(ours, "shed_ratio")))
        beside.append(Row(f"{at}: share of time with a queue", read.values(ours, "queued_time_ratio")))
        for who in COMPARED[1:]:
            everybody.append(Row(f"{at}, {who}: preemptions per 1,000", read.values(make[who], PREEMPTED), digits=1))
            everybody.append(Row(f"{at}, {who}: tokens/s ÷ oracle", read.ratios(make[who], make[ORACLE], RATE)))
            if who != PASS_THROUGH:
                everybody.append(Row(f"{at}, {who}: KV usage while queued", read.values(make[who], USED)))
    return [
        Table("Preemptions per 1,000 completed, saturated", "Cold start included, unless said otherwise.", preempted),
        Table("Tokens/s ÷ oracle, saturated", "The oracle is the same gate with every true length known.", rates),
        Table("KV usage while a queue exists, saturated", "Time-weighted mean.", used + beside),
        Table("The same, of the others", "", everybody),
    ]


def ablated(plan: Plan) -> list[tuple[str, str]]:
    """Pools of the ablation."""
    return [at for at in ABLATED if at in pools(plan)]


def ablation_tasks(plan: Plan) -> list[Task]:
    """Forecast only, feedback only, both."""
    told = [fixed(plan, *at, z, seed) for at in ablated(plan) for z in FIXED_Z for seed in seeds_of(plan, at[0])]
    whole = [
        run(plan, *at, who, seed)
        for at in ablated(plan)
        for who in (KVGATE, ORACLE, FEEDBACK_ONLY)
        for seed in seeds_of(plan, at[0])
    ]
    return whole + told


def best_z(plan: Plan, read: Read, pool: str, workload: str) -> float | None:
    """The z with most tokens per second of those that keep the preemption target on the mean of all seeds; else the one with fewest."""
    found = []
    for z in FIXED_Z:
        make = partial(fixed, plan, pool, workload, z)
        preempted, rate = read.mean(make, PREEMPTED), read.mean(make, RATE)
        if preempted is not None and rate is not None:
            found.append((z, preempted, rate))
    keeping = [one for one in found if one[1] <= PREEMPTED_MAX]
    if keeping:
        return max(keeping, key=lambda one: one[2])[0]
    return min(found, key=lambda one: one[1])[0] if found else None


def ablation_tables(plan: Plan, results: Results) -> list[Table]:
    """Against the best fixed z in hindsight, and every part alone."""
    read = Read(results, plan.seeds)
    against, parts = [], []
    for pool, workload in ablated(plan):
        at = f"{workload}, {pool} pool"
        both, oracle = (partial(run, plan, pool, workload, who) for who in (KVGATE, ORACLE))
        best = best_z(plan, read, pool, workload)
        if best is not None:
            ratios = read.ratios(both, partial(fixed, plan, pool, workload, best), RATE)
            target = Z_TARGET if workload == "reasoning" else None
            against.append(Row(f"{at}: tokens/s ÷ fixed z = {best:g}, the best", ratios, AT_LEAST, target))
        named = [("both (kvgate)", both), ("feedback only", partial(run, plan, pool, workload, FEEDBACK_ONLY))]
        named += [(f"forecast only, z = {z:g}", partial(fixed, plan, pool, workload, z)) for z in FIXED_Z]
        for name, make in named:
            parts.append(Row(f"{at}, {name}: preemptions per 1,000", read.values(make, PREEMPTED), digits=1))
            parts.append(Row(f"{at}, {name}: tokens/s ÷ oracle", read.ratios(make, oracle, RATE)))
    note = (
        "*Forecast only* is the gate with z pinned: no outcome moves it, only a burst still pauses admission. *Feedback only* has no "
        "forecast: `threshold-learned`, a threshold on scraped usage plus own unplaced prompts whose level follows preemptions by an "
        "integral law like the gate's. Best in hindsight: most tokens/s of those z that keep 5 preemptions per 1,000 on the mean of "
        "all seeds, or the fewest preemptions where none does."
    )
    return [Table("Against the best fixed z in hindsight", "", against), Table("Ablation", note, parts)]


def age_tasks(plan: Plan) -> list[Task]:
    """Old metrics."""
    return [
        run(plan, "small", workload, KVGATE, seed, age_s=age_s)
        for workload in BLOCKS["small"]
        for age_s in (0.0, *AGES_S)
        for seed in plan.seeds
    ]


def age_tables(plan: Plan, results: Results) -> list[Table]:
    """Preemptions by age."""
    read = Read(results, plan.seeds)
    rows = []
    for workload in BLOCKS["small"]:
        fresh = partial(run, plan, "small", workload, KVGATE)
        for age_s in (0.0, *AGES_S):
            make = partial(run, plan, "small", workload, KVGATE, age_s=age_s)
            at = f"{workload}, metrics {age_s:g} s old"
            rows.append(Row(f"{at}: preemptions per 1,000", read.values(make, PREEMPTED), AT_MOST, PREEMPTED_MAX, digits=1))
            if age_s:
                rows.append(Row(f"{at}: tokens/s ÷ with fresh ones", read.ratios(make, fresh, RATE)))
    return [
        Table(
            "Old metrics, saturated small pools",
            "Age is from the moment of the scrape to its arrival; a scrape every 0.5 s.",
            rows,
        )
    ]


EXPERIMENTS = (
    Experiment("saturated", "preemptions, tokens/s and KV usage on small and large pools", saturated_tasks, saturated_tables),
    Experiment("ablation", "forecast only, feedback only, both; the best fixed z", ablation_tasks, ablation_tables),
    Experiment("ages", "metrics 0, 0.5 and 1 s old", age_tasks, age_tables),
)
