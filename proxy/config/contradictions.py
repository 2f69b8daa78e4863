"""What is right line by line and cannot be meant as a whole: faults for what can never work, warnings for what has no effect.

A bound is no effect where another one is always reached before it. Only what is certain is told.
"""

from collections.abc import Iterator

from yaml.nodes import MappingNode, Node, SequenceNode

from proxy.config.globs import covers
from proxy.config.nodes import Faults, joined
from proxy.core.policy import Policy
from proxy.core.policy_tenants import TenantSource


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


def find_contradictions(policy: Policy, root: Node, faults: Faults) -> None:
    """Note them all. The policy has no other faults."""
    places = Places(root)
    for find in (_covered_classes, _waits, _queue_bounds, _tenant_header):
        find(policy, places, faults)


def _covered_classes(policy: Policy, places: Places, faults: Faults) -> None:
    classes = policy.classes
    for later, traffic_class in enumerate(classes):
        first = next((one for one in classes[:later] if covers(one.match, traffic_class.match)), None)
        if first is None or first.match.everything or not places.has(f"classes[{later}]"):
            continue  # one that matches everything before the last place was told already
        because = f"{first.name} stands before it and matches everything that it matches: put the narrower one first"
        faults.add(
            places.at(f"classes[{later}].match", f"classes[{later}]"), f"classes[{later}].match",
            got="a class that nothing reaches", allowed="a match that leaves something", because=because,
        )  # fmt: skip


def _waits(policy: Policy, places: Places, faults: Faults) -> None:
    """Deadlines and targets beyond the longest wait."""
    for index, traffic_class in enumerate(policy.classes):
        path, wait_s = f"classes[{index}]", policy.queue.wait_s_max
        deadline_s, ttft_s = traffic_class.deadline_s, traffic_class.ttft_s
        if deadline_s is not None and deadline_s > wait_s:
            because = f"queue.wait_max ends every wait after {wait_s:g} s, before this deadline"
            faults.warn(
                places.at(f"{path}.deadline"), f"{path}.deadline", got=f"{deadline_s:g} s", allowed=f"up to {wait_s:g} s",
                because=because,
            )  # fmt: skip
        bound_s = min(wait_s, wait_s if deadline_s is None else deadline_s)
        if ttft_s is not None and ttft_s > bound_s:
            by = "queue.wait_max" if bound_s == wait_s else "its deadline"
            because = f"{by} ends the wait after {bound_s:g} s, so this target hardly ever rules"
            faults.warn(
                places.at(f"{path}.ttft"), f"{path}.ttft", got=f"{ttft_s:g} s", allowed=f"up to {bound_s:g} s", because=because
            )


def _queue_bounds(policy: Policy, places: Places, faults: Faults) -> None:
    """Bounds of the queue that another bound keeps from being reached, or that keep a request from ever waiting."""
    queue, limits = policy.queue, policy.limits
    if queue.requests_max > limits.connections_max:
        faults.warn(
            places.at("queue.requests_max", "limits.connections_max"), "queue.requests_max", got=str(queue.requests_max),
            allowed=f"up to limits.connections_max, {limits.connections_max}",
            because="each request that waits holds a connection, so the queue is never that long",
        )  # fmt: skip
    if queue.requests_max > 0 and queue.bytes_max < limits.body_bytes_max:
        faults.warn(
            places.at("queue.bytes_max", "limits.body_max"), "queue.bytes_max", got=f"{queue.bytes_max} bytes",
            allowed=f"at least limits.body_max, {limits.body_bytes_max} bytes",
            because="a body of the longest kind could never wait and is refused whenever there is no room at once",
        )  # fmt: skip
    if queue.wait_s_max == 0.0:
        for key in _written_below(places, "queue", ("requests_max", "tokens_max", "bytes_max")):
            because = "queue.wait_max is 0s: nothing waits"
            faults.warn(places.at(key), key, got="a bound of what waits", allowed="no such key", because=because)


def _written_below(places: Places, path: str, names: tuple[str, ...]) -> Iterator[str]:
    return (f"{path}.{name}" for name in names if places.has(f"{path}.{name}"))


def _tenant_header(policy: Policy, places: Places, faults: Faults) -> None:
    if places.has("tenants.header") and TenantSource.HEADER not in policy.tenants.sources:
        faults.warn(
            places.at("tenants.header"), "tenants.header", got="a header that nobody reads", allowed="header in tenants.from",
            because="tenants.from does not list header",
        )  # fmt: skip
