"""Small files of a directory: what can be read of one that is not right, offsets, chunks, who closes what."""

from __future__ import annotations

import random

import pytest
from msgspec.structs import replace

from metaquorum.storage.disk.interface import read_file, write_atomically
from metaquorum.storage.errors import (
    CorruptFileError,
    CorruptLogError,
    DiskError,
    FileMissingError,
    LogDirectoryLockedError,
    LogFailedError,
    LogTruncatedError,
    NotALogError,
    OffsetOutOfRange,
    StorageError,
)
from metaquorum.storage.files.checkpoint_text import decode_offsets, encode_offsets
from metaquorum.storage.files.known_committed import FILE_NAME, Known, KnownCommitted, decode
from metaquorum.storage.files.meta_properties import (
    MetaProperties,
    add_missing_ids,
    identity_of,
    readable_meta_properties,
    store_meta_properties,
)
from metaquorum.storage.files.quorum_state import QuorumState
from metaquorum.storage.files.snapshots import (
    BOOTSTRAP_SNAPSHOT,
    SnapshotPositionError,
    SnapshotWriter,
    read_chunk,
)
from metaquorum.storage.partition.replica_directory import (
    future_name,
    may_have_future,
    parse_future_name,
    parse_replica_name,
    replica_name,
)
from metaquorum.storage.types import LogPosition
from metaquorum.storage.uuids import uuid_to_text
from metaquorum.testing.faulty_disk import FaultyDisk
from tests.unit.storage.test_storage_edges import CountingDisk

ID = bytes(range(16))
TEXT = uuid_to_text(ID)


@pytest.fixture
def disk() -> FaultyDisk:
    made = FaultyDisk(random.Random(5))
    made.make_directory("/data")
    made.sync_directory("/")
    return made


@pytest.mark.parametrize(
    ("lines", "expected", "is_right"),
    [
        (["version=1", "cluster.id=c", "node.id=0", f"directory.id={TEXT}"], ("c", 0, ID), True),
        (["cluster.id=c", "node.id=0", f"directory.id={TEXT}"], ("c", 0, ID), False),
        (["version=9", "cluster.id= c ", "node.id= 7 "], ("c", 7, None), False),
        (["version=1", "cluster.id=", "node.id=7"], (None, 7, None), False),
        (["version=1", "cluster.id=c", "node.id=-7", f"directory.id={TEXT}"], ("c", None, ID), False),
        (["version=1", "cluster.id=c", "node.id=7", "directory.id=x"], ("c", 7, None), False),
        (["version=1", "node.id=7", f"directory.id={TEXT}"], (None, 7, ID), False),
        ([], (None, None, None), False),
        (["\\u00"], (None, None, None), False),
    ],
)
def test_an_identity_is_read_as_far_as_it_can_be(
    disk: FaultyDisk, lines: list[str], expected: tuple[object, ...], is_right: bool
) -> None:
    file = disk.open_append("/data/meta.properties")
    file.append("".join(f"{line}\n" for line in lines).encode())
    found, problem = readable_meta_properties(disk, "/data")
    assert (found.cluster_id, found.node_id, found.directory_id) == expected
    assert (problem is None) is is_right
    assert problem is None or problem.startswith("/data/meta.properties ")


def test_what_is_made_is_of_the_newest_form() -> None:
    assert MetaProperties(cluster_id="c", node_id=1).version == 1
    state = QuorumState(leader_id=1, epoch=2)
    assert state.encode() == state.encode(0) != state.encode(1)
    assert BOOTSTRAP_SNAPSHOT == LogPosition(0, 0)


OFFSETS = {("t", 0): 5, ("t", 1): 0, ("u", 0): 2**40}


def test_offsets_survive_their_text() -> None:
    data = encode_offsets(OFFSETS)
    assert data == b"0\n3\nt 0 5\nt 1 0\nu 0 1099511627776\n"
    assert decode_offsets(data, "f", "advice") == OFFSETS
    assert decode_offsets(b"", "f", "advice") == {} == decode_offsets(b"0\n0\n", "f", "advice")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("t-0", ("t", 0)),
        ("a-b.c_D-12", ("a-b.c_D", 12)),
        (f"t-{2**31 - 1}", ("t", 2**31 - 1)),
        (f"t-{2**31}", None),
        ("t-01", None),
        ("t--1", ("t-", 1)),
        ("-1", None),
        ("t", None),
        ("ä-1", None),
        ("x" * 249 + "-1", ("x" * 249, 1)),
        ("x" * 250 + "-1", None),
    ],
)
def test_names_of_replicas(name: str, expected: tuple[str, int] | None) -> None:
    assert parse_replica_name(name) == expected
    if expected is not None:
        assert replica_name(*expected) == name
        future = future_name(*expected, random.Random(1))
        assert parse_future_name(future) == expected and parse_replica_name(future) is None
        assert may_have_future(*expected) == (len(future) <= 255)


@pytest.mark.parametrize(
    "error",
    [
        CorruptLogError("/a", 5, 7, "expected this", "do that"),
        CorruptFileError("/a", "is wrong", "do that"),
        NotALogError("/a", "is a poem"),
        DiskError("/a", "sync", "it is full"),
        FileMissingError("/a"),
        LogDirectoryLockedError("/a"),
        OffsetOutOfRange(5, 7, 9),
        LogTruncatedError("/a", 5, 7),
        LogFailedError("/a"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_an_error_says_what_it_knows(error: StorageError) -> None:
    told = str(error)
    assert all(str(value) in told for value in vars(error).values()) and "\n" not in told


@pytest.mark.parametrize(
    "entry", ["t 0", "t 0 5 6", "t x 5", "t 0 x", "t 0 -1", "t 0 4\nt 0 5", "u 1 2\nt x 5"]
)
def test_what_is_no_offset_of_a_partition(entry: str) -> None:
    data = f"0\n{len(entry.splitlines())}\n{entry}\n".encode()
    with pytest.raises(CorruptFileError, match="which is not a topic, partition and offset"):
        decode_offsets(data, "f", "advice")


def test_a_note_of_what_is_committed_is_appended_and_begun_anew(disk: FaultyDisk) -> None:
    counting = CountingDisk(disk)
    known = KnownCommitted(counting, "/data", Known(LogPosition(1, 5)))  # type: ignore[arg-type]

    def kept() -> LogPosition:
        return decode(read_file(disk, f"/data/{FILE_NAME}"))

    for _ in range(2):
        assert kept() == known.position
        known.note(LogPosition(1, known.position.offset + 1))
        assert kept() == known.position
        writing = known.begin_write()
        assert writing == known.known and len(counting.still_open()) == 0
        known.note(LogPosition(1, known.position.offset + 1))
        known.write(writing)
        assert kept() == writing.position
        known.end_write(writing)
        assert kept() == known.position and len(counting.still_open()) == 1
    # Nobody began: the file that is open is given back first.
    known.end_write(known.known)
    assert len(counting.still_open()) == 1
    operations = disk.operations
    known.close(clean=True)
    assert disk.operations == operations, "what is known was written"
    assert counting.still_open() == []


@pytest.mark.parametrize("clean", [True, False])
def test_a_clean_end_alone_leaves_the_newest_note_durable(disk: FaultyDisk, clean: bool) -> None:
    known = KnownCommitted(disk, "/data", Known(LogPosition(1, 5)))
    known.note(LogPosition(1, 6))
    operations = disk.operations
    known.close(clean=clean)
    assert (disk.operations > operations) is clean


@pytest.mark.parametrize("resume", [True, False])
@pytest.mark.parametrize("left", [0, 1, 5])
def test_a_snapshot_goes_on_or_begins_anew(disk: FaultyDisk, left: int, resume: bool) -> None:
    at = LogPosition(1, 30)
    SnapshotWriter(disk, "/data", at).append(b"x" * left)
    writer = SnapshotWriter(disk, "/data", at, resume=resume)
    writer.append(b"new")
    writer.freeze()
    data = b"x" * left * resume + b"new"
    for position in range(len(data)):
        for size in (1, 2, 100):
            chunk = read_chunk(disk, "/data", at, position, size)
            assert chunk.data == data[position : position + size]
            assert (chunk.position, chunk.size_bytes) == (position, len(data))
            assert chunk.is_last is (position + size >= len(data))
    for wrong in (-1, len(data)):
        with pytest.raises(SnapshotPositionError):
            read_chunk(disk, "/data", at, wrong, 1)


def test_a_snapshot_that_holds_nothing_is_one_chunk(disk: FaultyDisk) -> None:
    writer = SnapshotWriter(disk, "/data", LogPosition(1, 30))
    writer.freeze()
    writer.close()  # a second end changes nothing
    chunk = read_chunk(disk, "/data", LogPosition(1, 30), 0, 10)
    assert (chunk.data, chunk.size_bytes, chunk.is_last) == (b"", 0, True)
    for wrong in (-1, 1):
        with pytest.raises(SnapshotPositionError):
            read_chunk(disk, "/data", LogPosition(1, 30), wrong, 10)


# --- ids of directories


def identity(cluster_id: str = "c", node_id: int = 1, directory_id: bytes | None = None) -> MetaProperties:
    return MetaProperties(cluster_id=cluster_id, node_id=node_id, directory_id=directory_id)


def test_directories_of_this_node_get_the_ids_that_they_lack(disk: FaultyDisk) -> None:
    """Each one of its own; of all others, and of those that cannot be written, nothing changes."""
    known = bytes([9] * 16)
    found = {
        "/data/a": identity(),
        "/data/b": identity(),
        "/data/known": identity(directory_id=known),
        "/data/other": identity(node_id=2),
        "/data/elsewhere": identity("d"),
        "/data/used": identity(),
        "/data/full": identity(),
    }
    for path, properties in found.items():
        disk.make_directory(path)
        store_meta_properties(disk, path, properties)
    for path in ("/data/none", "/data/garbled"):
        disk.make_directory(path)
    write_atomically(disk, "/data/garbled/meta.properties", b"version=9\n")
    used = disk.lock("/data/used")
    disk.inject("/data/full", operation="write")
    told: list[str] = []
    add_missing_ids(
        disk, identity(), sorted([*found, "/data/none", "/data/garbled"]), random.Random(1), told.append
    )
    disk.heal()
    used.release()
    left = {path: identity_of(disk, path) for path in found}
    given = {path: left[path].directory_id for path in ("/data/a", "/data/b")}  # type: ignore[union-attr]
    assert None not in given.values() and len({*given.values(), known}) == 3
    for path, properties in found.items():
        assert left[path] == replace(properties, directory_id=given.get(path, properties.directory_id))
    expected = [
        *(
            f"{path} was formatted without a directory.id; it is now {uuid_to_text(one or b'')}"
            for path, one in given.items()
        ),
        "/data/full has no directory.id, and it cannot be written: disk error in /data/full",
        "/data/used has no directory.id, and it cannot be written:",
    ]
    assert len(told) == 4
    assert all(text.startswith(start) for text, start in zip(told, expected, strict=True))
    assert not disk.exists("/data/none/meta.properties")
    disk.lock("/data/a").release()  # it was given back


@pytest.mark.parametrize("size", [0, 15, 17])
def test_a_uuid_has_sixteen_bytes(size: int) -> None:
    with pytest.raises(ValueError, match=f"a uuid has 16 bytes, not {size}"):
        uuid_to_text(bytes(size))
