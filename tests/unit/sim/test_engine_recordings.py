"""The engine model against whole runs of the real vLLM 0.32 scheduler: every step of every random load.

``record_vllm_scheduler.py`` made the recordings; a differing digest means at least one step scheduled, preempted, held or hit
something else.
"""

import json
from pathlib import Path

import pytest

from proxy.sim.engine import Engine
from proxy.sim.engine_requests import EngineRequest, EngineSettings, SchedulingPolicy, chain_hashes
from tests.unit.sim.scheduler_scenarios import BLOCK_SIZE, SCENARIOS, Row, arrival, digest, scenario

RECORDINGS = json.loads(Path(__file__).with_name("scheduler_recordings.json").read_text(encoding="utf-8"))


def run(seed: int) -> list[Row]:
    load = scenario(seed)
    settings = load["settings"]
    engine = Engine(EngineSettings(**{**settings, "policy": SchedulingPolicy(settings["policy"])}))
    coming = list(load["requests"])
    rows: list[Row] = []
    while True:
        while coming and coming[0]["at"] <= len(rows):
            request = coming.pop(0)
            engine.add(
                EngineRequest(
                    request_id=request["id"],
                    prompt_tokens=len(request["prompt"]),
                    output_tokens_max=request["max_tokens"],
                    block_hashes=chain_hashes(request["prompt"], BLOCK_SIZE),
                    priority=request["priority"],
                    arrival=arrival(request),
                )
            )
        for request in load["requests"]:
            if request["abort"] == len(rows):
                engine.abort(request["id"])
        if not coming and not engine.unfinished:
            return rows
        report = engine.step()
        counters = engine.counters
        rows.append(
            [
                report.scheduled,
                sorted(report.preempted),
                report.running,
                report.waiting,
                report.used_blocks,
                counters.prefix_queries,
                counters.prefix_hits,
            ]
        )


@pytest.mark.parametrize("seed", range(SCENARIOS))
def test_every_step_is_the_real_schedulers(seed: int) -> None:
    assert digest(run(seed)) == RECORDINGS[seed]


def test_the_recordings_exercise_preemption() -> None:
    assert sum(recording["preemptions"] for recording in RECORDINGS) > 1000
