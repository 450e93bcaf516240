"""What is no metadata log is refused before a tool makes sense of it; what is one, but damaged, is not."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from metaquorum.metadata.image import Provenance
from metaquorum.metadata.inspect.log.log import MetadataLog, open_log
from metaquorum.metadata.inspect.log.metadata_only import refuse_other_logs
from metaquorum.metadata.inspect.nodes.merge import compare_nodes
from metaquorum.metadata.inspect.walk.states import nothing_known
from metaquorum.metadata.records import types as r
from metaquorum.metadata.records.codec import encode, encode_control
from metaquorum.storage.batches.batch import encode_batch
from metaquorum.storage.disk.interface import join
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.errors import NotALogError
from metaquorum.storage.partition.replica_directory import encode_partition_metadata
from metaquorum.testing.faulty_disk import FaultyDisk
from tests.unit.metadata.made_logs import START_MS, STORY, encoded, leads, make_node, memory_disk, write

SEGMENT = f"{0:020}.log"


def batch(base: int, *values: bytes, keys: list[bytes] | None = None, epoch: int = 1) -> bytes:
    return encode_batch(
        base_offset=base, leader_epoch=epoch, timestamp_ms=START_MS, values=list(values), keys=keys
    )


def a_log(content: bytes, directory: str = "/disk/orders-0") -> MetadataLog:
    disk = memory_disk()
    _put(disk, directory, content)
    return open_log(disk, directory)


def _put(disk: FaultyDisk, directory: str, content: bytes) -> None:
    disk.make_directory(directory)
    write(disk, join(directory, SEGMENT), content)


def rewritten(at: int, *values: bytes) -> bytes:
    """The story with the batch number `at` holding other records, its CRC right."""
    made = encoded(STORY)
    base = int.from_bytes(made[at][:8], "big")
    made[at] = batch(base, *values)
    return b"".join(made)


@pytest.mark.parametrize(
    "content",
    [
        b"".join(batch(at, b"hello %d" % at) for at in range(30)),
        batch(0, b"one message only"),
        b"".join(batch(at, b"\x00\x01value", keys=[b"\x00\x01key"]) for at in range(5)),
        batch(0, b"{}", b'{"a": 1}'),
    ],
)
def test_user_records_are_refused_wherever_they_stand(content: bytes) -> None:
    for directory in ("/disk/orders-0", "/disk/copied"):
        with pytest.raises(NotALogError, match="the log of a topic partition"):
            refuse_other_logs(a_log(content, directory))
        segment = MetadataLog(a_log(content, directory).disk, join(directory, SEGMENT))
        with pytest.raises(NotALogError):
            refuse_other_logs(segment)


@pytest.mark.parametrize(
    ("producer_id", "attributes", "is_metadata"),
    [(-1, 0, True), (0, 0, False), (7, 0, False), (-1, 0x10, False)],
)
def test_what_producers_alone_write_speaks_against_a_metadata_log(
    producer_id: int, attributes: int, is_metadata: bool
) -> None:
    """However its records read: producers' ids begin at 0, and no metadata log has a client's transaction."""
    made = encode_batch(
        base_offset=0,
        leader_epoch=1,
        timestamp_ms=START_MS,
        values=[encode(r.NoOpRecord(), 0)] * 3,
        producer_id=producer_id,
        attributes=attributes,
    )
    log = a_log(made)
    if is_metadata:
        refuse_other_logs(log)
        return
    with pytest.raises(NotALogError, match=f"a batch of producer {producer_id}"):
        refuse_other_logs(log)


NO_OP, FUTURE = encode(r.NoOpRecord(), 0), b"\x01\x63\x00\x07"
ELECTION = encode_control(leads(1))
FUTURE_CONTROL = ((0).to_bytes(2, "big") + (99).to_bytes(2, "big"), b"\0\0")


@pytest.mark.parametrize("known", [0, 1, 2, None])
@pytest.mark.parametrize("is_control", [False, True])
def test_one_record_that_is_known_speaks_for_a_batch(known: int | None, is_control: bool) -> None:
    """Whichever it is, the others may be from the future; without it they speak neither for nor against it.
    A batch of a user's record follows, which counts as much."""
    pairs = [ELECTION if at == known else FUTURE_CONTROL for at in range(3)]
    made = encode_batch(
        base_offset=0,
        leader_epoch=1,
        timestamp_ms=START_MS,
        values=[value for _, value in pairs]
        if is_control
        else [(FUTURE, NO_OP)[at == known] for at in range(3)],
        keys=[key for key, _ in pairs] if is_control else None,
        is_control=is_control,
    )
    log = a_log(made + batch(3, b"hello"))
    if known is None:
        with pytest.raises(NotALogError, match="offset 3: "):
            refuse_other_logs(log)
    else:
        refuse_other_logs(log)


def test_many_user_records_are_refused_under_the_metadata_logs_own_name() -> None:
    content = b"".join(batch(at, b"hello %d" % at) for at in range(3))
    with pytest.raises(NotALogError):
        refuse_other_logs(a_log(content, "/disk/__cluster_metadata-0"))


@pytest.mark.parametrize("at", [1, 2, 5])
def test_a_record_that_cannot_be_read_is_no_evidence_against_a_metadata_log(at: int) -> None:
    refuse_other_logs(a_log(rewritten(at, b"hello"), "/disk/copied"))


def test_a_first_batch_that_is_damaged_is_no_evidence() -> None:
    content = bytearray(b"".join(encoded(STORY)))
    content[70] ^= 0xFF
    refuse_other_logs(a_log(bytes(content), "/disk/copied"))


def test_one_poisoned_batch_alone_is_a_metadata_log_by_its_name() -> None:
    refuse_other_logs(a_log(batch(0, b"hello"), "/disk/__cluster_metadata-0"))


def test_a_first_segment_of_user_records_does_not_speak_for_the_whole_log() -> None:
    disk = memory_disk()
    node = make_node(disk, per_segment=2)
    write(disk, join(node.log.directory, SEGMENT), b"".join(batch(at, b"hello") for at in range(2)))
    refuse_other_logs(open_log(disk, node.home))


def test_an_empty_partition_is_told_by_its_topic_id() -> None:
    disk = memory_disk()
    _put(disk, "/disk/orders-0", b"")
    refuse_other_logs(open_log(disk, "/disk/orders-0"))  # nothing says whose it is
    write(disk, "/disk/orders-0/partition.metadata", encode_partition_metadata(bytes(range(16))))
    with pytest.raises(NotALogError, match=r"partition\.metadata names topic AAECAwQFBgcICQoLDA0ODw"):
        refuse_other_logs(open_log(disk, "/disk/orders-0"))


def test_every_recorded_log_is_told_rightly(shared_data: Path) -> None:
    """Metadata logs of Kafka 3.0 to 4.2 are accepted, directories of partitions (plain, compacted, with
    transactions, of every codec, of offsets and of transaction states) are not."""
    accepted = refused = 0
    for directory, _, names in os.walk(shared_data):
        if not any(name.endswith(".log") and name[:20].isdigit() for name in names):
            continue
        log = open_log(PosixDisk(), directory)
        if "__cluster_metadata-0" in directory or directory.endswith("all-records"):
            refuse_other_logs(log)
            accepted += 1
        else:
            with pytest.raises(NotALogError):
                refuse_other_logs(log)
            refused += 1
    assert accepted >= 10
    assert refused >= 30


def test_a_batch_speaks_for_a_metadata_log_by_any_of_its_records() -> None:
    known, unknown = encode(r.NoOpRecord(), 0), b"\x01\x63\x00\x07"
    for values in ((known, unknown), (unknown, known)):
        refuse_other_logs(a_log(batch(0, *values) + batch(2, b"a message")))
    with pytest.raises(NotALogError):
        refuse_other_logs(a_log(batch(0, unknown) + batch(1, b"a message")))


def test_what_two_nodes_have_in_common_is_counted_batch_by_batch() -> None:
    content = batch(3, b"one", b"two") + batch(5, b"three")
    assert compare_nodes([a_log(content), a_log(content, "/disk/other-0")]).compared == 3


def test_a_place_where_nothing_is_known_has_no_epoch_and_no_time() -> None:
    assert nothing_known(5).image.provenance == Provenance(5, -1, -1)
