"""A YAML document as an editor's validator sees it, by the core schema of YAML 1.2: ``off`` is a word and ``01`` a number."""

import re
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

_NULL = re.compile(r"null|Null|NULL|~|")
_BOOLEAN = re.compile(r"true|True|TRUE|false|False|FALSE")
_INTEGER = re.compile(r"[-+]?[0-9]+")
_BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


def json_of(text: str) -> Any:
    """Return the document's value; None for an empty one. Raises yaml.YAMLError."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    return None if node is None else _value(node)


def _value(node: Node) -> Any:
    if isinstance(node, MappingNode):
        return {str(key.value): _value(value) for key, value in node.value}
    if isinstance(node, SequenceNode):
        return [_value(item) for item in node.value]
    assert isinstance(node, ScalarNode)
    return _plain(node.value) if node.style is None else node.value


def _plain(text: str) -> Any:
    if _NULL.fullmatch(text):
        return None
    if _BOOLEAN.fullmatch(text):
        return text.lower() == "true"
    if _BASED.fullmatch(text):
        return int(text, 0)
    if _INTEGER.fullmatch(text) and len(text) < 1000:
        return int(text)
    return float(text) if _FLOAT.fullmatch(text) else text
