"""A run over real sockets in virtual time is replayed as it was: who was held, and how long everybody waited."""

from dataclasses import replace
from pathlib import Path

import pytest

from proxy.sim.sim_request import SimRequest
from proxy.sim.world import Listed
from tests.bench.recorded_replay import BOUNDS, Later, off_by, replays, told
from tests.bench.recorded_run import Run, record_virtually


@pytest.mark.slow
def test_a_recorded_run_is_replayed_as_it_was(tmp_path: Path) -> None:
    was, (found,) = replays(record_virtually(tmp_path, Run(rate=4.0, seconds=20)), 1, 0.0)
    assert was["held"] > 50
    assert {name: off_by(was.get(name, 0.0), found[name]) <= bound for name, bound in BOUNDS.items()} == dict.fromkeys(
        BOUNDS, True
    )


def test_the_verdict_is_the_medians(capsys: pytest.CaptureFixture[str]) -> None:
    was = {"offered": 500.0, "shed": 100.0, "held": 400.0, "queue_wait_s_p50": 10.0, "queue_wait_s_p99": 20.0}
    near, far = was | {"shed": 105.0, "queue_wait_s_p50": 11.0}, was | {"shed": 120.0, "held": 300.0}
    assert told(was, [far, near, near])
    assert "beyond" not in capsys.readouterr().out
    assert not told(was, [near, far, far])
    assert capsys.readouterr().out.count("beyond 5%") == 2


def test_later_requests_are_the_same() -> None:
    asked = SimRequest("q", 10, 10, arrival_s=1.0)
    assert Later(Listed([asked]), 0.5).next_request(0.0) == replace(asked, arrival_s=1.5)
