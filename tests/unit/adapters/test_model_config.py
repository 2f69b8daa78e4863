"""Reading a model's config.json: where the engine loaded it from, when that is here."""

from pathlib import Path

import httpx
import pytest

from proxy.adapters.model_config import CONFIG_BYTES_MAX, read_model_layers
from proxy.core.kv_shape import Attention, KvGroups, LayerKind
from proxy.wire.model_layers import FULL, ModelLayers
from proxy.wire.report import describe
from tests.unit.adapters.fake_vllm import FakeVllm, recorded
from tests.unit.adapters.probing import probe

GPT_OSS = '{"num_hidden_layers": 2, "sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"]}'
GPT_OSS_KINDS = ((LayerKind(Attention.WINDOW, 128), 1), (FULL, 1))


def folder_with(path: Path, config: str) -> str:
    (path / "config.json").write_text(config, "utf-8")
    return str(path)


def test_a_folder_is_read(tmp_path: Path) -> None:
    assert read_model_layers(folder_with(tmp_path, GPT_OSS)) == ModelLayers(GPT_OSS_KINDS)


@pytest.mark.parametrize("root", [None, "/no/such/folder", "nobody/has-this-model"])
def test_a_model_that_is_not_here_is_no_fault(root: str | None) -> None:
    assert read_model_layers(root) is None


def test_a_folder_without_the_file_is_no_fault(tmp_path: Path) -> None:
    assert read_model_layers(str(tmp_path)) is None


@pytest.mark.parametrize(("config", "doubt"), [("{", "cannot be read"), ("[]", "no JSON object"), ("\udcff", "cannot be read")])
def test_a_broken_file_is_told(tmp_path: Path, config: str, doubt: str) -> None:
    (tmp_path / "config.json").write_bytes(config.encode("utf-8", "surrogateescape"))
    layers = read_model_layers(str(tmp_path))
    assert layers is not None
    assert doubt in str(layers.doubt)


@pytest.mark.parametrize(("size", "read"), [(CONFIG_BYTES_MAX, True), (CONFIG_BYTES_MAX + 1, False)])
def test_a_huge_file_is_not_read(tmp_path: Path, size: int, read: bool) -> None:
    layers = read_model_layers(folder_with(tmp_path, GPT_OSS.ljust(size)))
    assert layers is not None
    assert (layers.kinds == GPT_OSS_KINDS) is read


async def test_a_probe_finds_the_groups_of_a_hybrid(tmp_path: Path) -> None:
    # 256 blocks of 32; a request of 8,192 tokens takes 256 in the full group and ceil((127 + 2048) / 32) + 1 = 69 in the window's.
    models = {"data": [{"id": "m", "parent": None, "root": folder_with(tmp_path, GPT_OSS), "max_model_len": 8192}]}
    tokens = int(256 / (256 + 69) * 8192)
    text = recorded("0.32.0").replace(b'kv_cache_size_tokens="8192"', b'kv_cache_size_tokens="%d"' % tokens)
    facts = (await probe(FakeVllm(text, special={"/v1/models": lambda _: httpx.Response(200, json=models)}))).facts
    assert facts.kv_layout.groups == (KvGroups(LayerKind(Attention.WINDOW, 128)), KvGroups(FULL))
    assert not facts.warnings
    assert "1 window of 128 tokens + 1 full" in "\n".join(describe(facts, None))
