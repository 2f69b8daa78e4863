"""The KV shape against what vLLM's own scheduler grouped and allocated: see ``record_kv_groups.py``."""

import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from proxy.core.kv_shape import Attention, KvLayout, KvShape, LayerKind, grouped

RUNS = json.loads(Path(__file__).with_name("kv_groups_recordings.json").read_text("utf-8"))
BLOCK_SIZE = 16


def shape_of(run: dict[str, Any]) -> KvShape:
    spans = {"window": run["span"], "chunk": run["span"]}
    layers = [(LayerKind(Attention(kind), spans.get(kind, 0)), count) for kind, count in run["layers"].items()]
    return KvShape(BLOCK_SIZE, KvLayout(grouped(layers), run["prefix_caching"], in_flight_tokens_max=run["budget"]))


def name_of(run: dict[str, Any]) -> str:
    return f"{run['model']}-{run['prompt']}+{run['output']}x{run['copies']}-{run['budget']}"


def held_at_most(shape: KvShape, run: dict[str, Any], nearest: int, farthest: int) -> float:
    """Blocks by our count with the copies between ``nearest`` and ``farthest`` tokens."""
    prompt, tokens, copies = np.array([[float(run["prompt"])], [float(farthest)], [float(run["copies"])]])
    shares = np.ones(1)
    held = shape.held(prompt, tokens, copies, shares)
    if nearest <= run["prompt"]:
        held = np.maximum(held, shape.held(prompt, prompt, copies, shares, prefilling=True))
    return float(held[0])


@pytest.mark.parametrize("run", RUNS, ids=name_of)
def test_layers_are_grouped_as_the_engine_groups_them(run: dict[str, Any]) -> None:
    ours = {groups.kind.attention.value: groups.count for groups in shape_of(run).layout.groups}
    assert ours == Counter(run["groups"])


@pytest.mark.parametrize("run", RUNS, ids=name_of)
def test_the_engine_never_holds_more_than_counted(run: dict[str, Any]) -> None:
    shape = shape_of(run)
    for farthest, nearest, held in run["held"]:
        assert held <= held_at_most(shape, run, nearest, farthest), (farthest, nearest, held)


@pytest.mark.parametrize("run", [run for run in RUNS if run["copies"] == 1], ids=name_of)
def test_the_count_while_decoding_is_near(run: dict[str, Any]) -> None:
    """A window's spare block, a state's second one and a chunk's own length are all that is counted too much."""
    shape = shape_of(run)
    slack = {Attention.FULL: 0, Attention.WINDOW: 2, Attention.CHUNK: run["span"] // BLOCK_SIZE + 1, Attention.STATE: 1}
    allowed = sum(groups.count * slack[groups.kind.attention] for groups in shape.layout.groups)
    for farthest, nearest, held in run["held"]:
        if nearest > run["prompt"] + 1:
            counted = float(shape.blocks(np.array([float(farthest)]))[0])
            assert held <= counted <= held + allowed, (farthest, held, counted)


@pytest.mark.parametrize("run", [run for run in RUNS if run["model"] == "plain"], ids=name_of)
def test_a_plain_model_is_counted_exactly(run: dict[str, Any]) -> None:
    shape = shape_of(run)
    assert shape.layout.plain
    for farthest, nearest, held in run["held"]:
        if nearest > run["prompt"]:
            assert held_at_most(shape, run, nearest, farthest) == held
