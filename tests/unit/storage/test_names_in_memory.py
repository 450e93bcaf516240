"""The names on a disk in memory: found below a directory, and moved, whatever else there is."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import Any

from metaquorum.testing.faulty_disk import FaultyDisk
from metaquorum.testing.faulty_file import DirectoryMoves, Inode, Names


def calls_of(work: Callable[[], object]) -> int:
    """How many functions it calls."""
    count = 0

    def seen(frame: Any, event: str, argument: Any) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(seen)
    try:
        work()
    finally:
        sys.setprofile(before)
    return count


def directories(count: int) -> None:
    """Makes so many, with a file each, then renames and removes them."""
    disk = FaultyDisk(random.Random(1))
    disk.make_directory("/d")
    paths = [f"/d/{number}" for number in range(count)]
    for path in paths:
        disk.make_directory(path)
        disk.open_append(f"{path}/f")
    disk.sync_paths("/d", [f"{path}/f" for path in paths], [*paths, "/d"])
    for path in paths:
        disk.rename(path, f"{path}-gone")
        disk.open_append(f"{path}-gone/g")
    disk.sync_directory("/d")
    for path in paths:
        for name in disk.list_directory(f"{path}-gone"):
            disk.remove(f"{path}-gone/{name}")
        disk.remove_directory(f"{path}-gone")
    disk.sync_directory("/d")
    assert disk.crash().list_directory("/d") == []


def test_twice_the_directories_are_twice_the_work() -> None:
    assert calls_of(lambda: directories(200)) < 3 * calls_of(lambda: directories(100))


def test_what_is_inside_and_below() -> None:
    names = Names()
    names.put_directory("/a")
    names.put_file("/a/f", Inode())
    names.put_file("/b/c/f", Inode())
    assert names.inside("/a") == ["/a/f"] and names.inside("/b") == []
    assert sorted(names.below("/")) == ["/", "/a", "/a/f", "/b/c/f"]
    names.take_file("/b/c/f")
    names.take_directory("/a")
    assert sorted(names.below("/")) == ["/", "/a/f"]
    names.take_file("/a/f")
    assert list(names.below("/")) == ["/"]


def test_a_directory_moves_with_all_below_it() -> None:
    names, inode = Names(), Inode()
    for path in ("/a", "/a/b"):
        names.put_directory(path)
    names.put_file("/a/b/f", inode)
    other = names.copy()
    names.move("/a", "/x")
    assert names.directories == {"/", ".", "/x", "/x/b"} and names.files == {"/x/b/f": inode}
    names.move("/missing", "/y")
    names.put_directory("/z")
    names.move("/x", "/z")
    assert "/x/b" in names.directories
    names.move("/x", None)
    assert names.directories == {"/", ".", "/z"} and not names.files
    assert other.files == {"/a/b/f": inode}


def test_where_a_path_is_until_moves_above_it_are_durable() -> None:
    moves = DirectoryMoves()
    moves.add("/d/a", "/d/b")
    moves.add("/d/b", "/d/c")
    moves.add("/d/c/x", "/d/c/y")
    assert moves.durable_path("/d/c/y/f") == "/d/a/x/f"
    assert moves.durable_path("/d/b/f") == "/d/a/f" and moves.durable_path("/e") == "/e"
    assert moves.take("/d") == [("/d/a", "/d/b"), ("/d/b", "/d/c")]
    assert moves.durable_path("/d/c/y/f") == "/d/c/x/f"
    moves.add("/d/c", None)
    assert list(moves) == [("/d/c/x", "/d/c/y"), ("/d/c", None)]
