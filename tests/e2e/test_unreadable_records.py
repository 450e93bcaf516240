"""A record of `__consumer_offsets` that no coordinator can read, in the log before the broker starts: said
once, left out, and removed by the command that the log names."""

from __future__ import annotations

import json
import shlex
import struct
from pathlib import Path

import pytest
from click.testing import CliRunner

from metaquorum.broker.server.kafka.groups import partition_of
from metaquorum.cli.main import main
from metaquorum.storage.batches.batch import encode_batch, iter_batches
from tests.e2e.cluster import FAST_BROKERS, Cluster, Node
from tests.e2e.processes import wait_until

pytestmark = pytest.mark.e2e

OFFSETS, PARTITIONS = "__consumer_offsets", 2
GROUPS = tuple(next(f"g{n}" for n in range(99) if partition_of(f"g{n}", PARTITIONS) == at) for at in (0, 1))
"""A group of each partition."""


def text(value: str) -> bytes:
    return struct.pack(">h", len(value)) + value.encode()


def write_unreadable(broker: Node) -> int:
    """Appends a commit of a release to come to the log of the first group's partition; returns its offset."""
    segment = max((broker.data / f"{OFFSETS}-0").glob("*.log"))
    last = [*iter_batches(segment.read_bytes())][-1].header
    key = struct.pack(">h", 1) + text(GROUPS[0]) + text("orders") + struct.pack(">i", 7)
    value = struct.pack(">h", 30) + bytes(20)
    with segment.open("ab") as file:
        file.write(
            encode_batch(
                base_offset=last.last_offset + 1,
                leader_epoch=last.leader_epoch,
                timestamp_ms=last.max_timestamp_ms,
                keys=[key],
                values=[value],
            )
        )
    return last.last_offset + 1


class Site:
    def __init__(self, cluster: Cluster) -> None:
        (self.broker,) = cluster.brokers
        self.cluster = cluster
        self.bootstrap = cluster.bootstrap_servers
        self.broker.set_properties({"offsets.topic.num.partitions": str(PARTITIONS)})

    def run(self, *words: str, code: int = 0) -> str:
        result = CliRunner().invoke(main, [*words, "--bootstrap", self.bootstrap, "--timeout", "60"])
        assert result.exit_code == code, result.output
        return result.stderr if code else result.stdout

    def restart(self) -> None:
        """Starts the broker, and waits until it serves."""
        self.cluster.start()
        self.require_served()

    def require_served(self) -> None:
        """Both groups are listed, with what they have committed."""
        listed = {each["groupId"] for each in json.loads(self.run("groups", "list", "--json"))}
        assert listed == set(GROUPS)
        for group in GROUPS:
            (found,) = json.loads(self.run("groups", "describe", group, "--json"))
            committed = [
                (each["partition"], each["committedOffset"])
                for each in found["partitions"]
                if each["committedOffset"] is not None
            ]
            assert committed == [(0, 0)]

    def complaints(self) -> list[str]:
        """What the broker has logged of it since its start."""
        return [line for line in self.broker.lines() if "cannot be read" in line]


def test_a_record_that_cannot_be_read_is_named_and_can_be_discarded(tmp_path: Path) -> None:
    with Cluster(tmp_path, controllers=1, brokers=1, properties=FAST_BROKERS) as cluster:
        site = Site(cluster)
        cluster.start()
        cluster.create_topic("orders")
        for group in GROUPS:
            site.run("groups", "reset", group, "--to-offset", "0", "--topic", "orders", "--execute")
        site.broker.kill()
        offset = write_unreadable(site.broker)
        site.restart()
        wait_until(site.complaints, "the record to be named", timeout_s=60)
        (line,) = site.complaints()
        assert (
            f"{OFFSETS}-0: the record at offset {offset} with key OffsetCommit({GROUPS[0]}, orders, 7)"
            in line
        )
        assert " ERROR " in line

        command = shlex.split(line.partition("metaquorum groups discard")[2].split(" (")[0])
        assert command == ["--topic", OFFSETS, "--partition", "0", "--offset", str(offset)]
        readable = ("--topic", OFFSETS, "--partition", "0", "--offset", "0")
        assert "can be read: use --readable" in site.run("groups", "discard", *readable, code=1)
        nowhere = ("--topic", OFFSETS, "--partition", "0", "--offset", "99999")
        assert "99999" in site.run("groups", "discard", *nowhere, code=1)
        assert site.run("groups", "discard", *command) == f"Deleted the key of {OFFSETS}-0 offset {offset}.\n"

        assert site.broker.stop() == 0
        site.restart()
        assert site.complaints() == []
        cluster.assert_no_bugs()
