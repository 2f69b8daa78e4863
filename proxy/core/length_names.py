"""Names of the classes of output lengths (``core.survival``), from the root to the leaf, in any process alike."""

from proxy.core.demand import Demand

Key = tuple[str | int | bool, ...]


def bucket(tokens: int | None) -> int:
    """Powers of four: lengths within a factor of four share a class. None (no cap) is its own bucket."""
    return -1 if tokens is None else (max(tokens, 1).bit_length() + 1) // 2


def leaf_name(demand: Demand) -> Key:
    """What names a demand's leaf, in any process alike: model, tenant, tools, and the buckets of its prompt and its cap."""
    kind = demand.length_class
    return kind.model, kind.tenant, kind.tools, bucket(demand.prompt_tokens_longest), bucket(demand.output_tokens_max)


def chain_of(name: Key) -> tuple[Key, ...]:
    """The classes of a leaf, from the root to itself."""
    return (), name[:1], name[:3], name[:4], name


PARENT_PARTS = {1: 0, 3: 1, 4: 3, 5: 4}  # of a class's name that name its parent, by the parts of its own: as in ``chain_of``


def class_chain(demand: Demand) -> tuple[Key, ...]:
    """The classes a demand belongs to, from the root to the leaf."""
    return chain_of(leaf_name(demand))
