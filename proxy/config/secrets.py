"""Secrets that stand in a policy file by mistake: refused wherever they stand. What names one (``api_key_env``, a SHA-256) is none."""

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from proxy.config.nodes import Faults, joined
from proxy.config.secret_forms import SECRET


def find_secrets(root: Node, faults: Faults) -> None:
    """Note every scalar, key or value, that has the form of a secret."""
    pending: list[tuple[Node, str]] = [(root, "")]
    seen: set[int] = set()
    while pending:
        node, path = pending.pop()
        if id(node) in seen:  # an alias
            continue
        seen.add(id(node))
        if isinstance(node, MappingNode):
            for key, value in node.value:
                pending.append((key, path))
                pending.append((value, joined(path, _shown(key))))
        elif isinstance(node, SequenceNode):
            pending += [(item, f"{path}[{index}]") for index, item in enumerate(node.value)]
        elif isinstance(node, ScalarNode) and SECRET.search(node.value):
            because = "a secret in a policy file ends up in version control: name its place with api_key_env or api_key_file"
            faults.add(
                node, path or "file", got="what looks like a secret, not shown here", allowed="no secrets", because=because
            )


def _shown(key: Node) -> str:
    return str(key.value) if isinstance(key, ScalarNode) else "…"
