"""What else is promised: half of the traffic past kvgate, metrics gone, routing, a 32k prompt, an endless cache, the cost of a decision."""

from functools import partial
from pathlib import Path

from proxy.sim.scenario import KVGATE, ORACLE, Scenario
from tests.bench.admission_rows import AT_LEAST, AT_MOST, Experiment, Plan, Read, Row, Table
from tests.bench.admission_runs import Results, Task
from tests.bench.admission_saturated import BLOCKS, PASS_THROUGH, PREEMPTED, PREEMPTED_MAX, RATE

FAULT_REQUESTS = {"chat": 1500, "reasoning": 600}
HALF = (("bypass_ratio", 0.5),)
GONE = (("gone_from_s", 15.0), ("gone_until_s", 75.0))
STORM_PER_1000 = 3.0 * PREEMPTED_MAX  # what "no storm" means here; pass-through is at some hundreds
COLLAPSE_RATIO = 0.8
MOONCAKE = ("conversation", "synthetic")
MOONCAKE_RATE_FACTOR = 3.0
REPLICAS = 8
HIT_TARGET, IMBALANCE_TARGET = 0.9, 1.25
DECISION_REPLICAS, DECISION_IN_FLIGHT = 16, (1000, 4000)


def fault(plan: Plan, workload: str, options: tuple[tuple[str, float], ...], who: str, seed: int) -> Task:
    """A saturated small pool with something wrong."""
    requests = plan.requests(FAULT_REQUESTS[workload])
    at = Scenario(workload=workload, seed=seed, kv_blocks=BLOCKS["small"][workload], requests=requests)
    return Task("faulty", at, who, options, requests * (12e-3 if who == KVGATE else 1e-3))


def fault_tasks(plan: Plan) -> list[Task]:
    """Bypass against plain forwarding, gone metrics against fresh ones."""
    cases = (*((HALF, who) for who in (KVGATE, PASS_THROUGH)), (GONE, KVGATE), ((), KVGATE))
    return [fault(plan, workload, case, who, seed) for workload in FAULT_REQUESTS for case, who in cases for seed in plan.seeds]


def fault_tables(plan: Plan, results: Results) -> list[Table]:
    """Both rows, for chat and reasoning."""
    read = Read(results, plan.seeds)
    half, gone = [], []
    for workload in FAULT_REQUESTS:
        ours, plain = (partial(fault, plan, workload, HALF, who) for who in (KVGATE, PASS_THROUGH))
        half.append(Row(f"{workload}: preemptions ÷ pass-through", read.ratios(ours, plain, PREEMPTED), AT_MOST, 1.0 / 3.0))
        half.append(Row(f"{workload}, {PASS_THROUGH}: preemptions per 1,000", read.values(plain, PREEMPTED), digits=1))
        for part, name in (("own", "through kvgate"), ("others", "past it")):
            ratios = read.ratios(ours, plain, f"{part}_tokens_per_s")
            half.append(Row(f"{workload}: tokens/s of the half {name} ÷ in pass-through", ratios, AT_LEAST, COLLAPSE_RATIO))
        without, fresh = (partial(fault, plan, workload, case, KVGATE) for case in (GONE, ()))
        gone.append(Row(f"{workload}: preemptions per 1,000", read.values(without, PREEMPTED), AT_MOST, STORM_PER_1000, digits=1))
        gone.append(Row(f"{workload}: tokens/s ÷ with metrics", read.ratios(without, fresh, RATE)))
    return [
        Table(
            "Half of the traffic bypasses kvgate",
            f"Saturated. No collapse: neither half below {COLLAPSE_RATIO:g} of itself in pass-through.",
            half,
        ),
        Table(
            "Metrics gone for 60 s",
            f"Saturated, from second 15 on. A storm would be more than {STORM_PER_1000:g} per 1,000.",
            gone,
        ),
    ]


def agents(plan: Plan, who: str, seed: int) -> Task:
    """Agent sessions on eight replicas."""
    at = Scenario(workload="agent", seed=seed, kv_blocks=4000, replicas=REPLICAS, load=0.9, requests=plan.requests(400))
    return Task("simulated", at, who, (), plan.requests(400) * 13 * (8e-3 if who == KVGATE else 1e-3))


def mooncake(plan: Plan, kind: str, who: str, seed: int) -> Task:
    """Real prompts on eight replicas of 6,250 blocks of 512 tokens."""
    assert plan.data is not None
    path = str(Path(plan.data) / "traces" / f"mooncake_{kind}.jsonl.gz")
    requests = plan.requests(1000)
    at = Scenario(
        workload=path, seed=seed, kv_blocks=6250, block_size=512, replicas=REPLICAS, load=MOONCAKE_RATE_FACTOR, requests=requests
    )
    return Task("routed", at, who, (), requests * 0.03)


def routing_tasks(plan: Plan) -> list[Task]:
    """Agents; Mooncake where it is there. Seeds change only where a trace's coarse stamps fall."""
    tasks = [agents(plan, who, seed) for who in (KVGATE, PASS_THROUGH) for seed in plan.few_seeds]
    if plan.data:
        tasks += [
            mooncake(plan, kind, who, seed) for kind in MOONCAKE for who in (KVGATE, PASS_THROUGH) for seed in plan.few_seeds
        ]
    return tasks


def routing_tables(plan: Plan, results: Results) -> list[Table]:
    """Hits against the ceiling, and how even the load is."""
    read = Read(results, plan.few_seeds)
    rows = []
    for kind in MOONCAKE if plan.data else ():
        for who in (KVGATE, PASS_THROUGH):
            make = partial(mooncake, plan, kind, who)
            wanted = who == KVGATE
            hits, even = read.values(make, "hit_ratio_of_ceiling"), read.values(make, "load_imbalance")
            rows.append(
                Row(f"Mooncake {kind}, {who}: prefix hit ratio ÷ ceiling", hits, AT_LEAST, HIT_TARGET if wanted else None)
            )
            rows.append(
                Row(f"Mooncake {kind}, {who}: busiest replica ÷ mean", even, AT_MOST, IMBALANCE_TARGET if wanted else None)
            )
    for who in (KVGATE, PASS_THROUGH):
        make = partial(agents, plan, who)
        hits, even = read.values(make, "prefix_hit_ratio"), read.values(make, "load_imbalance")
        rows.append(Row(f"agent, {who}: prefix hit ratio", hits))
        rows.append(Row(f"agent, {who}: busiest replica ÷ mean", even))
        rows.append(Row(f"agent, {who}: goodput", read.values(make, "goodput_ratio")))
        limit = PREEMPTED_MAX if who == KVGATE else None
        rows.append(Row(f"agent, {who}: preemptions per 1,000", read.values(make, PREEMPTED), AT_MOST, limit, digits=1))
    rows.append(Row("agent: ceiling of the prefix hit ratio", read.values(partial(agents, plan, KVGATE), "prefix_hit_ratio_max")))
    note = (
        f"{len(plan.few_seeds)} seeds, {REPLICAS} replicas; Mooncake at {MOONCAKE_RATE_FACTOR:g}× its rate, agents at load 0.9."
    )
    return [Table("Routing", note, rows)]


def long_one(plan: Plan, who: str, seed: int) -> Task:
    """A 32k-token request among chat, in a pool of which it needs half."""
    at = Scenario(workload="chat", seed=seed, kv_blocks=4000, load=1.3, requests=plan.requests(1500))
    return Task("long_prompt", at, who, (), plan.requests(1500) * 16e-3)


def endless(plan: Plan, seed: int, *, targets: bool = False) -> Task:
    """A cache that nothing can fill. Without targets, as the default policy has none."""
    at = Scenario(workload="chat", seed=seed, kv_blocks=1_000_000, load=0.5, requests=plan.requests(1500))
    return Task("identical", at, KVGATE, (("targets", 1.0),) if targets else (), plan.requests(1500) * 16e-3)


def edge_tasks(plan: Plan) -> list[Task]:
    """The long one with lengths unknown and known; the endless cache."""
    long_ones = [long_one(plan, who, seed) for who in (KVGATE, ORACLE) for seed in plan.seeds]
    return long_ones + [endless(plan, seed, targets=targets) for targets in (False, True) for seed in plan.seeds]


def edge_tables(plan: Plan, results: Results) -> list[Table]:
    """Both."""
    read = Read(results, plan.seeds)
    rows = []
    for who, name in ((KVGATE, "lengths unknown"), (ORACLE, "lengths known")):
        make = partial(long_one, plan, who)
        rows.append(
            Row(
                f"32k-token request, {name}: starts later than under strict FIFO by",
                read.values(make, "later_s"),
                AT_MOST,
                0.0,
                "s",
                2,
            )
        )
        rows.append(Row(f"32k-token request, {name}: waits", read.values(make, "wait_s"), unit="s", digits=2))
    for targets, name in ((False, ""), (True, ", with TTFT and TPOT targets")):
        make = partial(endless, plan, targets=targets)
        apart, unlike = read.values(make, "apart_s_max"), read.values(make, "unlike")
        what = f"infinite cache{name}: first token or end furthest from pass-through"
        rows.append(Row(what, apart, AT_MOST, None if targets else 0.0, "s", 6))
        rows.append(
            Row(f"infinite cache{name}: requests with another outcome", unlike, AT_MOST, None if targets else 0.0, digits=0)
        )
    note = "Strict FIFO: the same gate where nobody may go ahead of a head that does not fit. Chat at load 1.3, 4,000 blocks, no deadlines."
    return [Table("A 32k-token request among small ones; an infinite cache", note, rows)]


def decision(plan: Plan, in_flight: int) -> Task:
    """Timed, so alone; with one seed, since nothing in it is drawn anew."""
    options = (("in_flight", float(in_flight // 10 if plan.quick else in_flight)), ("samples", 60.0 if plan.quick else 400.0))
    return Task("decided", Scenario(replicas=DECISION_REPLICAS), KVGATE, options, 60.0, alone=True)


def decision_tasks(plan: Plan) -> list[Task]:
    """Few and many in flight."""
    return [decision(plan, in_flight) for in_flight in DECISION_IN_FLIGHT]


def decision_tables(plan: Plan, results: Results) -> list[Table]:
    """Arrivals, by what becomes of them."""
    rows = []
    few, many = (decision(plan, in_flight) for in_flight in DECISION_IN_FLIGHT)

    def one(task: Task, figure: str) -> tuple[float, ...]:
        value = results.figure(task, figure)
        return () if value is None else (value,)

    for kind in ("arrive_admitted", "arrive_held", "finished", "finished_waiting"):
        for percent, target in (("p50", 50.0), ("p99", 200.0)):
            name = f"{kind.replace('_', ', ')}: {percent}"
            rows.append(Row(name, one(many, f"{kind}_us_{percent}"), AT_MOST, target, "µs", 0))
        less, more = one(few, f"{kind}_us_p50"), one(many, f"{kind}_us_p50")
        growth = tuple(after / before for before, after in zip(less, more, strict=False))
        rows.append(
            Row(f"{kind.replace('_', ', ')}: p50 ÷ that with {DECISION_IN_FLIGHT[0]:,} in flight", growth, AT_MOST, 1.2, digits=2)
        )
    note = (
        f"{DECISION_REPLICAS} replicas, {DECISION_IN_FLIGHT[1]:,} requests in flight, microseconds of this machine's CPU, measured alone; "
        "no growth: at most a fifth, which is what repetition scatters."
    )
    return [Table("Decision", note, rows)]


EXPERIMENTS = (
    Experiment("faults", "half of the traffic bypasses kvgate; metrics gone for 60 s", fault_tasks, fault_tables),
    Experiment("routing", "agent sessions and Mooncake's prompts on 8 replicas", routing_tasks, routing_tables),
    Experiment("edges", "a 32k-token request among small ones; an infinite cache", edge_tasks, edge_tables),
    Experiment("decision", "CPU of a decision with 16 replicas and 4,000 in flight", decision_tasks, decision_tables),
)
