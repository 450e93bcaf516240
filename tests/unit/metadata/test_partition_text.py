"""Partition logs as text: line by line what kafka-dump-log prints of the recorded ones."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner

from metaquorum.cli.log.input.partition import batch_lines
from metaquorum.cli.main import main
from metaquorum.storage.batches.batch import parse_header

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
