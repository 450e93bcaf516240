"""`metaquorum log`: what Kafka's own dump says, filters, damage, and never a byte written."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from pathlib import Path

import pytest

from metaquorum.cli.log.input.follow import follow
from metaquorum.cli.log.input.select import record_type
from metaquorum.cli.log.input.source import open_reader
from metaquorum.metadata.records.codec import encode
from metaquorum.metadata.records.schema import CONTROL_SCHEMAS, RECORD_SCHEMAS
from metaquorum.metadata.records.types import NoOpRecord
from metaquorum.storage.batches.batch import RecordBatch, encode_batch
from metaquorum.storage.errors import LogTruncatedError
from metaquorum.storage.log.reader import Damage
from tests.unit.cli.running import run

DATA = Path(__file__).resolve().parents[2] / "data" / "kafka-3.7-upgrade"
SEGMENT = DATA / "00000000000000000000.log"
CHECKPOINT = DATA / "00000000000000000176-0000000001.checkpoint"
FILES = [
    SEGMENT,
    CHECKPOINT,
    DATA / "00000000000000000082-0000000001.checkpoint",
    DATA / "bootstrap.checkpoint",
]
KAFKA_LINE = re.compile(
    r"\| offset: (\d+) CreateTime: (\d+) .*? (?:payload: (\{.*\})|(SnapshotHeader|SnapshotFooter) .*)$"
)


def lines(*args: object) -> list[dict[str, object]]:
    result = run("log", "dump", "--json", *args)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def fingerprint(directory: Path) -> dict[str, tuple[str, int]]:
    return {
        path.name: (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
        for path in sorted(directory.iterdir())
    }


@pytest.fixture
def log_copy(tmp_path: Path) -> Path:
    directory = tmp_path / "__cluster_metadata-0"
    directory.mkdir()
    for path in DATA.iterdir():
        if path.suffix in (".log", ".checkpoint"):
            shutil.copy(path, directory / path.name)
    return directory


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_payload_is_what_kafka_printed(path: Path) -> None:
    ours = {line["offset"]: line for line in lines(path)}
    compared = 0
    for text in Path(f"{path}.dump.txt").read_text().splitlines():
        match = KAFKA_LINE.match(text)
        if match is None or match[3] is None:
            continue
        line = ours[int(match[1])]
        assert line["createTime"] == int(match[2])
        printed = json.loads(match[3])
        assert {key: line[key] for key in ("type", "version", "data")} == printed
        assert json.dumps(line["data"]) == json.dumps(printed["data"]), "the fields are in another order"
        compared += 1
    assert compared == sum("payload:" in text for text in Path(f"{path}.dump.txt").read_text().splitlines())
    assert compared > 0


def test_the_keys_of_a_line_come_in_the_documented_order() -> None:
    line = lines(SEGMENT, "--to-offset", 1)[1]
    assert list(line) == [
        "file",
        "offset",
        "leaderEpoch",
        "createTime",
        "batchBaseOffset",
        "type",
        "version",
        "data",
    ]
    assert line == {
        "file": str(SEGMENT),
        "offset": 1,
        "leaderEpoch": 1,
        "createTime": 1795234143029,
        "batchBaseOffset": 1,
        "type": "FEATURE_LEVEL_RECORD",
        "version": 0,
        "data": {"name": "metadata.version", "featureLevel": 7},
    }


def test_control_records_show_their_type_and_fields() -> None:
    first = lines(SEGMENT, "--to-offset", 0)[0]
    assert first["type"] == "LEADER_CHANGE"
    assert first["data"] == {
        "version": 0,
        "leaderId": 3000,
        "voters": [{"voterId": 3000}],
        "grantingVoters": [{"voterId": 3000}],
    }


def test_a_node_directory_stands_for_its_log(log_copy: Path) -> None:
    assert len(lines(log_copy.parent)) == len(lines(log_copy)) == len(lines(SEGMENT)) == 261


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--type", "topic"], {"TOPIC_RECORD"}),
        (["--type", "TOPIC_RECORD", "--type", "remove-topic"], {"TOPIC_RECORD"}),
        (["--type", "leader-change"], {"LEADER_CHANGE"}),
        (["--type", "LeaderChange"], {"LEADER_CHANGE"}),
        (["--type", "TopicRecord", "--type", "LeaderChangeMessage"], {"TOPIC_RECORD", "LEADER_CHANGE"}),
        (["--entity", "feature"], {"FEATURE_LEVEL_RECORD"}),
        (["--entity", "broker/1"], {"REGISTER_BROKER_RECORD", "BROKER_REGISTRATION_CHANGE_RECORD"}),
        (["--entity", "topic/u33"], {"TOPIC_RECORD", "PARTITION_RECORD", "PARTITION_CHANGE_RECORD"}),
        (["--entity", "topic/u33/2"], {"PARTITION_RECORD", "PARTITION_CHANGE_RECORD"}),
    ],
)
def test_filters_by_type_and_entity(options: list[str], expected: set[str]) -> None:
    assert {line["type"] for line in lines(SEGMENT, *options)} == expected


def test_every_type_has_its_name_its_short_name_and_kafkas_spelling() -> None:
    for schema in (*RECORD_SCHEMAS, *CONTROL_SCHEMAS):
        name = schema.type_name
        short = name.removesuffix("_RECORD")
        camel = "".join(word.capitalize() for word in short.split("_"))
        for spelling in (name, short.lower().replace("_", "-"), camel, f"{camel}Record", short.lower()):
            assert record_type(spelling) == name, spelling
    assert record_type("KRaftVersionRecord") == "KRAFT_VERSION"
    assert record_type("VotersRecord") == "KRAFT_VOTERS"
    with pytest.raises(ValueError, match="did you mean SNAPSHOT_HEADER"):
        record_type("SnapshotHeder")


def test_an_entity_filter_keeps_exactly_the_records_about_it() -> None:
    topic_id = next(line["data"]["topicId"] for line in lines(SEGMENT) if line["data"].get("name") == "u33")  # type: ignore[attr-defined, index]
    about = [line["offset"] for line in lines(SEGMENT) if line["data"].get("topicId") == topic_id]  # type: ignore[attr-defined]
    assert [line["offset"] for line in lines(SEGMENT, "--entity", "topic/u33")] == about
    seventh = [line["offset"] for line in lines(SEGMENT, "--entity", "topic/u33/2", "--from-offset", "20")]
    assert seventh
    assert set(seventh) < set(about)


def test_offset_and_time_bounds_are_inclusive() -> None:
    assert [line["offset"] for line in lines(SEGMENT, "--from-offset", 5, "--to-offset", 9)] == [
        5,
        6,
        7,
        8,
        9,
    ]
    by_ms = lines(SEGMENT, "--from-time", "1795234143029", "--to-time", "1795234143656")
    assert [line["offset"] for line in by_ms] == [1, 2, 3]
    by_text = lines(
        SEGMENT, "--from-time", "2026-11-21T04:09:03.029Z", "--to-time", "2026-11-21T05:09:03.656+01:00"
    )
    assert by_text == by_ms


def test_text_has_one_line_a_record_with_offset_time_epoch_type_and_fields() -> None:
    result = run("log", "dump", SEGMENT, "--from-offset", 1, "--to-offset", 1)
    assert result.stdout == (
        "       1  2026-11-21T04:09:03.029Z  epoch 1  FEATURE_LEVEL_RECORD v0"
        "  name=metadata.version featureLevel=7\n"
    )


def test_reading_writes_nothing(log_copy: Path) -> None:
    before = fingerprint(log_copy)
    for command in (["dump", log_copy], ["state", log_copy], ["timeline", log_copy]):
        assert run("log", *command).exit_code == 0
    assert fingerprint(log_copy) == before


def test_damage_in_the_middle_is_one_line_and_the_rest_is_shown(log_copy: Path) -> None:
    segment = log_copy / SEGMENT.name
    data = bytearray(segment.read_bytes())
    data[91 + 70] ^= 0xFF
    segment.write_bytes(data)
    result = run("log", "dump", "--json", log_copy)
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert f"{segment} at byte 91 (offset 1): expected CRC" in result.stderr
    assert [json.loads(line)["offset"] for line in result.stdout.splitlines()] == [0, *range(2, 261)]


@pytest.mark.parametrize(("first", "told"), [(0, True), (1, True), (2, False)])
def test_damage_before_what_is_shown_is_not_told_and_other_damage_is(
    log_copy: Path, first: int, told: bool
) -> None:
    segment = log_copy / SEGMENT.name
    data = bytearray(segment.read_bytes())
    data[91 + 70] ^= 0xFF
    segment.write_bytes(data)
    result = run("log", "dump", "--json", "--from-offset", str(first), log_copy)
    assert ("(offset 1): expected CRC" in result.stderr) is told


@pytest.mark.parametrize("cut", [1, 30, 60, 62])
def test_a_torn_tail_is_one_line(log_copy: Path, cut: int) -> None:
    segment = log_copy / SEGMENT.name
    segment.write_bytes(segment.read_bytes()[:-cut])
    result = run("log", "dump", log_copy)
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert str(segment) in result.stderr
    assert "(offset 260)" in result.stderr
    assert len(result.stdout.splitlines()) == 260


def unknown_record_log(path: Path, value: bytes) -> Path:
    known = encode(NoOpRecord(), 0)
    batches = (
        encode_batch(base_offset=0, leader_epoch=1, timestamp_ms=5, values=[known]),
        encode_batch(base_offset=1, leader_epoch=1, timestamp_ms=6, values=[value]),
        encode_batch(base_offset=2, leader_epoch=1, timestamp_ms=7, values=[known]),
    )
    path.write_bytes(b"".join(batches))
    return path


@pytest.mark.parametrize(
    ("value", "data"),
    [
        (bytes((1, 120, 0, 7, 8)), {"apiKey": 120, "body": "Bwg="}),
        (bytes((1, 2, 9, 1)), {"apiKey": 2, "body": "AQ=="}),
    ],
    ids=["type from the future", "version from the future"],
)
def test_an_unknown_record_is_shown_and_the_exit_code_says_so(
    tmp_path: Path, value: bytes, data: dict[str, object]
) -> None:
    path = unknown_record_log(tmp_path / SEGMENT.name, value)
    result = run("log", "dump", "--json", path)
    assert result.exit_code == 3
    found = [json.loads(line) for line in result.stdout.splitlines()]
    assert [line["type"] for line in found] == ["NO_OP_RECORD", "UNKNOWN_RECORD", "NO_OP_RECORD"]
    assert found[1]["data"] == data
    assert result.stderr.startswith("metaquorum: 1 record of a newer release")
    assert run("log", "state", path).exit_code == 3


def test_follow_ends_at_the_offset_that_was_asked_for(log_copy: Path) -> None:
    result = run("log", "dump", "--follow", "--to-offset", 3, log_copy)
    assert result.exit_code == 0
    assert len(result.stdout.splitlines()) == 4


@pytest.mark.parametrize("name", ["checkpoint", "log start to end"])
def test_the_state_at_a_checkpoint_is_what_the_log_before_it_makes(log_copy: Path, name: str) -> None:
    whole = json.loads(run("log", "state", "--json", SEGMENT, "--at", "176").stdout)
    if name == "checkpoint":
        found = json.loads(run("log", "state", "--json", CHECKPOINT).stdout)
    else:
        found = json.loads(run("log", "state", "--json", log_copy, "--at", "176").stdout)
    assert found == whole
    assert found["provenance"]["offset"] == 176
    assert len(found["broker"]) == 2


def test_the_state_at_a_time_is_the_one_before_the_next_record(log_copy: Path) -> None:
    by_time = json.loads(run("log", "state", "--json", log_copy, "--at", "2026-11-21T04:09:03.656Z").stdout)
    assert by_time == json.loads(run("log", "state", "--json", log_copy, "--at", "4").stdout)
    assert list(by_time["broker"]) == ["0"]


def test_one_branch_of_the_state(log_copy: Path) -> None:
    result = run("log", "state", log_copy, "--below", "topic/u33")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[0].startswith("topic/u33/topicId: ")
    assert len(result.stdout.splitlines()) == 4
    missing = run("log", "state", log_copy, "--below", "topic/nope")
    assert missing.exit_code == 1
    assert missing.stderr.startswith("metaquorum: no topic/nope in the state at offset 261")


def test_the_timeline_tells_the_story_with_offsets(log_copy: Path) -> None:
    result = run("log", "timeline", "--json", log_copy)
    events = [json.loads(line) for line in result.stdout.splitlines()]
    assert [event["offset"] for event in events] == sorted(event["offset"] for event in events)
    told = {(event["offset"], event["kind"], event["text"]) for event in events}
    assert {
        (0, "election", "controller 3000 leads (voters 3000)"),
        (12, "topic created", "u33, 3 partitions"),
        (152, "broker fenced", "broker 1 (was unfenced)"),
        (156, "broker registered", "broker 1 again, broker epoch 156"),
        (159, "broker unfenced", "broker 1 (was fenced)"),
        (217, "broker in controlled shutdown", "broker 0 (was unfenced)"),
    } <= told


# Following a log that grows, rolls and is cut back, and the events of a live log.


def batch(offset: int, epoch: int = 1) -> bytes:
    value = encode(NoOpRecord(), 0)
    return encode_batch(base_offset=offset, leader_epoch=epoch, timestamp_ms=offset, values=[value])


def append(path: Path, data: bytes) -> None:
    with path.open("ab") as file:
        file.write(data)


async def test_what_is_appended_is_given_once_and_in_order(tmp_path: Path) -> None:
    first, second = tmp_path / f"{0:020d}.log", tmp_path / f"{3:020d}.log"
    append(first, batch(0))
    seen: list[int] = []

    def emit(found: RecordBatch | Damage) -> bool:
        """The writer goes on each time that something was read: also half a batch, and a new segment."""
        assert isinstance(found, RecordBatch)
        seen.append(found.header.base_offset)
        match found.header.base_offset:
            case 0:
                append(first, batch(1) + batch(2)[:40])
            case 1:
                append(first, batch(2)[40:])
                append(second, batch(3, epoch=2))
        return found.header.base_offset == 3

    reader = open_reader(str(tmp_path))
    await follow(reader, str(tmp_path), emit, interval_s=0)
    reader.close()
    assert seen == [0, 1, 2, 3]


async def test_a_single_segment_is_followed_too(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.log"
    append(path, batch(0))
    seen: list[int] = []

    def emit(found: RecordBatch | Damage) -> bool:
        assert isinstance(found, RecordBatch)
        seen.append(found.header.base_offset)
        append(path, batch(found.header.next_offset))
        return len(seen) == 5

    reader = open_reader(str(path))
    await follow(reader, str(path), emit, interval_s=0)
    reader.close()
    assert seen == [0, 1, 2, 3, 4]


async def test_a_log_that_is_cut_back_ends_the_following(tmp_path: Path) -> None:
    path = tmp_path / f"{0:020d}.log"
    append(path, batch(0) + batch(1))

    def emit(found: RecordBatch | Damage) -> bool:
        assert isinstance(found, RecordBatch)
        if found.header.base_offset == 1:
            path.write_bytes(batch(0))
        return False

    reader = open_reader(str(path))
    with pytest.raises(LogTruncatedError):
        await follow(reader, str(path), emit, interval_s=0)
    reader.close()
