"""Indexes, producer snapshots and text files of log directories: what kafka-dump-log prints of the recorded
ones, and the place where one is damaged."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from metaquorum.cli.log.input.partition import batch_lines
from metaquorum.cli.main import main
from metaquorum.storage.batches.batch import encode_batch, parse_header
from metaquorum.storage.files.known_committed import Acknowledged, Known
from metaquorum.storage.files.meta_properties import MetaProperties
from metaquorum.storage.files.quorum_state import QuorumState
from metaquorum.storage.log.recovery import RecoveryPoint
from metaquorum.storage.log.timed_segment import encode_aborted, encode_index, encode_times
from metaquorum.storage.partition.log_producers import encode_producers
from metaquorum.storage.partition.producers import KnownBatch, KnownProducer, ProducerTable
from metaquorum.storage.types import LogPosition

BASE = f"{100:020d}"
PRODUCERS = encode_producers(
    ProducerTable(
        {
            7: KnownProducer(7, 1, (KnownBatch(2, 4, 100, 102, 9),), 11, 3, 100),
            8: KnownProducer(8, 0, (), 12),
        }
    )
)


def dumped(path: Path, *options: str) -> Result:
    return CliRunner().invoke(main, ["log", "dump", str(path), *options])


@pytest.mark.shared_data
def test_every_recorded_index_and_snapshot_is_printed_as_kafka_prints_it(shared_data: Path) -> None:
    wire = shared_data / "kafka-3.7-wire"
    compared = dict.fromkeys((".index", ".timeindex", ".snapshot", ".txnindex"), 0)
    for suffix in compared:
        for path in sorted(wire.glob(f"**/*{suffix}")):
            dump = Path(f"{path}.dump.txt")
            result = dumped(path)
            # Also the check by which Kafka's brokers accept an index when they start: all of these pass it.
            assert (result.exit_code, result.stderr) == (0, ""), path
            if dump.exists():
                assert result.stdout.splitlines()[1:] == dump.read_text().splitlines()[2:], path
                rows = list(map(json.loads, dumped(path, "--json").stdout.splitlines()))
                assert [row["file"] for row in rows] == [str(path)] * len(rows)
                compared[suffix] += len(rows)
    assert compared == {".index": 243, ".timeindex": 298, ".snapshot": 114, ".txnindex": 21}


@pytest.mark.shared_data
def test_every_recorded_text_file_says_what_is_in_it(shared_data: Path) -> None:
    wire = shared_data / "kafka-3.7-wire"
    seen = 0
    for pattern in ("leader-epoch-checkpoint", "*-offset-checkpoint"):
        for path in sorted(wire.glob(f"**/{pattern}")):
            rows = [json.loads(line) for line in dumped(path, "--json").stdout.splitlines()]
            shown = [" ".join(str(value) for value in list(row.values())[1:]) for row in rows]
            assert shown == path.read_text().splitlines()[2:], path
            seen += len(shown)
    assert seen > 300
    for path in sorted(wire.glob("**/partition.metadata")):
        assert dumped(path).stdout.splitlines()[1] == path.read_text().splitlines()[1]
    for path in sorted(wire.glob("**/meta.properties")):
        row = json.loads(dumped(path, "--json").stdout)
        for line in path.read_text().splitlines():
            name, separator, value = line.partition("=")
            assert not separator or str(row[name]) == value
    for path in sorted(wire.glob("**/quorum-state")):
        row, fields = json.loads(dumped(path, "--json").stdout), json.loads(path.read_text())
        assert row["leaderEpoch"] == fields["leaderEpoch"]
        assert row["currentVoters"] == [voter["voterId"] for voter in fields["currentVoters"]]


OWN = {
    f"{BASE}.index": (encode_index(100, [100, 105], [0, 90]), "offset: 100 position: 0"),
    f"{BASE}.timeindex": (encode_times(100, [5, 6], [102, 105]), "timestamp: 5 offset: 102"),
    f"{BASE}.txnindex": (
        encode_aborted([(7, 100, 103, 104), (8, 101, 105, 106)]),
        "version: 0 producerId: 7 firstOffset: 100 lastOffset: 103 lastStableOffset: 104",
    ),
    f"{BASE}.snapshot": (
        PRODUCERS,
        "producerId: 7 producerEpoch: 1 coordinatorEpoch: 3 currentTxnFirstOffset: OptionalLong[100] "
        "lastTimestamp: 9 firstSequence: 2 lastSequence: 4 lastOffset: 102 offsetDelta: 2 timestamp: 9",
    ),
    "leader-epoch-checkpoint": (b"0\n2\n1 0\n4 100\n", "epoch: 1 startOffset: 0"),
    "cleaner-offset-checkpoint": (b"0\n1\nt 3 99\n", "topic: t partition: 3 offset: 99"),
    "partition.metadata": (
        b"version: 0\ntopic_id: VZJuMZ_9QKOS91mJZjbFCg\n",
        "topic_id: VZJuMZ_9QKOS91mJZjbFCg",
    ),
    "meta.properties": (
        MetaProperties(cluster_id="c", node_id=4, directory_id=bytes(range(16))).encode(),
        "version: 1 cluster.id: c node.id: 4 directory.id: AAECAwQFBgcICQoLDA0ODw",
    ),
    "quorum-state": (
        QuorumState(leader_id=1, epoch=4, voted_id=2).encode(1),
        "leaderId: 1 leaderEpoch: 4 votedId: 2 votedDirectoryId: AAAAAAAAAAAAAAAAAAAAAA currentVoters: []",
    ),
    "recovery-point": (
        RecoveryPoint(offset=9, segment=3, position=70, start_offset=1, start_epoch=-1).encode(),
        "offset: 9 segment: 3 position: 70 startOffset: 1 startEpoch: -1 resetting: false epoch: -1",
    ),
    "known-committed": (
        Known(LogPosition(2, 50), (Acknowledged(bytes(16), 40, 2),)).encode(),
        "committedOffset: 50 epoch: 2",
    ),
}


CUT_UNNOTICED = ("leader-epoch-checkpoint", "cleaner-offset-checkpoint", "meta.properties", "known-committed")


@pytest.mark.parametrize("name", OWN)
def test_a_file_is_shown_and_half_of_it_is_damage_with_a_place(tmp_path: Path, name: str) -> None:
    data, first = OWN[name]
    path = tmp_path / name
    path.write_bytes(data)
    result = dumped(path)
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout.splitlines()[:2] == [f"Dumping {path}", first]
    for cut in range(1, 8):
        path.write_bytes(data[:-cut])
        result = dumped(path)
        # A text may still be one without its end.
        assert result.exit_code == 1 or name in CUT_UNNOTICED or cut == 1, cut
        if result.exit_code:
            assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
            assert result.stderr.startswith(f"metaquorum: {path}: ")
            assert result.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("name", "data", "problem"),
    [
        (".index", encode_index(100, [105, 105], [0, 90]), "byte 8: expected offset and position above 5"),
        (".index", encode_index(100, [105, 106], [90, 90]), "byte 8: expected offset and position above 5"),
        (".index", encode_index(100, [99], [0]), "byte 0: expected offset and position above -1"),
        (".index", encode_index(100, [100], [0]) + bytes(16) + b"\1", "byte 24: expected an entry of 8"),
        (".index", encode_index(100, [101, 100, 102], [0, 0, 9]), "byte 16: expected the zeros of entries"),
        (".timeindex", encode_times(100, [6, 6], [102, 105]), "byte 12: expected a time above 6"),
        (".timeindex", encode_times(100, [6, 7], [102, 101]), "byte 12: expected a time above 6 and an off"),
        (".txnindex", b"\0\1" + encode_aborted([(7, 1, 103, 4)])[2:], "byte 0: expected version 0, found 1"),
        (".txnindex", encode_aborted([(7, 1, 99, 4)]), "byte 0: expected offsets that end above 99"),
        (".txnindex", encode_aborted([(7, 104, 103, 4)]), "byte 0: expected offsets that end above 99"),
        (".snapshot", PRODUCERS[:9] + b"\xff" + PRODUCERS[10:], "does not match its CRC"),
    ],
)
def test_entries_that_cannot_be_are_damage(tmp_path: Path, name: str, data: bytes, problem: str) -> None:
    path = tmp_path / f"{BASE}{name}"
    path.write_bytes(data)
    result = dumped(path)
    assert result.exit_code == 1
    assert problem in result.stderr
    assert result.stderr.count("\n") == 1


def test_the_place_of_damage_counts_from_the_beginning_of_a_long_file(tmp_path: Path) -> None:
    path = tmp_path / f"{BASE}.index"
    count = 10_000
    path.write_bytes(encode_index(100, [*range(100, 100 + count), 105], [*range(count), count]))
    result = dumped(path)
    assert result.exit_code == 1
    assert f"byte {8 * count}: expected offset and position above {count - 1}" in result.stderr
    assert len(result.stdout.splitlines()) == 1 + count


def test_what_kafka_set_aside_for_an_index_is_not_shown(tmp_path: Path) -> None:
    path = tmp_path / f"{BASE}.index"
    path.write_bytes(encode_index(100, [100, 105], [0, 90]) + bytes(10 << 20))
    assert dumped(path).stdout.splitlines()[1:] == ["offset: 100 position: 0", "offset: 105 position: 90"]
    path.write_bytes(b"")
    assert dumped(path).stdout.splitlines()[1:] == [f"{path} is empty."]


def test_an_index_entry_that_hides_records_is_damage(tmp_path: Path) -> None:
    first = encode_batch(base_offset=100, leader_epoch=1, timestamp_ms=5, values=[b"a"] * 3)
    second = encode_batch(base_offset=103, leader_epoch=1, timestamp_ms=5, values=[b"b"] * 2)
    (tmp_path / f"{BASE}.log").write_bytes(first + second)
    path = tmp_path / f"{BASE}.index"
    for offsets, positions, problem in (
        ([102, 104], [0, len(first)], ""),
        ([100, 103], [0, len(first)], ""),  # as earlier releases wrote it
        ([101, 102], [0, len(first)], "entry 2: expected a batch from offset 102 or below, found 103"),
        ([102, 104], [0, len(first) + 1], f"entry 2: expected a batch at byte {len(first) + 1}"),
        ([102, 104], [0, 9999], "entry 2: expected a batch at byte 9999"),
    ):
        path.write_bytes(encode_index(100, offsets, positions))
        result = dumped(path)
        assert result.exit_code == bool(problem)
        assert problem in result.stderr
        assert result.stdout.count("position") == 2


def test_a_segment_from_elsewhere_is_read_as_the_topic_that_is_named(tmp_path: Path) -> None:
    key = b"\0\1\0\1g\0\1t\0\0\0\2"
    data = encode_batch(base_offset=100, leader_epoch=1, timestamp_ms=5, values=[None], keys=[key])
    path = tmp_path / f"{BASE}.log"
    path.write_bytes(data)
    assert dumped(path).exit_code == 1
    result = dumped(path, "--topic", "__consumer_offsets")
    assert result.stdout.endswith("key: offset_commit::group=g,partition=t-2 payload: <DELETE>\n")
    batch = json.loads(dumped(tmp_path, "--topic", "__consumer_offsets", "--json").stdout)
    assert (batch["baseOffset"], batch["isvalid"], batch["deleteHorizonMs"]) == (100, True, None)
    assert batch["records"][0]["key"] == {"type": "1", "data": {"group": "g", "topic": "t", "partition": 2}}
    assert batch["records"][0]["value"] is None
    plain = json.loads(dumped(path, "--topic", "t", "--json").stdout)["records"][0]
    assert (plain["key"], plain["value"]) == (key.decode(), None)


def test_a_batch_that_cannot_be_is_damage_and_no_traceback(tmp_path: Path) -> None:
    good = encode_batch(base_offset=100, leader_epoch=1, timestamp_ms=5, values=[b"a"])
    directory = tmp_path / "t-0"
    directory.mkdir()
    path = directory / f"{BASE}.log"
    for at in range(len(good)):
        for bit in (0x01, 0x07, 0x80):
            path.write_bytes(good[:at] + bytes((good[at] ^ bit,)) + good[at + 1 :] + good)
            for options in ((), ("--json",)):
                result = dumped(path, *options)
                assert result.exception is None or isinstance(result.exception, SystemExit), result.exc_info
                # No checksum covers base offset and leader epoch.
                assert result.exit_code == 1 or at < 8 or 12 <= at < 16, (at, bit, result.stdout)


# Partition logs as text: line by line what kafka-dump-log prints of the recorded ones.


SHARES = re.compile(r'"assignment":"\{(.*)\}"')
PARTITIONS = re.compile(r"partitions=\[([^]]*)\]")


def lines_of(path: Path) -> list[str]:
    data, position, lines = path.read_bytes(), 0, list[str]()
    topic = path.parent.name.rpartition("-")[0]
    while position < len(data):
        header = parse_header(data, position)
        batch = data[position : position + header.size_bytes]
        lines += batch_lines(topic, header, batch, position)
        position += header.size_bytes
    return lines


def in_any_order(line: str) -> str:
    """Kafka's members of a group, and partitions of a transaction, come in the order of a hash table."""
    line = PARTITIONS.sub(lambda found: str(sorted(found[1].split(","))), line)
    return SHARES.sub(lambda found: str(sorted(re.findall(r"[^,=]+=\[[^]]*\]", found[1]))), line)


@pytest.mark.shared_data
def test_every_recorded_partition_log_is_printed_as_kafka_prints_it(shared_data: Path) -> None:
    wire = shared_data / "kafka-3.7-wire"
    compared = 0
    for path in sorted([*wire.glob("logs/*/d*/*/*.log"), *wire.glob("compaction/*/*/*/*.log")]):
        dump = path.with_name(path.name + ".dump.txt")
        if path.parent.name.startswith("__cluster_metadata") or not dump.exists():
            continue
        printed = dump.read_text(errors="replace").split("\n")
        theirs = [line for line in printed if line.startswith(("baseOffset:", "| offset:"))]
        ours = [
            line for line in "\n".join(lines_of(path)).split("\n") if line.startswith(("baseOffset:", "| "))
        ]
        assert list(map(in_any_order, ours)) == list(map(in_any_order, theirs)), path
        compared += len(theirs)
    assert compared > 1_000


@pytest.mark.shared_data
def test_log_dump_prints_partitions_and_says_what_is_damaged(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "kafka-3.7-wire/logs/broker-0-after-all-clients/d1/__consumer_offsets-0"
    directory = tmp_path / "__consumer_offsets-0"
    directory.mkdir()
    segment = directory / "00000000000000000000.log"
    data = (source / segment.name).read_bytes()
    segment.write_bytes(data)
    whole = CliRunner().invoke(main, ["log", "dump", str(directory)])
    assert whole.exit_code == 0
    theirs = (source / f"{segment.name}.dump.txt").read_text().splitlines()[2:]
    assert list(map(in_any_order, whole.stdout.splitlines()[1:])) == list(map(in_any_order, theirs))
    shown = CliRunner().invoke(main, ["log", "dump", str(directory), "--json"])
    first, second = (json.loads(line) for line in shown.stdout.splitlines()[:2])
    group = first["records"][0]
    assert group["key"] == {"type": "2", "data": {"group": "life-group"}}
    (member,) = group["value"]["data"]["members"]
    assert member["subscription"]["topics"] == ["life"]
    assert member["assignment"]["assignedPartitions"] == [{"topic": "life", "partitions": [0, 1, 2, 3]}]
    commit = second["records"][0]
    assert commit["key"]["data"] == {"group": "life-group", "topic": "life", "partition": 3}
    assert list(commit["value"]["data"]) == ["offset", "leaderEpoch", "metadata", "commitTimestamp"]
    some = CliRunner().invoke(main, ["log", "dump", str(segment), "--from-offset", "2", "--to-offset", "4"])
    assert [line.split()[2] for line in some.stdout.splitlines() if line.startswith("| ")] == list("1234")
    refused = CliRunner().invoke(main, ["log", "dump", str(segment), "--follow"])
    assert refused.exit_code == 2
    segment.write_bytes(data[:-3])
    torn = CliRunner().invoke(main, ["log", "dump", str(directory)])
    assert torn.exit_code == 1
    assert "the last batch is torn, 3 of its bytes are missing" in torn.stderr
    segment.write_bytes(data[:100] + b"\xff" + data[101:])
    damaged = CliRunner().invoke(main, ["log", "dump", str(directory)])
    assert damaged.exit_code == 1
    assert "isvalid: false" in damaged.stdout
    assert "expected CRC" in damaged.stderr
