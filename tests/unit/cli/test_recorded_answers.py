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


def test_configs(node: str) -> None:
    assert run(node, "configs", "describe", "topic", "ver2").splitlines() == [
        "Dynamic configs for topic ver2 are:",
        "  retention.ms=-1 sensitive=false synonyms={}",
    ]
    everything = json.loads(run(node, "configs", "describe", "topic", "ver2", "--all", "--json"))["configs"]
    assert [(each["name"], each["source"]) for each in everything] == [
        ("cleanup.policy", "DEFAULT_CONFIG"),
        ("retention.ms", "DYNAMIC_TOPIC_CONFIG"),
    ]
    changed = run(node, "configs", "alter", "topic", "ver2", "--set", "retention.ms=5")
    assert changed == "topic ver2: applied\n"


def test_access(node: str) -> None:
    entries = json.loads(run(node, "acls", "list", "--json"))
    assert len(entries) == 10
    assert {
        "resourceType": "TOPIC",
        "resourceName": "f1",
        "patternType": "LITERAL",
        "principal": "User:alice",
        "host": "*",
        "operation": "WRITE",
        "permissionType": "DENY",
    } in entries
    on_topic = ("--resource-type", "topic", "--resource-name", "x")
    assert run(node, "acls", "add", "User:x", *on_topic) == "User:x: in force\n"
    credentials = "SCRAM-SHA-256=iterations=4096"
    assert run(node, "users", "scram", "list").splitlines() == [
        f"SCRAM credential configs for user-principal 'alice' are {credentials}, "
        "SCRAM-SHA-512=iterations=4096",
        f"SCRAM credential configs for user-principal 'carol' are {credentials}",
    ]
    assert json.loads(run(node, "quotas", "describe", "--json")) == [
        {
            "entity": {"client-id": "c1", "user": "erin"},
            "quotas": {"consumer_byte_rate": 2000000.0, "producer_byte_rate": 1000000.0},
        },
        {"entity": {"ip": "127.0.0.9"}, "quotas": {"connection_creation_rate": 50.0}},
    ]
    changed = run(node, "quotas", "alter", "--user", "x", "--set", "producer_byte_rate=1")
    assert changed == "user x: applied\n"


def test_partitions(node: str) -> None:
    elected = run(node, "partitions", "elect", "--election", "preferred", "--all")
    assert elected == "ver2-0: Leader election not needed for topic partition.\n"
    assert run(node, "partitions", "reassignments") == "there is no ongoing reassignment\n"
    assert run(node, "partitions", "add", "v2-ct-3", "--count", "3") == "v2-ct-3: has 3 partitions\n"


def test_features(node: str) -> None:
    assert run(node, "features", "describe") == (
        "Feature: metadata.version\tSupportedMinVersion: 3.0-IV1\tSupportedMaxVersion: 3.7-IV4\t"
        "FinalizedVersionLevel: 3.7-IV4\tEpoch: 2428\n"
    )
    at_that_level = run(node, "features", "upgrade", "metadata.version=19")
    assert at_that_level == "metadata.version: finalized at 3.7-IV4\n"


def test_the_quorum_and_the_brokers(node: str) -> None:
    found = json.loads(run(node, "quorum", "describe", "--json"))
    assert (found["clusterId"], found["leaderId"], found["leaderEpoch"]) == (
        "d2lyZS1jYXB0dXJlLTM3MA",
        3000,
        23,
    )
    assert (found["highWatermark"], found["currentVoters"]) == (2481, [3000, 3001, 3002])
    assert found["currentObservers"] == [0, 1, 2]
    table = run(node, "quorum", "describe", "--replication").splitlines()
    assert [line.split("\t")[0].strip() for line in table] == [
        "NodeId",
        "3000",
        "3001",
        "3002",
        "0",
        "1",
        "2",
    ]
    rows = [line.split() for line in run(node, "brokers", "list").splitlines()[1:]]
    assert [row[:2] for row in rows] == [["0", "running"], ["1", "running"], ["2", "running"]]
    described = run(node, "brokers", "describe", "1").splitlines()
    assert described == [
        "Broker:       1",
        "State:        running",
        "Rack:         rack-1",
        "Endpoints:    127.0.0.1:41011",
    ]
