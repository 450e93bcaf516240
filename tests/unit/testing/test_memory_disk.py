"""The disk in memory for nodes with threads: its limit, its count of bytes, and threads that share a file."""

from __future__ import annotations

import random
import threading

import pytest

from metaquorum.storage.disk.interface import read_file, write_atomically
from metaquorum.storage.errors import DiskError
from metaquorum.testing.memory_disk import MemoryDisk


def disk_of(bytes_max: int) -> MemoryDisk:
    disk = MemoryDisk(random.Random(1), bytes_max, lambda: 7)
    disk.make_directory("/d")
    disk.sync_directory("/")
    return disk


def test_it_takes_its_size_and_no_byte_more() -> None:
    disk = disk_of(10)
    file = disk.open_append("/d/a")
    file.append(b"0123456789")
    with pytest.raises(DiskError, match="no space left"):
        file.append(b"x")
    assert (file.size(), disk.free_bytes("/d"), disk.total_bytes("/d")) == (10, 0, 10)
    file.truncate(4)
    assert disk.free_bytes("/d") == 6
    write_atomically(disk, "/d/b", b"abc")
    write_atomically(disk, "/d/b", b"de")
    assert disk.free_bytes("/d") == 4
    disk.remove("/d/a")
    disk.remove("/d/b")
    assert disk.free_bytes("/d") == 10


def test_a_killed_node_writes_nothing_more_and_keeps_what_it_wrote() -> None:
    disk = disk_of(100)
    file = disk.open_append("/d/a")
    file.append(b"synced")
    file.sync()
    disk.sync_directory("/d")
    file.append(b", not")
    disk.killed(power_lost=False)
    with pytest.raises(DiskError, match="killed"):
        file.append(b"x")
    assert read_file(disk, "/d/a") == b"synced, not"
    assert disk.free_bytes("/d") == 100 - len(b"synced, not")


def test_a_power_loss_keeps_what_was_synced() -> None:
    for seed in range(20):
        disk = MemoryDisk(random.Random(seed), 100, lambda: 7)
        disk.make_directory("/d")
        disk.sync_directory("/")
        file = disk.open_append("/d/a")
        file.append(b"synced")
        file.sync()
        disk.sync_directory("/d")
        file.truncate(3)
        file.append(b"then")
        disk.killed(power_lost=True)
        found = read_file(disk, "/d/a")
        assert found == b"synced" or found.startswith(b"syn")


def test_threads_read_and_append_at_the_same_time() -> None:
    disk = disk_of(1 << 24)
    file = disk.open_append("/d/a")
    ended = threading.Event()
    problems: list[BaseException] = []

    def read() -> None:
        try:
            while not ended.is_set():
                assert set(file.read_at(0, 1 << 20)) <= {ord("x")}
        except BaseException as error:
            problems.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    for _ in range(2_000):
        file.append(b"x" * 100)
    ended.set()
    thread.join()
    assert (problems, file.size()) == ([], 200_000)


def test_a_node_that_is_being_killed_writes_nothing_and_gives_its_lock_back() -> None:
    disk = disk_of(100)
    lock = disk.lock("/d")
    file = disk.open_append("/d/a")
    file.append(b"before")
    disk.kill()
    with pytest.raises(DiskError, match="killed"):
        file.append(b"x")
    with pytest.raises(DiskError, match="killed"):
        disk.open_append("/d/b")
    lock.release()
    disk.killed(power_lost=False)
    assert read_file(disk, "/d/a") == b"before" and not disk.exists("/d/b")
    disk.lock("/d")
