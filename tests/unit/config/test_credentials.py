"""API keys are named in the policy and read from where it says."""

from dataclasses import replace
from pathlib import Path

import pytest

from proxy.config.credentials import fallback_headers, request_headers
from proxy.config.settings import SettingsError
from proxy.core.policy import DEFAULT_CLASS, Fallback, Policy, ReplicaPolicy


def test_without_a_key_only_the_headers_are_sent() -> None:
    assert request_headers(ReplicaPolicy("http://a", "a", headers=(("x-zone", "1"),)), {}) == (("x-zone", "1"),)


def test_a_key_from_the_environment() -> None:
    replica = ReplicaPolicy("http://a", "a", api_key_env="KEY", headers=(("x-zone", "1"),))
    assert request_headers(replica, {"KEY": "sk-1"}) == (("x-zone", "1"), ("authorization", "Bearer sk-1"))


def test_a_key_from_a_file_without_its_line_end(tmp_path: Path) -> None:
    path = tmp_path / "key"
    path.write_text("sk-1\r\n")
    assert request_headers(ReplicaPolicy("http://a", "a", api_key_file=str(path)), {}) == (("authorization", "Bearer sk-1"),)


@pytest.mark.parametrize("value", ["", "  \n", "two words", "two\nlines", "schlüssel", "sk-1\x00"])
def test_what_is_no_key_is_told_without_showing_it(value: str) -> None:
    with pytest.raises(SettingsError) as error:
        request_headers(ReplicaPolicy("http://a", "first", api_key_env="KEY"), {"KEY": value})
    assert str(error.value).startswith("replica first: the environment variable KEY should hold its API key")
    assert not value.strip() or value not in str(error.value)


def test_a_key_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        request_headers(ReplicaPolicy("http://a", "a", api_key_file=str(tmp_path / "none")), {})


def test_only_apis_outside_have_keys_of_their_own() -> None:
    here, keyless, keyed = Fallback("small"), Fallback(url="http://a"), Fallback("gpt", "https://b", api_key_env="KEY")
    policy = Policy(classes=(replace(DEFAULT_CLASS, fallbacks=(here, keyless, keyed)),))
    assert fallback_headers(policy, {"KEY": "sk-1"}) == {keyless: (), keyed: (("authorization", "Bearer sk-1"),)}
    with pytest.raises(SettingsError, match=r"^fallback https://b: the environment variable KEY should hold its API key"):
        fallback_headers(policy, {})
