"""Families of metrics that are read when somebody asks: a shorthand to make them, and their text, a part at a time."""

from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

SAMPLES_AT_ONCE = 100  # of one family: about half a millisecond


def labelled(name: str, text: str, label: str, values: Mapping[str, float], *, counter: bool = False) -> Metric:
    """A gauge or counter with one label."""
    family = (CounterMetricFamily if counter else GaugeMetricFamily)(name, text, labels=(label,))
    for key, value in values.items():
        family.add_metric((key,), float(value))
    return family


def rendered(family: Metric) -> Iterator[bytes]:
    """The family's text in parts. Times of creation are left out: each would be a series more, and a restart shows without them."""
    samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
    for begin in range(0, len(samples), SAMPLES_AT_ONCE):
        part = Metric(family.name, family.documentation, family.type)
        part.samples = samples[begin : begin + SAMPLES_AT_ONCE]
        text = generate_latest(_One(part))
        yield text if not begin else text.split(b"\n", 2)[2]  # HELP and TYPE stand once


class _One(CollectorRegistry):
    """What ``generate_latest`` takes: something that has families to tell, here one."""

    def __init__(self, family: Metric) -> None:
        super().__init__()
        self._family = family

    def collect(self) -> Iterator[Metric]:
        """The one."""
        yield self._family
