"""Rules of the doctor at their edges, on watches made by hand; the states themselves are made in tests/integration/advise."""

import pytest

from proxy.advise.diagnosis import diagnose
from proxy.advise.diagnosis_flags import FLAGS
from proxy.advise.diagnosis_text import as_json, report
from proxy.advise.finding import Finding, weigh
from proxy.advise.watch import EngineWatch, KvgateWatch, ReplicaWatch, Spread, Targets
from proxy.core.replica import ReplicaFacts
from proxy.wire.serve_command import ServeFlags, read_command


def flat(value: float) -> Spread:
    return Spread(value, value, value, value, value)


def facts(**changes: object) -> ReplicaFacts:
    known: dict[str, object] = {
        "url": "http://a", "models": ("m",), "context_tokens_max": 4096, "block_size": 16, "kv_blocks_total": 2001,
        "version": "0.32.0", "usage_metric": "vllm:kv_cache_usage_perc",
    }  # fmt: skip
    return ReplicaFacts(**(known | changes))  # type: ignore[arg-type]


def replica(url: str = "http://a", usage: float = 0.5, running: float = 4, waiting: float = 0, **changes: object) -> ReplicaWatch:
    engine = EngineWatch("0", flat(usage), flat(running), flat(waiting), 0.0, 0.0, 100.0, 100.0)
    known: dict[str, object] = {"watched_s": 10.0, "scrapes": 10, "facts": facts(), "engines": (engine,)}
    return ReplicaWatch(url, **(known | changes))  # type: ignore[arg-type]


def found(*replicas: ReplicaWatch, gates: tuple[KvgateWatch, ...] = ()) -> dict[str, Finding]:
    return {finding.case: finding for finding in diagnose(replicas, gates, Targets()).findings}


def test_confidence_is_the_share_of_signs_and_the_unseen_count_half() -> None:
    assert weigh(True, True) == 1.0
    assert weigh(True, None) == 0.75
    assert weigh(True, False, None, None) == 0.5


def test_one_full_replica_is_not_too_few_while_another_has_room() -> None:
    full = replica("http://a", 0.97, 40, 20)
    assert "too_few_replicas" in found(full, replica("http://b", 0.95, 40, 9))
    uneven = found(full, replica("http://b", 0.2, 3, 0))
    assert "too_few_replicas" not in uneven
    assert "routing_uneven" in uneven


def test_more_replicas_are_advised_instead_of_more_utilisation() -> None:
    knob = found(replica(usage=0.97, running=40, waiting=40))["too_few_replicas"].knob
    assert "about 2 instead of 1" in knob
    assert "0.98" in knob


def test_usage_of_nobody_is_stale_only_without_work_and_movement() -> None:
    idle = EngineWatch("0", flat(0.99), flat(0), flat(0), 0.0, 0.0, 0.0, 0.0)
    assert "metrics_stale" in found(replica(engines=(idle,)))
    working = EngineWatch("0", flat(0.99), flat(0), flat(0), 0.0, 0.0, 0.0, 3.0)
    assert "metrics_stale" not in found(replica(engines=(working,)))
    null_block = EngineWatch("0", flat(0.004), flat(0), flat(0), 0.0, 0.0, 0.0, 0.0)
    assert found(replica(engines=(null_block,))) == {}


@pytest.mark.parametrize(
    ("flag", "version", "says"),
    [
        ("swap-space", (0, 32), "is gone"), ("swap-space", (0, 18), "may be gone"), ("swap-space", (0, 10), None),
        ("metrics-port", (0, 32), "was never"), ("metrics-port", None, "was never"), ("watermark", (0, 20), "is not yet"),
        ("watermark", (0, 24), None), ("num-scheduler-steps", (0, 8), None), ("num-scheduler-steps", (0, 10), "is gone"),
        ("swap-space", None, "may be gone"),
    ],
)  # fmt: skip
def test_a_flag_is_judged_by_the_version(flag: str, version: tuple[int, int] | None, says: str | None) -> None:
    told = FLAGS[flag].told(flag, version)
    assert (told is None) is (says is None)
    assert says is None or says in (told or "")


def test_names_that_never_were_are_named_for_every_version() -> None:
    for version in ("0.6.6", "0.8.5", "0.10.2", "0.32.0", None):
        notes = " ".join(diagnose([replica(facts=facts(version=version))], [], Targets()).notes)
        assert "gpu_cache_usage_factor was never a metric" in notes
        assert "--metrics-port never a flag" in notes
    assert "swap" not in " ".join(diagnose([replica(facts=facts(version="0.6.6"))], [], Targets()).notes)


def test_todays_default_is_no_small_batch_and_512_is() -> None:
    assert "batched_tokens_small" not in found(replica(flags=ServeFlags(max_num_batched_tokens=2048)))
    assert "2048, 8192" in found(replica(flags=ServeFlags(max_num_batched_tokens=512)))["batched_tokens_small"].knob


def test_pushing_utilisation_is_named() -> None:
    assert "utilization_bold" in found(replica(flags=read_command(["--gpu-memory-utilization", "0.98"])))
    assert "utilization_bold" not in found(replica(flags=read_command(["--gpu-memory-utilization=0.92"])))


def test_what_kvgate_says_of_itself() -> None:
    gate = KvgateWatch(
        "http://k", 10.0, "enforce", guard_tripped=True, queued=Spread(0, 9, 0, 5, 9), refusals={"queue.wait_max": 3}, internal_errors=2,
        phases={"a": "wedged", "b": "serving"}, binding={"b": "seats"}, sample_age_s={"b": 9.0}, observed_only=("b",),
    )  # fmt: skip
    cases = found(gates=(gate,))
    assert set(cases) == {"gate_faults", "gate_wedged", "metrics_stale", "gate_observes_only", "gate_queues"}
    assert "--max-num-seqs" in cases["gate_queues"].knob
    assert found(gates=(KvgateWatch("http://k", 10.0, "enforce"),)) == {}


def test_the_report_says_the_same_as_the_json() -> None:
    watched = [replica(usage=0.97, running=40, waiting=40)]
    diagnosis = diagnose(watched, [], Targets())
    text = report(diagnosis, watched, [])
    told = as_json(diagnosis, watched, [])
    assert "1. full caches and a queue" in text
    assert [row["case"] for row in told["findings"]] == [finding.case for finding in diagnosis.findings]
    assert told["replicas"][0]["engines"][0]["kv_usage_ratio_max"] == 0.97
    healthy = [replica(usage=0.5)]
    assert "Nothing wrong was seen." in report(diagnose(healthy, [], Targets()), healthy, [])


def test_scrapes_that_fail_now_and_then_are_late_and_a_server_that_is_gone_is_no_longer_late() -> None:
    assert "metrics_late" in found(replica(scrapes=8, failures=2))
    assert "metrics_late" not in found(replica(scrapes=9, failures=1))
    gone = found(replica(scrapes=8, failures=2, fault="refused"))
    assert "metrics_late" not in gone
    assert "refused" in gone["restarts"].evidence
