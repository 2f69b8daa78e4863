"""``promtool`` on the shipped configuration, the rules and their unit tests."""

import subprocess

import pytest

from tests.observability.prometheus_process import binary
from tests.observability.shipped import PROMETHEUS

pytestmark = pytest.mark.observability


def promtool(*words: str) -> str:
    """Return what it says. Raises AssertionError where it finds a fault."""
    told = subprocess.run([binary("promtool"), *words], cwd=PROMETHEUS, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stdout + told.stderr
    return told.stdout


def test_the_configuration_and_the_rules_are_valid() -> None:
    assert "is valid prometheus config" in promtool("check", "config", "prometheus.yml")
    promtool("check", "rules", "--lint=all", "--lint-fatal", "recording.rules.yml", "alerts.rules.yml")


def test_every_alert_fires_when_it_should_and_only_then() -> None:
    assert promtool("test", "rules", "alerts.test.yml", "alerts-week.test.yml").count("SUCCESS") == 2
