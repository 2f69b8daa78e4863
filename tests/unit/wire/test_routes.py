"""What becomes of a path, in every spelling that some server might read as a closed one."""

import pytest

from proxy.wire.routes import CLOSED_PATHS, OWN_PATHS, SAME_PATHS, RouteKind, closed_path, in_table, kind_of, opened


@pytest.mark.parametrize("path", sorted(CLOSED_PATHS))
@pytest.mark.parametrize("method", ["GET", "POST", "HEAD", "OPTIONS", "PUT", "BREW"])
def test_a_closed_path_is_closed_for_every_method(method: str, path: str) -> None:
    assert kind_of(method, path) is RouteKind.CLOSED
    assert closed_path(path) == path


# As the ASGI server tells the path: decoded once.
@pytest.mark.parametrize(
    "path",
    [
        *(
            "/sleep/",
            "//sleep",
            "/./sleep",
            "/v1/../sleep",
            "/../sleep",
            "/SLEEP",
            "/Sleep",
            "/sleep;a=b",
            "/;x/sleep",
            "/sleep ",
        ),
        *("/%73leep", "/%2573leep", "/sleep%2f", "/%2e%2e/sleep", "/a/%2e%2e/sleep", "\\sleep", "/v1\\..\\sleep", "/sleep\0"),
        *(
            "/sleep%00",
            "/sleep?level=1",
            "/sleep%3flevel=1",
            "/sleep#x",
            "/api/sleep",
            "/a/b/c/sleep",
            "sleep",
            "/sleep/.",
            "/sleep//",
        ),
        "/\udcff/../sleep",
    ],
)
def test_no_spelling_opens_a_closed_path(path: str) -> None:
    assert closed_path(path) == "/sleep"
    assert kind_of("POST", path) is RouteKind.CLOSED


@pytest.mark.parametrize("path", ["/v1//unload_lora_adapter", "/x/V1/unload_lora_adapter", "/v1/./unload_lora_adapter/"])
def test_a_closed_path_of_several_segments_is_found_too(path: str) -> None:
    assert closed_path(path) == "/v1/unload_lora_adapter"


@pytest.mark.parametrize(
    "path",
    [
        *(
            "/",
            "",
            "/v1/chat/completions",
            "/v1/chat/completions/",
            "/asleep",
            "/sleeping",
            "/sleep/now",
            "/sleep_",
            "/v1/nothing",
        ),
        *("/apply", "/status", "/v1/responses/resp_1/cancel", "/load_lora_adapter", "/a%20b/é", "/..", "//"),
    ],
)
def test_other_paths_are_relayed(path: str) -> None:
    assert kind_of("POST", path) is RouteKind.SAME


@pytest.mark.parametrize("length", [255, 256, 257, 5000])
def test_long_paths_are_judged_like_short_ones(length: int) -> None:
    for path in ("/" * (length - 5) + "sleep", "/sleep" + "/" * (length - 6), "/" + "a" * (length - 7) + "/sleep"):
        assert len(path) == length
        assert kind_of("POST", path) is RouteKind.CLOSED
    assert kind_of("POST", "/" + "a" * (length - 1)) is RouteKind.SAME


def test_own_paths_are_own_for_their_methods_only() -> None:
    for path, methods in OWN_PATHS.items():
        assert {kind_of(method, path) for method in methods} == {RouteKind.OWN}
        assert kind_of("DELETE", path) is RouteKind.SAME
        assert kind_of("GET", path + "/") is RouteKind.SAME


def test_no_path_is_of_two_kinds() -> None:
    assert not CLOSED_PATHS & set(OWN_PATHS)
    assert not [path for path in (*SAME_PATHS, *OWN_PATHS) if closed_path(path)]


@pytest.mark.parametrize(
    ("method", "path", "known"),
    [
        ("GET", "/v1/responses/{response_id}", True),
        ("POST", "/v1/responses/{response_id}/cancel", True),
        ("POST", "/v1/responses/{response_id}", False),
        ("POST", "/sleep", True),
        ("GET", "/health", True),
        ("POST", "/v1/new_in_a_later_version", False),
    ],
)
def test_the_table_knows_what_it_names(method: str, path: str, known: bool) -> None:
    assert in_table(method, path) is known


@pytest.mark.parametrize(
    "path", ["/adapters/a", "/adapters/A-b.c", "/x/adapters/a", "//adapters//a/", "/adapters/a%2f", "/ADAPTERS/a"]
)
def test_adapters_are_closed_by_any_name(path: str) -> None:
    assert kind_of("DELETE", path) is RouteKind.CLOSED
    assert opened(path, ("*",)) is (path in {"/adapters/a", "/adapters/A-b.c"})


@pytest.mark.parametrize("path", ["/%73leep", "//sleep", "/SLEEP", "/sleep/", "/api/sleep", "/v1/chat/completions"])
def test_only_the_engines_own_spelling_can_be_opened(path: str) -> None:
    assert not opened(path, ("*",))


def test_paths_are_opened_by_name_or_glob() -> None:
    assert opened("/sleep", ("/wake_up", "/sleep"))
    assert opened("/v1/load_lora_adapter", ("/v1/*lora*",))
    assert not opened("/pause", ("/sleep", "/v1/*"))
    assert not opened("/sleep", ())
