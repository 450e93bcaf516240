"""What a replica remembers of its voters, and which change of them it lets pass."""

from __future__ import annotations

import random

import pytest

from metaquorum.raft.config import Voter
from metaquorum.raft.stored_voters import (
    FILE_NAME,
    change_of_voters,
    load_voters,
    remember,
    store_voters,
)
from metaquorum.storage.errors import CorruptFileError
from metaquorum.testing.faulty_disk import FaultyDisk
from metaquorum.testing.faulty_file import PowerLossError

A, B, C = bytes([1] * 16), bytes([2] * 16), bytes([3] * 16)


def voters(**directories: bytes | None) -> list[Voter]:
    return [
        Voter(node_id=int(name[1:]), host="127.0.0.1", port=9000, directory_id=directory_id)
        for name, directory_id in directories.items()
    ]


@pytest.fixture
def disk() -> FaultyDisk:
    made = FaultyDisk(random.Random(1))
    made.make_directory("/d")
    made.sync_directory("/")
    return made


def test_nothing_is_remembered_before_the_first_start(disk: FaultyDisk) -> None:
    assert load_voters(disk, "/d") is None


def test_what_was_stored_comes_back(disk: FaultyDisk) -> None:
    store_voters(disk, "/d", voters(n1=A, n2=None))
    assert load_voters(disk, "/d") == {1: A, 2: None}


def test_the_same_voters_are_no_change_and_nothing_is_written(disk: FaultyDisk) -> None:
    remember(disk, "/d", voters(n1=A, n2=B))
    written = disk.operations
    remember(disk, "/d", voters(n2=B, n1=A))
    assert disk.operations == written
    known = load_voters(disk, "/d")
    assert known is not None and change_of_voters(known, voters(n2=B, n1=A)) is None


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (voters(n1=A, n2=B), voters(n1=A, n2=C), "gives node 2 the directory id"),
        (voters(n1=A, n2=B), voters(n1=A, n2=None), "gives node 2 the directory id none"),
        (voters(n1=A, n2=B), voters(n1=A), "names the nodes 1, but this quorum was started with 1, 2"),
        (voters(n1=A), voters(n1=A, n2=B), "restore the old list"),
    ],
)
def test_a_change_is_refused_with_what_to_do(
    disk: FaultyDisk, before: list[Voter], after: list[Voter], said: str
) -> None:
    store_voters(disk, "/d", before)
    known = load_voters(disk, "/d")
    assert known is not None
    change = change_of_voters(known, after)
    assert change is not None and said in change


def test_pinning_a_voter_that_was_not_pinned_is_allowed_once(disk: FaultyDisk) -> None:
    remember(disk, "/d", voters(n1=None, n2=B))
    known = load_voters(disk, "/d")
    assert known is not None and change_of_voters(known, voters(n1=A, n2=B)) is None
    remember(disk, "/d", voters(n1=A, n2=B))
    known = load_voters(disk, "/d")
    assert known is not None and change_of_voters(known, voters(n1=C, n2=B)) is not None


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"version":1,"voters":[]}', b'{"version":0,"voters":[{}]}']
)
def test_a_garbled_file_is_named(disk: FaultyDisk, content: bytes) -> None:
    file = disk.open_append(f"/d/{FILE_NAME}")
    file.append(content)
    with pytest.raises(CorruptFileError, match=FILE_NAME):
        load_voters(disk, "/d")


def test_a_crash_leaves_the_old_or_the_new_voters() -> None:
    for at in range(10):
        disk = FaultyDisk(random.Random(at))
        disk.make_directory("/d")
        disk.sync_directory("/")
        store_voters(disk, "/d", voters(n1=None))
        disk.crash_after = at
        try:
            store_voters(disk, "/d", voters(n1=A))
        except PowerLossError:
            assert load_voters(disk.crash(), "/d") in ({1: None}, {1: A})
        else:
            assert load_voters(disk.crash(), "/d") == {1: A}
