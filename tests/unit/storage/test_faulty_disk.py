"""The disk that forgets: what survives a power loss, and what breaks when it is told to."""

from __future__ import annotations

import random

import pytest

from metaquorum.storage.disk.interface import read_file, write_atomically
from metaquorum.storage.errors import DiskError, FileMissingError, LogDirectoryLockedError
from metaquorum.testing.faulty_disk import FaultyDisk
from metaquorum.testing.faulty_file import FaultProfile, PowerLossError


def make(seed: int = 0, **profile: float) -> FaultyDisk:
    disk = FaultyDisk(random.Random(seed), FaultProfile(**profile))  # type: ignore[arg-type]
    disk.make_directory("/d")
    disk.sync_directory("/")
    return disk


def test_synced_data_and_name_survive() -> None:
    for seed in range(50):
        disk = make(seed)
        file = disk.open_append("/d/a")
        file.append(b"kept")
        file.sync()
        disk.sync_directory("/d")
        file.append(b" and not synced")
        data = read_file(disk.crash(), "/d/a")
        assert data[:4] == b"kept" and len(data) <= len(b"kept and not synced")


def test_every_kind_of_tail_occurs() -> None:
    kinds = set()
    for seed in range(300):
        disk = make(seed)
        file = disk.open_append("/d/a")
        file.sync()
        disk.sync_directory("/d")
        file.append(b"x" * 40)
        data = read_file(disk.crash(), "/d/a")
        rest = data.lstrip(b"x")
        kinds.add(
            "whole"
            if data == b"x" * 40
            else "short"
            if not rest
            else "zeros"
            if not rest.strip(b"\0")
            else "garbage"
        )
    assert kinds == {"whole", "short", "zeros", "garbage"}


def test_an_unsynced_name_may_be_lost_and_may_survive() -> None:
    outcomes = set()
    for seed in range(40):
        disk = make(seed)
        file = disk.open_append("/d/a")
        file.append(b"data")
        file.sync()
        outcomes.add(disk.crash().exists("/d/a"))
    assert outcomes == {True, False}


@pytest.mark.parametrize("operation", ["remove", "rename"])
def test_an_unsynced_removal_or_rename_may_be_undone(operation: str) -> None:
    outcomes = set()
    for seed in range(60):
        disk = make(seed)
        write_atomically(disk, "/d/a", b"data")
        if operation == "remove":
            disk.remove("/d/a")
        else:
            disk.rename("/d/a", "/d/b")
        outcomes.add(tuple(disk.crash().list_directory("/d")))
    assert outcomes == ({("a",), ()} if operation == "remove" else {("a",), ("b",)})


def test_a_rename_before_the_sync_can_lose_contents() -> None:
    short = False
    for seed in range(60):
        disk = make(seed, keep_name=1.0)
        file = disk.open_append("/d/a.tmp")
        file.append(b"content")
        disk.rename("/d/a.tmp", "/d/a")
        short = short or read_file(disk.crash(), "/d/a") != b"content"
    assert short


def test_write_atomically_at_every_crash_point() -> None:
    for crash_after in range(8):
        for seed in range(20):
            disk = make(seed)
            write_atomically(disk, "/d/state", b"old")
            disk.crash_after = crash_after
            done = False
            try:
                write_atomically(disk, "/d/state", b"new")
                done = True
            except PowerLossError:
                pass
            after = read_file(disk.crash(), "/d/state")
            assert after == b"new" if done else after in (b"old", b"new")
    assert done


def test_a_directory_needs_its_parent_synced() -> None:
    outcomes = set()
    for seed in range(40):
        disk = make(seed)
        disk.make_directory("/d/e")
        file = disk.open_append("/d/e/f")
        file.sync()
        disk.sync_directory("/d/e")
        survivor = disk.crash()
        outcomes.add(survivor.is_directory("/d/e"))
        assert survivor.exists("/d/e/f") == survivor.is_directory("/d/e")
    assert outcomes == {True, False}


def test_an_unsynced_truncation_may_be_undone() -> None:
    lengths = set()
    for seed in range(60):
        disk = make(seed, keep_contents=1.0)
        write_atomically(disk, "/d/a", b"0123456789")
        disk.open_append("/d/a").truncate(3)
        lengths.add(read_file(disk.crash(), "/d/a"))
    assert lengths == {b"0123456789", b"012"}


def test_kill_keeps_the_page_cache_and_drops_the_locks() -> None:
    disk = make()
    disk.lock("/d")
    disk.open_append("/d/a").append(b"written")
    with pytest.raises(LogDirectoryLockedError):
        disk.lock("/d")
    after = disk.kill()
    assert read_file(after, "/d/a") == b"written"
    after.lock("/d")
    with pytest.raises(PowerLossError):
        disk.open_append("/d/b")
    # Still not synced: a power loss after the kill may take it.
    assert {
        read_file(copy, "/d/a") if (copy := make_killed(seed).crash()).exists("/d/a") else None
        for seed in range(40)
    } > {None}


def make_killed(seed: int) -> FaultyDisk:
    disk = make(seed)
    disk.open_append("/d/a").append(b"written")
    return disk.kill()


def test_injected_errors_count_and_heal() -> None:
    disk = make()
    file = disk.open_append("/d/a")
    disk.inject("/d", operation="write", after=1, count=1)
    file.append(b"1")
    with pytest.raises(DiskError) as caught:
        file.append(b"2")
    assert caught.value.directory == "/d"
    file.append(b"3")
    disk.inject("/elsewhere")
    file.append(b"4")
    disk.inject("/d", operation="sync_directory", reason="broken")
    with pytest.raises(DiskError, match="broken"):
        disk.sync_directory("/d")
    disk.heal()
    disk.sync_directory("/d")


def test_a_failed_sync_poisons_the_file() -> None:
    disk = make()
    file = disk.open_append("/d/a")
    file.append(b"data")
    disk.inject("/d", operation="sync", count=1)
    with pytest.raises(DiskError):
        file.sync()
    with pytest.raises(DiskError, match="earlier sync failed"):
        disk.open_append("/d/a").sync()


def test_capacity() -> None:
    disk = make(capacity_bytes=10)
    file = disk.open_append("/d/a")
    file.append(b"12345678")
    assert disk.free_bytes("/d") == 2
    with pytest.raises(DiskError, match="no space"):
        file.append(b"90abc")
    assert file.size() == 10


def test_costs() -> None:
    disk = make(sync_ms=3, slow=1.0, slow_ms=200)
    file = disk.open_append("/d/a")
    file.append(b"x")
    assert disk.last_cost_ms == 200
    file.sync()
    assert disk.last_cost_ms == 203


def test_one_seed_one_history() -> None:
    def history(seed: int) -> list[bytes]:
        seen: list[bytes] = []
        disk = make(seed)
        for step in range(30):
            disk.open_append(f"/d/{step % 3}").append(bytes([step]) * 10)
            if step % 10 == 9:
                disk = disk.crash()
                seen += [read_file(disk, f"/d/{name}") for name in disk.list_directory("/d")]
        return seen

    assert history(5) == history(5)
    assert history(5) != history(6)


def test_flip_bit_reaches_the_durable_copy() -> None:
    disk = make()
    write_atomically(disk, "/d/a", b"\x00\x00")
    disk.flip_bit("/d/a", 1, 2)
    assert read_file(disk.crash(), "/d/a") == b"\x00\x04"
    with pytest.raises(FileMissingError):
        disk.flip_bit("/d/b", 0)


def test_a_renamed_directory_is_at_one_place_after_a_power_loss() -> None:
    places = set()
    for seed in range(60):
        disk = make(seed)
        disk.make_directory("/d/old")
        file = disk.open_append("/d/old/f")
        file.append(b"synced")
        file.sync()
        disk.sync_directory("/d/old")
        disk.sync_directory("/d")
        disk.rename("/d/old", "/d/new")
        file.append(b" later")
        file.sync()
        disk.open_append("/d/new/g").append(b"unsynced name")
        after = disk.crash()
        (place,) = after.list_directory("/d")
        assert read_file(after, f"/d/{place}/f") == b"synced later"
        places.add((place, after.exists(f"/d/{place}/g")))
    assert places == {("old", True), ("old", False), ("new", True), ("new", False)}


def test_a_synced_rename_of_a_directory_stays() -> None:
    for seed in range(20):
        disk = make(seed)
        disk.make_directory("/d/old")
        disk.open_append("/d/old/f").sync()
        disk.sync_directory("/d/old")
        disk.rename("/d/old", "/d/new")
        disk.sync_directory("/d")
        after = disk.crash()
        assert after.list_directory("/d") == ["new"] and after.list_directory("/d/new") == ["f"]


def test_a_removed_directory_may_come_back_until_its_parent_is_synced() -> None:
    found = set()
    for seed in range(40):
        disk = make(seed)
        disk.make_directory("/d/x")
        disk.sync_directory("/d")
        disk.remove_directory("/d/x")
        if seed % 2:
            disk.sync_directory("/d")
        found.add((seed % 2, tuple(disk.crash().list_directory("/d"))))
    assert found == {(0, ()), (0, ("x",)), (1, ())}


def test_a_failed_sync_of_the_file_system_is_never_taken_back() -> None:
    disk = make()
    system = disk.file_system("/d")
    file = disk.open_append("/d/a")
    disk.inject("/d", operation="sync", count=1)
    for reason in ("I/O error", "an earlier sync failed"):
        with pytest.raises(DiskError, match=reason):
            system.sync([file], ())
