"""The pool of files: how many are open, which may not be closed, and what a sync covers."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from metaquorum.storage.disk.file_pool import FilePool, OpenFiles, PooledFile
from metaquorum.storage.disk.interface import read_file
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.errors import DiskError, FileMissingError
from metaquorum.testing.faulty_disk import FaultyDisk
from metaquorum.testing.faulty_file import FaultyFile


@pytest.fixture
def disk() -> FaultyDisk:
    disk = FaultyDisk(random.Random(1))
    disk.make_directory("/d")
    disk.sync_directory("/")
    return disk


def new_files(pool: FilePool, count: int) -> list[PooledFile]:
    return [pool.file(f"/d/{number}", size=0) for number in range(count)]


def test_files_are_opened_when_used_and_the_longest_unused_is_closed(disk: FaultyDisk) -> None:
    pool = FilePool(disk, 2)
    one, two, three = new_files(pool, 3)
    assert len(pool) == 0 and disk.list_directory("/d") == []
    for file in (one, two):
        file.append(b"a")
        file.sync()
    assert one.read_at(0, 9) == b"a"
    three.append(b"c")
    assert (one.opened is not None, two.opened is None, three.opened is not None) == (True, True, True)
    assert two.read_at(0, 9) == b"a" and len(pool) == 2
    assert [file.size() for file in (one, two, three)] == [1, 1, 1]


def test_a_file_with_unsynced_bytes_is_synced_before_it_is_closed(disk: FaultyDisk) -> None:
    pool = FilePool(disk, 1)
    one, two = new_files(pool, 2)
    disk.sync_directory("/d")
    one.append(b"kept")
    two.append(b"maybe")
    disk.sync_directory("/d")
    assert len(pool) == 1 and not one.dirty and two.dirty
    assert read_file(disk.crash(), "/d/0") == b"kept"


def test_a_file_in_use_stays_open_even_when_it_is_closed_for_good(disk: FaultyDisk) -> None:
    pool = FilePool(disk, 1)
    one, two = new_files(pool, 2)
    one.append(b"abc")
    one.hold()
    two.append(b"x")
    assert len(pool) == 2, "the bound gives way to what is used"
    one.close()
    assert one.read_held(1, 2) == b"bc"
    one.release()
    assert len(pool) == 1
    with pytest.raises(DiskError, match="the file is closed"):
        one.read_at(0, 1)
    one.sync()  # nothing to do: it was given up


def test_an_append_during_a_sync_is_not_taken_for_synced(disk: FaultyDisk) -> None:
    pool = FilePool(disk, 4)
    (one,) = new_files(pool, 1)
    one.append(b"a")
    one.begin_sync()
    one.append(b"b")
    assert one.dirty


CHANGES: dict[str, Callable[[PooledFile], None]] = {
    "append": lambda file: file.append(b"more"),
    "truncate": lambda file: file.truncate(1),
}


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("begun", ["sync", "change"])
def test_a_change_and_a_sync_at_the_same_time_leave_the_file_unsynced(
    disk: FaultyDisk, monkeypatch: pytest.MonkeyPatch, change: str, begun: str
) -> None:
    """Whichever began first: the sync need not have covered the change."""
    (one,) = new_files(FilePool(disk, 4), 1)
    one.append(b"abc")
    one.sync()
    assert not one.dirty
    name, meanwhile = ("sync", CHANGES[change]) if begun == "sync" else (change, PooledFile.begin_sync)
    whole = getattr(FaultyFile, name)

    def interrupted(file: FaultyFile, *arguments: Any) -> None:
        monkeypatch.undo()
        whole(file, *arguments)
        meanwhile(one)

    monkeypatch.setattr(FaultyFile, name, interrupted)
    one.sync() if begun == "sync" else CHANGES[change](one)
    assert one.dirty


USES: dict[str, Callable[[PooledFile], object]] = {
    **CHANGES,
    "sync": lambda file: file.sync(),
    "read": lambda file: file.read_at(0, 2),
}


@pytest.mark.parametrize("is_open", [False, True])
@pytest.mark.parametrize("use", USES)
def test_what_a_disk_refuses_changes_no_file_and_holds_none(
    disk: FaultyDisk, use: str, is_open: bool
) -> None:
    """The pool knows the size that was written, and that something is unsynced; it may close the file."""
    one, two = new_files(FilePool(disk, 1), 2)
    one.append(b"abc")
    if not is_open:
        two.append(b"x")
        two.sync()
    disk.inject("/d", operation={"append": "write"}.get(use, use) if is_open else "open")
    with pytest.raises(DiskError):
        USES[use](one)
    assert (one.size(), one.users, one.dirty) == (3, 0, is_open)


def test_a_file_that_vanished_is_told_and_not_made_anew(disk: FaultyDisk) -> None:
    pool = FilePool(disk, 1)
    one, two = new_files(pool, 2)
    one.append(b"a")
    one.sync()
    two.append(b"b")
    disk.remove("/d/0")
    with pytest.raises(FileMissingError):
        one.append(b"c")
    with pytest.raises(FileMissingError):
        one.sync()
    assert disk.list_directory("/d") == ["1"]


def test_staged_files_of_two_writers_do_not_meet(disk: FaultyDisk) -> None:
    pool = FilePool(disk, 1)
    pool.staged("/d/a", b"one", "roll")
    pool.staged("/d/a", b"two", "checkpoint")
    assert read_file(disk, "/d/a.roll.new") == b"one" and read_file(disk, "/d/a.checkpoint.new") == b"two"
    disk.remove("/d/a.roll.new")
    again = pool.staged("/d/a", b"again", "roll")
    assert read_file(disk, again.path) == b"again"
    disk.remove(again.path)
    again.close()
    again.sync()


def test_a_pool_for_no_file_is_refused(disk: FaultyDisk) -> None:
    with pytest.raises(ValueError, match="at least 1"):
        FilePool(disk, 0)


def test_the_pools_of_a_process_share_one_bound() -> None:
    """A directory has what the others do not use, and gives it up when they do."""
    disk = FaultyDisk(random.Random(1))
    disk.make_directory("/one")
    disk.make_directory("/two")
    shared = OpenFiles(4)
    one, two = (FilePool(disk, shared.limit, shared) for _ in range(2))
    first = [one.file(f"/one/{at}", size=0) for at in range(6)]
    for file in first:
        file.append(b"x")
        file.sync()
    assert (len(one), len(two)) == (4, 0)
    second = [two.file(f"/two/{at}", size=0) for at in range(3)]
    for file in second:
        file.append(b"y")
        file.sync()
        assert len(one) + len(two) == 4
    assert (len(one), len(two)) == (2, 2)
    assert [file.read_at(0, 9) for file in (*first, *second)] == [b"x"] * 6 + [b"y"] * 3
    assert len(one) + len(two) <= 4


def test_a_pool_closes_no_file_of_another_that_has_unsynced_bytes_or_is_busy() -> None:
    disk = FaultyDisk(random.Random(1))
    for name in ("/one", "/two", "/three"):
        disk.make_directory(name)
    shared = OpenFiles(2)
    one, two = (FilePool(disk, shared.limit, shared) for _ in range(2))
    dirty, held = one.file("/one/dirty", size=0), one.file("/one/held", size=0)
    dirty.append(b"d")
    held.append(b"h")
    held.sync()
    held.hold()
    other = two.file("/two/other", size=0)
    other.append(b"o")  # more than the bound: nothing may be closed
    assert dirty.opened is not None and held.opened is not None and other.opened is not None
    held.release()
    more = two.file("/two/more", size=0)
    more.append(b"m")
    assert held.opened is None and dirty.opened is not None


def test_a_pool_does_not_wait_for_a_directory_that_hangs() -> None:
    disk = PosixDisk()
    shared = OpenFiles(1)
    one, two = (FilePool(disk, shared.limit, shared) for _ in range(2))
    with one._mutex:
        assert not one.give_up_one()
    assert not shared.take_from_others(two, larger=False)
