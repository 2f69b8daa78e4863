"""What of a changed policy a process takes up while it runs, and what only when it starts again."""

from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

from proxy.config.nodes import joined
from proxy.config.schema import POLICY
from proxy.config.shape import ListOf, Reader, Section, TableOf
from proxy.core.policy import Policy

AT_RESTART = {
    "store": "connections, leases and rows in the store go by it, and proxies give one another up by it",
    "tokenizer": "prompts that wait were counted with the one that is loaded",
}
"""Keys of the top level that take effect at restart, and why."""


@dataclass(frozen=True, slots=True)
class KeyChange:
    """One key whose value differs, as people read it; None: it is not there."""

    key: str
    old: str | None
    new: str | None


def taken_up(running: Policy, wanted: Policy) -> tuple[Policy, tuple[str, ...]]:
    """Return what a process that runs by ``running`` goes by once ``wanted`` was written, and the keys that wait for its restart."""
    kept = {name: getattr(running, name) for name in AT_RESTART}
    effective = replace(wanted, **kept)
    return effective, tuple(change.key for change in changes(effective, wanted))


def changes(old: Policy, new: Policy) -> list[KeyChange]:
    """Return every key in which the two differ, as a policy file names it; what has a name is told by it."""
    return list(_differences(POLICY, "", old, new))


def _differences(reader: Reader, path: str, old: Any, new: Any) -> Iterator[KeyChange]:
    if old == new:
        return
    if isinstance(reader, Section) and is_dataclass(old) and is_dataclass(new):
        known = {key.field: (name, key.reader) for name, key in reader.keys.items()}
        for one in fields(new):
            name, inner = known.get(one.name, (one.name, None))
            before, after = getattr(old, one.name), getattr(new, one.name)
            if inner is not None:
                yield from _differences(inner, joined(path, name), before, after)
            elif before != after:
                yield KeyChange(joined(path, name), shown(before), shown(after))
    elif isinstance(reader, ListOf | TableOf) and isinstance(reader.item, Section):
        yield from _rows(reader.item, path, old or (), new or ())
    else:
        yield KeyChange(path, shown(old), shown(new))


def _rows(item: Section, path: str, old: tuple[Any, ...], new: tuple[Any, ...]) -> Iterator[KeyChange]:
    before, after = _by_name(old), _by_name(new)
    for name in [*before, *(name for name in after if name not in before)]:
        where = joined(path, name)
        if name not in after:
            yield KeyChange(where, "there", None)
        elif name not in before:
            yield KeyChange(where, None, "there")
        else:
            yield from _differences(item, where, before[name], after[name])
    kept = [name for name in after if name in before]
    if kept != [name for name in before if name in after]:
        yield KeyChange(path, ", ".join(before), ", ".join(after))  # the first that matches rules: their order counts


def _by_name(rows: tuple[Any, ...]) -> dict[str, Any]:
    return {str(getattr(row, "name", index)): row for index, row in enumerate(rows)}


def shown(value: Any) -> str | None:
    """A value for people. What is no plain word or number is shown as Python has it."""
    if value is None:
        return None
    return str(value) if isinstance(value, str | int | float) else repr(value)
