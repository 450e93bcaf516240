"""Kafka's clients with what `metaquorum local up` starts: the first lines of docs/clients.md, and more."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import confluent_kafka
import confluent_kafka.admin as rd
import pytest

from tests.e2e.kafkajs import node_environment
from tests.e2e.processes import run_cli

pytestmark = pytest.mark.e2e
REPOSITORY = Path(__file__).resolve().parents[2]
USUAL = "127.0.0.1:19490"


@pytest.fixture(name="directory", scope="module")
def fixture_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("local") / "cluster"


@pytest.fixture(name="bootstrap", scope="module")
def fixture_bootstrap(directory: Path) -> Iterator[str]:
    printed = run_cli(
        "local", "up", "-d", directory, "--controllers", 1, "--brokers", 2, "--free-ports"
    ).stdout
    try:
        status = json.loads(run_cli("local", "status", "-d", directory, "--json").stdout)
        assert f"bootstrap.servers={status['bootstrapServers']}\n" in printed
        created = ("topics", "create", "orders", "--replication-factor", 1)
        run_cli(*created, "--bootstrap", status["bootstrapServers"])
        yield status["bootstrapServers"]
    finally:
        run_cli("local", "down", "-d", directory)


def steps(language: str, client: str) -> str:
    """The lines of the page for a client."""
    page = (REPOSITORY / "docs/clients.md").read_text()
    blocks = re.findall(rf"```{language}\n(.*?)```", page, re.DOTALL)
    return next(block for block in blocks if client in block)


@pytest.mark.parametrize(
    ("client", "output"),
    [("confluent_kafka", "b'a book'"), ("from kafka ", "b'a book'"), ("aiokafka", "RecordMetadata")],
)
def test_python_clients(bootstrap: str, client: str, output: str) -> None:
    words = [sys.executable, "-c", steps("python", client).replace(USUAL, bootstrap)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert output in done.stdout, done.stderr


def test_kafkajs(bootstrap: str) -> None:
    environment = node_environment()
    words = ["node", "-e", steps("javascript", "kafkajs").replace(USUAL, bootstrap.partition(",")[0])]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, env=environment, check=False)
    assert "baseOffset" in done.stdout, done.stdout + done.stderr


def test_a_topic_appears_when_a_producer_names_it(bootstrap: str) -> None:
    failed: list[Any] = []
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    producer.produce("by-itself", b"x", on_delivery=lambda error, _: error and failed.append(error))
    assert producer.flush(30) == 0
    assert failed == []


# ---- administration


def outcomes(futures: dict[Any, Any]) -> list[str | None]:
    """Kafka's name for the error of each part; None: it was carried out."""
    found = [future.exception(timeout=30) for future in futures.values()]
    return [None if error is None else error.args[0].name() for error in found]


def test_confluent_kafka_administers_topics(bootstrap: str) -> None:
    client = rd.AdminClient({"bootstrap.servers": bootstrap})
    wanted = [rd.NewTopic("rd", 2, 1, config={"retention.ms": "1000"}), rd.NewTopic("no good", 1, 1)]
    assert outcomes(client.create_topics(wanted)) == [None, "TOPIC_EXCEPTION"]
    assert outcomes(client.create_topics(wanted[:1])) == ["TOPIC_ALREADY_EXISTS"]
    assert outcomes(client.create_partitions([rd.NewPartitions("rd", 5)])) == [None]
    topic = rd.ConfigResource(rd.ResourceType.TOPIC, "rd")
    change = rd.ConfigEntry("cleanup.policy", "compact", incremental_operation=rd.AlterConfigOpType.APPEND)
    asked = rd.ConfigResource(rd.ResourceType.TOPIC, "rd", incremental_configs=[change])
    assert outcomes(client.incremental_alter_configs([asked])) == [None]
    configs = client.describe_configs([topic])[topic].result(timeout=30)
    assert (configs["retention.ms"].value, configs["cleanup.policy"].value) == ("1000", "delete,compact")
    assert configs["segment.ms"].is_default
    first = [confluent_kafka.TopicPartition("rd", 0)]
    elected = client.elect_leaders(confluent_kafka.ElectionType.PREFERRED, first).result(timeout=30)
    assert [each.name() for each in elected.values()] == ["ELECTION_NOT_NEEDED"]
    assert outcomes(client.delete_topics(["rd", "never"])) == [None, "UNKNOWN_TOPIC_OR_PART"]


def test_confluent_kafka_deletes_records(bootstrap: str) -> None:
    client = rd.AdminClient({"bootstrap.servers": bootstrap})
    assert outcomes(client.create_topics([rd.NewTopic("short", 1, 2)])) == [None]
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in range(10):
        producer.produce("short", b"%d" % number)
        producer.flush(30)
    part = confluent_kafka.TopicPartition("short", 0, 7)
    (future,) = client.delete_records([part]).values()
    assert future.result(timeout=30).low_watermark == 7
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "none"})
    assert consumer.get_watermark_offsets(part, timeout=20) == (7, 10)
    consumer.assign([confluent_kafka.TopicPartition("short", 0, confluent_kafka.OFFSET_BEGINNING)])
    message = consumer.poll(20)
    assert message is not None and (message.offset(), message.value()) == (7, b"7")
    consumer.close()
    beyond = confluent_kafka.TopicPartition("short", 0, 99)
    assert outcomes(client.delete_records([beyond])) == ["OFFSET_OUT_OF_RANGE"]


def test_a_change_waits_for_a_controller(bootstrap: str, directory: Path) -> None:
    """kill -9 of the only controller: brokers hold what they forward until there is one again."""
    nodes = json.loads(run_cli("local", "status", "-d", directory, "--json").stdout)["nodes"]
    os.kill(next(node["pid"] for node in nodes if node["node"] == "controller-3000"), signal.SIGKILL)
    client = rd.AdminClient({"bootstrap.servers": bootstrap})
    created = client.create_topics([rd.NewTopic("patient", 1, 1)], operation_timeout=60, request_timeout=60)
    run_cli("local", "up", "-d", directory)
    assert outcomes(created) == [None]


def test_confluent_kafka_administers_access(bootstrap: str) -> None:
    client = rd.AdminClient({"bootstrap.servers": bootstrap})
    topic, literal = rd.ResourceType.TOPIC, rd.ResourcePatternType.LITERAL
    allow, read = rd.AclPermissionType.ALLOW, rd.AclOperation.READ
    entry = rd.AclBinding(topic, "orders", literal, "User:bob", "*", read, allow)
    bobs = rd.AclBindingFilter(topic, "orders", literal, "User:bob", None, read, allow)
    assert outcomes(client.create_acls([entry])) == [None]
    assert client.describe_acls(bobs).result(timeout=30) == [entry]
    assert client.delete_acls([bobs])[bobs].result(timeout=30) == [entry]
    info = rd.ScramCredentialInfo(rd.ScramMechanism.SCRAM_SHA_512, 4096)
    change = rd.UserScramCredentialUpsertion("carol", info, b"secret")
    assert outcomes(client.alter_user_scram_credentials([change])) == [None]
    found = client.describe_user_scram_credentials(["carol"])["carol"].result(timeout=30)
    assert [each.mechanism for each in found.scram_credential_infos] == [info.mechanism]


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("topics create -t py --num-partitions 3 --replication-factor 1", "py"),
        ("topics describe -t py", "py"),
        ("configs describe -r topic -n orders", "retention.ms"),
        ("cluster describe", "cluster_id"),
        ("cluster describe-quorum", "3000"),
        ("cluster describe-log-dirs", "data-1"),
        ("topics delete -t py", "py"),
    ],
)
def test_kafka_pythons_commands(bootstrap: str, command: str, shown: str) -> None:
    words = [sys.executable, "-m", "kafka.admin", "-b", bootstrap, *command.split()]
    done = subprocess.run(words, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0 and shown in done.stdout, done.stdout + done.stderr
