"""The targeted scanner against the reference parser, and vLLM's metrics across versions and accidents."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.wire.exposition import Scanner
from proxy.wire.vllm_metrics import (
    SAMPLE_NAMES,
)
from tests.unit.wire.expositions import EXPOSITIONS, by_reference_parser


@pytest.mark.parametrize("path", sorted(EXPOSITIONS.glob("*.txt")), ids=lambda path: path.stem)
def test_scanner_finds_what_the_reference_parser_finds(path: Path) -> None:
    text = path.read_bytes()
    names = (*SAMPLE_NAMES, "vllm:cache_config_info")
    scan = Scanner(names).scan(text)
    assert scan.lines_skipped == 0
    found = sorted((series.name, frozenset(series.labels.items()), series.value) for series in scan.series)
    assert found == by_reference_parser(text, names)


@given(st.text(st.characters(codec="utf-8", exclude_characters="\r"), max_size=30), st.floats(allow_nan=False))
def test_any_label_value_survives(value: str, number: float) -> None:
    escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    text = f'vllm:num_requests_running{{model_name="{escaped}",engine="1"}} {number!r}\n'.encode()
    (series,) = Scanner(("vllm:num_requests_running",), prefix="vllm:").scan(text).series
    assert series.labels == {"model_name": value, "engine": "1"}
    assert series.value == number


def test_scanner_takes_whole_names_only_and_any_order() -> None:
    text = (
        b'vllm:a_total_bucket{le="1"} 1\n# HELP vllm:a_total x\nvllm:b 2\nvllm:a_total{x="}, {\\"",y="#"} 3 1700000000000\n'
        b"vllm:a 4\nvllm:b\t5\n"
    )
    scan = Scanner(("vllm:a", "vllm:a_total", "vllm:b"), prefix="vllm:").scan(text)
    assert [(series.name, series.value) for series in scan.series] == [
        ("vllm:b", 2),
        ("vllm:a_total", 3),
        ("vllm:a", 4),
        ("vllm:b", 5),
    ]
    assert scan.series[1].labels == {"x": '}, {"', "y": "#"}


@pytest.mark.parametrize(
    "line",
    [
        b"vllm:a{engine=0} 1\n",
        b'vllm:a{engine="0" 1\n',
        b'vllm:a{engine="0"} \n',
        b'vllm:a{engine="0"} one\n',
        b'vllm:a{engine="0"} 1 2 3\n',
        b'vllm:a{engine="0}x="1"} 1\n',
        b'vllm:a{engine="0"} 12',  # cut off: the value may have been 120
        b"\xff\xfe\x00vllm:a 1\nvllm:a \xff\n",
    ],
)
def test_unreadable_lines_are_counted_never_guessed(line: bytes) -> None:
    scan = Scanner(("vllm:a",), prefix="vllm:").scan(b"# TYPE vllm:a gauge\n" + line)
    assert scan.series == ()
    assert scan.lines_skipped == 1
