"""The recorded expositions."""

from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

EXPOSITIONS = Path(__file__).parents[2] / "contract" / "vllm_metrics"


def recorded(name: str) -> bytes:
    return (EXPOSITIONS / f"vllm-{name}.txt").read_bytes()


def by_reference_parser(text: bytes, names: tuple[str, ...]) -> list[tuple[str, frozenset[tuple[str, str]], float]]:
    return sorted(
        (sample.name, frozenset(sample.labels.items()), sample.value)
        for family in text_string_to_metric_families(text.decode())
        for sample in family.samples
        if sample.name in names
    )
