"""Settings: flags over variables over defaults, and the policy under them."""

from pathlib import Path

import pytest

from proxy.config.policy_file import parse
from proxy.config.settings import (
    LogLevel,
    ServeSettings,
    SettingsError,
    effective_policy,
    merged,
    read_settings,
    unread_variables,
)
from proxy.core.policy import ReplicaPolicy


def faults_of(flags: dict[str, object], environ: dict[str, str] | None = None) -> tuple[str, ...]:
    """Return what is wrong."""
    with pytest.raises(SettingsError) as error:
        read_settings(flags, environ or {})
    return error.value.faults


def test_nothing_said_gives_the_defaults() -> None:
    assert read_settings({}, {}) == ServeSettings()


def test_flags_win_over_variables() -> None:
    environ = {
        "KVGATE_REPLICAS": "http://a:1, http://b:2/v1 http://a:1/",
        "KVGATE_POLICY": "/etc/kvgate.yaml",
        "KVGATE_PORT": "9000",
        "KVGATE_ADMIN_PORT": "0",
        "KVGATE_LOG_LEVEL": "DEBUG",
        "KVGATE_HOST": "",
    }
    settings = read_settings({"port": "9001", "kv_blocks": "256", "policy": None}, environ)
    assert settings == ServeSettings(
        replica_urls=("http://a:1", "http://b:2"),
        policy_path=Path("/etc/kvgate.yaml"),
        port=9001,
        admin_port=0,
        kv_blocks=256,
        log_level=LogLevel.DEBUG,
    )


def test_every_fault_is_told_with_where_it_came_from() -> None:
    faults = faults_of(
        {"port": "0x50", "replica": ["host:8000"], "workers": "0"}, {"KVGATE_KV_BLOCKS": "1", "KVGATE_LOG_LEVEL": "inf"}
    )
    starts = [fault.split(";")[0] for fault in faults]
    assert starts == [
        '--replica: got "host:8000"',
        '--port: got "0x50"',
        '--workers: got "0"',
        'KVGATE_KV_BLOCKS: got "1"',
        'KVGATE_LOG_LEVEL: got "inf" (did you mean "info"?)',
    ]


@pytest.mark.parametrize(
    ("port", "good"), [("-1", False), ("0", True), ("65535", True), ("65536", False), ("８０", False), ("9" * 5000, False)]
)
def test_ports_at_their_edges(port: str, good: bool) -> None:
    if good:
        assert read_settings({"port": port}, {}).port == int(port)
    else:
        assert "a whole number from 0 to 65535" in faults_of({"port": port})[0]


def test_what_kubernetes_sets_for_a_service_named_kvgate_is_no_setting() -> None:
    environ = {
        "KVGATE_PORT": "tcp://10.0.0.1:8080",
        "KVGATE_SERVICE_HOST": "10.0.0.1",
        "KVGATE_PORT_8080_TCP": "tcp://10.0.0.1:8080",
    }
    assert read_settings({}, environ) == ServeSettings()
    assert unread_variables(environ) == []


def test_a_misspelt_variable_is_told() -> None:
    assert unread_variables({"KVGATE_POLICYS": "x", "KVGATE_TEST_DATA": "x", "PATH": "x", "KVGATE_HOST": "x"}) == [
        "KVGATE_POLICYS is not read (did you mean KVGATE_POLICY?)"
    ]


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        ({"redis": "memcached://h"}, "--redis: got an address not shown here; allowed redis://"),
        ({"workers": "2"}, "without knowing of the others"),
        ({"workers": "2", "redis": "redis://h", "port": "8082"}, "8081 to 8082 for 2 workers, one of them --port"),
        ({"workers": "2", "redis": "redis://h", "admin_port": "65535"}, "allowed up to 65535"),
        ({"port": "8081"}, "which is --port"),
    ],
)
def test_what_cannot_be_done_is_refused_with_the_reason(flags: dict[str, object], word: str) -> None:
    assert word in faults_of(flags)[0]


def test_secrets_in_an_address_are_not_shown() -> None:
    for flags in ({"replica": ["http://user:hunter2@h"]}, {"redis": "redis://user:hunter2@h:x"}):
        (fault,) = faults_of(flags)
        assert "hunter2" not in fault


def test_a_store_and_workers_go_together() -> None:
    settings = read_settings({"workers": "4"}, {"KVGATE_REDIS": "redis://user:hunter2@h/2"})
    assert settings.workers == 4
    assert settings.store is not None
    assert (settings.store.shown, settings.store.password) == ("redis://h:6379/2", "hunter2")
    assert "hunter2" not in repr(settings)


def test_a_store_that_cannot_be_read_is_the_only_fault_told_of_workers() -> None:
    (fault,) = faults_of({"workers": "4", "redis": "h:6379"})
    assert fault.startswith("--redis")


def test_addresses_from_flags_replace_the_files_list_and_keep_its_details() -> None:
    policy = parse("replicas: [{url: http://a, name: first, kv_blocks: 9}, http://b]\ntokenizer: t", "p.yaml")
    got = merged(policy, ServeSettings(replica_urls=("http://c", "http://a")))
    assert got.replicas == (ReplicaPolicy("http://c", "c"), ReplicaPolicy("http://a", "first", kv_blocks=9))
    assert got.tokenizer == "t"


def test_kv_blocks_and_tokenizer_from_flags_hold_for_every_replica() -> None:
    policy = parse("replicas: [{url: http://a, kv_blocks: 9}, http://b]\ntokenizer: t", "p.yaml")
    got = merged(policy, ServeSettings(kv_blocks=77, tokenizer="u"))
    assert [replica.kv_blocks for replica in got.replicas] == [77, 77]
    assert got.tokenizer == "u"


def test_a_process_without_replicas_is_refused() -> None:
    with pytest.raises(SettingsError, match="give --replica URL"):
        effective_policy(ServeSettings())
    assert effective_policy(ServeSettings(replica_urls=("http://a",))).replicas == (ReplicaPolicy("http://a", "a"),)
