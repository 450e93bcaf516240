"""One suite for all disks: what the log relies on holds for the real one and for those in memory."""

from __future__ import annotations

import errno
import random
import select
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from metaquorum.storage.disk.interface import (
    BackgroundSync,
    Disk,
    join,
    name_of,
    parent_of,
    read_file,
    remove_if_present,
    write_atomically,
)
from metaquorum.storage.disk.kernel_sync import KernelSync
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.errors import DiskError, FileMissingError, LogDirectoryLockedError
from metaquorum.testing.faulty_disk import FaultyDisk
from metaquorum.testing.memory_disk import MemoryDisk


@pytest.fixture(params=["posix", "faulty", "memory"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[Disk, str]:
    """A disk and an existing, empty directory on it."""
    if request.param == "posix":
        return PosixDisk(), str(tmp_path)
    disk: Disk = FaultyDisk(random.Random(1))
    if request.param == "memory":
        disk = MemoryDisk(random.Random(1), 1 << 20, lambda: time.time_ns() // 1_000_000)
    disk.make_directory("/data/node")
    disk.sync_directory("/data")
    return disk, "/data/node"


def test_append_read_size_truncate(place: tuple[Disk, str]) -> None:
    disk, root = place
    file = disk.open_append(join(root, "a"))
    assert file.size() == 0
    file.append(b"hello ")
    file.append(b"world")
    assert (file.size(), file.path) == (11, join(root, "a"))
    assert file.read_at(0, 100) == b"hello world"
    assert file.read_at(6, 3) == b"wor"
    assert file.read_at(11, 5) == b"" == file.read_at(50, 5)
    file.truncate(5)
    file.append(b"!")
    file.sync()
    assert file.read_at(0, 100) == b"hello!"
    file.truncate(8)
    assert file.read_at(0, 100) == b"hello!\0\0"
    file.close()
    file.close()
    assert disk.file_size(join(root, "a")) == 8


def test_a_file_is_as_old_as_its_last_change_or_as_it_is_said_to_be(place: tuple[Disk, str]) -> None:
    disk, root = place
    path = join(root, "a")
    file = disk.open_append(path)
    file.append(b"one")
    written = disk.modified_ms(path)
    assert written > 1_600_000_000_000
    disk.set_modified_ms(path, 12_345)
    assert disk.modified_ms(path) == 12_345
    file.sync()
    assert disk.modified_ms(path) == 12_345
    disk.rename(path, join(root, "b"))
    assert disk.modified_ms(join(root, "b")) == 12_345
    file.append(b"two")
    assert disk.modified_ms(join(root, "b")) >= written
    with pytest.raises(FileMissingError):
        disk.modified_ms(path)


def test_reopened_file_appends_at_its_end(place: tuple[Disk, str]) -> None:
    disk, root = place
    for text in (b"one", b"two"):
        file = disk.open_append(join(root, "a"))
        file.append(text)
        file.close()
    assert read_file(disk, join(root, "a")) == b"onetwo"


def test_a_reader_sees_what_a_writer_appends(place: tuple[Disk, str]) -> None:
    disk, root = place
    writer = disk.open_append(join(root, "a"))
    writer.append(b"12")
    reader = disk.open_read(join(root, "a"))
    assert reader.size() == 2
    writer.append(b"34")
    assert (reader.size(), reader.read_at(0, 9)) == (4, b"1234")


def test_a_reader_cannot_write(place: tuple[Disk, str]) -> None:
    disk, root = place
    disk.open_append(join(root, "a")).append(b"x")
    reader = disk.open_read(join(root, "a"))
    with pytest.raises(DiskError):
        reader.append(b"y")
    assert read_file(disk, join(root, "a")) == b"x"


@pytest.mark.parametrize(
    "operation",
    [
        lambda disk, path: disk.open_read(path),
        lambda disk, path: disk.remove(path),
        lambda disk, path: disk.rename(path, path + "2"),
        lambda disk, path: disk.file_size(path),
        lambda disk, path: disk.list_directory(path),
        lambda disk, path: disk.sync_directory(path),
        lambda disk, path: disk.lock(path),
        lambda disk, path: disk.free_bytes(path),
        lambda disk, path: disk.open_append(join(path, "file")),
    ],
)
def test_what_is_missing_is_named(place: tuple[Disk, str], operation: Callable[[Disk, str], object]) -> None:
    disk, root = place
    path = join(root, "absent")
    with pytest.raises(FileMissingError) as caught:
        operation(disk, path)
    assert caught.value.path.startswith(path) and path in str(caught.value)
    assert disk.list_directory(root) == []


def test_names(place: tuple[Disk, str]) -> None:
    disk, root = place
    disk.make_directory(join(root, "d/e"))
    disk.make_directory(join(root, "d/e"))
    disk.open_append(join(root, "b")).close()
    disk.open_append(join(root, "d/c")).close()
    assert disk.list_directory(root) == ["b", "d"]
    assert disk.list_directory(join(root, "d")) == ["c", "e"]
    assert disk.is_directory(join(root, "d/e")) and not disk.is_directory(join(root, "b"))
    assert disk.exists(join(root, "b")) and not disk.exists(join(root, "x"))
    disk.rename(join(root, "b"), join(root, "z"))
    disk.sync_directory(root)
    assert disk.list_directory(root) == ["d", "z"]
    disk.remove(join(root, "z"))
    assert disk.list_directory(root) == ["d"]
    assert remove_if_present(disk, join(root, "z")) is False
    assert remove_if_present(disk, join(root, "d/c")) is True


def test_rename_replaces(place: tuple[Disk, str]) -> None:
    disk, root = place
    for name in ("old", "new"):
        disk.open_append(join(root, name)).append(name.encode())
    disk.rename(join(root, "new"), join(root, "old"))
    assert disk.list_directory(root) == ["old"]
    assert read_file(disk, join(root, "old")) == b"new"


def test_an_open_file_survives_its_removal(place: tuple[Disk, str]) -> None:
    disk, root = place
    file = disk.open_append(join(root, "a"))
    file.append(b"still here")
    disk.remove(join(root, "a"))
    assert file.read_at(0, 20) == b"still here"


def test_directories_are_renamed_with_what_is_in_them_and_removed_when_empty(place: tuple[Disk, str]) -> None:
    disk, root = place
    disk.make_directory(join(root, "d/e"))
    file = disk.open_append(join(root, "d/e/f"))
    file.append(b"one")
    disk.rename(join(root, "d"), join(root, "x"))
    disk.sync_directory(root)
    file.append(b"two")  # an open file goes with it
    file.sync()
    assert disk.list_directory(root) == ["x"] and disk.list_directory(join(root, "x")) == ["e"]
    assert read_file(disk, join(root, "x/e/f")) == b"onetwo"
    with pytest.raises(DiskError):
        disk.remove_directory(join(root, "x/e"))
    disk.remove(join(root, "x/e/f"))
    disk.remove_directory(join(root, "x/e"))
    disk.remove_directory(join(root, "x"))
    assert disk.list_directory(root) == []
    with pytest.raises(FileMissingError):
        disk.remove_directory(join(root, "x"))


def test_a_directory_is_not_renamed_over_one_that_holds_something(place: tuple[Disk, str]) -> None:
    disk, root = place
    for name in ("one", "two"):
        disk.make_directory(join(root, name))
        disk.open_append(join(root, f"{name}/{name}")).close()
    with pytest.raises(DiskError) as caught:
        disk.rename(join(root, "one"), join(root, "two"))
    assert caught.value.directory == root
    assert disk.list_directory(join(root, "one")) == ["one"]
    assert disk.list_directory(join(root, "two")) == ["two"]


@pytest.mark.parametrize("count", [0, 1, 3, 20])
def test_many_files_are_synced_as_one(place: tuple[Disk, str], count: int) -> None:
    disk, root = place
    system = disk.file_system(root)
    files = []
    for number in range(count):
        disk.make_directory(join(root, f"d{number}"))
        files.append(disk.open_append(join(root, f"d{number}/f")))
        files[-1].append(b"data")
    directories = [join(root, f"d{number}") for number in range(count)]
    system.sync(files, [*directories, root])
    system.close()
    system.close()
    if isinstance(disk, FaultyDisk):
        disk = disk.crash()
    assert disk.list_directory(root) == sorted(f"d{number}" for number in range(count))
    assert all(read_file(disk, f"{name}/f") == b"data" for name in directories)


def test_the_file_system_of_a_directory_that_is_absent(place: tuple[Disk, str]) -> None:
    disk, root = place
    with pytest.raises(FileMissingError):
        disk.file_system(join(root, "absent"))


def test_a_directory_where_a_file_must_be(place: tuple[Disk, str]) -> None:
    disk, root = place
    disk.make_directory(join(root, "d"))
    with pytest.raises(DiskError) as caught:
        disk.open_append(join(root, "d"))
    assert caught.value.directory == root
    disk.open_append(join(root, "f")).close()
    below = join(root, "f/g")
    for use in (disk.make_directory, disk.open_read, disk.file_size):
        with pytest.raises(DiskError):
            use(below)
    assert not disk.exists(below)


def test_one_writer_a_directory(place: tuple[Disk, str]) -> None:
    disk, root = place
    first = disk.lock(root)
    with pytest.raises(LogDirectoryLockedError) as caught:
        disk.lock(root)
    assert root in str(caught.value) and "stop that process" in str(caught.value)
    first.release()
    first.release()
    second = disk.lock(root)
    second.release()


def test_free_bytes(place: tuple[Disk, str]) -> None:
    disk, root = place
    assert disk.free_bytes(root) > 1000
    assert disk.total_bytes(root) >= disk.free_bytes(root)


def test_write_atomically_replaces_and_leaves_no_temporary(place: tuple[Disk, str]) -> None:
    disk, root = place
    path = join(root, "state")
    # What a crash left of an earlier attempt must not end up in the file.
    disk.open_append(path + ".tmp").append(b"remains of an earlier, longer attempt")
    write_atomically(disk, path, b"one")
    write_atomically(disk, path, b"2")
    assert read_file(disk, path) == b"2"
    assert disk.list_directory(root) == ["state"]


@pytest.mark.parametrize(
    ("path", "parent", "name"),
    [("/a/b", "/a", "b"), ("/a", "/", "a"), ("a", ".", "a"), ("a/b/", "a", "b"), ("/a/b/c", "/a/b", "c")],
)
def test_paths(path: str, parent: str, name: str) -> None:
    assert (parent_of(path), name_of(path)) == (parent, name)


@pytest.fixture
def background(place: tuple[Disk, str]) -> Iterator[BackgroundSync]:
    """A sync in the background, where the disk has one: the real one only where the system allows it."""
    found = place[0].background_sync(place[1])
    if found is None:
        pytest.skip("this system has no Linux AIO")
    yield found
    found.close()
    found.close()


def test_a_sync_in_the_background(place: tuple[Disk, str], background: BackgroundSync) -> None:
    disk, root = place
    background.wait()
    for name in ("a", "b"):
        file = disk.open_append(join(root, name))
        for _ in range(2):
            file.append(b"text")
            assert background.begin(file)
            assert select.select([background.fileno()], [], [], 30)[0]
            assert background.ended()
            background.wait()
        assert file.read_at(0, 100) == b"texttext"
        file.close()


def test_a_sync_in_the_background_is_waited_for(place: tuple[Disk, str], background: BackgroundSync) -> None:
    """Whoever waits does not take the news from the loop."""
    disk, root = place
    file = disk.open_append(join(root, "a"))
    file.append(b"text")
    assert background.begin(file)
    background.wait()
    background.wait()
    assert select.select([background.fileno()], [], [], 30)[0] and background.ended()
    file.close()


def test_nothing_is_synced_after_a_sync_in_the_background_failed(
    place: tuple[Disk, str], background: BackgroundSync, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk, root = place
    file = disk.open_append(join(root, "a"))
    file.append(b"text")
    if isinstance(disk, FaultyDisk):
        disk.inject(root, operation="sync", count=1)
    else:
        monkeypatch.setattr(KernelSync, "_code", errno.EIO)
    assert background.begin(file)
    for _ in range(2):
        with pytest.raises(DiskError, match=r"sync of .*/a: .*I/O error"):
            background.wait()
    monkeypatch.undo()
    with pytest.raises(DiskError, match="earlier sync failed"):
        background.begin(file)
    with pytest.raises(DiskError, match="earlier sync failed"):
        file.sync()
    file.close()
