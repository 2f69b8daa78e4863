"""Names of the classes of output lengths (``core.survival``), from the root to the leaf, in any process alike."""

from proxy.core.demand import Demand, bucket

__all__ = ["Key", "bucket", "chain_of", "class_chain", "leaf_name"]

Key = tuple[str | int | bool, ...]


def leaf_name(demand: Demand) -> Key:
    """What names a demand's leaf, in any process alike: model, tenant, tools, and the buckets of its prompt and its cap."""
    return demand.length_name


def chain_of(name: Key) -> tuple[Key, ...]:
    """The classes of a leaf, from the root to itself."""
    return (), name[:1], name[:3], name[:4], name


PARENT_PARTS = {1: 0, 3: 1, 4: 3, 5: 4}  # of a class's name that name its parent, by the parts of its own: as in ``chain_of``


def class_chain(demand: Demand) -> tuple[Key, ...]:
    """The classes a demand belongs to, from the root to the leaf."""
    return chain_of(leaf_name(demand))
