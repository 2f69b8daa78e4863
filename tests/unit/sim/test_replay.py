"""A recording played again: the policy's own rules by the class's name, the recorded engines, and both sets of figures."""

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import pytest

from proxy.core.learned import Learned, learned_of
from proxy.core.policy import Policy, TrafficClass
from proxy.core.policy import Queue as QueuePolicy
from proxy.sim.admission import GateAdmission
from proxy.sim.replay import Replayed, engines_of, recorded_figures, scrapes_of, step_time_of, world_of
from proxy.sim.scenario import KVGATE, Scenario, build, play
from proxy.sim.sim_request import SimRequest, SimResult
from proxy.sim.step_time import StepTimeModel
from proxy.sim.workloads import TraceError, load_workload
from proxy.sim.workloads.recording import Recording, recording_head
from proxy.sim.world import Listed, World

ENGINE = {"name": "a", "usable_blocks": 100, "block_size": 16, "context_tokens": 2048}
HEAD = {"recording": 1, "version": "0.1", "mode": "enforce", "engines": [ENGINE]}
END = {"recording_end": 1, "requests": 2, "engines": [ENGINE | {"preemptions": 3, "step": [0.02, 1e-5, 2e-5, 3e-8]}]}
ROW = {"arrival_s": 0.0, "prompt_tokens": 160, "output_tokens": 20, "finish_reason": "stop", "outcome": "completed"}


def write(path: Path, *lines: dict[str, Any]) -> Path:
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines), "utf-8")
    return path


def recording(path: Path) -> Recording:
    found = load_workload(path, 1)
    assert isinstance(found, Recording)
    return found


def seen(policy: Policy, **fields: Any) -> SimRequest:
    request = Replayed(Listed([SimRequest("q", 10, 10, **fields)]), policy).next_request(0.0)
    assert request is not None
    return request


POLICY = Policy(
    classes=(TrafficClass("chat", priority=5, ttft_s=1.0, deadline_s=8.0), TrafficClass("rest", tpot_s=0.1)),
    queue=QueuePolicy(wait_s_max=20.0),
)


def test_the_policys_rules_are_taken_by_the_classs_name() -> None:
    chat, other = seen(POLICY, traffic_class="chat"), seen(POLICY, traffic_class="gone")
    assert (chat.priority, chat.ttft_s, chat.tpot_s, chat.wait_s_max) == (5, 1.0, None, 8.0)
    assert (other.priority, other.ttft_s, other.tpot_s, other.wait_s_max) == (0, None, 0.1, 20.0)


def test_a_clients_own_patience_stays() -> None:
    assert seen(POLICY, traffic_class="chat", wait_s_max=2.0).wait_s_max == 2.0
    assert seen(POLICY, traffic_class="chat", wait_s_max=9.0).wait_s_max == 8.0


def test_the_engines_are_those_last_told_with_their_learned_steps(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", HEAD, ROW, END)
    found = recording_head(path)
    assert found is not None
    assert world_of(*found) == {
        "replicas": 1, "kv_blocks": 100, "block_size": 16, "context_tokens": 2048, "sequences_max": None,
        "step_time": StepTimeModel(0.02, 1e-5, 2e-5, 3e-8),
    }  # fmt: skip
    cut_off = recording_head(write(tmp_path / "c.jsonl", HEAD, ROW))
    assert cut_off is not None
    assert cut_off[1] is None
    assert step_time_of(engines_of(*cut_off)) == StepTimeModel()
    assert recording_head(write(tmp_path / "other.jsonl", ROW)) is None


def test_engines_that_cannot_be_simulated_are_told(tmp_path: Path) -> None:
    for engines, word in (([], "no engine"), ([ENGINE, ENGINE | {"usable_blocks": 200}], "several sizes")):
        found = recording_head(write(tmp_path / "r.jsonl", HEAD | {"engines": engines}, ROW))
        assert found is not None
        with pytest.raises(TraceError, match=word):
            engines_of(*found)


def test_scrapes_come_when_they_came(tmp_path: Path) -> None:
    """In step with the recording, at the pace that their answers left; without, or by another rule, after one interval each."""

    def scrapes(begun: dict[str, Any], ended: dict[str, Any], interval_s: float = 0.5) -> Any:
        head, end = HEAD | {"engines": [ENGINE | begun]}, END | {"engines": [ENGINE | ended]}
        return scrapes_of(recording(write(tmp_path / "s.jsonl", head, ROW, end)), 1, interval_s, zero_s=10.1)

    begun, ended = {"scraped_s": -0.2, "scrapes": 7}, {"scraped_s": 50.3, "scrapes": 107}
    period_s, (first_s,) = scrapes(begun, ended)
    assert period_s == pytest.approx(0.505)
    assert (9.9 - first_s) / period_s == pytest.approx(round((9.9 - first_s) / period_s)), "one of them comes as long before"
    assert 0.0 < first_s <= period_s
    assert scrapes(begun, ended, 1.0)[0] == 1.0, "a policy that measures less often"
    assert scrapes(begun, ended | {"scrapes": 7}) == (0.5, (pytest.approx(0.4),))
    assert scrapes({}, ended) == (0.5, ())
    assert scrapes_of(recording(write(tmp_path / "s.jsonl", HEAD | {"engines": [ENGINE | begun]}, ROW)), 2, 0.5, 0.0) == (0.5, ())
    cut_off = recording(write(tmp_path / "s.jsonl", HEAD | {"engines": [ENGINE | begun]}, ROW))
    assert scrapes_of(cut_off, 1, 0.5, 10.1) == (0.5, (pytest.approx(0.4),))


def test_a_replay_measures_as_was_measured(tmp_path: Path) -> None:
    """The world of a recording has its scrapes, and shows a step when it is done."""
    head = HEAD | {"engines": [ENGINE | {"scraped_s": -0.1}]}
    path = write(tmp_path / "r.jsonl", head, ROW | {"arrival_s": 0.2}, ROW | {"arrival_s": 5.0}, END)
    settings = Scenario(workload=str(path), **world_of(*recording_head(path) or ())).settings()
    assert settings.scrapes_first_s == (pytest.approx(0.45),), "1.25 - 0.3, less one interval"
    assert settings.shown_after_step
    assert not Scenario().settings().shown_after_step


def test_a_line_that_is_none_is_told_by_its_number(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"r\.jsonl:3: "):
        load_workload(write(tmp_path / "r.jsonl", HEAD, ROW, ROW | {"content": "x"}), 1)
    with pytest.raises(TraceError, match=r"r\.jsonl:1: "):
        load_workload(write(tmp_path / "r.jsonl", HEAD | {"engines": 7}, ROW), 1)


def test_who_was_refused_is_played_with_a_length_of_the_same_class(tmp_path: Path) -> None:
    shed = ROW | {"output_tokens": 0, "finish_reason": "shed", "outcome": "queue_timeout"}
    rows = [ROW, ROW | {"output_tokens": 700, "traffic_class": "long"}, *[shed] * 5, *[shed | {"traffic_class": "long"}] * 5]
    first, second = (recording(write(tmp_path / "r.jsonl", HEAD, *rows)).requests for _ in range(2))
    assert [one.output_tokens for one in first] == [20, 700, *[20] * 5, *[700] * 5]
    assert first == second
    alone = recording(write(tmp_path / "a.jsonl", HEAD, shed)).requests
    assert alone[0].output_tokens == 1, "nothing is known of its class"


def test_of_several_sequences_one_is_played(tmp_path: Path) -> None:
    (one,) = recording(
        write(tmp_path / "r.jsonl", HEAD, ROW | {"copies": 4, "output_tokens": 82, "output_tokens_max": 30})
    ).requests
    assert (one.output_tokens, one.output_tokens_max) == (21, 30)


def test_what_was_is_told_in_the_same_figures(tmp_path: Path) -> None:
    rows = [
        ROW | {"ttft_seen_s": 0.5, "queue_wait_s": 0.001, "total_s": 1.0},
        ROW | {"arrival_s": 1.0, "held": True, "queue_wait_s": 4.0, "ttft_seen_s": 4.5, "total_s": 5.0},
        ROW | {"arrival_s": 2.0, "held": True, "outcome": "queue_timeout", "finish_reason": "shed", "output_tokens": 0},
        ROW | {"arrival_s": 3.0, "outcome": "cancelled", "finish_reason": "abort", "output_tokens": 3},
    ]
    figures = recorded_figures(recording(write(tmp_path / "r.jsonl", HEAD, *rows, END)))
    assert (figures.offered, figures.completed, figures.shed, figures.preemptions) == (4, 2, 1, 3)
    assert figures.extra == {"held": 2.0, "queue_wait_s_p50": 4.0, "queue_wait_s_p99": 4.0}
    assert figures.ttft_s_p50 == 2.5


def written(result: SimResult) -> dict[str, Any]:
    """What a proxy would have recorded of it."""
    request, waited_s = result.request, None if result.forwarded_s is None else result.forwarded_s - result.arrived_s
    known = {"output_tokens_max": request.output_tokens_max, "queue_wait_s": waited_s}
    total_s = (result.end_s or result.arrived_s) - result.arrived_s
    return {
        "arrival_s": result.arrived_s, "prompt_tokens": request.prompt_tokens, "output_tokens": result.output_tokens,
        "finish_reason": "shed" if waited_s is None else "stop", "outcome": result.outcome,
        "held": (total_s if waited_s is None else waited_s) > 0.0, "total_s": total_s,
        **{name: value for name, value in known.items() if value is not None},
    }  # fmt: skip


def begun_at(begin_s: float, rules: Policy, path: Path) -> tuple[Path, Path]:
    """A run recorded from ``begin_s`` on, as a proxy that was there records it; and the same without what was before."""
    engine = {"engines": [ENGINE | {"usable_blocks": 600, "context_tokens": 4096, "sequences_max": 256}]}
    asked = list(islice(load_workload("chat", 1).arrivals(4.0), 500))
    scenario = Scenario(kv_blocks=600, sequences_max=256, context_tokens=4096, policy=rules)
    admission = GateAdmission(rules)
    world = World(replace(scenario.settings(), shown_after_step=True), admission, Replayed(Listed(asked), rules))
    told: list[Learned] = []
    world.at(begin_s, lambda: told.append(learned_of(admission.gate, ["r0"], str, begin_s)))
    results = world.run().results.values()
    rows = [written(one) | {"arrival_s": one.arrived_s - begin_s} for one in results if (one.end_s or 0.0) >= begin_s]
    head = HEAD | engine | {"learned": msgspec.to_builtins(told[0])}
    return (
        write(path / "warm.jsonl", head, *rows),
        write(path / "cold.jsonl", HEAD | engine, *[row for row in rows if row["arrival_s"] >= 0.0]),
    )


@pytest.mark.slow
def test_a_recording_that_begins_in_the_middle_is_replayed_from_there(tmp_path: Path) -> None:
    """Counts and waits as they were, where a replay that begins with nothing is far off."""
    rules = Policy(queue=QueuePolicy(wait_s_max=15.0))
    off = []
    for path in begun_at(60.0, rules, tmp_path):
        scenario = Scenario(workload=str(path), policy=rules, **world_of(*recording_head(path) or ()))
        was, again = recorded_figures(recording(path)), play(scenario, KVGATE)
        assert (again.offered, was.shed or 0) > (150, 50)
        names = ("held", "queue_wait_s_p50", "queue_wait_s_p99")
        pairs = [(was.shed or 0, again.shed or 0), *((was.extra[name], again.extra[name]) for name in names)]
        off.append([abs(there / here - 1.0) for here, there in pairs])
    warm, cold = off
    assert max(warm[:2]) <= 0.05
    assert max(warm[2:]) <= 0.10
    assert max(cold) > 0.05


def test_a_run_written_down_is_the_same_run_again(tmp_path: Path) -> None:
    """Of what decides nothing is lost in the file: under the same policy everybody waits as long, and the same are refused."""
    rules = Policy(queue=QueuePolicy(wait_s_max=1000.0, requests_max=12))
    engine = {"engines": [ENGINE | {"usable_blocks": 600, "context_tokens": 4096, "sequences_max": 256}]}
    asked = [SimResult(one, one.arrival_s, output_tokens=one.output_tokens, forwarded_s=one.arrival_s)
             for one in islice(load_workload("chat", 1).arrivals(6.0), 150)]  # fmt: skip
    path = write(tmp_path / "asked.jsonl", HEAD | engine, *map(written, asked))
    scenario = Scenario(workload=str(path), policy=rules, **world_of(*recording_head(path) or ()))
    world = build(scenario, KVGATE).run()
    path = write(tmp_path / "was.jsonl", HEAD | engine, *map(written, world.results.values()))
    was, again = recorded_figures(recording(path)), play(replace(scenario, workload=str(path)), KVGATE)
    assert was.shed
    assert was.extra["held"] > 50
    assert (again.offered, again.shed, again.extra) == (was.offered, was.shed, pytest.approx(was.extra))
