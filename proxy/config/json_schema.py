"""The table of keys as JSON Schema (draft 2020-12), from which editors complete, explain and mark policy files.

Whatever ``kvgate check`` takes is valid. Of what it refuses the schema misses: the bounds of times and sizes, what must go together, a
name or key given twice, numbers that YAML alone takes for such (``01``, ``0x10``, ``1e3``), and a secret within an address.

``python -m proxy.config.json_schema policies`` writes the shipped file anew: a key's meaning comes from the README there, its default and
the reason for that from ``default.yaml``.
"""

import json
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, SequenceNode

from proxy.config.nodes import joined
from proxy.config.policy_file import SCHEMA_FILE
from proxy.config.scalars import Scalar
from proxy.config.schema import POLICY
from proxy.config.shape import ListOf, MapOf, OneOrMany, Reader, Section, TableOf

_ROW = re.compile(r"^\| `([a-z_]+(?:\[\])?(?:\.(?:[a-z0-9_]+|NAME))*)` \|[^|]*\| (.*) \|$", re.MULTILINE)
_COMMENT = re.compile(r"\s#\s(.*)$")


@dataclass(frozen=True, slots=True)
class Default:
    """The shipped value of a key and the reason for it."""

    node: Node
    reason: str


@dataclass(frozen=True, slots=True)
class Words:
    """What is said of the keys, by dotted name."""

    meanings: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, Default] = field(default_factory=dict)


def words_of(readme: str, default_policy: str) -> Words:
    """Return what the README's table of keys and the default policy with its comments say."""
    root = yaml.compose(default_policy, Loader=yaml.SafeLoader)
    defaults = _defaults(root, "", default_policy.splitlines()) if isinstance(root, MappingNode) else []
    return Words(dict(_ROW.findall(readme)), dict(defaults))


def _defaults(node: MappingNode, path: str, lines: list[str]) -> list[tuple[str, Default]]:
    found: list[tuple[str, Default]] = []
    for key, value in node.value:
        name = joined(path, key.value)
        if isinstance(value, MappingNode):
            found += _defaults(value, name, lines)
        else:
            comment = _COMMENT.search(lines[value.start_mark.line])
            found.append((name, Default(value, comment[1] if comment else "")))
    return found


def policy_schema(words: Words) -> dict[str, Any]:
    """Return the schema of a whole file."""
    head = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kvgate policy",
        "description": "How kvgate treats requests; a file needs only the lines that differ from the shipped default.",
    }
    return head | _shape(POLICY, "", words)


def _shape(reader: Reader, path: str, words: Words) -> dict[str, Any]:
    """Return the schema of what ``reader`` takes."""
    if isinstance(reader, Scalar):
        return dict(reader.schema)
    if isinstance(reader, Section):
        return _section(reader, path, words)
    if isinstance(reader, ListOf):
        return {"type": "array", "items": _shape(reader.item, f"{path}[]", words), "minItems": 1, "maxItems": reader.most}
    if isinstance(reader, TableOf):
        row = _section(reader.item, f"{path}.NAME", words)
        names = dict(reader.name.schema) | {"type": "string"}
        return {
            "type": "object", "propertyNames": names, "additionalProperties": row, "minProperties": 1, "maxProperties": reader.most
        }  # fmt: skip
    if isinstance(reader, OneOrMany):
        one = _shape(reader.item, path, words)
        return {"anyOf": [one, {"type": "array", "items": one, "minItems": 1, "maxItems": reader.most}]}
    if isinstance(reader, MapOf):
        names = dict(reader.name.schema) | {"type": "string"}
        if reader.refused:
            names["not"] = {"enum": [spelt for name in reader.refused for spelt in (name, name.title())]}
        item = _shape(reader.item, path, words)
        return {"type": "object", "propertyNames": names, "additionalProperties": item, "maxProperties": reader.most}
    raise TypeError(f"no schema is known for {reader!r}")


def _section(section: Section, path: str, words: Words) -> dict[str, Any]:
    properties: dict[str, Any] = {}
    for name, key in section.keys.items():
        full = joined(path, name)
        allowed = f"Allowed: {key.reader.allowed} ({key.because})" if isinstance(key.reader, Scalar) else ""
        default = words.defaults.get(full)
        said = [words.meanings.get(full) or key.because, allowed]
        properties[name] = _shape(key.reader, full, words)
        if "pattern" in properties[name] and isinstance(key.reader, Scalar):  # what editors say instead of showing the pattern
            properties[name] |= dict.fromkeys(("errorMessage", "patternErrorMessage"), f"allowed {key.reader.allowed}")
        if default is not None:
            properties[name]["default"] = _value(default.node, key.reader)
            said.append(f"Default {_text(default.node)}" + (f": {default.reason}" if default.reason else ""))
        properties[name]["description"] = " ".join(_sentence(text) for text in said if text)
    shape: dict[str, Any] = {"type": "object", "properties": properties, "additionalProperties": False}
    required = [name for name, key in section.keys.items() if key.required]
    if required:
        shape["required"] = required
    if section.short is None:
        return shape
    return {"anyOf": [_shape(section.keys[section.short].reader, path, words), shape]}


def _sentence(text: str) -> str:
    first = text[:1] if text[1:2].isupper() else text[:1].upper()  # vLLM is spelt so
    return first + text[1:].rstrip(".") + "."


def _value(node: Node, reader: Reader) -> Any:
    """Return a default as JSON: numbers as numbers, the rest as it is written."""
    if isinstance(node, SequenceNode):
        return [item.value for item in node.value]
    number = isinstance(reader, Scalar) and "minimum" in reader.schema
    return reader.read(node.value) if isinstance(reader, Scalar) and number else node.value


def _text(node: Node) -> str:
    return ", ".join(item.value for item in node.value) if isinstance(node, SequenceNode) else str(node.value)


def built(folder: Path) -> str:
    """Return the text of the shipped schema, from the README and the default policy in ``folder``."""
    words = words_of((folder / "README.md").read_text("utf-8"), (folder / "default.yaml").read_text("utf-8"))
    return json.dumps(policy_schema(words), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    where = Path(sys.argv[1])
    (where / SCHEMA_FILE).write_text(built(where), "utf-8")
