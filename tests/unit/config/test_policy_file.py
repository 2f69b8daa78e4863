"""Policy files: what a good one becomes, and how a bad one is told about."""

from pathlib import Path

import pytest

from proxy.config.faults import PolicyError
from proxy.config.policy_file import default_path, load, parse
from proxy.core.outcome import Mode
from proxy.core.policy import MIB, ErrorDetail, Limits, Match, Policy, Queue, ReplicaPolicy, TenantSource, TrafficClass


def faults_of(text: str) -> list[str]:
    """Return the lines that a bad file is told about with."""
    with pytest.raises(PolicyError) as error:
        parse(text, "p.yaml")
    return [str(fault) for fault in error.value.faults]


def the_fault_of(text: str) -> str:
    """Return the only line."""
    (line,) = faults_of(text)
    return line


def test_the_shipped_default_says_what_the_code_defaults_to() -> None:
    assert load(default_path()) == Policy()


def test_ten_lines_are_enough() -> None:
    policy = parse(
        """
        replicas: [http://a:8000/v1, {url: "https://b/llm/", name: b, max_num_seqs: 32, api_key_env: B_KEY, headers: {X-Zone: "1"}}]
        classes:
          - {name: chat, match: {headers: {X-Class: chat}, model: "llama*"}, priority: 10, ttft: 500ms, tpot: 40ms, deadline: 10s}
          - {name: bulk, priority: -1, weight: 0.5}
        queue: {wait_max: 2m, bytes_max: 1GiB}
        tenants: {from: user, weights: {acme: 2}}
        mode: off
        error_detail: brief
        """,
        "p.yaml",
    )
    assert policy.replicas == (
        ReplicaPolicy(url="http://a:8000", name="a:8000"),
        ReplicaPolicy("https://b/llm", "b", sequences_max=32, api_key_env="B_KEY", headers=(("x-zone", "1"),)),
    )
    chat, bulk = policy.classes
    assert chat == TrafficClass(
        "chat", Match("llama*", None, (("x-class", "chat"),)), 10, 1.0, deadline_s=10.0, ttft_s=0.5, tpot_s=0.04
    )
    assert bulk == TrafficClass("bulk", priority=-1, weight=0.5)  # it matches everything, so no default class follows
    assert policy.queue == Queue(wait_s_max=120.0, bytes_max=1024 * MIB)
    assert policy.tenants.sources == (TenantSource.USER,)
    assert policy.tenants.weight_of("acme") == 2.0
    assert policy.tenants.weight_of("other") == 1.0
    assert policy.mode is Mode.OFF  # YAML 1.1 calls `off` false
    assert policy.error_detail is ErrorDetail.BRIEF
    assert policy.limits == Limits()


def test_a_class_list_without_a_catch_all_ends_in_the_default_class() -> None:
    names = [one.name for one in parse("classes: [{name: a, match: {path: /v1/chat/*}}]", "p.yaml").classes]
    assert names == ["a", "default"]


def test_all_faults_are_told_at_once_in_the_files_order() -> None:
    text = "mode: offf\nreplicas:\n  - url: ftp://b\n    kv_bloks: 5\nqueue:\n  wait_max: 30\n  requests_max: -1\nscrape: []\nmode: off\n"
    assert [line.split(";")[0] for line in faults_of(text)] == [
        'p.yaml:1:7: mode: got "offf" (did you mean "off"?)',
        'p.yaml:3:10: replicas[0].url: got "ftp://b"',
        'p.yaml:4:5: replicas[0].kv_bloks: got the unknown key "kv_bloks" (did you mean "kv_blocks"?)',
        'p.yaml:6:13: queue.wait_max: got "30"',
        'p.yaml:7:17: queue.requests_max: got "-1"',
        "p.yaml:8:9: scrape: got a list",
        'p.yaml:9:1: mode: got "mode" a second time',
    ]


def test_a_fault_says_what_is_allowed_and_why() -> None:
    allowed, why = (
        "allowed a time from 0s to 24h, with its unit (us, ms, s, m, h)",
        "without a unit it would be read in different ways",
    )
    assert the_fault_of("queue: {wait_max: 30}") == f'p.yaml:1:19: queue.wait_max: got "30"; {allowed}; because {why}'


@pytest.mark.parametrize(
    ("text", "place", "word"),
    [
        ("", "p.yaml:", "an empty file"),
        ("# nothing\n", "p.yaml:", "an empty file"),
        ("- mode", "p.yaml:1:1:", "a map of `key: value` lines"),
        ("mode", "p.yaml:1:1:", 'got "mode"'),
        ("queue:\n\trequests_max: 1", "p.yaml:2:1:", "use spaces"),
        ("queue:\n  requests_max: 1\n \ttokens_max: 1", "p.yaml:", "use spaces"),
        ("mode: enforce\n---\nmode: off", "p.yaml:2:1:", "a single document"),
        ("queue: {requests_max: 1", "p.yaml:1:24:", "cannot be read further"),
        ("a: \x00", "p.yaml:1:1:", "#x0000"),
        ("[" * 1_000, "p.yaml:", "nested"),
        ("? [a]\n: 1", "p.yaml:1:3:", "a list as a key"),
        ("base: &b {mode: off}\n", "p.yaml:1:1:", 'unknown key "base"'),
        ("queue: {<<: {requests_max: 1}}", "p.yaml:1:9:", "no merging"),
        ("x" * 1024 * 1024 + ": 1", "p.yaml:", "more than 1 MiB"),
    ],
)
def test_what_is_no_policy_is_told_where(text: str, place: str, word: str) -> None:
    line = the_fault_of(text)
    assert line.startswith(place)
    assert word in line


@pytest.mark.parametrize(
    "value",
    [
        "1.5",
        "01",
        "0x10",
        "1e3",
        "true",
        "null",
        "",
        "[1]",
        "{a: 1}",
        "one",
        "-1",
        "1000001",
        "9" * 5000,
        ".inf",
        "!!python/name:os.system x",
    ],
)
def test_a_whole_number_is_a_whole_number_within_bounds(value: str) -> None:
    assert "a whole number from 0 to 1000000" in the_fault_of(f"queue: {{requests_max: {value}}}")


@pytest.mark.parametrize(("value", "wanted"), [("0", 0), ("1", 1), ("999_999", 999_999), ("1000000", 1_000_000), ('"7"', 7)])
def test_bounds_are_within(value: str, wanted: int) -> None:
    assert parse(f"queue: {{requests_max: {value}}}", "p.yaml").queue.requests_max == wanted


@pytest.mark.parametrize(
    ("value", "seconds"), [("500us", 5e-4), ("1.5 s", 1.5), ("50ms", 0.05), ("24h", 86_400), ("0s", 0), ("2m", 120)]
)
def test_durations_carry_their_unit(value: str, seconds: float) -> None:
    assert parse(f"queue: {{wait_max: {value}}}", "p.yaml").queue.wait_s_max == pytest.approx(seconds)


@pytest.mark.parametrize("value", ["30", "-1s", "1d", "s", "1s1", "25h", "1e3s", "1 000s", "nans", "1:30"])
def test_durations_that_are_none(value: str) -> None:
    assert "allowed a time from 0s to 24h" in the_fault_of(f"queue: {{wait_max: {value}}}")


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("64mb", '(did you mean "64MiB"?)'),
        ("64K", '(did you mean "64KiB"?)'),
        ("64", "because without a unit"),
        ("65GiB", "because waiting bodies are held in memory"),
    ],
)
def test_sizes_that_are_none(value: str, word: str) -> None:
    line = the_fault_of(f"queue: {{bytes_max: {value}}}")
    assert "allowed a size from 0B to 64GiB" in line
    assert word in line


@pytest.mark.parametrize(
    "replica",
    [
        "{url: 'http://h', api_key: hunter2}",
        "{url: 'http://h', token: hunter2}",
        "{url: 'http://h', headers: {Authorization: hunter2}}",
        "{url: 'http://h', headers: {X-API-Key: hunter2}}",
        "http://user:hunter2@h",
        "ftp://user:hunter2@h",
    ],
)
def test_secrets_are_refused_and_never_shown(replica: str) -> None:
    assert "hunter2" not in the_fault_of(f"replicas: [{replica}]")


@pytest.mark.parametrize(
    ("text", "where", "word"),
    [
        ("replicas: [http://a, http://A/v1/]", "p.yaml:1:22: replicas[1].url", "again"),
        ("replicas: [{url: http://a, name: x}, {url: http://b, name: x}]", "p.yaml:1:38: replicas[1].name", "again"),
        ("replicas: [{url: http://a, api_key_env: A, api_key_file: /b}]", "p.yaml:1:58:", "one of the two"),
        ("replicas: []", "p.yaml:1:11:", "a list of 1 to 1000"),
        ("replicas: [{name: a}]", "p.yaml:1:12: replicas[0].url", "got nothing"),
        ("classes: [{name: a}, {name: b}]", "p.yaml:1:11: classes[0].match", "the last place"),
        ("classes: [{name: a, match: {model: x}}, {name: a}]", "p.yaml:1:41: classes[1].name", "again"),
        ("classes: [{name: default, match: {model: x}}]", "p.yaml:1:11: classes", "default last"),
        ("budget: {z_min: 4}", "p.yaml:1:17: budget.z_min", "z_min up to z_max"),
        ("scrape: {interval: 4s}", "p.yaml:1:20: scrape.stale", "interval + timeout"),
        ("store: {lease: 200ms}", "p.yaml:1:16: store.lease", "at least four times"),
        ("store: {beat: 1s}", "p.yaml:1:15: store.lease", "beat 1s"),
        ("tenants: {from: [header, cookie]}", "p.yaml:1:26: tenants.from[1]", "one of header, api_key, user"),
    ],
)
def test_what_does_not_go_together(text: str, where: str, word: str) -> None:
    line = faults_of(text)[0]
    assert line.startswith(where)
    assert word in line


def test_long_and_unprintable_input_is_told_in_one_short_line() -> None:
    line = the_fault_of('mode: "' + "x\\n\\u202e" * 1000 + '"')
    assert line.isprintable()
    assert len(line) < 400


@pytest.mark.parametrize(("raw", "word"), [(None, "no such file"), (b"mode: \xff", "no UTF-8 at offset 6")])
def test_a_file_that_cannot_be_read_is_a_fault(tmp_path: Path, raw: bytes | None, word: str) -> None:
    path = tmp_path / "p.yaml"
    if raw is not None:
        path.write_bytes(raw)
    with pytest.raises(PolicyError, match=word):
        load(path)


def test_a_folder_is_no_policy(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="is a directory"):
        load(tmp_path)


def test_a_byte_order_mark_is_no_fault(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_bytes(b"\xef\xbb\xbfmode: observe\n")
    assert load(path).mode is Mode.OBSERVE
