"""What is right line by line and cannot be meant as a whole: faults for what can never work, warnings for what has no effect.

A bound is no effect where another one is always reached before it. Only what is certain is told.
"""

from yaml.nodes import Node

from proxy.config.contradictions_between import check_fallbacks, check_tenants
from proxy.config.globs import covers
from proxy.config.nodes import Faults
from proxy.config.places import Places
from proxy.core.outcome import Mode
from proxy.core.policy import Policy
from proxy.core.policy_classes import Saturated


def find_contradictions(policy: Policy, root: Node, faults: Faults) -> None:
    """Note them all. The policy has no other faults."""
    places = Places(root)
    for find in (_covered_classes, _waits, _class_queues, _queue_bounds, _reroutes, _mode, check_fallbacks, check_tenants):
        find(policy, places, faults)


def _covered_classes(policy: Policy, places: Places, faults: Faults) -> None:
    classes = policy.classes
    for later, traffic_class in enumerate(classes):
        first = next((one for one in classes[:later] if covers(one.match, traffic_class.match)), None)
        if first is None or not places.has(f"classes[{later}]"):
            continue
        because = f"{first.name} stands before it and matches everything that it matches: put the narrower one first"
        faults.add(
            places.at(f"classes[{later}].match", f"classes[{later}]"), f"classes[{later}].match",
            got="a class that nothing reaches", allowed="a match that leaves something", because=because,
        )  # fmt: skip


def _waits(policy: Policy, places: Places, faults: Faults) -> None:
    """Deadlines and targets beyond the longest wait."""
    for index, one in enumerate(policy.classes):
        path, wait_s = f"classes[{index}]", one.wait_s_max(policy.queue.wait_s_max)
        wait_key = "queue.wait_max" if one.queue.wait_s_max is None else f"{path}.queue.wait_max"
        if Saturated.QUEUE not in one.when_saturated:
            if one.deadline_s is not None:
                because = "when_saturated does not list queue: a request starts at once or not at all"
                faults.warn(
                    places.at(f"{path}.deadline"), f"{path}.deadline", got="a deadline", allowed="no such key", because=because
                )
            continue
        if one.deadline_s is not None and one.deadline_s > wait_s:
            because = f"{wait_key} ends every wait after {wait_s:g} s, before this deadline"
            faults.warn(
                places.at(f"{path}.deadline"), f"{path}.deadline", got=f"{one.deadline_s:g} s", allowed=f"up to {wait_s:g} s",
                because=because,
            )  # fmt: skip
        bound_s = min(wait_s, wait_s if one.deadline_s is None else one.deadline_s)
        if one.ttft_s is not None and one.ttft_s > bound_s:
            by = wait_key if bound_s == wait_s else "its deadline"
            because = f"{by} ends the wait after {bound_s:g} s, so this target hardly ever rules"
            faults.warn(
                places.at(f"{path}.ttft"),
                f"{path}.ttft",
                got=f"{one.ttft_s:g} s",
                allowed=f"up to {bound_s:g} s",
                because=because,
            )


def _class_queues(policy: Policy, places: Places, faults: Faults) -> None:
    """Bounds of a class that those of the whole queue keep from being reached."""
    for index, one in enumerate(policy.classes):
        for name in ("requests_max", "tokens_max"):
            bound, whole = getattr(one.queue, name), getattr(policy.queue, name)
            if bound is not None and bound > whole:
                key = f"classes[{index}].queue.{name}"
                because = "the whole queue never holds as much"
                faults.warn(places.at(key), key, got=str(bound), allowed=f"up to queue.{name}, {whole}", because=because)


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
    if max(one.wait_s_max(queue.wait_s_max) for one in policy.classes) == 0.0:
        for key in ("queue.requests_max", "queue.tokens_max", "queue.bytes_max"):
            if places.has(key):
                because = "queue.wait_max is 0s: nothing waits"
                faults.warn(places.at(key), key, got="a bound of what waits", allowed="no such key", because=because)


def _reroutes(policy: Policy, places: Places, faults: Faults) -> None:
    """A budget for what is never done."""
    if policy.relay.reroutes_max == 0:
        for key in ("relay.retry_ratio", "relay.retries_per_s_min"):
            if places.has(key):
                because = "relay.reroutes_max is 0: nothing is tried again"
                faults.warn(places.at(key), key, got="a budget for reroutes", allowed="no such key", because=because)


def _mode(policy: Policy, places: Places, faults: Faults) -> None:
    if places.has("enforce_ratio") and policy.mode is not Mode.ENFORCE:
        because = f"mode is {policy.mode}: nobody is held or refused"
        faults.warn(
            places.at("enforce_ratio"),
            "enforce_ratio",
            got="a share to enforce",
            allowed="it beside mode: enforce",
            because=because,
        )
