"""Node directories with a log that a test makes, batch by batch, and what a test asks of one afterwards."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

from metaquorum.metadata.image import MetadataImage
from metaquorum.metadata.inspect.log.log import MetadataLog, open_log
from metaquorum.metadata.inspect.repair.log_copy import NodeFiles, node_files
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.codec import encode, encode_control
from metaquorum.metadata.records.control import (
    KRaftVersionRecord,
    LeaderChangeMessage,
    LeaderVoter,
    VotersRecord,
)
from metaquorum.metadata.records.schema import SCHEMA_BY_CLASS
from metaquorum.metadata.replay import ReplayState
from metaquorum.metadata.snapshot import snapshot_batches
from metaquorum.metadata.text.tree import image_tree
from metaquorum.storage.batches.batch import RecordBatch, encode_batch, iter_batches
from metaquorum.storage.disk.interface import Disk, join, parent_of, read_file
from metaquorum.storage.files.meta_properties import MetaProperties, store_meta_properties
from metaquorum.storage.files.quorum_state import QuorumState, store_quorum_state
from metaquorum.storage.files.snapshots import snapshot_path
from metaquorum.storage.log.config import METADATA_DIRECTORY
from metaquorum.storage.log.reader import LogReader
from metaquorum.storage.log.segment import list_segments, segment_name
from metaquorum.storage.types import LogPosition
from metaquorum.testing.faulty_disk import FaultyDisk
from tests.images import replay_all

CLUSTER = "3Db5QLSqSZieL3rJBUUegA"
HOME = "/node"
ORDERS, PAYMENTS = bytes(range(16)), bytes(range(16, 32))
START_MS = 1_795_000_000_000
Batch = tuple[int, Sequence[object]]
"""Leader epoch and records; a leader change is a batch of its own."""


def topic(name: str, topic_id: bytes, partitions: int = 2) -> list[object]:
    made: list[object] = [r.TopicRecord(name, topic_id)]
    for index in range(partitions):
        made.append(
            r.PartitionRecord(
                index,
                topic_id,
                replicas=(1,),
                isr=(1,),
                leader=1,
                leader_epoch=0,
                partition_epoch=0,
            )
        )
    return made


def leads(node_id: int, voters: Sequence[int] = (3000, 3001, 3002)) -> LeaderChangeMessage:
    listed = tuple(LeaderVoter(voter) for voter in voters)
    return LeaderChangeMessage(node_id, listed, listed)


STORY: list[Batch] = [
    (1, [leads(3000)]),  # 0
    (1, [r.FeatureLevelRecord("metadata.version", 14)]),  # 1
    (1, [r.BrokerRecord(1, ORDERS, 2)]),  # 2
    (1, [r.UnfenceBrokerRecord(1, 2)]),  # 3
    (1, topic("orders", ORDERS)),  # 4 to 6
    (1, topic("payments", PAYMENTS)),  # 7 to 9
    (1, [r.NoOpRecord()]),  # 10
    (2, [leads(3001)]),  # 11
    (2, [r.RemoveTopicRecord(PAYMENTS)]),  # 12
    (2, [r.PartitionChangeRecord(1, ORDERS, leader=-1)]),  # 13
    (2, [r.ConfigRecord(2, "orders", "retention.ms", "1000")]),  # 14
]


def encoded(
    batches: Sequence[Batch], base_offset: int = 0, stamps: Sequence[int] | None = None
) -> list[bytes]:
    """Each batch as bytes, a second apart, or with these timestamps."""
    made = []
    for number, (epoch, listed) in enumerate(batches):
        control = isinstance(listed[0], LeaderChangeMessage | KRaftVersionRecord | VotersRecord)
        pairs = [encode_control(one) for one in listed] if control else []  # type: ignore[arg-type]
        values = (
            [value for _, value in pairs] if control else [encode(one, _version(one)) for one in listed]  # type: ignore[arg-type]
        )
        made.append(
            encode_batch(
                base_offset=base_offset,
                leader_epoch=epoch,
                timestamp_ms=START_MS + 1000 * number if stamps is None else stamps[number],
                values=values,
                keys=[key for key, _ in pairs] if control else None,
                is_control=control,
            )
        )
        base_offset += len(listed)
    return made


def _version(record: object) -> int:
    """A version without directories, which the story does not have."""
    return min(
        SCHEMA_BY_CLASS[type(record)].latest_version, 0 if isinstance(record, r.PartitionRecord) else 9
    )


def memory_disk() -> FaultyDisk:
    return FaultyDisk(random.Random(1))


def make_node(
    disk: Disk,
    batches: Sequence[Batch] = STORY,
    *,
    home: str = HOME,
    node_id: int = 3000,
    cluster_id: str = CLUSTER,
    per_segment: int = 100,
    quorum_epoch: int | None = None,
    stamps: Sequence[int] | None = None,
) -> NodeFiles:
    """A node's directory with those batches, a new segment after every `per_segment` of them. `stamps`: their
    timestamps."""
    directory = join(home, METADATA_DIRECTORY)
    disk.make_directory(directory)
    disk.sync_directory(home)
    disk.sync_directory(parent_of(home))
    made = encoded(batches, stamps=stamps)
    for first in range(0, len(made), per_segment):
        part = made[first : first + per_segment]
        base = int.from_bytes(part[0][:8], "big")
        write(disk, join(directory, segment_name(base)), b"".join(part))
    identity = MetaProperties(
        cluster_id=cluster_id, node_id=node_id, directory_id=b"made" + node_id.to_bytes(12, "big")
    )
    store_meta_properties(disk, home, identity)
    epoch = max(epoch for epoch, _ in batches) if quorum_epoch is None else quorum_epoch
    state = QuorumState(epoch=epoch, voted_id=node_id, voters=(3000, 3001, 3002))
    store_quorum_state(disk, directory, state)
    return node_files(open_log(disk, home))


def write(disk: Disk, path: str, content: bytes) -> None:
    file = disk.open_append(path)
    file.truncate(0)
    file.append(content)
    file.sync()
    file.close()
    disk.sync_directory(parent_of(path))


def add_snapshot(node: NodeFiles, offset: int) -> MetadataImage:
    """A snapshot of the state before `offset`, which must be a batch's end."""
    log = node.log
    batches = [one for one in strict(log) if one.header.next_offset <= offset]
    image = replay_all(ReplayState(), batches).image
    position = LogPosition(batches[-1].header.leader_epoch, offset)
    content = b"".join(snapshot_batches(image, position=position))
    write(log.disk, snapshot_path(log.directory, position), content)
    return image


def flip(node: NodeFiles, offset: int) -> None:
    """Damages the batch that begins at `offset`: its last byte is another."""
    (batch,) = (one for one in strict(node.log) if one.header.base_offset == offset)
    content = bytearray(read_file(node.log.disk, batch.file))
    content[batch.position + len(batch.data) - 1] ^= 0xFF
    write(node.log.disk, batch.file, bytes(content))


def strict(log: MetadataLog) -> list[RecordBatch]:
    """Every batch of a log in which nothing is wrong; anything else raises."""
    reader = LogReader(log.disk, log.path)
    try:
        found = list(reader.batches())
    finally:
        reader.close()
    for base in list_segments(log.disk, log.path):
        path = join(log.path, segment_name(base))
        for _ in iter_batches(read_file(log.disk, path), file=path):
            pass
    return found


def image_of(log: MetadataLog) -> MetadataImage:
    """The state of a whole log from offset 0, in which every record can be applied."""
    return replay_all(ReplayState(), strict(log)).image


def images_equal(one: MetadataImage, other: MetadataImage) -> bool:
    """Whether two images say the same, wherever they stand."""
    first, second = image_tree(one, secrets=True), image_tree(other, secrets=True)
    del first["provenance"], second["provenance"]
    return first == second


def all_files(directory: Path) -> dict[str, bytes]:
    """Every file below a directory with its bytes."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }
