"""Files that another may write, a list of replicas before all: what stands in their place is read within bounds, and does not leak."""

import asyncio
import os
import socket
from pathlib import Path

import pytest

from proxy.adapters import discovery_file
from proxy.adapters.discovered import replica_at
from proxy.adapters.discovery_file import FAULTS_SHOWN_MAX, FileSource
from proxy.adapters.file_watch import BYTES_MAX, FileWatch
from proxy.config.credentials import request_headers
from proxy.config.faults import PolicyError
from proxy.config.policy_file import review
from proxy.config.replica_list import parse_replicas
from proxy.config.replica_url import ReplicaUrlError, normal_url
from proxy.config.settings import SettingsError
from proxy.core.policy import Discovery, ReplicaPolicy
from proxy.ports.replicas import DiscoveryError
from proxy.serving.live_policy import FAULTS_TOLD_MAX, LivePolicy

GOOD = b"- http://a:1\n"
CHARS_MAX = 20_000  # of what is said of a file, whatever it holds


async def first(path: Path) -> tuple[str, ...]:
    """What a source tells at first."""
    told = await anext(FileSource(path, ReplicaPolicy("", "")).tell())
    assert told is not None
    return tuple(one.url for one in told)


async def fault(path: Path) -> str:
    """What it says instead."""
    with pytest.raises(DiscoveryError) as error:
        await first(path)
    assert len(str(error.value)) < CHARS_MAX
    return str(error.value)


def place(path: Path, kind: str) -> None:
    match kind:
        case "a pipe":
            os.mkfifo(path)
        case "a device without end":
            path.symlink_to("/dev/zero")
        case "a folder":
            path.mkdir()
        case "a socket":
            with socket.socket(socket.AF_UNIX) as listening:
                listening.bind(str(path))
        case "a link to itself":
            path.symlink_to(path.name)
        case _:
            raise AssertionError(kind)


KINDS = ["a pipe", "a device without end", "a folder", "a socket", "a link to itself"]


@pytest.mark.parametrize("kind", KINDS)
async def test_what_is_no_plain_file_is_a_fault_and_nobody_waits_for_it(kind: str, tmp_path: Path) -> None:
    """A pipe had taken a thread for ever, the policy's at start the whole process."""
    place(tmp_path / "list", kind)
    async with asyncio.timeout(60):
        assert str(tmp_path / "list") in await fault(tmp_path / "list")
        with pytest.raises(SettingsError, match="cannot be read"):
            request_headers(ReplicaPolicy("http://a:1", "a", api_key_file=str(tmp_path / "list")), {})


async def test_a_watched_file_that_turns_into_a_pipe_is_told_and_comes_back(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_bytes(b"one")
    watch = FileWatch(path)
    path.unlink()
    place(path, "a pipe")
    assert await watch.look() is None
    found = await watch.look()
    assert found is not None
    assert (found.text, found.fault) == (b"", "it is no plain file")
    path.unlink()
    path.write_bytes(b"two")
    assert [await watch.look(), await watch.look()][1] is not None
    assert watch.told.text == b"two"


async def test_a_list_out_of_its_folder_is_read_and_nothing_of_it_is_shown(tmp_path: Path) -> None:
    """Who may write there may point it at what kvgate alone may read, and read the log."""
    (tmp_path / "fleet").mkdir()
    secret, link = tmp_path / "token", tmp_path / "fleet" / "list"
    secret.write_text("planted-admin-token\nplanted-more: [x\n", encoding="utf-8")
    link.symlink_to(secret)
    said = await fault(link)
    assert "planted" not in said
    assert "a link out of its folder" in said
    secret.write_bytes(GOOD)
    assert await first(link) == ("http://a:1",)


@pytest.mark.parametrize("depth", [1, 2])
async def test_links_within_the_folder_are_as_good_as_files(depth: int, tmp_path: Path) -> None:
    """Kubernetes mounts ConfigMaps so, and its faults must be told with what they are about."""
    (tmp_path / "..day").mkdir()
    (tmp_path / "..data").symlink_to("..day")
    (tmp_path / "list").symlink_to(f"..{'data' if depth == 2 else 'day'}/list")
    (tmp_path / "..day" / "list").write_bytes(GOOD)
    assert await first(tmp_path / "list") == ("http://a:1",)
    (tmp_path / "mounted").symlink_to(tmp_path)  # the folder itself may be reached by a link
    assert not FileWatch(tmp_path / "mounted" / "list").told.elsewhere
    (tmp_path / "..day" / "list").write_bytes(b"- nonsense\n")
    assert 'got "nonsense"' in await fault(tmp_path / "list")


HOSTILE = {
    "too long": b"- http://a:1\n" * (BYTES_MAX // 13 + 1),
    "one word without end": b"x" * 100_000,
    "hundreds of faults": b"- x\n" * 300 + b"- {a: 1}\n" * 300,
    "aliases of aliases": b"a: &a [x, x, x, x, x, x, x, x, x]\n"
    + b"".join(b"%c: &%c [%b]\n" % (n, n, b", ".join([b"*%c" % (n - 1)] * 9)) for n in range(ord("b"), ord("m")))
    + b"replicas: *l\n",
    "a list that holds itself": b"&a [*a, *a]",
    "a map that holds itself": b"- &a {url: *a, headers: *a}",
    "brackets": b"[" * 3_000,
    "an object of Python's": b"- !!python/object/apply:os.system [id]\n",
    "a tag and merging": b"- &a {url: 'http://a:1'}\n- {<<: *a, name: b}\n",
    "no text": bytes(range(256)),
}


@pytest.mark.parametrize("what", HOSTILE)
async def test_no_text_takes_more_than_its_length(what: str, tmp_path: Path) -> None:
    (tmp_path / "list").write_bytes(HOSTILE[what])
    assert "list" in await fault(tmp_path / "list")
    assert review(HOSTILE[what].decode("latin-1"), "policy.yaml").policy is None


async def test_of_very_many_faults_the_first_are_told(tmp_path: Path) -> None:
    text = "".join(f"- x{n}\n" for n in range(900))
    (tmp_path / "list").write_text(text, encoding="utf-8")
    said = await fault(tmp_path / "list")
    assert said.count("because") == FAULTS_SHOWN_MAX
    assert said.endswith(f"; and {900 - FAULTS_SHOWN_MAX} more")


def test_of_a_bad_policys_faults_as_many_are_told_as_a_page_holds() -> None:
    live = LivePolicy.__new__(LivePolicy)
    live.file = "policy.yaml"
    text = "".join(f"k{n}: 1\n" for n in range(300))
    told = live.judge(text.encode()).faults
    assert len(told) == FAULTS_TOLD_MAX + 1
    assert told[-1] == f"policy.yaml: and {300 - FAULTS_TOLD_MAX} more"


async def test_half_a_list_at_the_first_look_is_made_good_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who writes in place may be met in the middle: the rest comes within two looks."""
    monkeypatch.setattr(discovery_file, "LOOK_S", 0.0)
    path = tmp_path / "list"
    path.write_bytes(b"- http://a:1\n- http://b")
    telling = FileSource(path, ReplicaPolicy("", "")).tell()
    told = await anext(telling)
    with path.open("ab") as file:
        file.write(b":2\n")
    assert told is not None
    assert await anext(telling) is None
    told = await anext(telling)
    assert told is not None
    assert [one.url for one in told] == ["http://a:1", "http://b:2"]


MACHINE_ONLY = [
    "http://169.254.169.254", "https://169.254.169.254:80/latest/meta-data", "http://169.254.0.1:8000", "http://2852039166:80",
    "http://0xa9fea9fe", "http://0251.0376.0251.0376", "http://169.254.43518", "http://[fe80::1]:8000", "http://[::ffff:169.254.169.254]:1",
    "http://[::ffff:a9fe:a9fe]:1",
]  # fmt: skip
NO_ADDRESS = [
    "unix:///run/vllm.sock", "http+unix://%2Frun%2Fvllm.sock", "file:///etc/passwd", "ftp://a:1", "gopher://a:1/_x", "http://", "http://:80",
    "http://me:key@a:8000", "http://me@169.254.169.254@a:1", "http://a:8000?x=", "http://a:8000#x", "http://a:99999", "http://a b:1",
    "http://a\r\nb:1", "http://a:0", "//a:1", "http:///v1", "javascript:alert(1)", "http://[::1", "http://a:1\x00",
]  # fmt: skip


@pytest.mark.parametrize("url", MACHINE_ONLY + NO_ADDRESS)
def test_no_such_address_is_a_replicas(url: str) -> None:
    with pytest.raises(ReplicaUrlError) as error:
        normal_url(url)
    assert "key" not in str(error.value).replace("api_key", "")
    with pytest.raises(PolicyError):
        parse_replicas(b"- " + repr(url).encode(), "list")


@pytest.mark.parametrize(
    "url",
    ["http://10.0.0.5:8000", "http://127.0.0.1:8000", "http://[fd00::1]:8000", "http://1a.example:1", "http://169.255.0.1:1"],
)
def test_private_addresses_and_the_machine_itself_are_where_replicas_are(url: str) -> None:
    assert normal_url(url) == url


@pytest.mark.parametrize("host", ["169.254.169.254", "[fe80::1]", "a/../b?", "me:key@a", "a b", ""])
def test_a_name_server_and_a_cluster_name_hosts_and_nothing_else(host: str) -> None:
    with pytest.raises(DiscoveryError):
        replica_at(Discovery(), host, 8000)
    with pytest.raises(DiscoveryError):
        replica_at(Discovery(), "10.0.0.5", "8000/x?y")


@pytest.mark.parametrize("name", ["KVGATE_ADMIN_TOKEN", "KVGATE_REDIS"])
def test_kvgates_own_secrets_are_no_replicas_key(name: str) -> None:
    with pytest.raises(SettingsError, match="kvgate's own") as error:
        request_headers(ReplicaPolicy("http://a:1", "a", api_key_env=name), {name: "planted-secret"})
    assert "planted" not in str(error.value)
