"""Goodput over load, in shifts and surges, against the best static cap and the best thresholds in hindsight; overload and fairness.

In hindsight: every cap and threshold of a grid is played on all seeds, and the one with the highest mean goodput of all is the rival,
chosen on the very requests it is then compared on. Nobody could have set it beforehand.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

from proxy.sim.scenario import KVGATE, Scenario
from tests.bench.admission_rows import AT_LEAST, AT_MOST, Experiment, Make, Plan, Read, Row, Table
from tests.bench.admission_runs import Results, Task
from tests.bench.admission_saturated import BLOCKS, PASS_THROUGH, PREEMPTED, PREEMPTED_MAX
from tests.bench.hindsight import CAP_SHARES, THRESHOLDS

GOOD = "goodput_ratio"
LOADS = (0.5, 0.8, 1.0, 1.3, 2.0, 4.0)
OTHER_LOAD = 1.3  # of the workloads that are not played at every load
ARRIVALS_S = {"chat": 150.0, "rag": 150.0, "reasoning": 900.0}  # several answers long
COURSES = ("shift", "surge")
COURSE_CAPS, COURSE_THRESHOLDS = (0.7, 0.85, 1.0, 1.2, 1.5), (0.7, 0.8, 0.9, 1.0)
STATIONARY_TARGET, COURSE_TARGET, OVERLOAD_TARGET = 0.98, 1.25, 0.95
OVERLOAD_S, SHED_SAMPLE = 120.0, 5
SERVEGEN, SERVEGEN_S = "traces/servegen/m-large.day1.json.xz", 300.0  # its tenants seldom all wait: windows take time
JAIN_TARGET = 0.95


def stationary(plan: Plan, workload: str, load: float, who: str, seed: int) -> Task:
    """An open loop at a load."""
    at = Scenario(workload=workload, seed=seed, kv_blocks=BLOCKS["small"][workload], load=load)
    requests = plan.requests(round(at.rate_per_s * ARRIVALS_S[workload]))
    whole = Scenario(workload=workload, seed=seed, kv_blocks=at.kv_blocks, load=load, requests=requests)
    return Task("simulated", whole, who, (), requests * (6e-3 if who == KVGATE else 0.6e-3))


def course(plan: Plan, workload: str, who: str, seed: int) -> Task:
    """A shift or surge as ``kvgate simulate`` plays it: its own length and load."""
    at = Scenario(workload=workload, seed=seed, kv_blocks=BLOCKS["small"]["chat"], requests=300 if plan.quick else None)
    return Task("simulated", at, who, (), at.requests_expected * (6e-3 if who == KVGATE else 0.6e-3))


def rivals(at: Scenario, caps: Sequence[float], thresholds: Sequence[float]) -> list[str]:
    """What an operator could have set."""
    sequences = at.fluid.sequences
    names = [f"static:{max(1, round(share * sequences))}" for share in caps]
    return names + [f"{family}:{level:g}" for family in ("threshold", "threshold-own") for level in thresholds]


def stationary_rivals(plan: Plan, workload: str) -> list[str]:
    """The grid of ``hindsight``; two of each for a quick look."""
    at = stationary(plan, workload, 1.0, KVGATE, 1).scenario
    return rivals(at, (1.0, 1.5), (0.8, 1.0)) if plan.quick else rivals(at, CAP_SHARES, THRESHOLDS)


def course_rivals(plan: Plan, workload: str) -> list[str]:
    """A coarser grid: these runs are long."""
    at = course(plan, workload, KVGATE, 1).scenario
    return rivals(at, (1.0,), (0.9,)) if plan.quick else rivals(at, COURSE_CAPS, COURSE_THRESHOLDS)


def stations(plan: Plan) -> list[tuple[str, float]]:
    """Workload and load."""
    loads = (1.0, 2.0) if plan.quick else LOADS
    return [("chat", load) for load in loads] + ([] if plan.quick else [("rag", OTHER_LOAD), ("reasoning", OTHER_LOAD)])


def goodput_tasks(plan: Plan) -> list[Task]:
    """Everybody at every load."""
    return [
        stationary(plan, workload, load, who, seed)
        for workload, load in stations(plan)
        for who in (KVGATE, PASS_THROUGH, *stationary_rivals(plan, workload))
        for seed in plan.seeds
    ]


def best(read: Read, make: Mapping[str, Make]) -> str | None:
    """The rival with the highest mean goodput."""
    found = {name: mean for name, each in make.items() if (mean := read.mean(each, GOOD)) is not None}
    return max(found, key=lambda name: found[name]) if found else None


def goodput_tables(plan: Plan, results: Results) -> list[Table]:
    """Against the best at each load, and the curves."""
    read = Read(results, plan.seeds)
    against, curves = [], []
    for workload, load in stations(plan):
        at = f"{workload}, load {load:g}"
        ours = partial(stationary, plan, workload, load, KVGATE)
        make = {who: partial(stationary, plan, workload, load, who) for who in stationary_rivals(plan, workload)}
        rival = best(read, make)
        if rival is not None:
            against.append(
                Row(f"{at}: goodput ÷ {rival}, the best", read.ratios(ours, make[rival], GOOD), AT_LEAST, STATIONARY_TARGET)
            )
            curves.append(Row(f"{at}, {rival}: goodput", read.values(make[rival], GOOD)))
        curves.append(Row(f"{at}, kvgate: goodput", read.values(ours, GOOD)))
        plain = partial(stationary, plan, workload, load, PASS_THROUGH)
        curves.append(Row(f"{at}, {PASS_THROUGH}: goodput", read.values(plain, GOOD)))
        against.append(Row(f"{at}: preemptions per 1,000", read.values(ours, PREEMPTED), AT_MOST, PREEMPTED_MAX, digits=1))
    note = "Goodput: first token within 10 s of arrival and at most 50 ms per further token, over all offered. Load 1 is the fluid bound."
    return [
        Table("Goodput ÷ best static cap or threshold in hindsight, stationary", note, against),
        Table("Goodput over load", "", curves),
    ]


def course_tasks(plan: Plan) -> list[Task]:
    """Shifts and surges."""
    return [
        course(plan, workload, who, seed)
        for workload in COURSES
        for who in (KVGATE, PASS_THROUGH, *course_rivals(plan, workload))
        for seed in plan.few_seeds
    ]


def course_tables(plan: Plan, results: Results) -> list[Table]:
    """Against the best there is for the whole course."""
    read = Read(results, plan.few_seeds)
    rows = []
    for workload in COURSES:
        ours, plain = (partial(course, plan, workload, who) for who in (KVGATE, PASS_THROUGH))
        make = {who: partial(course, plan, workload, who) for who in course_rivals(plan, workload)}
        rival = best(read, make)
        if rival is not None:
            rows.append(
                Row(f"{workload}: goodput ÷ {rival}, the best", read.ratios(ours, make[rival], GOOD), AT_LEAST, COURSE_TARGET)
            )
            rows.append(Row(f"{workload}, {rival}: goodput", read.values(make[rival], GOOD)))
            rows.append(Row(f"{workload}, {rival}: preemptions per 1,000", read.values(make[rival], PREEMPTED), digits=1))
        rows.append(Row(f"{workload}, kvgate: goodput", read.values(ours, GOOD)))
        rows.append(Row(f"{workload}, {PASS_THROUGH}: goodput", read.values(plain, GOOD)))
        rows.append(Row(f"{workload}: preemptions per 1,000", read.values(ours, PREEMPTED), AT_MOST, PREEMPTED_MAX, digits=1))
    note = f"Pool of {BLOCKS['small']['chat']} blocks. At most {len(plan.few_seeds)} seeds: these are hours of traffic."
    return [Table("Goodput ÷ best in hindsight, shift and surge", note, rows)]


def overload(
    plan: Plan, row: str, seed: int, *, load: float = 0.0, workload: str = "chat", duration_s: float = OVERLOAD_S
) -> Task:
    """A row of ``tests.bench.overload``."""
    duration_s = 40.0 if plan.quick else duration_s
    options: tuple[tuple[str, float | str], ...] = (("row", row), ("duration_s", duration_s))
    if row == "shed":
        options += (("load", load), ("sample", 1 if plan.quick else SHED_SAMPLE))
    at = Scenario(workload=workload, seed=seed, kv_blocks=BLOCKS["small"]["chat"])
    return Task("overloaded", at, KVGATE, options, duration_s * {"goodput": 0.4, "shed": 0.2 * SHED_SAMPLE}.get(row, 0.3))


def overload_tasks(plan: Plan) -> list[Task]:
    """Too much for all."""
    rows = [overload(plan, row, seed) for row in ("goodput", "returning") for seed in plan.seeds]
    return rows + [overload(plan, "shed", seed, load=load) for load in (2.0, 4.0) for seed in plan.seeds]


def overload_tables(plan: Plan, results: Results) -> list[Table]:
    """Every row with its target."""
    read = Read(results, plan.seeds)
    goodput, returning = (partial(overload, plan, row) for row in ("goodput", "returning"))
    rows = [
        Row(
            f"good answers/s at {load}× capacity ÷ at capacity",
            read.values(goodput, f"goodput {load}x"),
            AT_LEAST,
            OVERLOAD_TARGET,
        )
        for load in (2, 4)
    ]
    for load in (2, 4):
        make = partial(overload, plan, "shed", load=float(load))
        rows += [
            Row(f"shed precision at {load}×", read.values(make, f"precision {load}x"), AT_LEAST, 0.9),
            Row(f"shed recall at {load}×", read.values(make, f"recall {load}x"), AT_LEAST, 0.8),
            Row(f"median time to shed ÷ deadline at {load}×", read.values(make, f"time to shed {load}x"), AT_MOST, 0.1),
        ]
    rows.append(
        Row("returning within 1 s of Retry-After, not shed again", read.values(returning, "returning not shed"), AT_LEAST, 0.9)
    )
    note = f"`tests/bench/overload.py` on chat, 2,500 blocks. {SHED_SAMPLE} refused requests judged per load and seed, one replay each."
    return [Table("Overload", note, rows)]


def fairness_tasks(plan: Plan) -> list[Task]:
    """Tenants."""
    loud = [overload(plan, "loud", seed) for seed in plan.seeds]
    return loud + ([servegen(plan, seed) for seed in plan.seeds] if plan.data else [])


def servegen(plan: Plan, seed: int) -> Task:
    """Real tenants."""
    assert plan.data is not None
    return overload(plan, "servegen", seed, workload=str(Path(plan.data) / SERVEGEN), duration_s=SERVEGEN_S)


def fairness_tables(plan: Plan, results: Results) -> list[Table]:
    """Jain's index and the others' waits."""
    read = Read(results, plan.seeds)
    loud = partial(overload, plan, "loud")
    rows = [
        Row("others' p99 TTFT, one tenant at 10× its share ÷ without", read.values(loud, "others' TTFT p99 ratio"), AT_MOST, 1.2),
        Row("others shed meanwhile, share", read.values(loud, "others shed")),
        Row(
            "Jain index of 8 equal tenants, one at 10×, all backlogged",
            read.values(loud, "jain, all backlogged"),
            AT_LEAST,
            JAIN_TARGET,
        ),
    ]
    if plan.data:
        rows.append(
            Row(
                "Jain index of backlogged tenants, ServeGen at 4×",
                read.values(partial(servegen, plan), "jain, ServeGen 4x"),
                AT_LEAST,
                JAIN_TARGET,
            )
        )
    return [Table("Fairness", "`proxy/sim/fairness.py` defines the index.", rows)]


EXPERIMENTS = (
    Experiment(
        "goodput", "goodput over load against static caps and thresholds tuned in hindsight", goodput_tasks, goodput_tables
    ),
    Experiment("courses", "shift and surge against the best in hindsight", course_tasks, course_tables),
    Experiment("overload", "goodput at 2× and 4×, refusals and returns", overload_tasks, overload_tables),
    Experiment("fairness", "a tenant at 10× its share; ServeGen's tenants", fairness_tasks, fairness_tables),
)
