"""What a policy file says in so many words, and on which line, by dotted key: for whoever has to tell where a value comes from."""

from dataclasses import dataclass

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from proxy.config.nodes import joined


@dataclass(frozen=True, slots=True)
class Written:
    """A value as it is written. Lines count from 1; a list's words stand behind one another, a map or a list of maps has no text."""

    text: str
    line: int


def written(text: str) -> dict[str, Written]:
    """Return every key of a file that ``parse`` takes; list items are written ``[0]``. Raises yaml.YAMLError for what is no YAML."""
    found: dict[str, Written] = {}
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    if root is not None:
        _note(root, "", found)
    return found


def _note(node: Node, path: str, found: dict[str, Written]) -> None:
    items = list(node.value) if isinstance(node, MappingNode | SequenceNode) else []
    words = [item.value for item in items if isinstance(item, ScalarNode)]
    text = str(node.value) if isinstance(node, ScalarNode) else ", ".join(words)
    if path:
        found[path] = Written(text, node.start_mark.line + 1)
    if isinstance(node, MappingNode):
        for key, value in items:
            _note(value, joined(path, str(key.value)), found)
    for index, item in enumerate(items if isinstance(node, SequenceNode) else ()):
        _note(item, f"{path}[{index}]", found)
