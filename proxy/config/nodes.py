"""YAML text to a tree of nodes that remember their line and column, and the faults that keep it from being one."""

from collections.abc import Iterator

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from proxy.config.faults import Fault, Severity, printable, quoted

FILE_BYTES_MAX = 1024 * 1024  # a policy of a thousand replicas is a tenth of this; more is the wrong file


class Faults:
    """Collects the faults of one file, and apart from them what is only warned of."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.found: list[Fault] = []
        self.warned: list[Fault] = []

    def add(self, node: Node | None, key: str, *, got: str, allowed: str, because: str) -> None:
        """Note a fault at a node, or in the file as a whole."""
        self.found.append(Fault(self.file, *_place(node), key, got, allowed, because))

    def warn(self, node: Node | None, key: str, *, got: str, allowed: str, because: str) -> None:
        """Note what has no effect, or hardly the one that was meant. The policy can be used."""
        self.warned.append(Fault(self.file, *_place(node), key, got, allowed, because, Severity.WARNING))

    def add_at(self, line: int, column: int, *, got: str, allowed: str, because: str) -> None:
        """Note a fault of the YAML itself; line and column count from 1."""
        self.found.append(Fault(self.file, line, column, "yaml", got, allowed, because))

    def in_order(self) -> list[Fault]:
        """Return the faults as they stand in the file."""
        return sorted(self.found, key=_standing)

    def warnings(self) -> list[Fault]:
        """Return the warnings as they stand in the file."""
        return sorted(self.warned, key=_standing)


def _place(node: Node | None) -> tuple[int, int]:
    return (0, 0) if node is None else (node.start_mark.line + 1, node.start_mark.column + 1)


def _standing(fault: Fault) -> tuple[int, int]:
    return fault.line, fault.column


def compose(text: str, faults: Faults) -> MappingNode | None:
    """Return the root mapping, or None with a fault noted. An empty file has none and is a fault: it decides nothing."""
    if len(text.encode("utf-8", "surrogatepass")) > FILE_BYTES_MAX:
        faults.add(
            None, "file", got="more than 1 MiB", allowed="at most 1 MiB", because="no policy is that long: is it the right file?"
        )
        return None
    root = compose_any(text, faults)
    if root is None:
        if not faults.found:
            faults.add(
                None, "file", got="an empty file", allowed="at least `mode: enforce`", because="an empty policy is a lost one"
            )
        return None
    if not isinstance(root, MappingNode):
        faults.add(root, "file", got=kind_of(root), allowed="a map of `key: value` lines", because="a policy is a map at its top")
        return None
    return root


def compose_any(text: str, faults: Faults) -> Node | None:
    """Return the root node, whatever it is; None for an empty file, and with a fault noted for what is no YAML."""
    try:
        node: Node | None = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line, column = (mark.line + 1, mark.column + 1) if mark else (0, 0)
        problem = " ".join(part for part in (error.context, error.problem) if part) or "what cannot be read"
        tab = "\\t" in problem or _tab_indents(text, line)
        why = "YAML takes no tab for indentation: use spaces" if tab else "the file cannot be read further than this"
        faults.add_at(line, column, got=problem, allowed="YAML", because=why)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        faults.add_at(line, 1, got=f"a character #x{error.character:04x}", allowed="printable text", because=error.reason)
    except RecursionError:
        faults.add(None, "file", got="hundreds of nested brackets", allowed="four levels", because="no policy nests that deep")
    else:
        return node
    return None


def _tab_indents(text: str, line: int) -> bool:
    """Whether the line (from 1) or the one before has a tab in its indentation."""
    near = text.splitlines()[max(0, line - 2) : line]
    return any("\t" in one[: len(one) - len(one.lstrip())] for one in near)


def entries(node: MappingNode, path: str, faults: Faults) -> Iterator[tuple[str, Node, Node]]:
    """Yield (key, key node, value node); keys that are no words, or come twice, are faults and are left out."""
    seen: dict[str, int] = {}
    for key_node, value_node in node.value:
        if not isinstance(key_node, ScalarNode) or key_node.value == "<<":
            got = kind_of(key_node) if not isinstance(key_node, ScalarNode) else '"<<"'
            faults.add(
                key_node, path or "file", got=f"{got} as a key", allowed="a word", because="keys are words; there is no merging"
            )
            continue
        key = key_node.value
        if key in seen:
            got = f"{quoted(key)} a second time"
            because = f"line {seen[key]} has it already, and one of the two would be ignored"
            faults.add(key_node, joined(path, key), got=got, allowed="each key once", because=because)
            continue
        seen[key] = key_node.start_mark.line + 1
        yield key, key_node, value_node


def joined(path: str, key: str) -> str:
    """Return the dotted name of a key below ``path``, fit for an error line."""
    return f"{path}.{printable(key)}" if path else printable(key)


def is_null(node: Node) -> bool:
    """Whether the value is left empty or is ``null``."""
    return isinstance(node, ScalarNode) and node.tag == "tag:yaml.org,2002:null"


def kind_of(node: Node) -> str:
    """Say in a reader's words what a node is."""
    if isinstance(node, MappingNode):
        return "a map"
    if isinstance(node, SequenceNode):
        return "a list"
    if is_null(node):
        return "nothing"
    return quoted(str(node.value))
