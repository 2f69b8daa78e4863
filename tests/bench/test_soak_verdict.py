"""The judge of a soak finds each fault that it is there to find, and none in a sound run."""

from dataclasses import replace
from typing import Any

import pytest

from tests.bench.engine import EngineState
from tests.bench.load import Fate, Record
from tests.bench.soak_verdict import Comparison, EndState, OwnScrape, Soak, judge, read_comparisons

QUIET = Comparison(0.0, 100.0, 97.0, 97.0, 3, 0, 0)
PREFILLING = Comparison(1.0, 100.0, 80.0, 110.0, 3, 0, 2)
IDLE = EngineState(0, 0, 0.0, 255, 7)


def look(**fields: Any) -> dict[str, Any]:
    return {"placed_blocks": 97.0, "unplaced_blocks": 0.0, "prefilling": 0} | fields


def sound() -> Soak:
    """Return a soak in which all is well."""
    soak = Soak(start_s=0.0, elapsed_s=60.0)
    soak.records.append(Record(0.0, fate=Fate.COMPLETED, status=200))
    soak.records.append(Record(0.0, fate=Fate.SHED, status=429))
    soak.records.append(Record(0.0, fate=Fate.CANCELLED))
    for number in range(40):
        row = replace(PREFILLING if number % 4 else QUIET, at_s=float(number))
        soak.comparisons[row.at_s] = row
    soak.own.append(OwnScrape(EngineState(3, 0, 100.0, 255, 7), look(), look()))
    soak.end = EndState(IDLE, 0, 0.0)
    return soak


def add(soak: Soak, row: Comparison) -> None:
    soak.comparisons[999.0] = row


def test_a_sound_soak_is_held() -> None:
    verdict = judge(sound(), quiet_min=10)
    assert verdict.faults == ()
    assert (len(verdict.quiet), len(verdict.other), len(verdict.own)) == (10, 30, 1)


@pytest.mark.parametrize(
    ("measured", "interval", "running", "held"),
    [
        (100.0, (97.0, 97.0), 3, True),
        (100.1, (97.0, 97.0), 3, False),
        (94.0, (97.0, 97.0), 3, True),
        (93.9, (97.0, 97.0), 3, False),
        (113.0, (80.0, 110.0), 3, True),
        (113.1, (80.0, 110.0), 3, False),
        (77.0, (80.0, 110.0), 3, True),
        (76.9, (80.0, 110.0), 3, False),
    ],
)
def test_the_tolerance_is_one_block_per_running_request(
    measured: float, interval: tuple[float, float], running: int, held: bool
) -> None:
    row = Comparison(0.0, measured, *interval, running, 0, int(interval[0] != interval[1]))
    assert row.held == held
    soak = sound()
    add(soak, row)
    assert len(judge(soak, quiet_min=10).faults) == (0 if held else 1)


def test_a_quiet_ledger_cannot_hide_in_a_wide_interval() -> None:
    assert Comparison(0.0, 100.0, 97.0, 103.0, 3, 0, 0).held
    assert not Comparison(0.0, 100.0, 96.0, 103.0, 3, 0, 0).held
    assert not Comparison(0.0, 100.0, 97.0, 104.0, 3, 0, 0).held
    assert Comparison(0.0, 100.0, 10.0, 200.0, 3, 0, 1).held


def test_a_failed_request_is_a_fault() -> None:
    soak = sound()
    soak.records.append(Record(0.0, fate=Fate.FAILED, error="reset"))
    assert judge(soak, quiet_min=10).faults == ("1 requests failed",)


def test_idle_comparisons_do_not_count_towards_the_number_asked_for() -> None:
    soak = sound()
    for number in range(100):
        soak.comparisons[1000.0 + number] = Comparison(1000.0 + number, 0.0, 0.0, 0.0, 0, 0, 0)
    (fault,) = judge(soak, quiet_min=11).faults
    assert fault.startswith("only 10 ")


def test_what_is_left_at_the_end_is_a_fault() -> None:
    for end in (EndState(IDLE, 1, 0.0), EndState(IDLE, 0, 2.0), EndState(replace(IDLE, used_blocks=1.0), 0, 0.0)):
        soak = sound()
        soak.end = end
        assert len(judge(soak, quiet_min=10).faults) == 1


def test_a_measurement_that_is_not_the_engines_is_a_fault() -> None:
    soak = sound()
    soak.own.append(OwnScrape(EngineState(3, 0, 200.0, 255, 7), look(), look()))
    (fault,) = judge(soak, quiet_min=10).faults
    assert "the engine 200" in fault


def test_a_kvgate_that_only_relays_is_a_fault() -> None:
    soak = sound()
    soak.not_deciding = "kvgate is in mode observe"
    assert judge(soak, quiet_min=10).faults == ("kvgate is in mode observe",)


def test_comparisons_without_a_measurement_are_left_out() -> None:
    row = QUIET.as_json() | {"leases": 3}
    assert read_comparisons({"history": [row, row | {"measured_blocks": None}]}) == [QUIET]


def test_an_own_scrape_takes_the_widest_interval_of_both_looks() -> None:
    before = look(placed_blocks=90.0, unplaced_blocks=5.0)
    after = look(placed_blocks=92.0, unplaced_blocks=9.0, prefilling=1)
    row = OwnScrape(EngineState(3, 0, 100.0, 255, 7), before, after).comparison()
    assert (row.low_blocks, row.high_blocks, row.prefilling_leases, row.held) == (90.0, 101.0, 1, True)
