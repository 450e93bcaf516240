"""What Kafka wrote, read without changing a byte: every recorded log and checkpoint."""

from __future__ import annotations

import re
import shutil
from collections import Counter
from pathlib import Path

import pytest

from metaquorum.storage.batches.batch import RecordBatch, batch_record_spans
from metaquorum.storage.disk.interface import read_file
from metaquorum.storage.disk.posix import PosixDisk
from metaquorum.storage.files.meta_properties import MetaProperties, load_meta_properties
from metaquorum.storage.files.quorum_state import QuorumState, load_quorum_state
from metaquorum.storage.files.snapshots import list_snapshots, parse_snapshot_name
from metaquorum.storage.log.config import METADATA_DIRECTORY, LogConfig
from metaquorum.storage.log.epochs import EpochTable
from metaquorum.storage.log.log import SegmentedLog
from metaquorum.storage.log.reader import Damage, LogReader
from tests.unit.storage.reencoding import reencode_batch
from tests.unit.storage.whole_log import whole

pytestmark = pytest.mark.shared_data
DISK = PosixDisk()


def recorded_files(root: Path) -> list[Path]:
    """Of metadata logs: data of partitions has keys, codecs, and, once it was compacted, gaps."""
    found = sorted([*root.rglob("*.log"), *root.rglob("*.checkpoint")])
    return [path for path in found if "kafka-3.7-wire" not in path.parts or is_metadata(path)]


def is_metadata(path: Path) -> bool:
    return path.parent.name == METADATA_DIRECTORY


def is_odd(path: Path) -> bool:
    return "synthetic-oddities" in path.parts


def test_every_batch_is_encoded_again_to_the_same_bytes(shared_data: Path) -> None:
    files = recorded_files(shared_data)
    assert len(files) > 40
    kinds: Counter[str] = Counter()
    for path in files:
        rebuilt = b""
        for batch in LogReader(DISK, str(path), tolerant=is_odd(path)).batches():
            assert batch.position == len(rebuilt)
            again = reencode_batch(batch)
            assert again == batch.data, f"{path} at {batch.position}"
            rebuilt += again
            kinds["control" if batch.header.is_control else "data"] += 1
            check_spans(batch)
        assert rebuilt == path.read_bytes()
    assert kinds["control"] > 50 and kinds["data"] > 5000


def check_spans(batch: RecordBatch) -> None:
    records = batch.records()
    times = {one.timestamp_ms for one in records}
    if batch.header.is_control or batch.header.records_count != len(records) or len(times) > 1:
        return
    spans = batch_record_spans(batch)
    assert [batch.data[start:end] for start, end in spans] == [one.value for one in records]


def test_strict_reading_finds_nothing_wrong_but_in_the_oddities(shared_data: Path) -> None:
    for path in recorded_files(shared_data):
        reader = LogReader(DISK, str(path), tolerant=True)
        damage = [item for item in reader if isinstance(item, Damage)]
        assert bool(damage) == is_odd(path), f"{path}: {damage}"
        assert reader.tail_problem() is None


def test_the_oddities_are_reported_and_reading_goes_on(shared_data: Path) -> None:
    (path,) = (shared_data / "kraft-wild/synthetic-oddities").rglob("*.log")
    items = list(LogReader(DISK, str(path), tolerant=True))
    reasons = [item.reason for item in items if isinstance(item, Damage)]
    batches = [item for item in items if isinstance(item, RecordBatch)]
    assert sum(len(batch.data) for batch in batches) == path.stat().st_size
    assert (
        reasons
        == [
            "expected base offset 0, found 1",
            "expected 4 records by the last offset delta, found 1",
            "expected base offset 5, found 2",
            "expected 2 records by the last offset delta, found 3",
        ]
        or reasons
    )
    first = next(item for item in items if isinstance(item, Damage))
    assert (first.file, first.position, first.offset) == (str(path), 0, 0)


def test_offsets_and_epochs_agree_with_the_dumps(shared_data: Path) -> None:
    """Kafka's dump prints one line a batch; ours must have the same figures."""
    pattern = re.compile(
        r"baseOffset: (\d+) lastOffset: (\d+) count: (\d+) .*partitionLeaderEpoch: (-?\d+) "
        r".*isControl: (\w+) .*position: (\d+) CreateTime: (\d+) "
        r"size: (\d+) magic: (\d+) compresscodec: (\w+) crc: (\d+)"
    )
    compared = 0
    for dump in sorted(shared_data.rglob("*.dump.txt")):
        if dump.name.removesuffix(".dump.txt") not in {path.name for path in recorded_files(dump.parent)}:
            continue
        path = dump.with_name(dump.name.removesuffix(".dump.txt"))
        expected = [match.groups() for match in map(pattern.search, dump.read_text().splitlines()) if match]
        found = []
        for batch in LogReader(DISK, str(path)).batches():
            header = batch.header
            figures = (header.base_offset, header.last_offset, header.records_count, header.leader_epoch)
            sizes = (header.max_timestamp_ms, header.size_bytes, header.magic)
            control = str(header.is_control).lower()
            row = (*figures, control, batch.position, *sizes, "none", header.crc)
            found.append(tuple(str(value) for value in row))
        assert found == expected, path
        compared += len(found)
    assert compared > 1500


def test_a_directory_reads_as_one_log_from_any_offset(shared_data: Path) -> None:
    directory = str(shared_data / "kafka-3.7/controller-3000/__cluster_metadata-0")
    everything = list(LogReader(DISK, directory).batches())
    assert everything[-1].header.next_offset == 4758
    assert [b.header.base_offset for b in everything[1:]] == [b.header.next_offset for b in everything[:-1]]
    for offset in (0, 1, 5, 1849, 1850, 1851, 3299, 4000):
        first = next(LogReader(DISK, directory, start_offset=offset).batches())
        assert first.header.base_offset <= offset <= first.header.last_offset


def test_a_log_of_kafka_opens_for_writing_and_keeps_its_bytes(shared_data: Path, tmp_path: Path) -> None:
    """Also the claim that index files are not needed: they are ignored, and left alone."""
    source = shared_data / "kafka-3.7/controller-3000/__cluster_metadata-0"
    copy = tmp_path / source.name
    shutil.copytree(source, copy)
    warnings: list[str] = []
    log = SegmentedLog.open(DISK, str(copy), LogConfig(), warnings.append)
    stored = EpochTable.decode(read_file(DISK, str(source / "leader-epoch-checkpoint")))
    assert warnings == [] and log.epochs == stored
    assert b"".join(one.data for one in whole(log)) == b"".join(
        path.read_bytes() for path in sorted(source.glob("*.log"))
    )
    log.clean_close()
    for path in source.iterdir():
        assert (copy / path.name).read_bytes() == path.read_bytes(), path.name


def test_a_log_that_kafka_trimmed(shared_data: Path, tmp_path: Path) -> None:
    """As retention leaves it: the first segment gone, the table beginning at the new start."""
    source = shared_data / "kafka-3.7/controller-3000/__cluster_metadata-0"
    copy = tmp_path / source.name
    shutil.copytree(source, copy)
    (copy / "00000000000000000000.log").unlink()
    table = copy / "leader-epoch-checkpoint"
    table.write_text("0\n3\n3 1850\n5 2016\n6 2070\n")
    log = SegmentedLog.open(DISK, str(copy))
    assert (log.start_offset, log.start_epoch, log.end_offset) == (1850, 3, 4758)
    assert log.epochs.entries == ((3, 1850), (5, 2016), (6, 2070))
    log.clean_close()
    assert table.read_text() == "0\n3\n3 1850\n5 2016\n6 2070\n"


def test_state_files_of_kafka(shared_data: Path) -> None:
    states = sorted(shared_data.rglob("quorum-state"))
    assert len(states) > 10
    for path in states:
        state = load_quorum_state(DISK, str(path.parent))
        assert isinstance(state, QuorumState)
        version = 1 if b'"data_version":1' in path.read_bytes() else 0
        assert state.encode(version) == path.read_bytes().rstrip(), path
    properties = sorted(shared_data.rglob("meta.properties"))
    assert len(properties) > 3
    for path in properties:
        found = load_meta_properties(DISK, str(path.parent))
        assert found.version in (0, 1) and found.node_id is not None and found.cluster_id
        if found.version == 1:
            assert MetaProperties.decode(found.encode()) == found
    tables = sorted(shared_data.rglob("leader-epoch-checkpoint"))
    for path in tables:
        content = path.read_bytes() or b"0\n0\n"  # Kafka leaves an empty file for an empty replica
        assert EpochTable.decode(content) == EpochTable.decode(path.read_bytes())
        assert EpochTable.decode(content).encode() == content, path


def test_the_written_shape_of_meta_properties(shared_data: Path) -> None:
    path = shared_data / "kafka-3.7/controller-3000/meta.properties"
    ours = load_meta_properties(DISK, str(path.parent)).encode().decode().splitlines()
    theirs = path.read_text().splitlines()
    assert ours == [theirs[0], *theirs[2:]]  # all but the comment with the date


def test_checkpoint_names(shared_data: Path) -> None:
    directory = shared_data / "kafka-3.7/controller-3000/__cluster_metadata-0"
    listed = list_snapshots(DISK, str(directory))
    assert len(listed) == len(list(directory.glob("*.checkpoint"))) > 10
    for path in directory.glob("*.checkpoint"):
        identity = parse_snapshot_name(path.name)
        assert identity in listed
        last = [batch.header for batch in LogReader(DISK, str(path)).batches()][-1]
        assert identity is not None and last.leader_epoch == identity.epoch and last.is_control
