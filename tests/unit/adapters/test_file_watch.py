"""A watched file: written in place, put in its place, turned by a symlink, half there, and gone."""

import os
from pathlib import Path

import pytest

from proxy.adapters.file_watch import FileWatch


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_bytes(b"one")
    return path


def write(path: Path, text: bytes) -> None:
    path.write_bytes(text)


def remove(path: Path) -> None:
    path.unlink()


def stat(path: Path) -> os.stat_result:
    return path.stat()


async def told(watch: FileWatch) -> list[bytes | None]:
    found = [await watch.look() for _ in range(3)]
    return [None if one is None else one.text for one in found]


async def test_what_was_there_at_first_is_no_news(path: Path) -> None:
    assert await told(FileWatch(path)) == [None, None, None]


async def test_a_change_is_told_once_it_stands_still(path: Path) -> None:
    watch = FileWatch(path)
    write(path, b"two")
    assert await told(watch) == [None, b"two", None]


async def test_half_a_file_is_none(path: Path) -> None:
    watch = FileWatch(path)
    for half in (b"t", b"tw", b"two"):
        write(path, half)
        assert await watch.look() is None
    assert (await told(watch))[0] == b"two"


async def test_the_same_size_at_the_same_time_is_another_file(path: Path) -> None:
    watch, before = FileWatch(path), stat(path)
    write(path, b"six")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert await told(watch) == [None, b"six", None]


async def test_what_is_written_and_taken_back_is_no_news(path: Path) -> None:
    watch = FileWatch(path)
    write(path, b"two")
    assert await watch.look() is None
    write(path, b"one")
    assert await told(watch) == [None, None, None]


async def test_an_editor_puts_another_file_in_its_place(path: Path) -> None:
    watch = FileWatch(path)
    other = path.with_suffix(".swp")
    other.write_bytes(b"two")
    other.replace(path)
    assert await told(watch) == [None, b"two", None]


async def test_kubernetes_turns_a_symlink(tmp_path: Path) -> None:
    """A mounted ConfigMap: the file is a link into ``..data``, which is a link to a folder of the day."""
    for day, text in (("..1", b"one"), ("..2", b"two")):
        (tmp_path / day).mkdir()
        (tmp_path / day / "policy.yaml").write_bytes(text)
    (tmp_path / "..data").symlink_to("..1")
    (tmp_path / "policy.yaml").symlink_to("..data/policy.yaml")
    watch = FileWatch(tmp_path / "policy.yaml")
    (tmp_path / "..data_tmp").symlink_to("..2")
    (tmp_path / "..data_tmp").replace(tmp_path / "..data")
    assert await told(watch) == [None, b"two", None]


async def test_a_file_that_goes_is_told_and_told_again_when_it_is_back(path: Path) -> None:
    watch = FileWatch(path)
    remove(path)
    assert await watch.look() is None
    gone = await watch.look()
    assert gone is not None
    assert (gone.text, gone.fault) == (b"", "no such file or directory")
    write(path, b"one")
    assert await told(watch) == [None, b"one", None]


async def test_asked_for_it_tells_whatever_there_is(path: Path) -> None:
    watch = FileWatch(path)
    found = await watch.look(sure=True)
    assert found is not None
    assert (found.text, found.modified_s) == (b"one", stat(path).st_mtime)
