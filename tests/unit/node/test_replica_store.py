"""A replica's directory: recovery, the cache of the newest batches, snapshots and retention."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from metaquorum.raft.effects import (
    AppendLog,
    NoteCommitted,
    PersistQuorumState,
    ResetLog,
    RespondWithRecords,
    RespondWithSnapshotChunk,
    TruncateLog,
    WriteSnapshotChunk,
)
from metaquorum.raft.events import LogTrimmed, TrimLog
from metaquorum.raft.messages import FetchResponse, FetchSnapshotResponse, RaftError
from metaquorum.raft.store import HEADER_MEMORY_BYTES, ReplicaStore, TailCache
from metaquorum.storage.batches.batch import NO_BATCHES, Batches, encode_batch
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.errors import CommittedLostError, CorruptFileError, CorruptLogError, FileMissingError
from metaquorum.storage.files.known_committed import Acknowledged
from metaquorum.storage.files.meta_properties import MetaProperties, store_meta_properties
from metaquorum.storage.files.quorum_state import QuorumState
from metaquorum.storage.log.config import LogConfig
from metaquorum.storage.types import LogPosition
from metaquorum.storage.uuids import random_uuid, uuid_to_text

SMALL_SEGMENTS = LogConfig(segment_bytes=2_000)


def directory_of(tmp_path: Path) -> str:
    store_meta_properties(
        PosixDisk(),
        str(tmp_path),
        MetaProperties(cluster_id="c", node_id=1, directory_id=random_uuid(random.Random(1))),
    )
    return str(tmp_path)


def opened(tmp_path: Path, **more: object) -> ReplicaStore:
    if not (tmp_path / "meta.properties").exists():
        directory_of(tmp_path)
    return ReplicaStore.open(PosixDisk(), str(tmp_path), SMALL_SEGMENTS, voter_ids=(1, 2), **more)  # type: ignore[arg-type]


def batch(base: int, count: int = 1, epoch: int = 1, timestamp_ms: int = 5, size: int = 100) -> bytes:
    return encode_batch(
        base_offset=base, leader_epoch=epoch, timestamp_ms=timestamp_ms, values=[b"v" * size] * count
    )


def append(store: ReplicaStore, data: bytes, base: int, count: int) -> None:
    effect = AppendLog(batches=Batches.parse(data))
    assert (effect.base_offset, effect.end_offset) == (base, base + count)
    store.execute(effect)


def read(store: ReplicaStore, from_offset: int, to_offset: int, max_bytes: int = 1 << 20) -> bytes:
    """The bytes of what is read, which the headers beside them describe."""
    found = store.read_log(from_offset, to_offset, max_bytes)
    assert found == Batches.parse(found.data)
    return found.data


def persist(store: ReplicaStore, epoch: int, voted_id: int | None = None) -> None:
    store.persist_quorum_state(
        PersistQuorumState(token=1, epoch=epoch, leader_id=None, voted_id=voted_id, voted_directory_id=None)
    )


def test_what_was_written_is_recovered(tmp_path: Path) -> None:
    store = opened(tmp_path)
    persist(store, 4, voted_id=2)
    append(store, batch(0, 2, epoch=3) + batch(2, epoch=4), 0, 3)
    assert store.sync_completed(store.prepare_sync()) == 3
    store.close()
    again = opened(tmp_path)
    found = again.recovered()
    assert (found.epoch, found.voted_id, found.log_start_offset, found.log_end_offset) == (4, 2, 0, 3)
    assert found.epochs == ((3, 0), (4, 2))
    again.close()


def test_a_vote_of_an_epoch_that_the_log_has_passed_is_no_vote(tmp_path: Path) -> None:
    store = opened(tmp_path)
    persist(store, 4, voted_id=2)
    append(store, batch(0, epoch=6), 0, 1)
    store.close()
    again = opened(tmp_path)
    assert (again.recovered().epoch, again.recovered().voted_id) == (6, None)
    again.close()


def test_a_voter_without_its_quorum_state_is_refused_and_an_observer_is_not(tmp_path: Path) -> None:
    store = opened(tmp_path)
    append(store, batch(0), 0, 1)
    store.close()
    with pytest.raises(CorruptFileError, match="is absent beside the log"):
        opened(tmp_path)
    observer = ReplicaStore.open(PosixDisk(), str(tmp_path), SMALL_SEGMENTS, voter_ids=(2, 3))
    assert observer.recovered().epoch == 1
    observer.close()


@pytest.mark.parametrize("cached", [True, False])
def test_reads_are_the_same_from_memory_and_from_files(tmp_path: Path, cached: bool) -> None:
    store = opened(tmp_path)
    persist(store, 1)
    parts = {0: batch(0, 3), 3: batch(3), 4: batch(4, 2), 6: batch(6)}
    append(store, parts[0] + parts[3], 0, 4)
    append(store, parts[4], 4, 2)
    append(store, parts[6], 6, 1)
    if not cached:
        store.close()
        store = opened(tmp_path)
    everything = b"".join(parts.values())
    assert read(store, 0, 7) == everything
    assert read(store, 3, 7) == everything[len(parts[0]) :]
    assert read(store, 1, 3) == parts[0]  # the batch that contains offset 1
    assert read(store, 0, 4) == parts[0] + parts[3]
    assert read(store, 3, 7, 1) == parts[3]  # at least one
    assert read(store, 3, 7, len(parts[3]) + len(parts[4])) == parts[3] + parts[4]
    assert read(store, 7, 7) == b""
    response = FetchResponse(error=RaftError.NONE, epoch=1, leader_id=1, high_watermark=7)
    filled = store.fill_records(
        RespondWithRecords(key=1, response=response, read_from=4, read_to=7, max_bytes=1 << 20)
    )
    assert filled.records == parts[4] + parts[6] and filled.high_watermark == 7
    store.close()


def test_a_cut_log_forgets_what_was_cached(tmp_path: Path) -> None:
    store = opened(tmp_path)
    append(store, batch(0) + batch(1) + batch(2), 0, 3)
    assert read(store, 0, 2) == batch(0) + batch(1)
    store.execute(TruncateLog(end_offset=1))
    assert read(store, 0, 3) == batch(0)
    assert store.read_log(1, 3, 1 << 20) == NO_BATCHES
    other = batch(1, epoch=9)
    append(store, other, 1, 1)
    assert read(store, 0, 2) == batch(0) + other
    store.execute(ResetLog(position=LogPosition(9, 1)))
    assert store.read_log(1, 2, 1 << 20) == NO_BATCHES
    store.execute(ResetLog(position=LogPosition(9, 50)))
    append(store, batch(50, epoch=9), 50, 1)
    assert read(store, 50, 51) == batch(50, epoch=9)
    store.close()


def test_the_cache_is_bounded_and_keeps_the_newest() -> None:
    cache = TailCache((len(batch(0)) + HEADER_MEMORY_BYTES) * 10)
    for offset in range(25):
        cache.append(Batches.parse(batch(offset)))
    assert cache.read(0, 25, 1 << 20) is None
    assert cache.read(24, 25, 1 << 20) == Batches.parse(batch(24))
    assert cache.read(25, 26, 1 << 20) is None
    held = [offset for offset in range(25) if cache.read(offset, offset + 1, 1) is not None]
    assert held == list(range(held[0], 25)) and 4 <= len(held) <= 10
    cache.append(Batches.parse(batch(90)))  # does not follow: the older ones are no help any more
    assert cache.read(24, 25, 1) is None and cache.read(90, 91, 1) == Batches.parse(batch(90))
    cache.clear()
    assert cache.read(90, 91, 1) is None
    other = Batches.parse(batch(90, epoch=7))
    cache.append(other)
    assert cache.read(90, 91, 1) == other


def test_a_snapshot_is_received_in_chunks_and_counts_only_when_it_is_finished(tmp_path: Path) -> None:
    store = opened(tmp_path)
    position, content = LogPosition(2, 40), bytes(range(200))
    store.execute(WriteSnapshotChunk(snapshot=position, position=0, data=content[:120]))
    with pytest.raises(FileMissingError):
        store.partial_snapshot(position, len(content))
    store.execute(WriteSnapshotChunk(snapshot=position, position=120, data=content[120:]))
    assert Path(store.partial_snapshot(position, len(content))).read_bytes() == content
    for other, size in (
        (position, 199),
        (position, 201),
        (LogPosition(2, 41), 200),
        (LogPosition(1, 40), 200),
    ):
        with pytest.raises(FileMissingError):
            store.partial_snapshot(other, size)
    assert store.snapshots() == []
    store.finish_snapshot(position)
    assert store.snapshots() == [position]
    chunk = store.fill_snapshot_chunk(request(position, 50, 60))
    assert (chunk.data, chunk.size_bytes, chunk.position) == (content[50:110], 200, 50)
    assert store.fill_snapshot_chunk(request(LogPosition(2, 41), 0, 9)).error is RaftError.SNAPSHOT_NOT_FOUND
    assert store.fill_snapshot_chunk(request(position, 500, 9)).error is RaftError.POSITION_OUT_OF_RANGE
    store.close()


def test_a_snapshot_that_was_thrown_away_is_received_from_its_start(tmp_path: Path) -> None:
    store = opened(tmp_path)
    position = LogPosition(2, 40)
    store.execute(WriteSnapshotChunk(snapshot=position, position=0, data=b"damaged"))
    store.drop_snapshot()
    with pytest.raises(FileMissingError):
        store.partial_snapshot(position, 7)
    with pytest.raises(FileMissingError):
        store.finish_snapshot(position)
    store.execute(WriteSnapshotChunk(snapshot=position, position=0, data=b"whole"))
    assert Path(store.partial_snapshot(position, 5)).read_bytes() == b"whole"
    store.finish_snapshot(position)
    assert store.snapshots() == [position]
    store.close()


@pytest.mark.parametrize("seed", range(5))
def test_the_cache_gives_up_the_oldest_batches_down_to_half_of_its_bound(seed: int) -> None:
    """And no more of them; with their headers, which take memory too."""
    rng, bound = random.Random(seed), 5_000
    cache, model, offset = TailCache(bound), [], 0  # type: ignore[var-annotated]
    for _ in range(60):
        some = [batch(offset + at, size=rng.randint(0, 400)) for at in range(rng.randint(1, 3))]
        cache.append(Batches.parse(b"".join(some)))
        model += [(offset + at, len(data) + HEADER_MEMORY_BYTES) for at, data in enumerate(some)]
        offset += len(some)
        if sum(size for _, size in model) > bound:
            while sum(size for _, size in model) > bound // 2:
                del model[0]
        held = [at for at in range(offset) if cache.read(at, at + 1, 1) is not None]
        assert held == [at for at, _ in model]


@pytest.mark.parametrize("other", [LogPosition(2, 40), LogPosition(3, 40), LogPosition(2, 41)])
def test_a_snapshot_that_begins_takes_the_place_of_the_one_that_did_not_end(
    tmp_path: Path, other: LogPosition
) -> None:
    """Of another leader, or the same one from its start: nothing of the former is left."""
    store = opened(tmp_path)
    store.execute(WriteSnapshotChunk(snapshot=LogPosition(2, 40), position=0, data=b"former"))
    store.execute(WriteSnapshotChunk(snapshot=other, position=0, data=b"whole"))
    store.execute(WriteSnapshotChunk(snapshot=other, position=5, data=b" one"))
    (path,) = (tmp_path / "__cluster_metadata-0").glob("*.part")
    assert str(path) == store.partial_snapshot(other, 9) and path.read_bytes() == b"whole one"
    store.close()


def request(position: LogPosition, start: int, max_bytes: int) -> RespondWithSnapshotChunk:
    return RespondWithSnapshotChunk(
        key=1,
        response=FetchSnapshotResponse(error=RaftError.NONE, epoch=2, leader_id=1),
        snapshot=position,
        position=start,
        max_bytes=max_bytes,
    )


def test_a_crash_between_snapshot_and_reset_is_finished_at_the_next_start(tmp_path: Path) -> None:
    store = opened(tmp_path)
    persist(store, 1)
    append(store, batch(0), 0, 1)
    store.write_snapshot(LogPosition(3, 70), [b"snapshot"])
    store.close()
    warnings: list[str] = []
    again = ReplicaStore.open(PosixDisk(), str(tmp_path), SMALL_SEGMENTS, warnings.append, voter_ids=(1,))
    found = again.recovered()
    assert (found.log_start_offset, found.log_end_offset, found.epoch) == (70, 70, 3)
    assert found.snapshots == (LogPosition(3, 70),) and "restarts there" in warnings[0]
    again.close()


def filled(tmp_path: Path, **retention: int) -> ReplicaStore:
    """100 batches of about 160 bytes, time 0 to 99 s, in segments of 2,000; snapshots at 30, 60 and 90."""
    store = opened(tmp_path, **retention)
    for offset in range(100):
        append(store, batch(offset, timestamp_ms=offset * 1000), offset, 1)
        if offset in (30, 60, 90):
            store.write_snapshot(LogPosition(1, offset), [b"s" * 100])
    return store


@pytest.mark.parametrize(
    ("retention", "start_at_most", "snapshots"),
    [
        ({}, 0, [30, 60, 90]),
        ({"retention_bytes": 1 << 20}, 0, [30, 60, 90]),
        ({"retention_bytes": 1}, 90, [90]),
        ({"retention_bytes": 14_500}, 30, [30, 60, 90]),
        ({"retention_ms": 100_000}, 0, [30, 60, 90]),
        ({"retention_ms": 60_000}, 30, [30, 60, 90]),
        ({"retention_ms": 1}, 90, [90]),
    ],
)
def test_retention_removes_only_what_a_snapshot_stands_for(
    tmp_path: Path, retention: dict[str, int], start_at_most: int, snapshots: list[int]
) -> None:
    store = filled(tmp_path, **retention)
    trimmed = store.execute(TrimLog(before_offset=90), wall_ms=100_000)
    assert isinstance(trimmed, LogTrimmed)
    assert trimmed.log_start_offset == store.log.start_offset <= start_at_most
    assert store.log.start_offset > start_at_most - 15  # whole segments only, and all of those
    assert [one.offset for one in store.snapshots()] == snapshots
    assert store.log.end_offset == 100
    store.close()


def test_an_answer_that_waited_while_its_records_were_trimmed_has_none(tmp_path: Path) -> None:
    """It waits for an epoch to be durable; the next fetch gets a snapshot's id."""
    store = filled(tmp_path, retention_bytes=1)
    store.execute(TrimLog(before_offset=90), wall_ms=100_000)
    start = store.log.start_offset
    response = FetchResponse(error=RaftError.NONE, epoch=1, leader_id=1, high_watermark=100)

    def answer(read_from: int) -> FetchResponse:
        effect = RespondWithRecords(key=1, response=response, read_from=read_from, read_to=100, max_bytes=1)
        return store.fill_records(effect)

    assert answer(start - 1) == response
    assert answer(start).records
    store.close()


def test_nothing_at_or_above_the_snapshot_is_removed(tmp_path: Path) -> None:
    store = filled(tmp_path, retention_bytes=1)
    store.execute(TrimLog(before_offset=60), wall_ms=100_000)
    assert [one.offset for one in store.snapshots()] == [60, 90]
    assert 45 < store.log.start_offset <= 60
    store.close()


def _noted(tmp_path: Path, *, known: LogPosition) -> ReplicaStore:
    """Five batches, synced, and a note; then killed."""
    store = opened(tmp_path)
    persist(store, 1)
    append(store, b"".join(batch(base) for base in range(5)), 0, 5)
    store.sync_completed(store.prepare_sync())
    store.execute(NoteCommitted(position=known, durably=False))
    store.close(clean=False)
    return store


def _files(tmp_path: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (tmp_path / "__cluster_metadata-0").iterdir()}


def test_what_was_known_to_be_committed_is_known_again_after_a_kill(tmp_path: Path) -> None:
    _noted(tmp_path, known=LogPosition(1, 4))
    again = opened(tmp_path)
    assert again.recovered().known_committed == LogPosition(1, 4)
    assert again.recovered().directory == again.replica_directory
    heard = (Acknowledged(b"d" * 16, 4, 1),)
    again.execute(NoteCommitted(position=LogPosition(1, 5), durably=True, acknowledged=heard))
    again.execute(NoteCommitted(position=LogPosition(1, 5), durably=False, acknowledged=()))
    due = again.prepare_committed()
    again.persist_committed(due)
    again.committed_persisted(due)
    again.close()
    last = opened(tmp_path)
    assert last.recovered().known_committed == LogPosition(1, 5)
    assert last.recovered().acknowledged == heard
    last.close()


@pytest.mark.parametrize("how", ["cut", "torn", "other records"])
def test_a_log_that_lost_what_was_committed_is_refused_untouched(tmp_path: Path, how: str) -> None:
    """Without a recovery point behind it, a cut log and one whose last bytes are spoilt would open."""
    _noted(tmp_path, known=LogPosition(1, 5))
    segment = tmp_path / "__cluster_metadata-0" / "00000000000000000000.log"
    content = segment.read_bytes()
    match how:
        case "cut":
            segment.write_bytes(content[: 2 * len(batch(0))])
        case "torn":
            segment.write_bytes(content[:-1] + b"?")
        case _:
            segment.write_bytes(content[: 4 * len(batch(0))] + batch(4, epoch=2))
    before = _files(tmp_path)
    with pytest.raises(CommittedLostError, match="everything below offset 5 was committed") as refused:
        opened(tmp_path)
    assert "\n" not in str(refused.value) and "No byte was changed" in str(refused.value)
    assert _files(tmp_path) == before


def test_a_snapshot_stands_for_what_the_log_lost(tmp_path: Path) -> None:
    """A crash between a snapshot's install and the log's reset leaves a log that ends before it."""
    store = _noted(tmp_path, known=LogPosition(1, 5))
    store.write_snapshot(LogPosition(1, 9), [batch(0)])
    segment = tmp_path / "__cluster_metadata-0" / "00000000000000000000.log"
    segment.write_bytes(segment.read_bytes()[: 2 * len(batch(0))])
    again = opened(tmp_path)
    assert (again.log.start_offset, again.log.end_offset) == (9, 9)
    again.close()


@pytest.mark.parametrize("place", [0, 20, 39])
def test_other_records_are_noticed_in_whichever_segment_they_are(tmp_path: Path, place: int) -> None:
    """The last record that is known to be committed was of epoch 1, and is of epoch 2 now."""
    store = opened(tmp_path)
    persist(store, 1)
    for offset in range(40):
        append(store, batch(offset, epoch=1 + (offset >= place)), offset, 1)
    assert len(store.log.segments()) > 2
    store.sync_completed(store.prepare_sync())
    store.execute(NoteCommitted(position=LogPosition(1, place + 1), durably=False))
    store.close(clean=False)
    with pytest.raises(CommittedLostError, match=f"offset {place} is of epoch 2, and was of epoch 1"):
        opened(tmp_path)


def test_a_vote_is_for_a_directory_where_the_file_names_one(tmp_path: Path) -> None:
    store = opened(tmp_path)
    persist(store, 3, 2)
    store.close()
    path = tmp_path / "__cluster_metadata-0" / "quorum-state"
    sevens = b"\x07" * 16
    for voted, directory_id, expected in ((2, bytes(16), None), (2, sevens, sevens), (None, sevens, None)):
        vote = QuorumState(epoch=3, voted_id=voted, voted_directory_id=directory_id)
        path.write_bytes(vote.encode(version=1))
        again = opened(tmp_path)
        assert (again.recovered().voted_id, again.recovered().voted_directory_id) == (voted, expected)
        again.close()


def test_an_old_snapshot_in_the_first_segment_does_not_end_the_trim(tmp_path: Path) -> None:
    """Nothing lies wholly below the oldest snapshot; what the next one covers is old enough to go."""
    store = opened(tmp_path, retention_ms=1)
    for offset in range(40):
        append(store, batch(offset, timestamp_ms=offset * 1000), offset, 1)
        if offset in (3, 35):
            store.write_snapshot(LogPosition(1, offset), [b"s" * 100])
    store.execute(TrimLog(before_offset=35), wall_ms=100_000)
    assert [one.offset for one in store.snapshots()] == [35]
    assert 20 < store.log.start_offset <= 35
    store.close()


def test_a_log_that_begins_behind_every_snapshot_is_refused(tmp_path: Path) -> None:
    store = filled(tmp_path, retention_bytes=1)
    persist(store, 1)
    paths = {one.offset: Path(store.snapshot_path(one)) for one in store.snapshots()}
    store.execute(TrimLog(before_offset=90), wall_ms=100_000)
    start = store.log.start_offset
    assert start > 60
    store.close()
    content = paths[90].read_bytes()
    for left in (0, 30):
        for path in paths.values():
            path.unlink(missing_ok=True)
        if left:
            paths[left].write_bytes(content)
        with pytest.raises(CorruptLogError, match=f"the log starts at {start} and no snapshot reaches it"):
            opened(tmp_path)


@pytest.mark.parametrize("missing", ["cluster.id", "broker.id", "directory.id"])
def test_a_directory_that_does_not_say_whose_it_is_has_no_identity(tmp_path: Path, missing: str) -> None:
    """As an older release left it. Its log can be opened all the same."""
    lines = {
        "version": "0",
        "cluster.id": "c",
        "broker.id": "1",
        "directory.id": uuid_to_text(bytes([9]) * 16),
    }
    text = "".join(f"{name}={value}\n" for name, value in lines.items() if name != missing)
    (tmp_path / "meta.properties").write_text(text)
    store = opened(tmp_path)
    with pytest.raises(CorruptFileError, match="lacks a cluster id, a node id or a directory id") as raised:
        _ = store.raft_identity
    assert raised.value.file == str(tmp_path / "meta.properties")
    store.close()


def test_a_snapshot_that_is_half_here_goes_when_the_store_is_closed(tmp_path: Path) -> None:
    store = opened(tmp_path)
    store.execute(WriteSnapshotChunk(snapshot=LogPosition(1, 9), position=0, data=b"half"))
    names = {path.name for path in (tmp_path / "__cluster_metadata-0").iterdir()}
    assert [name for name in names if name.endswith(".part")]
    store.close()
    left = {path.name for path in (tmp_path / "__cluster_metadata-0").iterdir()}
    assert left == {name for name in names if not name.endswith(".part")}


def test_answers_are_filled_with_what_they_are_for(tmp_path: Path) -> None:
    store = opened(tmp_path)
    records = FetchResponse(error=RaftError.NONE, epoch=1, leader_id=1)
    chunk = FetchSnapshotResponse(
        error=RaftError.NONE, epoch=1, leader_id=1, snapshot=LogPosition(1, 9), position=0
    )
    with pytest.raises(TypeError, match="records belong in a FetchResponse, not a FetchSnapshotResponse"):
        store.fill_records(
            RespondWithRecords(key=1, response=chunk, read_from=0, read_to=1, max_bytes=1, after=None)
        )
    with pytest.raises(TypeError, match="a chunk belongs in a FetchSnapshotResponse, not a FetchResponse"):
        store.fill_snapshot_chunk(
            RespondWithSnapshotChunk(
                key=1, response=records, snapshot=LogPosition(1, 9), position=0, max_bytes=1, after=None
            )
        )
    store.close()
