"""Where the keys of a policy file stand."""

from yaml.nodes import MappingNode, Node, SequenceNode

from proxy.config.nodes import joined


class Places:
    """The nodes of a file by dotted key, list items written ``[0]``."""

    def __init__(self, root: Node) -> None:
        self._nodes: dict[str, Node] = {}
        self._note(root, "")

    def at(self, *keys: str) -> Node | None:
        """Return the first of the keys that the file has."""
        return next((self._nodes[key] for key in keys if key in self._nodes), None)

    def has(self, key: str) -> bool:
        """Whether the file has the key, so that it was meant."""
        return key in self._nodes

    def _note(self, node: Node, path: str) -> None:
        self._nodes[path] = node
        if isinstance(node, MappingNode):
            for key, value in node.value:
                self._note(value, joined(path, str(key.value)))
        elif isinstance(node, SequenceNode):
            for index, item in enumerate(node.value):
                self._note(item, f"{path}[{index}]")
