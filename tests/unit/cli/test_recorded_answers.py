"""Administration commands on the answers of Apache Kafka 3.7: what was recorded is read and printed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from metaquorum.cli.main import main
from tests.unit.kafka.kafka_node import recorded_frames, replaying


@pytest.fixture(name="node", scope="module")
def fixture_node(shared_data: Path) -> Iterator[str]:
    """The address of a node that answers as Kafka's did, once in each version."""
    with replaying(recorded_frames(shared_data)) as address:
        yield address


def run(node: str, *arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(main, [*arguments, "--bootstrap", node])
    assert result.exit_code == code, result.output
    return result.stdout


def test_topics(node: str) -> None:
    listed = json.loads(run(node, "topics", "list", "--json"))
    assert len(listed) > 20 and [each["name"] for each in listed] == sorted(each["name"] for each in listed)
    found = {each["name"]: each for each in listed}
    assert found["__consumer_offsets"]["partitionCount"] == 2
    described = json.loads(run(node, "topics", "describe", "--json"))
    assert [(each["name"], each["topicId"]) for each in described] == [
        (each["name"], each["topicId"]) for each in listed
    ]
    assert all(each["partitions"][0]["replicas"] for each in described)
    assert {each["name"]: each["configs"] for each in described}["ver2"] == {"retention.ms": "-1"}
    made = CliRunner().invoke(main, ["topics", "create", "ver2", "--bootstrap", node])
    assert (made.exit_code, made.stdout) == (1, "")
    assert made.stderr == "metaquorum: ver2: TOPIC_ALREADY_EXISTS: Topic 'ver2' already exists.\n"
    assert run(node, "topics", "delete", "v2-ct-6") == "v2-ct-6: deleted\n"
