"""The report of a failed test, and what tests read without a client: messages, metadata log, timeline."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from confluent_kafka import Producer

from metaquorum.testing import Cluster, ClusterError
from tests.unit.testing.test_cluster import consumed, produced
from tests.unit.testing.test_plugin import run

FAILING = """
import asyncio
from confluent_kafka import Producer
from metaquorum.testing import Cluster

def produced(servers, topic):
    producer = Producer({"bootstrap.servers": servers})
    producer.produce(topic, "a")
    producer.flush(20)

def test_before_it(kafka):
    kafka.topic("earlier")

def test_of_the_shared_one(kafka):
    topic = kafka.topic("orders")
    with kafka.cluster.fault("Produce", error="NOT_LEADER_OR_FOLLOWER", times=2):
        produced(kafka.bootstrap_servers, topic)
    assert False

def test_of_its_own_cluster():
    with Cluster() as cluster:
        cluster.create_topic("own-orders")
        assert False

def test_that_passes(kafka):
    kafka.topic("passing")

async def _fails():
    async with Cluster() as cluster:
        await asyncio.to_thread(cluster.create_topic, "async-orders")
        assert False

def test_of_an_asynchronous_one():
    asyncio.run(_fails())
"""


def test_a_failed_test_shows_what_the_cluster_did_and_keeps_its_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kept").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "kept"))
    found = run(tmp_path, FAILING)
    assert "3 failed, 2 passed" in found.stdout, found.stdout + found.stderr
    shared, own, asynchronous = re.split(r"-+ Kafka cluster -+\n", found.stdout)[1:]
    assert re.search(r"fault +requests Produce: error=NOT_LEADER_OR_FOLLOWER", shared)
    errors = re.search(r"error +Produce of rdkafka at broker 0: NOT_LEADER_OR_FOLLOWER \(orders-", shared)
    assert errors is not None and "(2 times)" in shared
    assert re.search(r"metadata .*orders-\d+", shared)
    assert "orders-" in shared and "earlier-" not in shared, "what happened during the test"
    assert "own-orders" in own and "async-orders" in asynchronous
    commands = re.findall(r"^metaquorum log timeline (.+)$", found.stdout, re.MULTILINE)
    assert len(commands) == 3
    command = [sys.executable, "-m", "metaquorum.cli", "log", "timeline", commands[1]]
    told = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
    assert "own-orders" in told.stdout, told.stderr


def test_groups_transactions_and_faults_are_on_one_axis() -> None:
    with Cluster() as cluster:
        topic = cluster.create_topic("orders", 2)
        producer = transactional(cluster, "tx")
        producer.begin_transaction()
        producer.produce(topic, "a", partition=0)
        producer.commit_transaction(20)
        assert consumed(cluster.bootstrap_servers, topic, 1) == ["a"]
        with cluster.stop(0):
            pass
        lines = cluster.timeline()
        order = ["transaction tx: producer", "transaction tx: commit", "group g is rebalanced", "was stopped"]
        places = [next(at for at, line in enumerate(lines) if text in line) for text in order]
        assert places == sorted(places)
        assert [line[:12] for line in lines] == sorted(line[:12] for line in lines)
        assert "MEMBER_ID_REQUIRED" not in "".join(lines), "a step of the protocol"
        assert "COORDINATOR_NOT_AVAILABLE" not in "".join(lines), "a client would ask again in half a second"
        short = cluster.timeline(5)
        assert len(short) == 5 and short[-1] == lines[-1] and "earlier events" in short[0]


def transactional(cluster: Cluster, name: str) -> Producer:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "transactional.id": name})
    producer.init_transactions(20)
    return producer


def test_messages_have_offsets_headers_and_the_state_of_their_transaction() -> None:
    with Cluster() as cluster:
        topic = cluster.create_topic("orders")
        plain = Producer({"bootstrap.servers": cluster.bootstrap_servers, "compression.type": "gzip"})
        plain.produce(topic, "plain", key="k", headers={"h": b"x"})
        plain.flush(20)
        producer = transactional(cluster, "tx")
        for value, ends in (("kept", producer.commit_transaction), ("gone", producer.abort_transaction)):
            producer.begin_transaction()
            producer.produce(topic, value)
            producer.flush(20)
            ends(20)
        producer.begin_transaction()
        producer.produce(topic, "open")
        producer.flush(20)
        plain.produce(topic, "behind")
        plain.flush(20)
        found = cluster.messages(topic)
        states = [(each.offset, each.value, each.transaction) for each in found]
        assert states == [
            (0, b"plain", None),
            (1, b"kept", "committed"),
            (3, b"gone", "aborted"),
            (5, b"open", "open"),
            (6, b"behind", None),
        ]
        assert (found[0].key, found[0].headers, found[0].partition) == (b"k", (("h", b"x"),), 0)
        assert [each.value for each in cluster.consume_all(topic)] == [b"plain", b"kept"]
        producer.abort_transaction(20)
        cluster.wait_for_no_transactions()
        assert [each.value for each in cluster.consume_all(topic)] == [b"plain", b"kept", b"behind"]
        with pytest.raises(ClusterError, match="no partition none-0"):
            cluster.messages("none")


def test_many_messages_are_read_whole() -> None:
    with Cluster(brokers=2, controllers=1) as cluster:
        topic = cluster.create_topic("orders", 2)
        values = [str(number) + "x" * 20_000 for number in range(500)]
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers})
        for number, value in enumerate(values):
            producer.produce(topic, value, partition=number % 2)
        producer.flush(60)
        found = sorted(int((each.value or b"").rstrip(b"x")) for each in cluster.consume_all(topic))
        assert found == list(range(500))


def test_the_metadata_log_of_each_node_is_opened_and_saved(tmp_path: Path) -> None:
    with Cluster(brokers=1, controllers=1) as cluster:
        cluster.create_topic("orders")
        produced(cluster.bootstrap_servers, "orders", ["a"])
        for log in (cluster.log(), cluster.log(0)):
            records = [each.record for item in log.items() for each in getattr(item, "records", ())]
            assert any(getattr(record, "name", None) == "orders" for record in records)
        cluster.save(tmp_path / "saved")
    import metaquorum

    saved = metaquorum.open_log(tmp_path / "saved" / "controller-3000")
    assert saved.end_offset > 10
