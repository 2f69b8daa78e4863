"""Addresses of the shared store: every form, what is wrong with others, and no secret in anything that is shown."""

from pathlib import Path

import pytest

from proxy.config.redis_url import RedisUrlError, StoreAddress, StoreKind, store_address

SERVER, SOCKET, SENTINEL, CLUSTER = StoreKind.SERVER, StoreKind.SOCKET, StoreKind.SENTINEL, StoreKind.CLUSTER


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("redis://h", StoreAddress(SERVER, (("h", 6379),))),
        ("REDIS://h:7/3", StoreAddress(SERVER, (("h", 7),), database=3)),
        ("redis://[::1]:7", StoreAddress(SERVER, (("::1", 7),))),
        ("redis://:p%40%23@h", StoreAddress(SERVER, (("h", 6379),), password="p@#")),
        ("redis://u:p:q@h?pool=eu-1", StoreAddress(SERVER, (("h", 6379),), username="u", password="p:q", pool="eu-1")),
        ("rediss://h?ca=/etc/ca.pem", StoreAddress(SERVER, (("h", 6379),), tls=True, ca_path=Path("/etc/ca.pem"))),
        ("unix:///run/redis.sock", StoreAddress(SOCKET, socket_path="/run/redis.sock")),
        ("unix://u:p@/run/r.sock?db=2", StoreAddress(SOCKET, (), "/run/r.sock", "", 2, "u", "p")),
        ("redis+sentinel://a:1,b/main", StoreAddress(SENTINEL, (("a", 1), ("b", 26_379)), service="main")),
        ("rediss+sentinel://u:p@a/main/2", StoreAddress(SENTINEL, (("a", 26_379),), "", "main", 2, "u", "p", True)),
        ("redis+cluster://a:1,[::1]:2", StoreAddress(CLUSTER, (("a", 1), ("::1", 2)))),
        ("rediss+cluster://a", StoreAddress(CLUSTER, (("a", 6379),), tls=True)),
    ],
)
def test_every_form(text: str, wanted: StoreAddress) -> None:
    assert store_address(text) == wanted


@pytest.mark.parametrize(
    "text",
    [
        *("", "h:6379", "http://h", "redis:/h", "redis://", "redis://:6379", "redis://h:0", "redis://h:65536", "redis://h:x"),
        *(
            "redis://a,b",
            "redis://h/x",
            "redis://h/1/2",
            "redis://u@h",
            "redis://u:@h",
            "redis://h#f",
            "redis://h ",
            "redis://[::1",
        ),
        *("redis://h?ca=/x", "redis://h?db", "redis://h?password=x", "redis://h?pool=a{b}", "unix://run/x", "unix:///"),
        *("unix:///r?ca=/x", "redis+sentinel://a", "redis+sentinel://a/b/c", "redis+cluster://a/1", "redis+cluster://a,"),
        *("redis+other://h", "redis://h:1:2"),
    ],
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(RedisUrlError):
        store_address(text)


@pytest.mark.parametrize(
    "text", ["redis://me:s3cret@h:99999", "redis://me:s3cret@h/s3cret", "other://me:s3cret@h", "redis://s3cret@h"]
)
def test_a_fault_tells_no_secret(text: str) -> None:
    with pytest.raises(RedisUrlError) as error:
        store_address(text)
    assert "s3cret" not in f"{error.value!r}"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("redis://me:s3cret@h:7/3?pool=x", "redis://h:7/3"),
        ("rediss://:s3cret@[::1]?ca=/x", "rediss://[::1]:6379"),
        ("unix://me:s3cret@/run/r.sock", "unix:///run/r.sock"),
        ("redis+sentinel://me:s3cret@a:1,b:2/main", "redis+sentinel://a:1,b:2/main"),
        ("rediss+cluster://me:s3cret@a:1", "rediss+cluster://a:1"),
    ],
)
def test_what_is_shown_holds_no_secret(text: str, shown: str) -> None:
    address = store_address(text)
    assert address.shown == shown
    assert "s3cret" not in repr(address)
