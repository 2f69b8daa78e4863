"""The JSON Schema of policy files: kept in step with the table of keys, and of one mind with ``check`` where it can be."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from proxy.config.faults import PolicyError
from proxy.config.json_schema import Words, built, policy_schema
from proxy.config.policy_file import SCHEMA_FILE, parse, shipped_path
from proxy.config.scalars import Scalar
from proxy.config.schema import POLICY
from proxy.config.shape import ListOf, MapOf, OneOrMany, Section, TableOf
from tests.support.yaml_json import json_of

POLICIES = Path(__file__).parents[3] / "policies"
SCHEMA = json.loads(shipped_path(SCHEMA_FILE).read_text("utf-8"))
VALIDATOR = Draft202012Validator(SCHEMA)


def scalars_in(reader: object) -> Iterator[Scalar]:
    """Yield every reader of a single value."""
    if isinstance(reader, Scalar):
        yield reader
    elif isinstance(reader, Section):
        for key in reader.keys.values():
            yield from scalars_in(key.reader)
    elif isinstance(reader, ListOf | OneOrMany | MapOf | TableOf):
        yield from scalars_in(reader.item)


def properties_in(schema: Any) -> Iterator[tuple[str, Any]]:
    """Yield every property with its schema."""
    if isinstance(schema, dict):
        yield from schema.get("properties", {}).items()
        for part in schema.values():
            yield from properties_in(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from properties_in(part)


def taken(text: str) -> bool:
    """Whether ``check`` takes it."""
    try:
        parse(text, "p.yaml")
    except PolicyError:
        return False
    return True


def valid(text: str) -> bool:
    """Whether the schema takes it."""
    return bool(VALIDATOR.is_valid(json_of(text)))


def test_the_shipped_schema_is_what_the_table_says() -> None:
    assert shipped_path(SCHEMA_FILE).read_text("utf-8") == built(POLICIES), "run `make fix`, which builds it anew"


def test_it_is_a_schema() -> None:
    Draft202012Validator.check_schema(SCHEMA)


def test_every_value_has_a_schema_of_its_own() -> None:
    assert [scalar.allowed for scalar in scalars_in(POLICY) if not scalar.schema] == []


def test_every_key_is_explained() -> None:
    properties = list(properties_in(SCHEMA))
    assert [name for name, schema in properties if len(schema["description"]) < 15] == []
    wait_max = SCHEMA["properties"]["queue"]["properties"]["wait_max"]
    assert wait_max["default"] == "30s"
    assert wait_max["description"].startswith("Longest wait. Allowed: a time from 0s to 24h")
    assert wait_max["errorMessage"] == "allowed a time from 0s to 24h, with its unit (us, ms, s, m, h)"
    assert "Default 30s: people leave a page that shows nothing" in wait_max["description"]


@pytest.mark.parametrize("path", sorted(POLICIES.glob("*.yaml")), ids=lambda path: path.stem)
def test_shipped_policies_are_valid_and_point_editors_to_the_schema(path: Path) -> None:
    text = path.read_text("utf-8")
    assert text.startswith(f"# yaml-language-server: $schema={SCHEMA_FILE}\n")
    assert [error.message for error in VALIDATOR.iter_errors(json_of(text))] == []


def test_the_defaults_in_the_schema_make_a_valid_policy() -> None:
    def defaults(schema: dict[str, Any]) -> dict[str, Any]:
        found = {}
        for name, part in schema["properties"].items():
            if "default" in part:
                found[name] = part["default"]
            elif "properties" in part:
                found[name] = defaults(part)
        return {name: value for name, value in found.items() if value != {}}

    policy = defaults(SCHEMA)
    assert policy["limits"]["body_max"] == "64MiB"
    assert list(VALIDATOR.iter_errors(policy)) == []
    assert taken(json.dumps(policy))


@pytest.mark.parametrize(
    "text",
    [
        "mode: off",
        "queue: {requests_max: 999_999, tokens_max: '7', wait_max: +1.5 s, bytes_max: 0B}",
        "budget: {z_min: 1, z_max: '2.5'}",
        "replicas: [http://a, HTTPS://b:1/v1, {url: 'http://c', name: 5, headers: {X-Zone: 1, X-Empty: '', x-flag: true}}]",
        "tenants: {from: user, weights: {5: 2, true: 3, 'é': 1}}",
        "tenants: {from: [header, api_key]}",
        "tokenizer: 1e5",
        "tenants: {list: {a: {key_sha256: " + "1" * 64 + "}}}",
        "{auth: pass, trusted_callers: [10.0.0.0/8, 192.0.2.7, '::1', 'fd00::/8']}",
        "tenants: {list: {acme: {weight: 2, requests_per_s: 5, burst: 1s, kv_share_max: 0.5}}, others: {tokens_per_min: 6000}}",
        "classes: [{name: long, match: {prompt_tokens: {min: 8000}, stream: true, lora: '*'}, queue: {wait_max: 5m}}]",
        "classes: [{name: a, when_saturated: [degrade, shed], degrade: {max_tokens_min: 64}}]",
        "classes: [{name: a, match: {tenant: x}, when_saturated: shed}, {name: b, fallbacks: [m, {url: 'https://a.b', api_key_env: K}]}]",
    ],
)
def test_what_check_takes_is_valid(text: str) -> None:
    assert taken(text)
    assert valid(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "- mode",
        "mode: offf",
        "mode:",
        "moed: off",
        "queue: 5",
        "queue: {wait_max: 30}",
        "queue: {wait_max: 30d}",
        "queue: {bytes_max: 64mb}",
        "queue: {requests_max: -1}",
        "queue: {requests_max: 1000001}",
        "queue: {requests_max: 1.5}",
        "queue: {requests_max: one}",
        "budget: {z_max: 11}",
        "replicas: []",
        "replicas: [ftp://a]",
        "replicas: [{name: a}]",
        "replicas: [{url: 'http://a', api_key: x}]",
        "replicas: [{url: 'http://a', headers: {Authorization: x}}]",
        "replicas: [{url: 'http://a', headers: {'not a name': x}}]",
        "tenants: {from: cookie}",
        "tenants: {weights: {a: 0}}",
        "classes: [{match: {model: x}}]",
        "classes: [{name: 'a b'}]",
        "replicas: [{url: 'http://a', api_key_env: 5}]",
        "replicas: [{url: 'http://a', kv_events: 5557}]",
    ],
)
def test_what_check_refuses_for_its_shape_is_invalid(text: str) -> None:
    assert not taken(text)
    assert not valid(text)


@pytest.mark.parametrize(
    "text",
    [
        "queue: {wait_max: 25h}",
        "queue: {requests_max: 01}",
        "budget: {z_min: 4}",
        "classes: [{name: a, match: {model: x}}, {name: a}]",
        "mode: off\nmode: off",
        "queue: {requests_max: 0x10}",
        "budget: {z_max: 1e0}",
        "replicas: [{url: 'http://:80'}]",
    ],
)
def test_what_only_check_knows(text: str) -> None:
    """The list in the header of ``config.json_schema``. One that moves up is good news: strike it there."""
    assert not taken(text)
    assert valid(text)


def test_a_table_without_words_is_enough() -> None:
    bare = policy_schema(Words())
    assert bare["properties"]["queue"]["properties"]["wait_max"]["description"].startswith("Whoever waits longer")
