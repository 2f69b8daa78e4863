"""``kvgate simulate``: figures, repeatability, and what is told to somebody who asks wrongly."""

import json
from collections.abc import Mapping

import pytest

from proxy.cli import main
from proxy.cli.simulate_table import bar

SMALL = ("simulate", "--requests", "40", "--kv-blocks", "400", "--jobs", "1")
KEYS = {
    "completed", "offered", "shed", "goodput_ratio", "preemptions_per_1000", "recomputed_prefill_ratio",
    "kv_usage_ratio_mean_while_queued", "tokens_per_s", "ttft_s_p50", "ttft_s_p99", "tpot_ms_p99", "jain_index", "shed_precision",
    "decision_us_p50", "decision_us_p99",
}  # fmt: skip


def figures(capsys: pytest.CaptureFixture[str], *flags: str) -> Mapping[str, Mapping[str, float]]:
    assert main([*SMALL, "--json", *flags]) == 0
    told = json.loads(capsys.readouterr().out)
    assert set(told) == {"workload", "seed", "policies"}
    policies: Mapping[str, Mapping[str, float]] = told["policies"]
    return policies


def test_every_policy_has_every_figure(capsys: pytest.CaptureFixture[str]) -> None:
    policies = figures(capsys, "--baseline", "passthrough,oracle,static:8")
    assert list(policies) == ["kvgate", "passthrough", "oracle", "static:8"]
    for found in policies.values():
        assert set(found) >= KEYS
        assert found["offered"] == 40
        assert found["completed"] + found["shed"] == 40


@pytest.mark.slow
def test_a_seed_is_a_world(capsys: pytest.CaptureFixture[str]) -> None:
    """Twice the same, but for the decision times; another seed is another world."""

    def timeless(*flags: str) -> Mapping[str, float]:
        found = figures(capsys, "--baseline", "", *flags)["kvgate"]
        return {key: value for key, value in found.items() if not key.startswith("decision_us")}

    once = timeless("--seed", "3")
    assert timeless("--seed", "3") == once
    assert timeless("--seed", "4") != once


def test_people_get_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SMALL, "--baseline", "fluid", "--load", "inf"]) == 0
    out = capsys.readouterr().out
    assert "saturated, closed loop" in out
    assert {"kvgate", "fluid"} <= {line.split()[0] for line in out.splitlines() if line}


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (("--baseline", "nonsense"), "no such baseline"),
        (("--baseline", "static"), "needs a parameter"),
        (("--workload", "nonsense"), "nonsense"),
        (("--load", "0"), "must be above 0"),
        (("--replicas", "0"), "must be a whole number above 0"),
        (("--store-delay", "5"), "with its unit"),
        (("--store-loss", "2"), "must be a probability"),
        (("--store-partition", "1:5"), "must be PROXY:START:END"),
        (("--proxy-death", "0:6:5"), "a start before an end"),
        (("--proxies", "2", "--store-partition", "2:5:6"), "must be one of --proxies 2"),
    ],
)
def test_what_is_asked_wrongly_is_told_before_anything_runs(
    flags: tuple[str, ...], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = main([*SMALL, *flags])
    except SystemExit as left:
        code = left.code
    assert code == 2
    err = capsys.readouterr().err
    assert told in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(("share", "shown"), [(0.0, " " * 4), (1.0, "█" * 4), (0.5, "██  "), (2.0, "█" * 4), (None, " " * 4)])
def test_bars_are_as_long_as_their_share(share: float | None, shown: str) -> None:
    assert bar(share, 4) == shown
