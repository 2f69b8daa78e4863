"""One tiny experiment goes through the whole machinery; runs are played again only where something changed; verdicts are honest."""

import json
from dataclasses import replace
from math import inf
from pathlib import Path

import pytest

from proxy.core.policy import Budget, Policy
from proxy.sim.scenario import Scenario
from tests.bench import admission, admission_runs
from tests.bench.admission_kinds import KINDS, SERIES_POINTS, simulated
from tests.bench.admission_report import figure, page
from tests.bench.admission_rows import AT_LEAST, AT_MOST, Experiment, Plan, Read, Row, Table, estimate
from tests.bench.admission_runs import Results, Task, digest, run_all

TINY = Scenario(kv_blocks=750, load=inf, requests=40)


def task(seed: int, who: str = "static:4") -> Task:
    return Task("simulated", replace(TINY, seed=seed), who)


def tiny_tables(plan: Plan, results: Results) -> list[Table]:
    read = Read(results, plan.seeds)
    ratios = read.ratios(task, lambda seed: task(seed, "static:1"), "tokens_per_s")
    return [Table("Four at a time against one", "", [Row("tokens/s", ratios, AT_LEAST, 1.5)])]


TINY_EXPERIMENT = Experiment(
    "tiny", "caps", lambda plan: [task(seed, f"static:{cap}") for seed in plan.seeds for cap in (1, 4)], tiny_tables
)


def test_an_experiment_end_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv(admission.DATA_VARIABLE, raising=False)
    monkeypatch.setattr(admission, "EXPERIMENTS", {"tiny": TINY_EXPERIMENT})
    words = [
        "--only",
        "tiny",
        "--seeds",
        "2",
        "--jobs",
        "1",
        "--no-plots",
        "--cache",
        str(tmp_path / "runs"),
        "--out",
        str(tmp_path),
    ]
    assert admission.main(words) == 0
    assert "4 runs, 0 of them played already" in capsys.readouterr().err
    first = (tmp_path / "RESULTS.md").read_text("utf-8")
    assert "| tokens/s | ≥ 1.500 |" in first
    assert "1 figures have a target: 1 reached." in first
    assert "Left out: ServeGen" in first
    kept = sorted((tmp_path / "runs").glob("*.json"))
    assert [len(path.read_text("utf-8").splitlines()) for path in kept] == [1] * 4

    assert admission.main(words) == 0
    assert "4 runs, 4 of them played already" in capsys.readouterr().err
    assert (tmp_path / "RESULTS.md").read_text("utf-8") == first


def test_a_run_that_failed_is_told_and_the_others_go_on(tmp_path: Path) -> None:
    results, said = Results(tmp_path), list[str]()
    missing = Task("simulated", replace(TINY, workload="no-such-workload"), "passthrough")
    run_all([missing, task(1)], results, jobs=1, say=said.append)
    assert [text.partition(":")[0] for text in results.failed.values()] == [missing.name]
    assert not results.knows(missing)
    assert results.knows(task(1))
    assert "FAILED" in "".join(said)
    row = Row("of what failed", Read(results, (1,)).values(lambda _: missing, "tokens_per_s"), AT_LEAST, 1.0)
    assert (row.verdict, figure(row)) == ("not measured", "–")


def test_a_run_is_known_by_all_that_can_change_it(monkeypatch: pytest.MonkeyPatch) -> None:
    pinned = Task("simulated", replace(TINY, policy=Policy(budget=Budget(z_min=2.0, z_max=2.0))), "kvgate")
    others = [
        task(2),
        task(1, "static:5"),
        pinned,
        Task("identical", TINY, "static:4"),
        Task("simulated", TINY, "static:4", (("a", 1.0),)),
    ]
    assert len({digest(each) for each in [task(1), *others]}) == len(others) + 1
    assert digest(task(1)) == digest(replace(task(1), cost=9.0))
    before = digest(task(1))
    monkeypatch.setattr(admission_runs, "sources_digest", lambda: "another core")
    assert digest(task(1)) != before


def test_a_recording_is_known_wherever_it_lies(tmp_path: Path) -> None:
    def at(folder: str, text: str) -> Task:
        path = tmp_path / folder / "trace.csv"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, "utf-8")
        return Task("simulated", replace(TINY, workload=str(path)), "kvgate")

    names = [digest(at(folder, text)) for folder, text in (("a", "same"), ("b", "same"), ("c", "longer"))]
    assert names[0] == names[1] != names[2]


def test_warm_figures_leave_the_cold_start_out() -> None:
    """A long closed loop: after 500 completions the figures are those of the rest, and the whole lies between both parts."""
    found = simulated(replace(TINY, kv_blocks=2500, requests=800), "passthrough", {"series": 1.0})
    figures = found["figures"]
    assert figures["completed"] == 800
    whole, warm = figures["preemptions"], figures["warm_preemptions_per_1000"] * 300 / 1000.0
    assert 0.0 < warm < whole
    assert warm == pytest.approx(round(warm)), "it counts preemptions"
    assert figures["warm_tokens_per_s"] == pytest.approx(figures["tokens_per_s"], rel=0.25)
    assert 100 < len(found["series"]) <= SERIES_POINTS
    assert "warm_tokens_per_s" not in simulated(replace(TINY, requests=30), "passthrough", {})["figures"]


def test_usage_after_the_cold_start_is_that_of_the_queued_time() -> None:
    found = simulated(replace(TINY, kv_blocks=2500, requests=700), "static:30", {})["figures"]
    assert found["warm_kv_usage_ratio_mean_while_queued"] == pytest.approx(found["kv_usage_ratio_mean_while_queued"], rel=0.1)


@pytest.mark.parametrize(
    ("values", "sense", "target", "verdict"),
    [
        ((1.0, 1.1, 1.2), AT_LEAST, 1.0, "reached"),
        ((0.9, 1.1, 1.2), AT_LEAST, 1.0, "reached on average"),
        ((0.8, 0.9, 1.2), AT_LEAST, 1.0, "missed on average"),
        ((0.8, 0.9, 0.95), AT_LEAST, 1.0, "not reached"),
        ((4.0, 5.0, 5.0), AT_MOST, 5.0, "reached"),
        ((4.0, 4.0, 6.0), AT_MOST, 5.0, "reached on average"),
        ((4.0, 6.0, 6.0), AT_MOST, 5.0, "missed on average"),
        ((6.0, 7.0, 6.0), AT_MOST, 5.0, "not reached"),
        ((5.0004,), AT_MOST, 5.0, "reached"),
        ((5.001,), AT_MOST, 5.0, "not reached"),
        ((), AT_MOST, 5.0, "not measured"),
        ((1.0,), "", None, ""),
    ],
)
def test_verdicts(values: tuple[float, ...], sense: str, target: float | None, verdict: str) -> None:
    assert Row("x", values, sense, target).verdict == verdict


def test_the_interval_is_that_of_the_mean_over_seeds() -> None:
    found = estimate([1.0, 2.0, 3.0, 4.0, 5.0])
    assert found is not None
    assert found.low is not None
    assert found.high is not None
    assert found.mean == 3.0
    # Standard deviation of the mean of five is sqrt(2/5) = 0.63; 1.96 of them each way.
    assert (found.low, found.high) == pytest.approx((1.8, 4.2), abs=0.11)
    alone = estimate([2.0])
    assert alone is not None
    assert (alone.mean, alone.low, alone.high) == (2.0, None, None)


def test_ratios_are_made_seed_by_seed(tmp_path: Path) -> None:
    results = Results(tmp_path)
    for seed, (above, below) in {1: (2.0, 1.0), 2: (30.0, 10.0), 3: (5.0, None)}.items():
        results.keep(task(seed), {"figures": {"x": above}})
        results.keep(task(seed, "static:1"), {"figures": {"x": below}})
    assert Read(results, (1, 2, 3)).ratios(task, lambda seed: task(seed, "static:1"), "x") == (2.0, 3.0)


def test_the_page_names_what_was_not_reached_first() -> None:
    rows = [Row("good", (1.0, 1.0), AT_LEAST, 0.9), Row("bad", (0.5, 0.5), AT_LEAST, 0.9), Row("beside", (0.1,))]
    text = page(Plan((1, 2), quick=True), [("all", [Table("T", "", rows)])], ["x"], ["y"], ["results/p.svg"])
    assert "2 figures have a target: 1 reached, 1 not reached." in text
    assert "| T: bad | not reached | ≥ 0.900 | 0.500 (0.500 … 0.500) |" in text
    assert text.index("T: bad") < text.index("| good |")
    assert "quick look" in text
    assert "- Failed: y" in text


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("data", [None, "recorded"])
def test_every_experiment_names_runs_that_can_be_played_and_reads_without_results(
    quick: bool, data: str | None, tmp_path: Path
) -> None:
    plan, results = Plan((1, 2), quick, data), Results(tmp_path)
    for one in admission.EXPERIMENTS.values():
        tasks = one.tasks(plan)
        assert tasks, one.name
        assert {each.kind for each in tasks} <= set(admission_runs.KINDS)
        rows = [row for table in one.tables(plan, results) for row in table.rows]
        assert {row.verdict for row in rows} <= {"not measured", ""}
        json.dumps([each.name for each in tasks])


@pytest.mark.parametrize(
    ("kind", "at", "who", "options", "figures"),
    [
        ("faulty", replace(TINY, kv_blocks=2500, requests=250), "passthrough", {"bypass_ratio": 0.5},
         {"preemptions_per_1000", "own_tokens_per_s", "others_goodput_ratio"}),
        ("identical", replace(TINY, load=0.5, kv_blocks=100_000), "round-robin", {}, {"apart_s_max", "unlike"}),
        ("long_prompt", replace(TINY, load=1.0, kv_blocks=2500), "oracle", {}, {"wait_s", "strict_wait_s", "later_s"}),
        ("overloaded", replace(TINY, load=None), "kvgate", {"row": "returning", "duration_s": 22.0}, {"returning not shed"}),
        ("decided", replace(TINY, replicas=2), "kvgate", {"in_flight": 40.0, "samples": 20.0}, {"arrive_held_us_p99"}),
    ],
)  # fmt: skip
def test_every_kind_tells_the_figures_that_are_read(
    kind: str, at: Scenario, who: str, options: dict[str, float | str], figures: set[str]
) -> None:
    """Those of the whole protocol, on next to nothing; routing needs recorded prompts."""
    found = KINDS[kind](at, who, options)["figures"]
    assert figures <= {name for name, value in found.items() if value is not None}
    if kind == "identical":
        assert (found["apart_s_max"], found["unlike"]) == (0.0, 0.0), "one replica, everybody let through at once"
