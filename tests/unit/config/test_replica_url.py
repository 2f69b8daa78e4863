"""Addresses of replicas."""

import pytest

from proxy.config.replica_url import ReplicaUrlError, normal_url


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("http://h:8000", "http://h:8000"),
        ("http://H:8000/", "http://h:8000"),
        ("https://h/v1/", "https://h"),
        ("http://h/team/v1", "http://h/team"),
        ("HTTP://h", "http://h"),
        ("http://[::1]:8000/v1", "http://[::1]:8000"),
        ("http://h/V1x", "http://h/V1x"),
    ],
)
def test_what_people_paste(text: str, wanted: str) -> None:
    assert normal_url(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        *("", "h:8000", "//h", "ftp://h", "http://", "http://:80", "http://h:0", "http://h:65536", "http://h:x", "http://u@h"),
        *("http://u:p@h", "http://h?", "http://h?a=1", "http://h#f", "http://h /", "http://h\n", "http://[::1", "http://h\x00"),
    ],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ReplicaUrlError):
        normal_url(text)
