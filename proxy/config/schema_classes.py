"""The keys of ``classes``: which requests are treated alike, and how (``config.schema``)."""

from collections.abc import Mapping

from yaml.nodes import Node

from proxy.config.nodes import Faults
from proxy.config.scalars import HEADER_NAME, HEADER_VALUE, NAME, TEXT, duration, integer, number
from proxy.config.shape import Key, MapOf, Section
from proxy.core.policy_classes import Match, TrafficClass


def check_classes(classes: tuple[TrafficClass, ...], nodes: Mapping[str, Node], path: str, faults: Faults) -> None:
    names: set[str] = set()
    for index, traffic_class in enumerate(classes):
        where, node = f"{path}[{index}]", nodes[str(index)]
        if traffic_class.name in names:
            because = "metrics and logs tell classes apart by name"
            faults.add(node, f"{where}.name", got=f'"{traffic_class.name}" again', allowed="each name once", because=because)
        names.add(traffic_class.name)
        if traffic_class.match.everything and index < len(classes) - 1:
            because = "it matches everything, so the classes after it would never be reached"
            faults.add(node, f"{where}.match", got="no match", allowed="a match, or the last place", because=because)
    if "default" in names and not (classes[-1].name == "default" and classes[-1].match.everything):
        because = "default is the class of whatever nothing else matches"
        faults.add(
            nodes["0"], path, got='a class "default" with a match', allowed="default last, without a match", because=because
        )


MATCH = Section(
    Match,
    {
        "model": Key("model", TEXT, "it is a glob over the body's model"),
        "path": Key("path", TEXT, "it is a glob over the request's path"),
        "headers": Key("headers", MapOf(HEADER_NAME, HEADER_VALUE, 16), "each is a glob over the header's value"),
    },
)

CLASS = Section(
    TrafficClass,
    {
        "name": Key("name", NAME, "it labels metrics and logs", required=True),
        "match": Key("match", MATCH, "it says which requests are of this class"),
        "priority": Key("priority", integer(-1000, 1000), "higher goes first; a thousand steps each way are plenty"),
        "weight": Key("weight", number(0.01, 1000), "a share of zero would never be served"),
        "deadline": Key("deadline_s", duration("10ms", "24h"), "a request must have started by then"),
        "ttft": Key("ttft_s", duration("1ms", "1h"), "it is a target for the first token"),
        "tpot": Key("tpot_s", duration("100us", "1m"), "it is a target per output token"),
    },
)
