"""The outside shape: sections, lists and maps of values, described as data and read from nodes.

A reader returns the inside value, or None after noting a fault; it goes on after a fault, so that all of them are told at once.
Depth and length are bounded by the description, so neither anchors nor long lists make reading grow beyond the file.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from proxy.config.faults import did_you_mean, quoted
from proxy.config.nodes import Faults, entries, joined, kind_of
from proxy.config.scalars import Scalar


class Reader(Protocol):
    """Reads one node."""

    def value(self, node: Node, path: str, because: str, faults: Faults) -> Any | None:
        """Return the inside value, or None with at least one fault noted."""
        ...


@dataclass(frozen=True, slots=True)
class Key:
    """One key of a section: the inside field it fills, how it is read, and why its bounds are what they are."""

    field: str
    reader: Reader
    because: str
    required: bool = False


ITSELF = ""  # no key is spelt so
Check = Callable[[Any, Mapping[str, Node], str, Faults], None]


@dataclass(frozen=True, slots=True)
class Section:
    """A map with known keys. ``refused`` are keys people may try, with the reason why not; their values are never echoed.

    ``short`` is the key that a bare value stands for; ``check`` sees the finished value with the nodes of its keys, and the map itself
    under ``ITSELF``.
    """

    make: Callable[..., Any]
    keys: Mapping[str, Key]
    refused: Mapping[str, str] = field(default_factory=dict)
    short: str | None = None
    check: Check | None = None

    def value(self, node: Node, path: str, because: str, faults: Faults) -> Any | None:
        """Read the map; keys that are not there keep the inside default."""
        before = len(faults.found)
        if isinstance(node, ScalarNode) and self.short is not None:
            key = self.keys[self.short]
            short = key.reader.value(node, path, key.because, faults)
            return None if short is None else self.make(**{key.field: short})
        if not isinstance(node, MappingNode):
            allowed = "a map with the keys " + ", ".join(self.keys)
            faults.add(node, path, got=kind_of(node), allowed=allowed, because=because)
            return None
        fields: dict[str, Any] = {}
        nodes: dict[str, Node] = {}
        for name, key_node, value_node in entries(node, path, faults):
            nodes[name] = value_node
            if name in self.keys:
                key = self.keys[name]
                fields[key.field] = key.reader.value(value_node, joined(path, name), key.because, faults)
            else:
                self._unknown(name, key_node, path, faults)
        for name, key in self.keys.items():
            if key.required and name not in nodes:
                faults.add(node, joined(path, name), got="nothing", allowed="this key", because=key.because)
        if len(faults.found) > before:
            return None
        made = self.make(**fields)
        if self.check:
            self.check(made, nodes | {ITSELF: node}, path, faults)
        return made if len(faults.found) == before else None

    def _unknown(self, name: str, node: Node, path: str, faults: Faults) -> None:
        if name in self.refused:
            faults.add(node, joined(path, name), got="this key", allowed=", ".join(self.keys), because=self.refused[name])
            return
        got = f"the unknown key {quoted(name)}{did_you_mean(name, self.keys)}"
        because = "a key that is not known would be ignored without a word"
        faults.add(node, joined(path, name), got=got, allowed=", ".join(self.keys), because=because)


@dataclass(frozen=True, slots=True)
class ListOf:
    """A list, read into a tuple of at least one."""

    item: Reader
    most: int
    check: Check | None = None

    def value(self, node: Node, path: str, because: str, faults: Faults) -> tuple[Any, ...] | None:
        """Read every item; ``check`` sees the tuple with the items' nodes by index."""
        if not isinstance(node, SequenceNode) or not 1 <= len(node.value) <= self.most:
            got = f"a list of {len(node.value)}" if isinstance(node, SequenceNode) else kind_of(node)
            faults.add(node, path, got=got, allowed=f"a list of 1 to {self.most}", because=because)
            return None
        before = len(faults.found)
        found = tuple(self.item.value(item, f"{path}[{index}]", because, faults) for index, item in enumerate(node.value))
        if len(faults.found) > before:
            return None
        if self.check:
            self.check(found, {str(index): item for index, item in enumerate(node.value)}, path, faults)
        return found if len(faults.found) == before else None


@dataclass(frozen=True, slots=True)
class MapOf:
    """A map with free keys, read into a tuple of pairs."""

    name: Scalar
    item: Scalar
    most: int
    refused: Mapping[str, str] = field(default_factory=dict)

    def value(self, node: Node, path: str, because: str, faults: Faults) -> tuple[tuple[Any, Any], ...] | None:
        """Read every pair."""
        if not isinstance(node, MappingNode) or len(node.value) > self.most:
            faults.add(node, path, got=kind_of(node), allowed=f"a map of at most {self.most}", because=because)
            return None
        before = len(faults.found)
        found: dict[Any, Any] = {}
        for name, key_node, value_node in entries(node, path, faults):
            key = self.name.value(key_node, path, because, faults)
            if key is not None and key in self.refused:
                faults.add(key_node, joined(path, name), got="this key", allowed="other names", because=self.refused[key])
            else:
                found[key] = self.item.value(value_node, joined(path, name), because, faults)
        return tuple(found.items()) if len(faults.found) == before else None


@dataclass(frozen=True, slots=True)
class TableOf:
    """A map from free names to sections, read into a tuple of values that got their name as ``name``."""

    name: Scalar
    item: Section
    most: int
    check: Check | None = None

    def value(self, node: Node, path: str, because: str, faults: Faults) -> tuple[Any, ...] | None:
        """Read every row; ``check`` sees the tuple with the rows' nodes by index."""
        if not isinstance(node, MappingNode) or not 1 <= len(node.value) <= self.most:
            got = f"a map of {len(node.value)}" if isinstance(node, MappingNode) else kind_of(node)
            faults.add(node, path, got=got, allowed=f"a map of 1 to {self.most}", because=because)
            return None
        before = len(faults.found)
        found: list[Any] = []
        nodes: dict[str, Node] = {}
        for word, key_node, value_node in entries(node, path, faults):
            name = self.name.value(key_node, path, because, faults)
            item = self.item.value(value_node, joined(path, word), because, faults)
            if name is not None and item is not None:
                nodes[str(len(found))] = value_node
                found.append(replace(item, name=name))
        if self.check and len(faults.found) == before:
            self.check(tuple(found), nodes, path, faults)
        return tuple(found) if len(faults.found) == before else None


@dataclass(frozen=True, slots=True)
class OneOrMany:
    """One word or a list of words, read into a tuple."""

    item: Scalar
    most: int

    def value(self, node: Node, path: str, because: str, faults: Faults) -> tuple[Any, ...] | None:
        """Read the word or the list."""
        if isinstance(node, SequenceNode):
            return ListOf(self.item, self.most).value(node, path, because, faults)
        one = self.item.value(node, path, because, faults)
        return None if one is None else (one,)


def key_names(section: Section, path: str = "") -> Iterator[str]:
    """Yield the dotted name of every key; list items are written ``[]``, rows of a table ``NAME``. What documentation must cover."""
    for name, key in section.keys.items():
        reader, full = key.reader, joined(path, name)
        if isinstance(reader, ListOf) and isinstance(reader.item, Section):
            yield full
            yield from key_names(reader.item, f"{full}[]")
        elif isinstance(reader, TableOf):
            yield full
            yield from key_names(reader.item, f"{full}.NAME")
        elif isinstance(reader, Section):
            yield from key_names(reader, full)
        else:
            yield full
