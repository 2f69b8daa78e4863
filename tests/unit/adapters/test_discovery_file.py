"""Replicas listed in a file that something else writes."""

import json
from pathlib import Path

import pytest

from proxy.adapters import discovery_file
from proxy.adapters.discovery_file import FileSource
from proxy.config.faults import PolicyError
from proxy.config.replica_list import parse_replicas
from proxy.core.policy import ReplicaPolicy
from proxy.ports.replicas import DiscoveryError

A, B = ReplicaPolicy("http://a:1", "a:1"), ReplicaPolicy("http://b:2", "two", kv_blocks=99)
BOTH = "- http://a:1\n- {url: 'http://b:2', name: two, kv_blocks: 99}\n"


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


@pytest.mark.parametrize(
    "text", [BOTH, "replicas:\n" + BOTH, json.dumps(["http://a:1", {"url": "http://b:2", "name": "two", "kv_blocks": 99}])]
)
def test_a_list_is_read_as_yaml_and_as_json(text: str) -> None:
    assert parse_replicas(text.encode(), "f") == (A, B)


def test_an_empty_list_says_that_there_are_none() -> None:
    assert parse_replicas(b"[]", "f") == ()
    assert parse_replicas(b"replicas: []", "f") == ()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (b"", "f: file: got an empty file; allowed a list, or [] for none"),
        (b"a: 1", "f:1:1: file: got a map"),
        (b"- 10.0.0.5:8000", 'f:1:3: replicas[0]: got "10.0.0.5:8000"'),
        (b"- http://a:1\n- ftp://b:1", "f:2:3: replicas[1]"),
        (b"- http://a:1\n- http://a:1/v1", "f:2:3: replicas[1].url"),
        (b"- {url: 'http://a:1', api_key: secret}", "replicas[0].api_key"),
        (b"[", "f:1:2: yaml"),
        (b"\xff", "no UTF-8"),
        (b"#" * (1024 * 1024 + 1), "more than 1 MiB"),
    ],
)
def test_what_is_no_list_is_told_with_its_line(text: bytes, told: str) -> None:
    with pytest.raises(PolicyError) as error:
        parse_replicas(text, "f")
    assert told in str(error.value)


async def test_changes_are_told_and_faults_end_the_telling(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery_file, "LOOK_S", 0.0)
    path = tmp_path / "replicas.yaml"
    write(path, "- http://a:1\n")
    telling = FileSource(path, ReplicaPolicy("", "")).tell()
    assert await anext(telling) == (A,)
    assert await anext(telling) is None
    write(path, BOTH)
    assert [await anext(telling), await anext(telling)] == [None, (A, B)]
    write(path, "- nonsense\n")
    assert await anext(telling) is None
    with pytest.raises(DiscoveryError, match=r"replicas\.yaml:1:3"):
        await anext(telling)
    with pytest.raises(DiscoveryError, match="no such file"):
        await anext(FileSource(tmp_path / "nowhere", ReplicaPolicy("", "")).tell())


async def test_what_an_item_does_not_say_holds_for_all(tmp_path: Path) -> None:
    path = tmp_path / "replicas.yaml"
    write(path, "- http://a:1\n- {url: 'http://b:2', kv_blocks: 5, api_key_file: /key}\n")
    template = ReplicaPolicy("", "", kv_blocks=9, api_key_env="KEY", headers=(("x-house", "1"),))
    first, second = await anext(FileSource(path, template).tell()) or ()
    assert first == ReplicaPolicy("http://a:1", "a:1", kv_blocks=9, api_key_env="KEY", headers=(("x-house", "1"),))
    assert second == ReplicaPolicy("http://b:2", "b:2", kv_blocks=5, api_key_file="/key", headers=(("x-house", "1"),))
