"""Loading tokenizer folders, and segments that tokenize as the whole does."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, processors

from proxy.adapters.segment_cache import ID_BYTES, SegmentEncoder
from proxy.adapters.tokenizer_files import LoadedTokenizer, TokenizerLoadError, open_tokenizer
from tests.support.tiny_tokenizer import SPECIALS, train_byte_level, train_prefix_space, write_model

USER = [{"role": "user", "content": "hi"}]


def load(folder: Path, **options: Any) -> LoadedTokenizer:
    return open_tokenizer(str(folder), wall_s=lambda: 1_800_000_000.0, **options)


def ids(packed: bytes) -> list[int]:
    return list(memoryview(packed).cast("I"))


def render(loaded: LoadedTokenizer, *, tools: list[dict[str, Any]] | None = None, **kwargs: Any) -> str:
    template = loaded.template(tools is not None)
    assert template is not None
    return template.render(
        USER, tools=tools, documents=None, kwargs=kwargs, add_generation_prompt=False, continue_final_message=False
    )


def test_a_folder_is_loaded_without_transformers(tmp_path: Path) -> None:
    folder = write_model(tmp_path)
    code = (
        "import sys, time; from proxy.adapters.tokenizer_files import open_tokenizer;"
        f"t = open_tokenizer({str(folder)!r}, wall_s=time.time);"
        "assert t.encoder.splits; assert t.encode('a', add_special_tokens=False);"
        "assert not {'transformers', 'torch', 'huggingface_hub'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize(
    ("single", "prefix", "suffix"), [("$A", [], []), ("<|start|> $A", ["<|start|>"], []), ("$A <|end|>", [], ["<|end|>"])]
)
def test_begin_and_end_tokens_come_from_the_tokenizers_own_file(
    tmp_path: Path, single: str, prefix: list[str], suffix: list[str]
) -> None:
    tokenizer = train_byte_level()
    tokens = [(token, tokenizer.token_to_id(token)) for token in prefix + suffix]
    tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=tokens)
    loaded = load(write_model(tmp_path, tokenizer, bos_token="<|start|>", add_bos_token=True, add_eos_token=False))
    text = "the quick"
    inner = tokenizer.encode(text, add_special_tokens=False).ids
    around = [[tokenizer.token_to_id(token) for token in tokens] for tokens in (prefix, suffix)]
    assert ids(loaded.encode(text, add_special_tokens=True)) == around[0] + inner + around[1]
    assert ids(loaded.encode(text, add_special_tokens=False)) == inner


def test_tokens_named_only_in_the_configuration_are_added(tmp_path: Path) -> None:
    config = {
        "bos_token": {"content": "<|bos|>"},
        "additional_special_tokens": ["<|more|>"],
        "added_tokens_decoder": {"900": {"content": "<tool>", "special": False, "normalized": False}},
    }
    loaded = load(write_model(tmp_path, **config))
    assert len(ids(loaded.encode("<|bos|><|more|><tool>", add_special_tokens=False))) == 3


def test_template_files_come_before_the_configuration(tmp_path: Path) -> None:
    write_model(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("file", encoding="utf-8")
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text("tools", encoding="utf-8")
    loaded = load(tmp_path)
    assert render(loaded) == "file"
    assert render(loaded, tools=[{}]) == "tools"
    assert render(load(tmp_path, chat_template="given"), tools=[{}]) == "given"


def test_named_templates_of_the_configuration(tmp_path: Path) -> None:
    templates = [{"name": "default", "template": "d"}, {"name": "tool_use", "template": "t"}]
    loaded = load(write_model(tmp_path, chat_template=templates))
    assert render(loaded) == "d"
    assert render(loaded, tools=[{}]) == "t"


def test_special_tokens_reach_the_template(tmp_path: Path) -> None:
    write_model(tmp_path, chat_template="{{ bos_token }}|{{ eos_token }}|{{ pad_token is defined }}")
    (tmp_path / "special_tokens_map.json").write_text(
        json.dumps({"bos_token": {"content": "<|start|>"}, "eos_token": "<|more|>"})
    )
    assert render(load(tmp_path)) == "<|start|>|<|more|>|False"
    write_model(
        tmp_path, chat_template="{{ bos_token }}|{{ eos_token }}|{{ image_token }}", added_tokens_decoder={}, image_token="i"
    )
    assert render(load(tmp_path)) == "|<|end|>|i"


@pytest.mark.parametrize(("model_type", "refused"), [("qwen3", False), ("gpt_oss", True), ("deepseek_v32", True)])
def test_models_with_renderers_of_their_own_refuse_chats(tmp_path: Path, model_type: str, refused: bool) -> None:
    write_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": model_type}))
    assert (load(tmp_path).chat_refusal is not None) is refused


def test_without_a_template_only_text_is_counted(tmp_path: Path) -> None:
    loaded = load(write_model(tmp_path, chat_template=None))
    assert loaded.chat_refusal == "there is no chat template"
    assert loaded.encode("x", add_special_tokens=False)


@pytest.mark.parametrize("name", ["/no/such/folder", "./x", "a/b/c"])
def test_a_missing_folder_says_what_to_give(name: str) -> None:
    with pytest.raises(TokenizerLoadError, match="give the model's folder"):
        open_tokenizer(name, wall_s=float)


def test_a_name_that_is_not_cached_says_how_to_fetch_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(TokenizerLoadError, match="hf download some/model-nobody-has"):
        open_tokenizer("some/model-nobody-has", wall_s=float)


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["{", "[]", '{"version": 1}'])
def test_broken_files_are_named(tmp_path: Path, file: str, content: str) -> None:
    write_model(tmp_path)
    (tmp_path / file).write_text(content)
    if (file, content) == ("tokenizer_config.json", '{"version": 1}'):
        assert load(tmp_path).chat_refusal is not None
        return
    with pytest.raises(TokenizerLoadError, match=file):
        load(tmp_path)


def test_a_broken_template_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenizerLoadError, match="does not compile"):
        load(write_model(tmp_path, chat_template="{% for %}"))


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    return train_byte_level()


@pytest.fixture(scope="module")
def splitting(byte_level: Tokenizer) -> SegmentEncoder:
    return SegmentEncoder(byte_level, cache_bytes_max=20_000)


def whole(tokenizer: Tokenizer, text: str) -> list[int]:
    found: list[int] = tokenizer.encode(text, add_special_tokens=False).ids
    return found


PIECES = st.lists(st.sampled_from(SPECIALS) | st.sampled_from(["<|", "|>", "x", " ", "\n"]) | st.text(max_size=40), max_size=8)


@given(pieces=PIECES)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_segments_give_the_ids_of_the_whole(byte_level: Tokenizer, splitting: SegmentEncoder, pieces: list[str]) -> None:
    text = "".join(pieces)
    if any("\ud800" <= char <= "\udfff" for char in text):
        return
    assert splitting.splits
    assert ids(splitting.encode(text)) == whole(byte_level, text)
    assert ids(splitting.encode(text)) == whole(byte_level, text)
    assert splitting.cache_bytes <= 20_000


def test_segments_are_remembered_up_to_the_bound(byte_level: Tokenizer) -> None:
    encoder = SegmentEncoder(byte_level, cache_bytes_max=2_000)
    texts = [f"<|start|>this is segment number {index} of many<|end|>" for index in range(50)]
    for text in texts:
        assert ids(encoder.encode(text)) == whole(byte_level, text)
        assert 0 < encoder.cache_bytes <= 2_000
    encoder.encode("<|start|>" + "too long to be remembered " * 200)
    assert encoder.cache_bytes <= 2_000


def test_a_tokenizer_that_looks_across_segments_is_not_cut() -> None:
    tokenizer = train_prefix_space()
    encoder = SegmentEncoder(tokenizer, cache_bytes_max=1_000_000)
    assert not encoder.splits
    text = "the<|start|>quick<|end|> brown"
    assert ids(encoder.encode(text)) == whole(tokenizer, text)
    assert encoder.cache_bytes == 0


def test_no_bytes_for_the_cache_means_no_cutting(byte_level: Tokenizer) -> None:
    assert not SegmentEncoder(byte_level, cache_bytes_max=0).splits
    assert ID_BYTES == 4


@pytest.mark.slow
def test_text_and_chats_come_out_as_transformers_has_them(tmp_path: Path) -> None:
    import transformers

    tokenizer = train_byte_level()
    start = ("<|start|>", tokenizer.token_to_id("<|start|>"))
    tokenizer.post_processor = processors.TemplateProcessing(single="<|start|> $A", special_tokens=[start])
    folder = write_model(tmp_path, tokenizer, bos_token="<|start|>", add_eos_token=True, additional_special_tokens=["<|more|>"])
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ours = load(folder)
    for text in ("", "the quick<|more|>", "<|start|>a<|end|>x <|end|>", "日本語 🙂 e\u0301"):
        assert ids(ours.encode(text, add_special_tokens=True)) == theirs.encode(text, add_special_tokens=True)
        assert ids(ours.encode(text, add_special_tokens=False)) == theirs.encode(text, add_special_tokens=False)
    assert render(ours) == theirs.apply_chat_template(USER, tokenize=False, add_generation_prompt=False)


@pytest.mark.slow  # imports transformers
def test_a_configuration_alone_is_no_tokenizer(tmp_path: Path) -> None:
    config = {"tokenizer_class": "Qwen2Tokenizer", "eos_token": "<|end|>", "chat_template": "{{ messages }}"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(TokenizerLoadError, match="no vocabulary"):
        load(tmp_path)
