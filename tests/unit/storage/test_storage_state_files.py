"""The small files: epoch table, quorum-state, meta.properties, uuids, snapshot names and chunks."""

from __future__ import annotations

import random

import pytest

from metaquorum.storage.disk.interface import join, read_file
from metaquorum.storage.errors import CorruptFileError, DiskError, SnapshotError, StorageError
from metaquorum.storage.files.meta_properties import (
    MetaProperties,
    load_meta_properties,
    store_meta_properties,
)
from metaquorum.storage.files.quorum_state import QuorumState, load_quorum_state, store_quorum_state
from metaquorum.storage.files.snapshots import (
    SnapshotChunk,
    SnapshotNotFoundError,
    SnapshotPositionError,
    SnapshotWriter,
    clean_abandoned,
    delete_snapshot,
    delete_snapshots_before,
    latest_snapshot,
    list_snapshots,
    parse_snapshot_name,
    read_chunk,
    snapshot_name,
)
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.types import LogPosition
from metaquorum.storage.uuids import (
    LOST_DIRECTORY,
    METADATA_TOPIC_ID,
    METADATA_TOPIC_UUID,
    is_reserved_directory,
    random_uuid,
    uuid_from_text,
    uuid_to_text,
)
from metaquorum.testing.faulty_disk import FaultyDisk

TABLE = EpochTable(((1, 0), (3, 10), (5, 30)))


@pytest.fixture
def disk() -> FaultyDisk:
    disk = FaultyDisk(random.Random(1))
    disk.make_directory("/d")
    return disk


def put(disk: FaultyDisk, path: str, data: bytes) -> None:
    file = disk.open_append(path)
    file.truncate(0)
    file.append(data)


# --- epochs


@pytest.mark.parametrize(
    ("epoch", "expected"),
    [
        (0, None),
        (1, LogPosition(1, 10)),
        (2, LogPosition(1, 10)),
        (3, LogPosition(3, 30)),
        (4, LogPosition(3, 30)),
        (5, LogPosition(5, 42)),
        (9, LogPosition(5, 42)),
    ],
)
def test_end_offset_for(epoch: int, expected: LogPosition | None) -> None:
    assert TABLE.end_offset_for(epoch, 42) == expected
    assert EpochTable().end_offset_for(epoch, 42) is None


@pytest.mark.parametrize(("offset", "epoch"), [(0, 1), (9, 1), (10, 3), (29, 3), (30, 5), (1000, 5)])
def test_epoch_at(offset: int, epoch: int) -> None:
    assert TABLE.epoch_at(offset) == epoch
    assert EpochTable(((4, 100),)).epoch_at(min(offset, 99)) is None


def test_epochs_append() -> None:
    assert EpochTable().append(4, 7).entries == ((4, 7),)
    assert TABLE.append(5, 60) is TABLE
    assert TABLE.append(6, 60).entries == (*TABLE.entries, (6, 60))
    assert TABLE.append(6, 30).entries == ((1, 0), (3, 10), (6, 30))  # epoch 5 wrote nothing
    for epoch, offset in ((4, 60), (6, 29)):
        with pytest.raises(StorageError, match="never decrease"):
            TABLE.append(epoch, offset)
    assert (TABLE.first_epoch, TABLE.last_epoch, EpochTable().last_epoch) == (1, 5, 0)


@pytest.mark.parametrize(("end", "kept"), [(0, 0), (1, 1), (10, 1), (11, 2), (30, 2), (31, 3), (99, 3)])
def test_epochs_truncate(end: int, kept: int) -> None:
    assert TABLE.truncate_to(end).entries == TABLE.entries[:kept]


@pytest.mark.parametrize(
    ("start", "entries"),
    [
        (0, TABLE.entries),
        (5, ((1, 5), (3, 10), (5, 30))),
        (10, ((3, 10), (5, 30))),
        (29, ((3, 29), (5, 30))),
        (50, ((5, 50),)),
    ],
)
def test_epochs_truncate_start(start: int, entries: tuple[tuple[int, int], ...]) -> None:
    assert TABLE.truncate_start(start).entries == entries


def test_epochs_file() -> None:
    assert TABLE.encode() == b"0\n3\n1 0\n3 10\n5 30\n"
    assert EpochTable.decode(TABLE.encode()) == TABLE
    assert EpochTable.decode(b"0\n0\n") == EpochTable()
    assert EpochTable.reset(LogPosition(4, 9)).entries == ((4, 9),)


@pytest.mark.parametrize("data", [b"", b"\n", b"0\n", b"0", b"0\r\n0\r\n", b"0\n0"])
def test_an_empty_epochs_file_is_an_empty_table(data: bytes) -> None:
    """Kafka leaves 0 bytes for a replica without records, and reads a file that breaks off so."""
    assert EpochTable.decode(data) == EpochTable()


@pytest.mark.parametrize(
    "data",
    [b"0\r\n3\r\n1 0\r\n3 10\r\n5 30\r\n", b"0\n3\n1 0\n3 10\n5 30", b" 0\n3 \n1  0\n 3\t10 \n\n5 30\n\n"],
)
def test_blanks_and_line_ends_change_no_epochs_file(data: bytes) -> None:
    assert EpochTable.decode(data) == TABLE


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"0\n1\n1\n", "is not a leader epoch table"),
        (b"0\n1\n1 x\n", "is not a leader epoch table"),
        (b"\xff\xfe", "is not a checkpoint file"),
        (b"\0\0\0", "has version"),
        (b"1\n0\n", "has version 1"),
        (b"0\n2\n1 0\n", "announces 2 entries but has 1"),
        (b"0\n2\n2 0\n1 5\n", "does not rise"),
        (b"0\n2\n1 5\n2 5\n", "does not rise"),
    ],
)
def test_epochs_file_refused(data: bytes, says: str) -> None:
    with pytest.raises(CorruptFileError, match=says):
        EpochTable.decode(data, "x")


# --- quorum-state


def test_quorum_state_versions(disk: FaultyDisk) -> None:
    assert load_quorum_state(disk, "/d") is None
    zero = QuorumState(leader_id=3001, epoch=7, voters=(3000, 3001))
    store_quorum_state(disk, "/d", zero)
    assert read_file(disk, "/d/quorum-state") == (
        b'{"clusterId":"","leaderId":3001,"leaderEpoch":7,"votedId":-1,"appliedOffset":0,'
        b'"currentVoters":[{"voterId":3000},{"voterId":3001}],"data_version":0}'
    )
    assert load_quorum_state(disk, "/d") == zero
    one = QuorumState(epoch=2, voted_id=1, voted_directory_id=uuid_from_text("J8aAPcfLQt2bqs1JT_rMgQ"))
    store_quorum_state(disk, "/d", one, version=1)
    assert read_file(disk, "/d/quorum-state") == (
        b'{"leaderId":-1,"leaderEpoch":2,"votedId":1,"votedDirectoryId":"J8aAPcfLQt2bqs1JT_rMgQ","data_version":1}'
    )
    assert load_quorum_state(disk, "/d") == one
    with pytest.raises(ValueError, match="version 2"):
        one.encode(2)
    for version, of_the_other in ((0, b'{"votedDirectoryId":"?",'), (1, b'{"currentVoters":[{}],')):
        state = (zero, one)[version]
        assert QuorumState.decode(of_the_other + b'"more":[1],' + state.encode(version)[1:]) == state


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "is not a quorum state"),
        (b"[]", "is not a quorum state"),
        (b"{}", "is not a quorum state"),
        (b'{"data_version":2}', "data_version 2, this release reads up to 1; start the newer release"),
        (b'{"data_version":"0"}', "data_version 0"),
        (b'{"data_version":0}', "invalid fields"),
        (
            b'{"leaderId":1,"leaderEpoch":"x","votedId":1,"currentVoters":[],"data_version":0}',
            "invalid fields",
        ),
        (
            b'{"leaderId":1,"leaderEpoch":1,"votedId":1,"currentVoters":[{}],"data_version":0}',
            "invalid fields",
        ),
        (
            b'{"leaderId":1,"leaderEpoch":1,"votedId":1,"votedDirectoryId":"?","data_version":1}',
            "invalid fields",
        ),
    ],
)
def test_quorum_state_refused(disk: FaultyDisk, data: bytes, says: str) -> None:
    put(disk, "/d/quorum-state", data)
    with pytest.raises(CorruptFileError, match=says) as caught:
        load_quorum_state(disk, "/d")
    assert "\n" not in str(caught.value) and str(caught.value).startswith("/d/quorum-state:")
    assert read_file(disk, "/d/quorum-state") == data


def test_a_vote_that_cannot_be_written_is_an_error(disk: FaultyDisk) -> None:
    store_quorum_state(disk, "/d", QuorumState(epoch=1))
    disk.inject("/d", operation="sync")
    with pytest.raises(DiskError):
        store_quorum_state(disk, "/d", QuorumState(epoch=2, voted_id=1))
    assert load_quorum_state(disk, "/d") == QuorumState(epoch=1)


# --- meta.properties


def test_meta_properties_written_and_read(disk: FaultyDisk) -> None:
    ours = MetaProperties(
        cluster_id="ycvx3IyUTJ2ANvCy7N_YyA",
        node_id=3000,
        directory_id=uuid_from_text("OUM-3Whd4AdHUNf9WtN5vw"),
    )
    store_meta_properties(disk, "/d", ours)
    assert read_file(disk, "/d/meta.properties").decode().splitlines()[-4:] == [
        "node.id=3000",
        "directory.id=OUM-3Whd4AdHUNf9WtN5vw",
        "version=1",
        "cluster.id=ycvx3IyUTJ2ANvCy7N_YyA",
    ]
    assert load_meta_properties(disk, "/d") == ours


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("version=0\nbroker.id=5\ncluster.id=c\n", MetaProperties(cluster_id="c", node_id=5, version=0)),
        ("version=0\nbroker.id=5\n", MetaProperties(cluster_id=None, node_id=5, version=0)),
        ("broker.id=5\n", MetaProperties(cluster_id=None, node_id=5, version=0)),
        ("version=0\n", MetaProperties(cluster_id=None, node_id=None, version=0)),
        (
            "#c\nversion = 1\nnode.id: 7\ncluster.id=a\\:b\nother=x",
            MetaProperties(cluster_id="a:b", node_id=7),
        ),
    ],
)
def test_meta_properties_read(text: str, expected: MetaProperties) -> None:
    assert MetaProperties.decode(text.encode()) == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no version line"),
        ("node.id=1\ncluster.id=c\n", "has no version line"),
        ("version=2\nnode.id=1\n", "has version 2, this release reads 0 and 1"),
        ("version=1\nnode.id=1\n", "has no cluster.id line"),
        ("version=1\ncluster.id=c\n", "has no node.id line"),
        ("version=1\ncluster.id=c\nnode.id=-1\n", "has node.id=-1"),
        ("version=1\ncluster.id=c\nnode.id=one\n", "has node.id=one"),
        ("version=1\ncluster.id=c\nnode.id=1\ndirectory.id=short\n", "invalid directory.id"),
        ("version=1\ncluster.id=c\nnode.id=1\ndirectory.id=AAAAAAAAAAAAAAAAAAAAAQ\n", "reserved"),
        ("version=\\u12", "not a properties file"),
    ],
)
def test_meta_properties_refused(disk: FaultyDisk, text: str, says: str) -> None:
    put(disk, "/d/meta.properties", text.encode())
    with pytest.raises(CorruptFileError, match=says) as caught:
        load_meta_properties(disk, "/d")
    assert "\n" not in str(caught.value)


def test_meta_properties_missing(disk: FaultyDisk) -> None:
    with pytest.raises(CorruptFileError, match="storage format"):
        load_meta_properties(disk, "/d")
    with pytest.raises(ValueError, match="give both"):
        MetaProperties(cluster_id=None, node_id=1).encode()


# --- uuids


def test_uuid_text() -> None:
    assert uuid_to_text(METADATA_TOPIC_UUID) == METADATA_TOPIC_ID
    assert uuid_to_text(bytes(range(16))) == "AAECAwQFBgcICQoLDA0ODw"
    rng = random.Random(2)
    for _ in range(200):
        value = random_uuid(rng)
        assert uuid_from_text(uuid_to_text(value)) == value
        assert value[6] >> 4 == 4 and value[8] >> 6 == 2 and uuid_to_text(value)[0] != "-"
        assert not is_reserved_directory(value)
    assert is_reserved_directory(LOST_DIRECTORY) and is_reserved_directory((99).to_bytes(16, "big"))
    assert not is_reserved_directory((100).to_bytes(16, "big"))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "AAAA",
        "AAAAAAAAAAAAAAAAAAAAAQ==",
        "AAAAAAAAAAAAAAAAAAAAA+",
        "ü" * 22,
        "A" * 23,
        "AAAAAAAAAAAAAAAAAAAAAB",
    ],
)
def test_uuid_text_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a uuid"):
        uuid_from_text(text)


# --- snapshots

FIRST = LogPosition(3, 1850)


def make_snapshot(disk: FaultyDisk, identity: LogPosition, data: bytes) -> None:
    writer = SnapshotWriter(disk, "/d", identity)
    writer.append(data)
    writer.freeze()


def test_snapshot_names() -> None:
    assert snapshot_name(FIRST) == "00000000000000001850-0000000003.checkpoint"
    assert parse_snapshot_name(snapshot_name(FIRST)) == FIRST
    for name in (
        "bootstrap.checkpoint",
        snapshot_name(FIRST) + ".part",
        "1-2.checkpoint",
        snapshot_name(FIRST)[1:],
    ):
        assert parse_snapshot_name(name) is None


def test_a_snapshot_is_not_seen_before_it_is_frozen(disk: FaultyDisk) -> None:
    writer = SnapshotWriter(disk, "/d", FIRST)
    assert (writer.append(b"abc"), writer.append(b"def"), writer.size_bytes) == (3, 6, 6)
    assert list_snapshots(disk, "/d") == [] and latest_snapshot(disk, "/d") is None
    assert read_file(disk, writer.path) == b"abcdef"
    assert writer.freeze() == join("/d", snapshot_name(FIRST))
    assert latest_snapshot(disk, "/d") == FIRST
    assert disk.list_directory("/d") == [snapshot_name(FIRST)]
    for use in (writer.freeze, lambda: writer.append(b"x")):
        with pytest.raises(SnapshotError, match="frozen or closed"):
            use()


def test_chunks_from_one_node_to_another(disk: FaultyDisk) -> None:
    content = random.Random(1).randbytes(1000)
    make_snapshot(disk, FIRST, content)
    other = FaultyDisk(random.Random(2))
    writer = SnapshotWriter(other, "/", FIRST)
    position = 0
    while True:
        chunk = read_chunk(disk, "/d", FIRST, position, 300)
        assert chunk.size_bytes == 1000
        position = writer.receive(chunk)
        assert writer.receive(chunk) == position  # the answer came twice
        if position == 600:
            writer.close(keep=True)
            writer = SnapshotWriter(other, "/", FIRST, resume=True)
            assert writer.size_bytes == 600
        if chunk.is_last:
            break
    writer.freeze()
    assert read_file(other, "/" + snapshot_name(FIRST)) == content


def test_chunks_that_do_not_fit(disk: FaultyDisk) -> None:
    writer = SnapshotWriter(disk, "/d", FIRST)
    writer.append(b"12345")
    chunk = SnapshotChunk(snapshot_id=FIRST, position=6, size_bytes=9, data=b"789")
    with pytest.raises(SnapshotPositionError, match="ask for 5"):
        writer.receive(chunk)
    with pytest.raises(SnapshotError, match="drop it"):
        writer.receive(SnapshotChunk(snapshot_id=LogPosition(4, 1850), position=5, size_bytes=9, data=b""))
    assert writer.receive(SnapshotChunk(snapshot_id=FIRST, position=3, size_bytes=9, data=b"4567")) == 7
    assert read_file(disk, writer.path) == b"1234567"
    writer.close()
    assert disk.list_directory("/d") == []


def test_chunks_of_what_is_not_there(disk: FaultyDisk) -> None:
    with pytest.raises(SnapshotNotFoundError, match="fetch again"):
        read_chunk(disk, "/d", FIRST, 0, 10)
    make_snapshot(disk, FIRST, b"12345")
    for position in (-1, 5, 6):
        with pytest.raises(SnapshotPositionError, match="start again at 0"):
            read_chunk(disk, "/d", FIRST, position, 10)
    assert read_chunk(disk, "/d", FIRST, 4, 10).data == b"5"


def test_old_snapshots_go_and_the_newest_stays(disk: FaultyDisk) -> None:
    identities = [LogPosition(1, 10), LogPosition(2, 20), LogPosition(2, 30)]
    for identity in reversed(identities):
        make_snapshot(disk, identity, b"x")
    assert list_snapshots(disk, "/d") == identities
    assert delete_snapshots_before(disk, "/d", 20) == identities[:1]
    assert delete_snapshots_before(disk, "/d", 1000) == identities[1:2]
    assert list_snapshots(disk, "/d") == identities[2:]
    assert delete_snapshot(disk, "/d", identities[2]) and not delete_snapshot(disk, "/d", identities[2])


def test_abandoned_files_are_cleaned_and_others_left(disk: FaultyDisk) -> None:
    SnapshotWriter(disk, "/d", FIRST).append(b"half")
    make_snapshot(disk, LogPosition(1, 10), b"x")
    kafka = "00000000000000000544-0000000001-7381927.checkpoint.part"
    for name in (
        kafka,
        "00000000000000000001-0000000001.checkpoint.deleted",
        "notes.part",
        "bootstrap.checkpoint",
    ):
        put(disk, join("/d", name), b"")
    assert len(clean_abandoned(disk, "/d")) == 3
    assert disk.list_directory("/d") == [
        snapshot_name(LogPosition(1, 10)),
        "bootstrap.checkpoint",
        "notes.part",
    ]
