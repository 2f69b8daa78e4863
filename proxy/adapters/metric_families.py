"""Shorthand for families of metrics that are read when somebody asks."""

from collections.abc import Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric


def labelled(name: str, text: str, label: str, values: Mapping[str, float], *, counter: bool = False) -> Metric:
    """A gauge or counter with one label."""
    family = (CounterMetricFamily if counter else GaugeMetricFamily)(name, text, labels=(label,))
    for key, value in values.items():
        family.add_metric((key,), float(value))
    return family
