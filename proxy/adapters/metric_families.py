"""Families of metrics that are read when somebody asks: a shorthand to make them, and their text, a part at a time."""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric, Sample

from proxy.wire.log_text import plain

SAMPLES_AT_ONCE = 100  # of one family: a fifth of a millisecond


def labelled(name: str, text: str, label: str, values: Mapping[str, float], *, counter: bool = False) -> Metric:
    """A gauge or counter with one label."""
    family = (CounterMetricFamily if counter else GaugeMetricFamily)(name, text, labels=(label,))
    for key, value in values.items():
        family.add_metric((key,), float(value))
    return family


def unlabelled(rows: Iterable[tuple[str, str, float]], *, counter: bool = False) -> Iterator[Metric]:
    """A gauge or counter without labels of each name, text and value."""
    for name, text, value in rows:
        yield (CounterMetricFamily if counter else GaugeMetricFamily)(name, text, value=float(value))


def rendered(family: Metric) -> Iterator[bytes]:
    """The family's text in parts. Times of creation are left out: each would be a series more, and a restart shows without them.

    Its head is prometheus-client's to write. Samples are written here, in a third of the time: there are thousands of them.
    """
    samples = [sample for sample in family.samples if not sample.name.endswith("_created")]
    if not samples:
        return
    head = generate_latest(_One(Metric(family.name, family.documentation, family.type)))
    for begin in range(0, len(samples), SAMPLES_AT_ONCE):
        lines = "".join([_line(sample) for sample in samples[begin : begin + SAMPLES_AT_ONCE]])
        yield (b"" if begin else head) + lines.encode()


def _line(sample: Sample) -> str:
    """One line of the text format 0.0.4."""
    labels = ",".join([f'{name}="{_escaped(value)}"' for name, value in sorted(sample.labels.items())])
    return f"{sample.name}{{{labels}}} {float(sample.value)!r}\n" if labels else f"{sample.name} {float(sample.value)!r}\n"


@lru_cache(4096)
def _escaped(value: str) -> str:
    """The format asks for three signs; any other that ends a line for some reader, or steers a terminal, is written out besides."""
    text = value if value.isprintable() else "\n".join(map(plain, value.split("\n")))
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


class _One(CollectorRegistry):
    """What ``generate_latest`` takes: something that has families to tell, here one."""

    def __init__(self, family: Metric) -> None:
        super().__init__()
        self._family = family

    def collect(self) -> Iterator[Metric]:
        """The one."""
        yield self._family
