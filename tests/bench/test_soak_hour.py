"""The judge of the long soak finds each fault that it is there to find, and none in a sound run; a short run holds."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.bench.load import Fate, Record
from tests.bench.soak_hour import SoakSettings, soak
from tests.bench.soak_hour_look import Look, Process
from tests.bench.soak_hour_page import report
from tests.bench.soak_hour_verdict import Soaked, failures, faults, slopes
from tests.bench.theil_sen import theil_sen

PROCESS = Process(anonymous_mb=95.0, uss_mb=100.0, pss_mb=110.0, rss_mb=120.0, fds=60, threads=6, cpu_s=1.0)


def a_look(at_s: float, *, anonymous_mb: float = 100.0, fds: int = 60, tasks: int = 50, e2e_s: float = 1.0) -> Look:
    process = Process(anonymous_mb, anonymous_mb + 5.0, anonymous_mb + 10.0, anonymous_mb + 20.0, fds, 6, 0.1 * at_s)
    return Look(at_s, process, tasks, 20, 4, 4, 100, 0.1, 0.4, e2e_s, 2.0 * e2e_s, 1.0)


def sound(of: Callable[[float], Look] = a_look) -> Soaked:
    """An hour in which all is well, but for what ``of`` makes of a moment."""
    soaked = Soaked(warm_up_s=1200.0, looks=[of(10.0 * index) for index in range(360)], quiet_before=PROCESS, quiet_after=PROCESS)
    soaked.met.records = [Record(0.0, fate=Fate.COMPLETED, status=200)]
    soaked.phases, soaked.left = {"r0": "serving"}, {"leases of r0": 0}
    return soaked


def noisy(at_s: float) -> Look:
    rng = random.Random(at_s)
    return a_look(
        at_s,
        anonymous_mb=rng.gauss(100.0, 0.3),
        fds=round(rng.gauss(60, 8)),
        tasks=round(rng.gauss(50, 8)),
        e2e_s=rng.lognormvariate(0.0, 0.2),
    )


def test_a_sound_hour_is_held() -> None:
    assert faults(sound()) == []
    assert faults(sound(noisy)) == []
    assert report(sound(noisy))[-1] == "verdict: held"


@pytest.mark.parametrize(("mb_per_hour", "held"), [(0.9, True), (1.1, False), (-5.0, True)])
def test_memory_may_grow_by_less_than_a_megabyte_an_hour(mb_per_hour: float, held: bool) -> None:
    soaked = sound(lambda at_s: a_look(at_s, anonymous_mb=100.0 + mb_per_hour * at_s / 3600.0))
    assert slopes(soaked)["anonymous, MB"].value == pytest.approx(mb_per_hour)
    assert (faults(soaked) == []) is held


def test_libraries_that_others_map_or_cease_to_map_are_no_growth() -> None:
    def look(at_s: float) -> Look:
        one = a_look(at_s)
        return replace(one, process=replace(one.process, uss_mb=100.0 + 2.7 * (at_s > 2400.0)))

    soaked = sound(look)
    assert slopes(soaked)["USS, MB"].value > 1.0
    assert faults(soaked) == []


def test_what_grows_before_the_end_of_the_warm_up_does_not_count() -> None:
    assert faults(sound(lambda at_s: a_look(at_s, anonymous_mb=50.0 + min(at_s, 1200.0) / 10.0))) == []


@pytest.mark.parametrize("what", ["fds", "tasks"])
def test_descriptors_and_tasks_may_not_rise(what: str) -> None:
    rising = sound(lambda at_s: a_look(at_s, **{what: 50 + int(at_s / 100.0)}))
    (fault,) = faults(rising)
    assert fault.endswith("grow by 36.0 an hour")


def test_what_is_left_in_the_quiet_is_a_fault() -> None:
    soaked = sound()
    soaked.left = {"leases of r0": 1}
    soaked.phases = {"r0": "ejected"}
    soaked.quiet_after = replace(PROCESS, fds=65)
    soaked.tasks_after = 5
    told = faults(soaked)
    assert told[:2] == ["left over: leases of r0 1", "r0 is ejected"]
    assert [fault.split(",")[0] for fault in told[2:]] == ["65 descriptors in the quiet", "5 tasks in the quiet"]


def test_percentiles_may_not_rise_above_the_noise() -> None:
    told = faults(sound(lambda at_s: a_look(at_s, e2e_s=1.0 + 0.1 * (at_s > 2400.0))))
    assert [fault.split(" ")[0] for fault in told] == ["e2e_p50_s", "e2e_p99_s"]


def test_only_what_a_restart_cuts_off_may_fail() -> None:
    soaked = sound()
    cut = Record(0.0, status=200, error="stream brought an error: …cut_off…")
    refused = Record(0.0, status=502, error="502: cut_off is no excuse here")
    soaked.met.records += [cut, refused]
    assert [sum(some.values()) for some in failures(soaked.met.records)] == [1, 1]
    assert faults(soaked) == ["failed 1 × 502: cut_off is no excuse here"]


def test_policies_that_are_not_taken_up_and_wrong_answers_are_faults() -> None:
    soaked = sound()
    soaked.reloads, soaked.reloads_seen = 3, 2
    soaked.met.surprises["no HTTP: status 200, not 400"] += 1
    soaked.not_deciding = "kvgate is in mode off"
    assert len(faults(soaked)) == 3


def test_a_slope_is_the_median_of_all_and_is_not_moved_by_outliers() -> None:
    line = [(float(x), 2.0 * x) for x in range(30)]
    assert theil_sen(line).value == 2.0
    thrown = [(x, 1e6 if x % 5 == 0 else y) for x, y in line]
    assert theil_sen(thrown).value == pytest.approx(2.0, rel=0.5)


def test_the_band_holds_the_true_slope_about_19_times_of_20() -> None:
    rng, inside = random.Random(5), 0
    for _ in range(200):
        slope = theil_sen([(x, 0.5 * x + rng.gauss(0.0, 1.0)) for x in range(30)])
        inside += slope.low <= 0.5 <= slope.high
    assert 180 <= inside <= 199


@pytest.mark.slow
def test_twenty_seconds_of_soak_leave_nothing_behind(tmp_path: Path) -> None:
    """Memory and times are the hour's to judge; ledger, descriptors, tasks and answers are exact at once."""
    soaked = asyncio.run(
        soak(tmp_path, SoakSettings(20.0, rate_per_s=8.0, malformed=0.2, burst_clients=20, look_s=1.0, event_s=8.0))
    )
    told = [fault for fault in faults(soaked) if not fault.startswith(("memory", "file", "tasks", "threads", "ttft", "e2e"))]
    assert told == [], "\n".join(report(soaked))
    assert soaked.restarts >= 1
    assert soaked.reloads >= 2
    assert soaked.met.wrong
