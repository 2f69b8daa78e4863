"""The keys of ``classes``: which requests are treated alike, and how (``config.schema``)."""

from collections.abc import Mapping

from yaml.nodes import Node

from proxy.config.nodes import Faults
from proxy.config.scalars import (
    ENV_NAME,
    FLAG,
    HEADER_NAME,
    HEADER_VALUE,
    NAME,
    SHA256,
    TEXT,
    URL,
    choice,
    duration,
    integer,
    number,
)
from proxy.config.shape import ITSELF, Key, ListOf, MapOf, OneOrMany, Section
from proxy.core.policy_classes import ClassQueue, Degrade, Fallback, Match, Saturated, TokenRange, TrafficClass

KEPT_OUT = "a secret in a policy file ends up in version control: use api_key_env or api_key_file"
SECRETS = dict.fromkeys(("api_key", "key", "token", "password"), KEPT_OUT)


def check_classes(classes: tuple[TrafficClass, ...], nodes: Mapping[str, Node], path: str, faults: Faults) -> None:
    """Hold names apart, and what matches everything at the end."""
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


def check_one_key(_: object, nodes: Mapping[str, Node], path: str, faults: Faults) -> None:
    """Hold that a key is named in one way."""
    if "api_key_env" in nodes and "api_key_file" in nodes:
        because = "api_key_env names the key already"
        faults.add(nodes["api_key_file"], f"{path}.api_key_file", got="both", allowed="one of the two", because=because)


def _check_fallback(fallback: Fallback, nodes: Mapping[str, Node], path: str, faults: Faults) -> None:
    check_one_key(fallback, nodes, path, faults)
    if fallback.model is None and fallback.url is None:
        faults.add(
            nodes[ITSELF],
            path,
            got="neither",
            allowed="a model, a url or both",
            because="it would lead back to where it came from",
        )
    for name in ("api_key_env", "api_key_file"):
        if name in nodes and fallback.url is None:
            faults.add(
                nodes[name], f"{path}.{name}", got="this key", allowed="it beside a url", because="it is the key of that API"
            )


def _check_prompt_tokens(tokens: TokenRange, nodes: Mapping[str, Node], path: str, faults: Faults) -> None:
    if tokens.most is not None and tokens.most < tokens.least:
        got = f"max {tokens.most} below min {tokens.least}"
        faults.add(nodes["max"], f"{path}.max", got=got, allowed="min up to max", because="no prompt is that long and that short")


def _check_class(one: TrafficClass, nodes: Mapping[str, Node], path: str, faults: Faults) -> None:
    """Hold what a class allows to be of use, and what it lists to be possible."""
    actions = one.when_saturated

    def unused(key: str, action: Saturated) -> None:
        faults.add(
            nodes[key], f"{path}.{key}", got="this key", allowed=f'it beside "{action}" in when_saturated',
            because="when_saturated says what is done, and this is not among it",
        )  # fmt: skip

    if Saturated.DEGRADE not in actions and "degrade" in nodes:
        unused("degrade", Saturated.DEGRADE)
    if Saturated.REROUTE not in actions and "fallbacks" in nodes:
        unused("fallbacks", Saturated.REROUTE)
    if Saturated.QUEUE not in actions and "queue" in nodes:
        unused("queue", Saturated.QUEUE)
    if "when_saturated" not in nodes:
        return
    node, where = nodes["when_saturated"], f"{path}.when_saturated"
    if len(set(actions)) < len(actions):
        faults.add(node, where, got="a word twice", allowed="each word once", because="what did not help would not help again")
    if Saturated.SHED in actions[:-1]:
        faults.add(node, where, got="shed before the end", allowed="shed last", because="nothing comes after it")
    if Saturated.DEGRADE in actions and one.degrade is None:
        because = "how far an answer may be cut is for you to say"
        faults.add(node, where, got="degrade", allowed="it beside the key degrade", because=because)
    if Saturated.REROUTE in actions and not one.fallbacks:
        because = "there is nowhere else to go: other replicas of the model are tried anyway"
        faults.add(node, where, got="reroute", allowed="it beside the key fallbacks", because=because)


_KEY_HEADERS = dict.fromkeys(
    ("authorization", "proxy-authorization", "x-api-key", "api-key"),
    "a key, or the beginning of one, in a policy file ends up in version control: use key_sha256",
)
TOKENS = integer(0, 100_000_000)

MATCH = Section(
    Match,
    {
        "model": Key("model", TEXT, "it is a glob over the body's model"),
        "path": Key("path", TEXT, "it is a glob over the request's path"),
        "headers": Key("headers", MapOf(HEADER_NAME, HEADER_VALUE, 16, _KEY_HEADERS), "each is a glob over the header's value"),
        "tenant": Key("tenant", TEXT, "it is a glob over the tenant's name"),
        "key_sha256": Key("key_sha256", OneOrMany(SHA256, 1000), "a key itself would end up in version control"),
        "stream": Key("stream", FLAG, "it is the body's stream"),
        "lora": Key("lora", TEXT, "it is a glob over the name of the LoRA adapter; * is any"),
        "prompt_tokens": Key(
            "prompt_tokens",
            Section(
                TokenRange,
                {
                    "min": Key("least", TOKENS, "it is a number of tokens"),
                    "max": Key("most", TOKENS, "it is a number of tokens"),
                },
                check=_check_prompt_tokens,
            ),
            "it is the length of the prompt",
        ),
    },
    refused={"key": "a secret in a policy file ends up in version control: use key_sha256", "api_key": "use key_sha256"},
)

CLASS_QUEUE = Section(
    ClassQueue,
    {
        "requests_max": Key("requests_max", integer(0, 1_000_000), "0 sheds what does not fit at once"),
        "tokens_max": Key("tokens_max", integer(0, 10_000_000_000), "it bounds the work that waits"),
        "wait_max": Key("wait_s_max", duration("0s", "24h"), "whoever waits longer is told when to come back"),
    },
)

DEGRADE = Section(
    Degrade,
    {"max_tokens_min": Key("output_tokens_min", integer(1, 1_000_000), "an answer of no token is none", required=True)},
)

FALLBACK = Section(
    Fallback,
    {
        "model": Key("model", TEXT, "it is the model to ask instead"),
        "url": Key("url", URL, "it is an OpenAI-compatible API outside"),
        "api_key_env": Key("api_key_env", ENV_NAME, "the key is read from it at start"),
        "api_key_file": Key("api_key_file", TEXT, "the key is read from it at start"),
    },
    refused=SECRETS,
    short="model",
    check=_check_fallback,
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
        "queue": Key("queue", CLASS_QUEUE, "it bounds what waits of this class"),
        "when_saturated": Key("when_saturated", OneOrMany(choice(Saturated), 4), "they are tried in this order"),
        "degrade": Key("degrade", DEGRADE, "it says how far an answer may be cut"),
        "fallbacks": Key("fallbacks", ListOf(FALLBACK, 10), "they are tried in this order"),
    },
    check=_check_class,
)
