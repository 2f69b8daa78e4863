"""Load a model's tokenizer and chat templates from its files, without importing transformers (2 s, 70 MB) where they suffice.

``tokenizer.json`` holds the tokenizer; ``tokenizer_config.json``, ``special_tokens_map.json``, ``chat_template.jinja`` and
``additional_chat_templates/`` what transformers adds to it: tokens and templates, in transformers' order of precedence. BOS and EOS
come from ``tokenizer.json`` alone (``add_bos_token`` beside it is ignored by transformers 5, which vLLM 0.32 loads with).
A folder without ``tokenizer.json`` is read by transformers' AutoTokenizer, which converts SentencePiece and tiktoken files.
A name that is no folder is looked up in the local Hugging Face cache; nothing is downloaded.

Models for which the engine does not use the Jinja template at all (gpt-oss, Mistral's own tokenizer, DeepSeek V3.2 …) are told by
``config.json`` or their files: their chats are not counted here.
"""

import json
import os
from array import array
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Tokenizer

from proxy.adapters.chat_template import ChatTemplate, ChatTemplateError
from proxy.adapters.segment_cache import SegmentEncoder

CACHE_BYTES_MAX = 64 << 20
_NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# model_type values whose chats the engine renders in code of its own (reference vllm.md §5.1)
_OWN_RENDERERS = frozenset({"gpt_oss", "deepseek_v32", "deepseek_v4", "kimi_k3", "inkling", "cohere_command"})


class TokenizerLoadError(Exception):
    """The tokenizer cannot be loaded; the message says what to do."""


@dataclass(frozen=True, slots=True)
class LoadedTokenizer:
    """A tokenizer ready to count. ``prefix`` and ``suffix`` are packed ids that ``add_special_tokens`` puts around a text.

    ``templates`` maps names to templates; the one called "default" serves, "tool_use" where tools are given. ``chat_refusal`` says
    why chats cannot be counted here; None when they can.
    """

    name: str
    encoder: SegmentEncoder
    prefix: bytes
    suffix: bytes
    token_chars_max: int
    templates: dict[str, ChatTemplate] = field(default_factory=dict)
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    chat_refusal: str | None = None

    def template(self, with_tools: bool) -> ChatTemplate | None:
        """The template the engine would take."""
        if with_tools and "tool_use" in self.templates:
            return self.templates["tool_use"]
        return self.templates.get("default")

    @property
    def wants_system_first(self) -> bool:
        """Whether one of the templates refuses a system message after others."""
        return any(template.wants_system_first for template in self.templates.values())

    def encode(self, text: str, *, add_special_tokens: bool) -> bytes:
        """Packed 32-bit ids."""
        ids = self.encoder.encode(text)
        return self.prefix + ids + self.suffix if add_special_tokens else ids


def open_tokenizer(
    path_or_name: str,
    *,
    wall_s: Callable[[], float],
    chat_template: str | None = None,
    template_kwargs: dict[str, Any] | None = None,
    cache_bytes_max: int = CACHE_BYTES_MAX,
) -> LoadedTokenizer:
    """Load from a folder, or by name from the local Hugging Face cache. Raises TokenizerLoadError.

    ``wall_s`` gives Unix seconds (templates may print today's date). ``chat_template`` (Jinja source) and ``template_kwargs`` are
    what the engine was given as ``--chat-template`` and ``--default-chat-template-kwargs``.
    """
    # rayon's threads would come on top of the pool's, and warn after a fork
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    folder = model_folder(path_or_name)
    config = _read_json(folder / "tokenizer_config.json")
    if "added_tokens_decoder" not in config:
        config |= _read_json(folder / "special_tokens_map.json")  # older folders keep special tokens there
    tokenizer = _load_backend(folder, config)
    tokenizer.no_truncation()
    tokenizer.no_padding()
    encoder = SegmentEncoder(tokenizer, cache_bytes_max=cache_bytes_max)
    prefix, suffix = _surroundings(tokenizer, encoder)
    special_tokens = {
        key: text for key, value in config.items() if key.endswith("_token") and (text := _token_text(value)) is not None
    }
    sources = {"default": chat_template} if chat_template is not None else _template_sources(folder, config)
    try:
        templates = {name: ChatTemplate(source, special_tokens=special_tokens, wall_s=wall_s) for name, source in sources.items()}
    except ChatTemplateError as error:
        raise TokenizerLoadError(f"{folder}: {error}. Fix the template or give the one the engine uses.") from error
    return LoadedTokenizer(
        name=path_or_name,
        encoder=encoder,
        prefix=prefix,
        suffix=suffix,
        token_chars_max=max(map(len, tokenizer.get_vocab(with_added_tokens=True)), default=1),
        templates=templates,
        template_kwargs=dict(template_kwargs or {}),
        chat_refusal=_chat_refusal(folder, templates),
    )


def model_folder(path_or_name: str) -> Path:
    """A model's folder: the one given, or that of a name in the local Hugging Face cache. Raises TokenizerLoadError."""
    path = Path(path_or_name).expanduser()
    if path.is_dir():
        return path
    if path_or_name.count("/") > 1 or path_or_name.startswith(("/", ".", "~")):
        raise TokenizerLoadError(f"there is no folder {path_or_name!r}; give the model's folder or its Hugging Face name")
    from huggingface_hub import snapshot_download  # noqa: PLC0415  # half a second, and only for names
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError  # noqa: PLC0415

    try:
        return Path(snapshot_download(path_or_name, local_files_only=True))
    except (LocalEntryNotFoundError, HFValidationError) as error:
        raise TokenizerLoadError(
            f"{path_or_name!r} is neither a folder nor in the local Hugging Face cache (HF_HOME); nothing is downloaded here. "
            f"Run `hf download {path_or_name} --include 'tokenizer*' '*.jinja' 'special_tokens_map.json' 'config.json'`, "
            "or give a folder."
        ) from error


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise TokenizerLoadError(f"{path} cannot be read: {error}. Copy it from the model again.") from error
    if not isinstance(value, dict):
        raise TokenizerLoadError(f"{path} is not a JSON object. Copy it from the model again.")
    return value


def _load_backend(folder: Path, config: dict[str, Any]) -> Tokenizer:
    file = folder / "tokenizer.json"
    if not file.is_file():
        return _convert_with_transformers(folder)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises nothing narrower
        raise TokenizerLoadError(f"{file} cannot be read: {error}. Copy it from the model again.") from error
    _add_tokens(tokenizer, config)
    return tokenizer


def _convert_with_transformers(folder: Path) -> Tokenizer:
    from transformers import AutoTokenizer  # noqa: PLC0415  # two seconds, only for formats that need it

    try:
        backend = AutoTokenizer.from_pretrained(str(folder), local_files_only=True).backend_tokenizer
    except (OSError, ValueError, ImportError, AttributeError, KeyError, TypeError) as error:
        raise TokenizerLoadError(
            f"{folder} has no tokenizer.json and transformers cannot convert what is there: {error}. "
            "Give a folder with tokenizer.json, or leave the tokenizer out: the replica's /tokenize is asked then."
        ) from error
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    if added.issuperset(backend.get_vocab(with_added_tokens=False)):  # of a configuration alone it makes one that knows no word
        raise TokenizerLoadError(f"{folder} has no vocabulary, only a configuration. Give a folder with tokenizer.json.")
    return backend


def _token_text(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def _add_tokens(tokenizer: Tokenizer, config: dict[str, Any]) -> None:
    """Tokens the configuration names beyond those in tokenizer.json, as transformers adds them."""
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    declared = config.get("added_tokens_decoder")
    if isinstance(declared, dict):
        for _, entry in sorted(declared.items(), key=lambda item: int(item[0])):
            if isinstance(entry, dict) and entry.get("content") not in known:
                flags = {
                    key: bool(entry[key]) for key in ("lstrip", "rstrip", "single_word", "normalized", "special") if key in entry
                }
                tokenizer.add_tokens([AddedToken(entry["content"], **flags)])
                known.add(entry["content"])
    extra = config.get("additional_special_tokens") or config.get("extra_special_tokens") or []
    named = [config.get(key) for key in _NAMED_TOKENS] + (extra if isinstance(extra, list) else [])
    texts = [text for value in named if (text := _token_text(value)) is not None and text not in known]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in dict.fromkeys(texts)])


def _surroundings(tokenizer: Tokenizer, encoder: SegmentEncoder) -> tuple[bytes, bytes]:
    """Packed ids before and after a text with special tokens on."""
    probe = "probe"
    inner = list(memoryview(encoder.encode(probe)).cast("I"))
    outer = tokenizer.encode(probe, add_special_tokens=True).ids
    for start in range(len(outer) - len(inner) + 1):
        if outer[start : start + len(inner)] == inner:
            return _pack(outer[:start]), _pack(outer[start + len(inner) :])
    raise TokenizerLoadError(
        "the tokenizer's post-processor changes the text's own tokens; leave the tokenizer out of the settings"
    )


def _pack(ids: list[int]) -> bytes:
    return array("I", ids).tobytes()


def _template_sources(folder: Path, config: dict[str, Any]) -> dict[str, str]:
    """Template sources by name: files before the configuration's value, which may be text or a list of named templates."""
    sources: dict[str, str] = {}
    default = folder / "chat_template.jinja"
    if default.is_file():
        sources["default"] = default.read_text(encoding="utf-8")
    for file in sorted((folder / "additional_chat_templates").glob("*.jinja")):
        sources[file.stem] = file.read_text(encoding="utf-8")
    if sources:
        return sources
    value = config.get("chat_template")
    if isinstance(value, list):
        return {entry["name"]: entry["template"] for entry in value if isinstance(entry, dict) and "template" in entry}
    if isinstance(value, str):
        return {"default": value}
    legacy = _read_json(folder / "chat_template.json").get("chat_template")
    return {"default": legacy} if isinstance(legacy, str) else {}


def _chat_refusal(folder: Path, templates: dict[str, ChatTemplate]) -> str | None:
    model_type = _read_json(folder / "config.json").get("model_type")
    if model_type in _OWN_RENDERERS:
        return f"the engine renders {model_type} chats in code of its own"
    if (folder / "tekken.json").is_file():
        return "the engine renders chats with Mistral's own tokenizer"
    return None if "default" in templates else "there is no chat template"
